"""Turns as transitions (s, a, r, s') of token ids, and the replay buffer that off-policy critics learn from.

A state is everything the policy had read when it began to reply; an action is all it sampled, stop token included.
A transition keeps references: turns of one branch share its ids, so a long episode is stored once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from agentgym.rollouts.trajectory import Trajectory
from agentgym_credit.batch import Batch
from agentgym_credit.segments import reverse_scan
from agentgym_trainers.data.sequences import Row


@dataclass(frozen=True, slots=True, eq=False)
class Transition:
    """A turn: in state ids[:start] the policy sampled ids[start:stop], got `reward`, then read next_ids[:next_stop].

    Three ends of a turn: another turn follows; the environment ended the episode (`done`, nothing comes after); a limit
    cut it (`truncated`: the final observation is a state like any other, whose value stands for the future).
    """

    ids: np.ndarray
    """int64[T]: a whole branch; turns of the same branch hold the same object."""
    start: int
    stop: int
    logprobs: np.ndarray
    """float32[stop - start]: of the action, under the distribution it was sampled from."""
    version: int
    """Version of the weights that sampled it; -1 where it is not known."""
    reward: float
    next_ids: np.ndarray
    next_stop: int
    """0 where `done`."""
    done: bool
    truncated: bool
    valid: bool
    """The environment executed the action."""
    to_go: float
    """Σ_k γ^k r_{t+k}, the Monte-Carlo return from here; NaN where a cut hides the rest."""
    offered: tuple[str, ...] = ()
    """Actions that the environment listed in this state; none where it lists none."""

    @property
    def state(self) -> np.ndarray:
        return self.ids[: self.start]

    @property
    def action(self) -> np.ndarray:
        return self.ids[self.start : self.stop]


def transitions_of(
    batch: Batch, rows: Sequence[Row], gamma: float, trajectories: Sequence[Trajectory] = ()
) -> list[Transition]:
    """One transition a turn, in the batch's order. `gamma` discounts `to_go` only; `trajectories` are the batch's, and
    say what was offered."""
    offered = [turn.offered for trajectory in trajectories for turn in trajectory.turns]
    place: dict[int, tuple[Row, int, int]] = {}
    final: dict[int, np.ndarray] = {}
    for row in rows:
        turn = batch.turn_A[row.action_index]
        for n in np.unique(turn).tolist():
            at = row.action_at[turn == n]
            place[n] = (row, int(at[0]), int(at[-1]) + 1)
        if row.bootstrap:
            final[row.trajectory] = row.ids
    first_A = np.append(np.flatnonzero(batch.first_A), len(batch.turn_A))
    to_go_N = reverse_scan(batch.reward_N, batch.traj_N, gamma)
    version_A = batch.x.get("version_A", np.full(len(batch.turn_A), -1))
    valid_N = batch.x.get("valid_N", np.ones(len(batch.traj_N)))
    found = []
    for n, m in enumerate(batch.traj_N.tolist()):
        row, start, stop = place[n]
        ends, cut = bool(batch.last_N[n]), bool(batch.truncated_M[m])
        if not ends:
            next_row, next_stop, _ = place[n + 1]
            next_ids = next_row.ids
        else:
            next_ids, next_stop = (final[m], len(final[m])) if cut else (row.ids, 0)
        found.append(
            Transition(
                ids=row.ids,
                start=start,
                stop=stop,
                logprobs=batch.logprob_A[first_A[n] : first_A[n + 1]],
                version=int(version_A[first_A[n]]),
                reward=float(batch.reward_N[n]),
                next_ids=next_ids,
                next_stop=next_stop,
                done=ends and not cut,
                truncated=ends and cut,
                valid=bool(valid_N[n]),
                to_go=float("nan") if cut else float(to_go_N[n]),
                offered=offered[n] if offered else (),
            )
        )
    return found


class Replay:
    """The newest `capacity` transitions, drawn uniformly and with replacement."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._kept: list[Transition] = []

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, transitions: Iterable[Transition]) -> None:
        """The oldest leave first."""
        self._kept.extend(transitions)
        del self._kept[: max(len(self._kept) - self.capacity, 0)]

    def sample(self, count: int, rng: np.random.Generator) -> list[Transition]:
        """`count` draws; equal generators give equal draws. The buffer must not be empty."""
        return [self._kept[i] for i in rng.integers(len(self._kept), size=count)]

    def refused(self) -> set[tuple[bytes, bytes]]:
        """(state, action) of what the environment did not execute, as bytes of their ids."""
        return {(t.state.tobytes(), t.action.tobytes()) for t in self._kept if not t.valid}

    def state_dict(self) -> dict[str, Any]:
        """Tensors only. Every branch is written once, however many turns it holds."""
        sequences: dict[int, tuple[int, np.ndarray]] = {}
        for t in self._kept:
            for ids in (t.ids, t.next_ids):
                sequences.setdefault(id(ids), (len(sequences), ids))
        table = [
            (sequences[id(t.ids)][0], t.start, t.stop, t.version, sequences[id(t.next_ids)][0], t.next_stop, t.done,
             t.truncated, t.valid)
            for t in self._kept
        ]  # fmt: skip
        stored = [ids for _, ids in sequences.values()]
        return {
            "ids": _joined(stored, np.int64),
            "lengths": torch.tensor([len(ids) for ids in stored], dtype=torch.int64),
            "logprobs": _joined([t.logprobs for t in self._kept], np.float32),
            "table": torch.tensor(table, dtype=torch.int64).reshape(-1, 9),
            "numbers": torch.tensor([(t.reward, t.to_go) for t in self._kept], dtype=torch.float64).reshape(-1, 2),
            "offered": torch.tensor([*json.dumps([t.offered for t in self._kept]).encode()], dtype=torch.uint8),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        sequences = np.split(state["ids"].numpy(), np.cumsum(state["lengths"].numpy()))
        table, numbers = state["table"].tolist(), state["numbers"].tolist()
        logprob_parts = np.split(
            state["logprobs"].numpy(), np.cumsum([stop - start for _, start, stop, *_ in table], dtype=int)
        )
        offered = json.loads(bytes(state["offered"].tolist()))
        self._kept = [
            Transition(sequences[of], start, stop, logprobs, version, reward, sequences[after], next_stop, bool(done),
                       bool(truncated), bool(valid), to_go, tuple(actions))
            for (of, start, stop, version, after, next_stop, done, truncated, valid), (reward, to_go), logprobs, actions
            in zip(table, numbers, logprob_parts[:-1], offered, strict=True)
        ]  # fmt: skip


def _joined(arrays: Sequence[np.ndarray], dtype: Any) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([np.zeros(0, dtype), *arrays]))
