"""Supervised warm-up: imitate the environment's scripted solver, made imperfect on purpose, or the episodes of a
file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from agentgym.errors import ConfigError
from agentgym.rollouts.policy import EpisodeSpec, SolverPolicy
from agentgym.rollouts.runner import Runner
from agentgym.rollouts.trajectory import Group, Trajectory, read_jsonl
from agentgym.spec import EnvSpec
from agentgym_trainers.config.sections import SFTOptions
from agentgym_trainers.data.sequences import Row, collate
from agentgym_trainers.learner.learner import Learner
from agentgym_trainers.losses import token_weights


async def demonstrate(runner: Runner, spec: EnvSpec, split: str, options: SFTOptions, seed: int) -> list[Trajectory]:
    """Demonstrations: the file's, or episodes of the noisy solver on the split's tasks, over and over.

    Raises ConfigError where there is neither, and CheckpointError where a line of the file is not a trajectory.
    """
    if options.path is not None:
        return read_demonstrations(Path(options.path), options.demonstrations)
    if "solver" not in spec.capabilities:
        raise ConfigError(f"{spec.id} has no scripted solver to imitate: set sft=, and start from a trained model")
    tasks = spec.splits[split]
    episodes = [EpisodeSpec(spec.id, split, i % tasks, seed, i // tasks) for i in range(options.demonstrations)]
    return await runner.run(SolverPolicy(options.noise, seed), episodes)


def read_demonstrations(path: Path, count: int) -> list[Trajectory]:
    """The first `count` episodes of a file that succeeded."""
    succeeded = (t for t in read_jsonl(path) if t.turns and t.success and not t.stop.is_failure)
    demonstrations = list(islice(succeeded, count))
    if not demonstrations:
        raise ConfigError(f"sft.path: {path} holds no episode that succeeded, so there is nothing to imitate")
    return demonstrations


def imitate(
    learner: Learner, demonstrations: Sequence[Trajectory], options: SFTOptions, seed: int
) -> Iterator[tuple[int, dict[str, float]]]:
    """Minimize the cross-entropy of the demonstrations' replies; yields (step, metrics) after each step."""
    batch, rows, _ = collate([Group((trajectory,)) for trajectory in demonstrations])
    by_trajectory: dict[int, list[Row]] = {}
    for row in rows:
        by_trajectory.setdefault(row.trajectory, []).append(row)
    rng = np.random.default_rng([seed, 2])
    order: list[int] = []
    for step in range(1, options.max_steps + 1):
        if len(order) < options.batch:
            order += rng.permutation(len(batch.group_M)).tolist()
        chosen, order = np.unique(order[: options.batch]), order[options.batch :]
        part, _, kept_A = batch.select(chosen)
        weights_A = np.zeros(len(batch.turn_A))
        weights_A[kept_A] = token_weights(part, "token_mean")
        yield step, learner.imitate([row for m in chosen.tolist() for row in by_trajectory[m]], weights_A)
