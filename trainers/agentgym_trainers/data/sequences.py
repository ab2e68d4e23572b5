"""Trajectories as the learner reads them: a Batch, and one Row for every branch.

    branch  [p p p a a b o o a a a]     turn [-1 -1 -1 0 0 -1 -1 -1 1 1 1]
    Row     ids = all of it; action_at = [3 4 8 9 10]; action_index = where those five stand among the batch's A

A token is trained exactly once: in the branch where it was sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from agentgym.errors import PolicyFailure
from agentgym.rollouts.trajectory import Group, ImageSpan, Trajectory
from agentgym_credit.batch import Batch, Credit
from agentgym_trainers.data.images import content_keys
from agentgym_trainers.data.reward_shaping import shaped_rewards


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence to run through the model."""

    ids: np.ndarray
    """int64[T]"""
    action_at: np.ndarray
    """int64[k]: positions of sampled tokens; the model predicts each from the position before."""
    action_index: np.ndarray
    """int64[k]: their places among the batch's action tokens."""
    trajectory: int
    bootstrap: bool
    """The last position is a cut trajectory's final observation: its value stands for the future."""
    images: tuple[ImageSpan, ...] = ()

    @property
    def keys(self) -> np.ndarray:
        """int64[T]: see `content_keys`. Rows share a forward as far as these are equal."""
        return content_keys(self.ids, self.images) if self.images else self.ids


def collate(groups: Sequence[Group]) -> tuple[Batch, list[Row], list[Trajectory]]:
    """The batch of all trajectories that count, its rows, and those trajectories in the batch's order."""
    kept = [group.without_failures().trajectories for group in groups]
    members = [(g, trajectory) for g, trajectories in enumerate(kept) for trajectory in trajectories]
    anchors: dict[tuple[int, str], int] = {}
    turn_columns: dict[str, list] = {"traj": [], "reward": [], "anchor": []}
    versions: list[np.ndarray] = []
    turn_A: list[np.ndarray] = []
    logprob_A: list[np.ndarray] = []
    rows: list[Row] = []
    tokens = 0
    for m, (g, trajectory) in enumerate(members):
        for turn, reward in zip(trajectory.turns, shaped_rewards(trajectory), strict=True):
            span = turn.span
            if span is None or span.stop <= span.start:
                raise PolicyFailure(f"turn {turn.index} of {trajectory.env} task {trajectory.task} has no tokens")
            turn_columns["traj"].append(m)
            turn_columns["reward"].append(reward)
            anchor = -1 if turn.state_key is None else anchors.setdefault((g, turn.state_key), len(anchors))
            turn_columns["anchor"].append(anchor)
            turn_A.append(np.full(span.stop - span.start, len(turn_columns["traj"]) - 1))
            branch = trajectory.branches[span.branch]
            logprob_A.append(branch.logprobs[span.start : span.stop])
            versions.append(branch.versions[span.start : span.stop])
        rows += rows_of(trajectory, m, tokens)
        tokens += sum(turn.span.stop - turn.span.start for turn in trajectory.turns if turn.span)
    if tokens != sum(len(row.action_at) for row in rows):
        raise PolicyFailure("the turns' spans are not the branches' sampled tokens")
    batch = Batch(
        group_M=np.array([g for g, _ in members], np.int64),
        traj_N=np.array(turn_columns["traj"], np.int64),
        reward_N=np.array(turn_columns["reward"], np.float64),
        turn_A=np.concatenate(turn_A) if turn_A else np.zeros(0, np.int64),
        truncated_M=np.array([t.stop.is_truncated for _, t in members], bool),
        anchor_N=np.array(turn_columns["anchor"], np.int64),
        logprob_A=np.concatenate(logprob_A) if logprob_A else np.zeros(0, np.float32),
    )
    trajectories = [trajectory for _, trajectory in members]
    columns = trajectory_columns(trajectories) | {
        "version_A": np.concatenate(versions) if versions else np.zeros(0, np.int32)
    }
    return batch.with_columns(**columns), rows, trajectories


def trajectory_columns(trajectories: Sequence[Trajectory]) -> dict[str, np.ndarray]:
    """Columns of `Batch.x` that every recipe has."""
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    executed = [turn.action is not None and turn.info.get("valid_action") is not False for turn in turns]
    progress = [turn.info.get("progress") for turn in turns]
    return {
        "success_M": np.array([t.success for t in trajectories], np.float64),
        "task_M": np.array([t.task for t in trajectories], np.int64),
        "solver_M": np.array([is_demonstration(t) for t in trajectories], np.float64),
        "valid_N": np.array(executed, np.float64),
        "penalty_N": np.array([turn.penalty for turn in turns], np.float64),
        "role_N": np.array([turn.role for turn in turns], np.int64),
        "branched_N": np.array([turn.info.get("branched", False) for turn in turns], np.float64),
        "progress_N": np.array([np.nan if p is None else p for p in progress], np.float64),
        **_milestones(trajectories),
    }


def _milestones(trajectories: Sequence[Trajectory]) -> dict[str, np.ndarray]:
    """The milestone before each turn, by number, and whether the turn reached another; 0 is none yet."""
    numbers: dict[str, int] = {"": 0}
    before, reached = [], []
    for trajectory in trajectories:
        last = ""
        for turn in trajectory.turns:
            after = str(turn.info.get("milestone") or "")
            before.append(numbers.setdefault(last, len(numbers)))
            reached.append(after != last)
            last = after
    return {"milestone_N": np.array(before, np.int64), "reached_N": np.array(reached, np.float64)}


def is_demonstration(trajectory: Trajectory) -> bool:
    """True where the scripted solver acted, not the policy."""
    return bool(trajectory.turns) and bool(trajectory.turns[0].info.get("solver"))


def rows_of(trajectory: Trajectory, index: int, first_token: int) -> list[Row]:
    """The rows of one trajectory, whose action tokens begin at `first_token` of the batch."""
    starts, tokens = {}, first_token
    for turn in trajectory.turns:
        assert turn.span is not None
        starts[turn.index] = tokens - turn.span.start
        tokens += turn.span.stop - turn.span.start
    rows = []
    for b, branch in enumerate(trajectory.branches):
        at = np.flatnonzero(branch.turn >= 0)
        shift = np.array([starts[turn] for turn in branch.turn[at].tolist()], np.int64)
        last = b == len(trajectory.branches) - 1 and trajectory.stop.is_truncated
        if len(at) or last:
            rows.append(Row(branch.ids.astype(np.int64), at, at + shift, index, last, branch.images))
    return rows


def select(batch: Batch, rows: Sequence[Row], credit: Credit, keep_M: np.ndarray) -> tuple[Batch, list[Row], Credit]:
    """The same three for the trajectories in `keep_M`, as an optimizer batch of its own."""
    keep_M = np.sort(keep_M)
    part, kept_N, kept_A = batch.select(keep_M)
    kept = {"_N": kept_N, "_A": kept_A}
    wanted = set(keep_M.tolist())
    chosen = [
        replace(
            row,
            action_index=np.searchsorted(kept_A, row.action_index),
            trajectory=int(np.searchsorted(keep_M, row.trajectory)),
        )
        for row in rows
        if row.trajectory in wanted
    ]
    targets = {name: column[kept[name[-2:]]] for name, column in credit.targets.items()}
    weight_A = None if credit.weight_A is None else credit.weight_A[kept_A]
    return part, chosen, replace(credit, advantage_A=credit.advantage_A[kept_A], targets=targets, weight_A=weight_A)
