"""Tasks of a Gymnasium environment: a map each, or a start state each."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import gymnasium
from gymnasium.envs.toy_text.frozen_lake import generate_random_map

from agentgym.errors import ConfigError
from agentgym_environments.base.text_env import task_random


def newest(env_id: str) -> str:
    """The newest installed version of an environment named without one; Gymnasium retires old versions."""
    versions = [spec for spec in gymnasium.registry.values() if spec.namespace is None and spec.name == env_id]
    if not versions and env_id not in gymnasium.registry:
        raise ConfigError(f"Gymnasium has no environment {env_id!r} here; import the package that registers it first")
    return max(versions, key=lambda spec: spec.version or 0).id if versions else env_id


@lru_cache
def maps(size: int, count: int) -> tuple[tuple[str, ...], ...]:
    """`count` different FrozenLake maps of size by size, each with a way to the goal, from the seeds 0, 1, 2, ..."""
    found: dict[tuple[str, ...], None] = {}
    seed = 0
    while len(found) < count:
        found[tuple(generate_random_map(size, seed=seed))] = None
        seed += 1
    return tuple(found)


def starts(inner: Any, name: str) -> tuple[int, ...]:
    """Every state in which an episode of a tabular environment may start, shuffled.

    Where the environment itself knows only one start: that one first, then every state it leads to that is not final.
    """
    usual = [state for state in inner.P if inner.initial_state_distrib[state] > 0]
    random = task_random("toytext", name)
    if len(usual) > 1:
        return tuple(random.sample(usual, len(usual)))
    reached, edge = set(usual), list(usual)
    while edge:
        for outcomes in inner.P[edge.pop()].values():
            following = {int(state) for _, state, _, final in outcomes if not final} - reached
            reached |= following
            edge += sorted(following)
    others = sorted(reached - set(usual))
    return (*usual, *random.sample(others, len(others)))
