"""How tests of several environments play an episode."""

from __future__ import annotations

from typing import Any


def play(env: Any, split: str = "train", task: int = 0) -> list[tuple[Any, float, bool, bool, dict[str, Any]]]:
    """The steps of the scripted solver's episode."""
    env.reset(seed=0, options={"split": split, "task": task})
    steps = []
    while not env.over:
        steps.append(env.step(env.solver()))
    return steps


def solve(env: Any, split: str = "train", task: int = 0) -> tuple[float, dict[str, Any]]:
    """(sum of rewards, the last info) of that episode."""
    steps = play(env, split, task)
    return sum(reward for _, reward, *_ in steps), steps[-1][-1]
