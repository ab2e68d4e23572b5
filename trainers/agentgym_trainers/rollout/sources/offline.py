"""Offline episodes: a fixed set that every step draws from, read from a file or played once and kept.

    path given         the set is that file's
    none               the set is played by the policy as RL began
    refresh_every = n  and played again by the present policy every n steps: explore, then learn (ReST's Grow and
                       Improve; ETO's explore, pair and train)

A set that was played lies in the run's folder (`dataset/round-NNNN.jsonl`), and every step reads what is written there,
so that a resumed run draws what an undisturbed one would.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from agentgym.errors import ConfigError
from agentgym.rollouts.policy import EpisodeSpec, SolverPolicy
from agentgym.rollouts.trajectory import Branch, Group, StopReason, Trajectory, read_jsonl, write_jsonl
from agentgym_trainers.config.registry import KindOptions
from agentgym_trainers.data.sequences import collate, is_demonstration
from agentgym_trainers.rollout.sources.base import Collector, Source
from agentgym_trainers.rollout.tasks import UniformTasks
from agentgym_trainers.rollout.tokens import ChatTemplate, tokenize


class OfflineOptions(KindOptions):
    """Every step draws groups from a set of episodes that was recorded before."""

    kind: Literal["offline"] = "offline"
    path: str | None = None
    """JSON lines of trajectories, as a run or an evaluation leaves them; None plays them with the policy as RL began.
    Episodes of one task and seed are a group. Replies without tokens are tokenized, and scored by that policy."""
    groups: int = Field(default=64, gt=0)
    """Tasks of a set that is played; each has rollout.group_size attempts."""
    refresh_every: int | None = Field(default=None, gt=0)
    """Steps after which the present policy plays another set."""
    solver: int = Field(default=0, ge=0)
    """Demonstrations by the environment's solver that are added to each group."""
    rounds_over_solver: int | None = Field(default=None, ge=0)
    """Attempts are cut after so many turns more than the demonstration has."""

    @model_validator(mode="after")
    def _fits(self) -> OfflineOptions:
        if self.path is not None and self.refresh_every is not None:
            raise ValueError("path and refresh_every: a file's episodes are not played again; remove one of the two")
        if self.rounds_over_solver is not None and not self.solver:
            raise ValueError("rounds_over_solver counts from the demonstration's turns: add solver = 1")
        return self


def check_file(options: OfflineOptions) -> None:
    """Raise ConfigError where the set's file is missing."""
    if options.path is not None and not Path(options.path).is_file():
        raise ConfigError(f"source.path: there is no file {options.path}")


class OfflineSource(Source):
    def __init__(self, options: OfflineOptions) -> None:
        self.options = options
        self.round = -1
        """The set that is drawn from; −1 before there is one."""
        self._pool: list[Group] = []
        self._order = UniformTasks(1, 0)
        self._position = 0

    async def collect(self, trainer: Collector, groups: int) -> list[Group]:
        """The next groups of the present set; all of it is drawn before any of it is drawn again."""
        due = trainer.step // self.options.refresh_every if self.options.refresh_every else 0
        if due != self.round or not self._pool:
            self._pool = await self._open(trainer, due)
            resumed = due == self.round
            self.round, self._order = due, UniformTasks(len(self._pool), trainer.config.run.seed + due)
            self._order.position = self._position if resumed else 0
        return [self._pool[place] for place, _ in self._order.propose(groups)]

    async def _open(self, trainer: Collector, due: int) -> list[Group]:
        """The set of this round; it is played unless it was already."""
        given = self.options.path
        path = trainer.folder / "dataset" / f"round-{due:04d}.jsonl"
        tasks = [] if given or due == self.round else trainer.curriculum.propose(self.options.groups)
        # A set of the run's beginning is that policy's for ever; a later one that the checkpoint does not know of was
        # played by weights that the run never had again.
        if due != self.round and (due > 0 or not path.is_file()):
            found = grouped(read_jsonl(Path(given))) if given else await self._play(trainer, tasks)
            _write(path, await self._complete(trainer, found))
        pool = [group for group in grouped(read_jsonl(path)) if group.trajectories]
        if not pool:
            raise ConfigError(f"{given or path} holds no episode that counts")
        return pool

    async def _play(self, trainer: Collector, tasks: list[tuple[int, int]]) -> list[Group]:
        at_once = trainer.config.rollout.groups
        parts = [await trainer.rollout_groups(tasks[i : i + at_once]) for i in range(0, len(tasks), at_once)]
        return [group for part in parts for group in part]

    async def _complete(self, trainer: Collector, found: Iterable[Group]) -> list[Group]:
        """The groups without failures, every episode with tokens, and with their demonstrations."""
        groups = [group.without_failures() for group in found]
        if self.options.solver:
            groups = await demonstrated(trainer, groups, self.options.solver)
        if self.options.rounds_over_solver is not None:
            groups = [shortened(group, self.options.rounds_over_solver) for group in groups]
        return [Group(tuple(with_tokens(trainer, t) for t in group.trajectories)) for group in groups]

    def state_dict(self) -> dict[str, Any]:
        return {"round": self.round, "position": self._order.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.round, self._position, self._pool = state["round"], state["position"], []


async def demonstrated(trainer: Collector, groups: Sequence[Group], count: int) -> list[Group]:
    """The groups, each with `count` episodes of the environment's solver on the same task and seed: info["solver"]."""
    played = [group for group in groups if group.trajectories]
    episodes = []
    for group in played:
        first = group.trajectories[0]
        attempts = range(len(group.trajectories), len(group.trajectories) + count)
        episodes += [EpisodeSpec(first.env, first.split, first.task, first.seed, attempt) for attempt in attempts]
    shown = await trainer.runner.run(SolverPolicy(seed=trainer.config.run.seed), episodes)
    added = [Group(tuple(shown[i : i + count])).without_failures() for i in range(0, len(shown), count)]
    return [Group((*a.trajectories, *map(_marked, b.trajectories))) for a, b in zip(played, added, strict=True)]


def _marked(trajectory: Trajectory) -> Trajectory:
    first, *rest = trajectory.turns
    return replace(trajectory, turns=(replace(first, info={**first.info, "solver": True}), *rest))


def shortened(group: Group, rounds: int) -> Group:
    """The group with its attempts cut `rounds` turns after the longest demonstration's length."""
    lengths = [len(t.turns) for t in group.trajectories if is_demonstration(t)]
    if not lengths:
        return group
    limit = max(lengths) + rounds
    return Group(tuple(t if is_demonstration(t) else cut(t, limit) for t in group.trajectories))


def cut(trajectory: Trajectory, turns: int) -> Trajectory:
    """The episode's first turns, as if the run's turn limit had cut it there; its last tokens are the next prompt's."""
    if len(trajectory.turns) <= turns:
        return trajectory
    kept, after = trajectory.turns[:turns], trajectory.turns[turns]
    branches = trajectory.branches
    if after.span is not None:
        branches = (*branches[: after.span.branch], _until(branches[after.span.branch], after.span.start))
    return replace(
        trajectory, turns=kept, stop=StopReason.MAX_TURNS, final_observation=after.observation, branches=branches,
        forks=trajectory.forks[: max(len(branches) - 1, 0)],
    )  # fmt: skip


def _until(branch: Branch, end: int) -> Branch:
    """The first tokens of a branch."""
    images = tuple(image for image in branch.images if image.stop <= end)
    return Branch(branch.ids[:end], branch.turn[:end], branch.logprobs[:end], branch.versions[:end], images)


def with_tokens(trainer: Collector, trajectory: Trajectory) -> Trajectory:
    """The episode with tokens. Those that nobody sampled here are tokenized as a warm-up's are, and have the present
    policy's log-probabilities, so that its ratio to them begins at 1."""
    if trajectory.branches:
        return trajectory
    config = trainer.config
    template = ChatTemplate(trainer.tokenizer, config.model.template)
    transcript = tokenize(trajectory, trainer.spec, config.prompt_format, template, config.rollout.max_length)
    batch, rows, _ = collate([Group((transcript,))])
    learner: Any = trainer.learner  # in this process: [scale] is for online sources
    logprob_A = learner.logprobs(batch, rows)
    branches = [replace(b, logprobs=b.logprobs.copy(), versions=b.versions.copy()) for b in transcript.branches]
    for n, turn in enumerate(transcript.turns):
        assert turn.span is not None
        branch, place = branches[turn.span.branch], slice(turn.span.start, turn.span.stop)
        branch.logprobs[place] = logprob_A[batch.turn_A == n]
        branch.versions[place] = trainer.step
    return replace(transcript, branches=tuple(branches))


def grouped(trajectories: Iterable[Trajectory]) -> list[Group]:
    """Episodes of the same task and seed together, in the order in which each first came."""
    found: dict[tuple[str, str, int, int], list[Trajectory]] = {}
    for t in trajectories:
        found.setdefault((t.env, t.split, t.task, t.seed), []).append(t)
    return [Group(tuple(members)) for members in found.values()]


def _write(path: Path, groups: Iterable[Group]) -> None:
    """The file appears whole or not at all."""
    partial = path.with_suffix(".partial")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial.unlink(missing_ok=True)
    write_jsonl(partial, [t for group in groups for t in group.trajectories])
    os.replace(partial, path)
