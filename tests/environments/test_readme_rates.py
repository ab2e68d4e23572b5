"""What the environments' READMEs say of their solver, of chance and of form alone is what `agentgym envs rates`
prints."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import pytest

from agentgym import registry
from agentgym.errors import MissingDependency
from agentgym.evaluation.baselines import rates
from agentgym.session import LocalSession, Session

FOLDER = Path(__file__).parents[2] / "environments" / "agentgym_environments"
HEAD = "| id | split | episodes | solver | random | format only |\n|---|---|---|---|---|---|\n"
LONGEST_S = 900
"""A table that takes longer is not measured again here; its solver is by the tests of its own."""


def tables() -> dict[str, dict[str, list[str]]]:
    """By id and split, the cells of its line: episodes, solver, random, format only."""
    rates: dict[str, dict[str, list[str]]] = {}
    for path in sorted(FOLDER.rglob("README.md")):
        for table in path.read_text(encoding="utf-8").split(HEAD)[1:]:
            for line in re.match(r"(\|.*\|\n)*", table)[0].splitlines():  # type: ignore[index]
                name, split, *cells = [cell.strip() for cell in line.strip("|").split("|")]
                rates.setdefault(name.strip("`"), {})[split] = cells
    return rates


RATES = tables()


@pytest.mark.every
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", RATES)
def test_the_readme_says_what_is_measured(name):
    async def open_session() -> Session:
        return LocalSession(registry.make(name))

    async def measured(episodes: int) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        async for rate in rates(open_session, registry.get_spec(name), episodes=episodes):
            assert not rate.failed, rate.error
            found.setdefault(rate.split, {})[rate.policy] = rate.cell()
        return found

    episodes = max(int(cells[0]) for cells in RATES[name].values())
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
    assert {
        split: [by.get(policy, "–") for policy in ("solver", "random", "format only")] for split, by in found.items()
    } == {split: cells[1:] for split, cells in RATES[name].items()}
