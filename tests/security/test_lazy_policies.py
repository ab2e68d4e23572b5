"""A policy that does not do what an environment teaches earns next to nothing: at most a tenth of what the solver has
over chance, in score and in success."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from agentgym import registry
from agentgym.evaluation.baselines import BaselineScore, baselines
from agentgym.session import LocalSession, Session
from agentgym.spec import read_variants

FOLDER = Path(__file__).parents[2] / "environments" / "agentgym_environments"
FOLDERS = [path.parent for path in sorted(FOLDER.rglob("lazy.py"))]
OTHERS = ["negotiation:opponent=random"]
"""Environments beside the installed ids, with arguments of their own."""
WITHOUT = {"shop-browser", "miniwob", "miniwob-all", "webshop", "negotiation-self"}
"""The tasks of `shop`; MiniWoB++ and WebShop as they are, which lazy policies do solve in part; both sides of one
table."""
TASKS = {"miniwob-easy": 6, "code": 6, "code-turns": 6}
"""Training tasks that are played; 100 where nothing else is said. Of six, two that laziness solves are too many."""
SHARE = 0.1
"""Most of the solver's margin over chance that laziness may earn."""


async def scores_of(name: str) -> list[BaselineScore]:
    """Every policy on the first training tasks."""
    sessions: list[LocalSession] = []

    async def open_session() -> Session:
        sessions.append(LocalSession(registry.make(name)))
        return sessions[-1]

    spec = registry.get_spec(name)
    split, size = next(iter(spec.splits.items()))
    tasks = min(TASKS.get(name, 100), size)
    spec = spec.model_copy(update={"splits": {split: tasks}})
    try:
        lazy = registry.lazy_policies(name)
        return [one async for one in baselines(open_session, spec, episodes=tasks, lazy_policies=lazy)]
    finally:
        for session in sessions:
            await session.close()


def marked(name: str):
    program = registry.get_spec(name.partition(":")[0]).resources.get("program", "")
    return pytest.param(name, id=name, marks=[pytest.mark.browser] if "chromium" in program else [])


NAMES = [name for folder in FOLDERS for name in read_variants(folder / "spec.toml") if name not in WITHOUT]


@pytest.mark.parametrize("name", [marked(name) for name in NAMES + OTHERS])
def test_laziness_earns_at_most_a_tenth(name):
    """Of the margin; one standard error more, as the policies are many and the tasks few."""
    with contextlib.closing(registry.make(name)) as env:
        env.reset(options={"task": 0})  # skips where a system package is missing
    scores = asyncio.run(scores_of(name))
    assert not [one.error for one in scores if one.failed]
    solver, chance = (next(one for one in scores if one.policy == policy) for policy in ("solver", "random"))
    lazy = [one for one in scores if one.policy == "lazy"]
    assert solver.success is not None
    assert chance.success is not None
    solved, by_chance = solver.success.estimate, chance.success.estimate
    assert len(lazy) >= 3
    for one in lazy:
        assert one.success is not None
        share = one.success.estimate
        error = (share * (1 - share) / one.episodes) ** 0.5
        assert one.score - chance.score <= SHARE * (solver.score - chance.score) + one.score_error, one
        assert share - by_chance <= SHARE * (solved - by_chance) + error, one
