"""Batch: the four index levels that credit and losses work on.

Suffixes, here and in credit/ and losses/: G group (one task, several attempts), M trajectory, N turn, A action token
(a token the policy sampled; prompt, observation and padding tokens have no entry, so no statistic can touch them).

Turns are sorted by (trajectory, position), action tokens by (turn, position). A turn is a record of its own: its end
is never inferred from a reward, a mask or a special token.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np


@dataclass(frozen=True)
class Batch:
    """Flat arrays of one optimizer batch. Index columns point one level up: `turn_A` into N, `traj_N` into M, `group_M`
    into G."""

    group_M: np.ndarray
    """int64[M]: the group of each trajectory."""
    traj_N: np.ndarray
    """int64[N], non-decreasing: the trajectory of each turn."""
    reward_N: np.ndarray
    """float64[N]: the reward of each turn, after shaping."""
    turn_A: np.ndarray
    """int64[A], non-decreasing: the turn of each action token. Every turn has at least one token."""
    truncated_M: np.ndarray
    """bool[M]: cut by a limit, not ended by the environment: the future is `x["bootstrap"]`, not 0."""
    anchor_N: np.ndarray
    """int64[N]: equal numbers mean equal states of the environment within a group; -1 where the environment names
    none."""
    logprob_A: np.ndarray
    """float32[A]: log-probability of each token under the distribution that it was sampled from."""
    x: dict[str, np.ndarray] = field(default_factory=dict)
    """Further columns; a name's last two characters are its level. Those of every batch (`sequences.collate`):

        success_M   1 where the environment called it a success
        task_M      the task
        solver_M    1 where it is a demonstration
        valid_N     1 where the environment executed the action
        penalty_N   the prompt format's, which is in reward_N already
        role_N      whose turn it was, in environments of several players
        branched_N  1 on the turn at which a pair diverges
        progress_N  the environment's, after the turn; NaN: none
        milestone_N the last milestone reached before the turn: equal numbers mean the same one; 0 is none yet
        reached_N   1 where the turn reached the next one
        version_A   of the weights that sampled the token

    and those of models (`Learner.annotate`, signals/):

        value_N     V before the first token of a turn          value_A     V before each token
        bootstrap_M V of the final observation (read only where truncated)
        ref_logprob_A, prox_logprob_A   under the policy as RL began, and under the weights before the update
    """

    def __post_init__(self) -> None:
        m, n, a = len(self.group_M), len(self.traj_N), len(self.turn_A)
        size = {"_M": m, "_N": n, "_A": a}
        own = ("truncated_M", "reward_N", "anchor_N", "logprob_A")
        for name, column in {**self.x, **{name: getattr(self, name) for name in own}}.items():
            if name[-2:] not in size:
                raise ValueError(f"{name}: a column's name ends in its level, {', '.join(size)}")
            if np.shape(column) != (size[name[-2:]],):
                raise ValueError(f"{name} has the shape {np.shape(column)}, expected ({size[name[-2:]]},)")
        if n and (np.any(np.diff(self.traj_N) < 0) or not np.array_equal(np.unique(self.traj_N), np.arange(m))):
            raise ValueError("turns must be sorted by trajectory, and every trajectory must have one")
        if a and (np.any(np.diff(self.turn_A) < 0) or not np.array_equal(np.unique(self.turn_A), np.arange(n))):
            raise ValueError("action tokens must be sorted by turn, and every turn must have one")

    @property
    def return_M(self) -> np.ndarray:
        """float64[M]: the undiscounted sum of each trajectory's rewards."""
        return np.bincount(self.traj_N, weights=self.reward_N, minlength=len(self.group_M))

    @property
    def traj_A(self) -> np.ndarray:
        """int64[A]: the trajectory of each action token."""
        return self.traj_N[self.turn_A]

    @property
    def last_N(self) -> np.ndarray:
        """bool[N]: the last turn of its trajectory."""
        return np.append(np.diff(self.traj_N) != 0, True) if len(self.traj_N) else np.zeros(0, bool)

    @property
    def last_A(self) -> np.ndarray:
        """bool[A]: the last token of its turn."""
        return np.append(np.diff(self.turn_A) != 0, True) if len(self.turn_A) else np.zeros(0, bool)

    @property
    def first_A(self) -> np.ndarray:
        """bool[A]: the first token of its turn."""
        return np.append(True, np.diff(self.turn_A) != 0) if len(self.turn_A) else np.zeros(0, bool)

    def select(self, keep_M: np.ndarray) -> tuple[Batch, np.ndarray, np.ndarray]:
        """The batch of the trajectories in the sorted index `keep_M`, and which turns and tokens of this one it has."""
        kept_N = np.flatnonzero(np.isin(self.traj_N, keep_M))
        kept_A = np.flatnonzero(np.isin(self.turn_A, kept_N))
        kept = {"_M": keep_M, "_N": kept_N, "_A": kept_A}
        part = Batch(
            group_M=self.group_M[keep_M],
            traj_N=np.searchsorted(keep_M, self.traj_N[kept_N]),
            reward_N=self.reward_N[kept_N],
            turn_A=np.searchsorted(kept_N, self.turn_A[kept_A]),
            truncated_M=self.truncated_M[keep_M],
            anchor_N=self.anchor_N[kept_N],
            logprob_A=self.logprob_A[kept_A],
            x={name: column[kept[name[-2:]]] for name, column in self.x.items()},
        )
        return part, kept_N, kept_A

    def with_columns(self, **columns: np.ndarray) -> Batch:
        """A batch with signals' columns added."""
        return replace(self, x={**self.x, **columns})


@dataclass(frozen=True)
class Credit:
    """Result of an assigner: the advantage of each action token, and targets of its critics."""

    advantage_A: np.ndarray
    """float64[A]: multiplies each token's score function."""
    targets: dict[str, np.ndarray] = field(default_factory=dict)
    """Regression targets by the column they are for: `value_N` float64[N] or `value_A` float64[A]."""
    weight_A: np.ndarray | None = None
    """float64[A], constant: multiplies each token's loss, as of correctors (losses/importance.py); None is 1."""
    corrected: bool = False
    """True where importance weights are among them, so that the denominator of a ratio is `prox_logprob_A`."""
