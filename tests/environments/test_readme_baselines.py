"""What the environments' READMEs say of their solver, of chance, of form alone and of laziness is what `agentgym envs
baselines` prints."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import pytest

from agentgym import registry
from agentgym.errors import MissingDependency
from agentgym.evaluation.baselines import COLUMNS, BaselineScore, baselines, by_column
from agentgym.session import LocalSession, Session

FOLDER = Path(__file__).parents[2] / "environments" / "agentgym_environments"
HEAD = "| id | split | episodes | solver | random | format only | laziest |\n|---|---|---|---|---|---|---|\n"
LONGEST_S = 900
"""A table that takes longer is not measured again here; its solver is by the tests of its own."""


def tables() -> dict[str, dict[str, list[str]]]:
    """By id and split, the cells of its line: episodes, solver, random, format only, laziest."""
    cells_by_id: dict[str, dict[str, list[str]]] = {}
    for path in sorted(FOLDER.rglob("README.md")):
        for table in path.read_text(encoding="utf-8").split(HEAD)[1:]:
            for line in re.match(r"(\|.*\|\n)*", table)[0].splitlines():  # type: ignore[index]
                name, split, *cells = [cell.strip() for cell in line.strip("|").split("|")]
                cells_by_id.setdefault(name.strip("`"), {})[split] = cells
    return cells_by_id


TABLES = tables()


@pytest.mark.every
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", TABLES)
def test_the_readme_says_what_is_measured(name):
    async def open_session() -> Session:
        return LocalSession(registry.make(name))

    async def measured(episodes: int) -> dict[str, dict[str, BaselineScore]]:
        scores = []
        lazy = registry.lazy_policies(name)
        async for one in baselines(open_session, registry.get_spec(name), episodes=episodes, lazy_policies=lazy):
            assert not one.failed, one.error
            scores.append(one)
        return by_column(scores)

    episodes = max(int(cells[0]) for cells in TABLES[name].values())
    try:
        registry.make(name).close()  # loads what a process loads once
    except MissingDependency as error:
        pytest.skip(f"{error}")
    begun = time.monotonic()
    asyncio.run(measured(1))
    needed_s = (time.monotonic() - begun) * episodes
    if needed_s > LONGEST_S:
        pytest.skip(f"{name} would take {needed_s:.0f} s")
    found = asyncio.run(measured(episodes))
    cells = {
        split: [columns[column].cell() if column in columns else "–" for column in COLUMNS]
        for split, columns in found.items()
    }
    assert cells == {split: cells[1:] for split, cells in TABLES[name].items()}
