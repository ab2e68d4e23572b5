"""Rows of tokens, as other trainers hold them, to a Batch and back. Suffix BT: rows × tokens, B: rows."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from agentgym_credit.assigners import ASSIGNERS
from agentgym_credit.batch import Batch, Credit
from agentgym_credit.bounds import check_bounds
from agentgym_credit.normalize import normalize as normalized

LEVELS = ("_A", "_N", "_M")
"""Ends of columns' names."""


@dataclass(frozen=True)
class TokenRows:
    """A Batch, and where in the rows its action tokens are."""

    batch: Batch
    row_A: np.ndarray
    """int64[A]: the row of each action token."""
    column_A: np.ndarray
    """int64[A]: its place in the row."""
    shape: tuple[int, int]

    def assign(
        self, name: str, *, normalize: Literal["none", "token", "turn", "trajectory"] = "none", **options: Any
    ) -> np.ndarray:
        """float64[B, T]: the advantage of every action token, 0 elsewhere. `options` are the assigner's own.

        Raises ValueError where there is no such assigner, where the rows lack a column that it reads, and for an option
        that is outside its bounds.
        """
        return self.padded(self.credit(name, normalize=normalize, **options).advantage_A)

    def credit(
        self, name: str, *, normalize: Literal["none", "token", "turn", "trajectory"] = "none", **options: Any
    ) -> Credit:
        """The same before it is padded, with the targets of a critic. Raises ValueError as `assign` does."""
        if name not in ASSIGNERS:
            raise ValueError(f"there is no assigner {name!r}; there are {', '.join(ASSIGNERS)}")
        columns = {need for need in ASSIGNERS[name].needs if need[-2:] in LEVELS}
        if not self.batch.truncated_M.any():
            columns.discard("bootstrap_M")
        if missing := sorted(columns - self.batch.x.keys()):
            raise ValueError(f"{name} reads {', '.join(missing)}: give each to from_rows by its name, as float[B, T]")
        check_bounds(ASSIGNERS[name].function, options)
        credit = ASSIGNERS[name].function(self.batch, **options)
        return credit if normalize == "none" else normalized(credit, self.batch, population=normalize)

    def padded(self, x_A: np.ndarray) -> np.ndarray:
        """A number for every action token as float64[B, T], 0 elsewhere."""
        x_BT = np.zeros(self.shape)
        x_BT[self.row_A, self.column_A] = x_A
        return x_BT


def from_rows(
    mask_BT: np.ndarray,
    reward_BT: np.ndarray,
    group_B: Sequence[Hashable],
    *,
    trajectory_B: Sequence[Hashable] | None = None,
    turn_BT: np.ndarray | None = None,
    states: Sequence[Sequence[Hashable | None]] | None = None,
    truncated_B: np.ndarray | None = None,
    **columns_BT: np.ndarray,
) -> TokenRows:
    """The rows' action tokens as a Batch.

    mask_BT: bool or 0/1 [B, T], 1 where the policy sampled the token; prompts, observations and padding are 0.
    reward_BT: float [B, T]; a reward belongs to the last turn that has begun by then, wherever in it or after it it is.
    group_B: equal for rows that are attempts at the same task.
    trajectory_B: equal for rows that are parts of one attempt, in their order (a row a turn); None: a row an attempt.
    turn_BT: int [B, T], read where the mask is 1; the turn of each token. None: every run of 1s in the mask is a turn.
    states: for each row the state of the environment before each of its turns, None where it has no name; equal
        states of a group are compared by assigners such as `gigpo`. None: no state has a name.
    truncated_B: bool [B], of an attempt's last row: cut by a limit of the trainer's. None: none was.
    columns_BT: float [B, T], further columns by their names in a Batch ("value_A", "value_N", "prm_A"); of a turn's
        column the turn's first token is read, of a trajectory's the first token of all.
    Raises ValueError that says what does not fit.
    """
    mask_BT, reward_BT = np.asarray(mask_BT).astype(bool), np.asarray(reward_BT, dtype=np.float64)
    _check_shapes(mask_BT, {"rewards": reward_BT, "turn_BT": turn_BT}, columns_BT)
    lengths = {"groups": group_B, "trajectories": trajectory_B, "states": states, "truncated flags": truncated_B}
    for name, given in lengths.items():
        if given is not None and len(given) != len(mask_BT):
            raise ValueError(f"{len(given)} {name} for {len(mask_BT)} rows")
    traj_B = _numbers(list(range(len(mask_BT))) if trajectory_B is None else trajectory_B)
    if len({*zip(traj_B.tolist(), _numbers(group_B).tolist(), strict=True)}) > traj_B.max() + 1:
        raise ValueError("an attempt has rows of two groups: give all its rows its task's group")
    order = np.argsort(traj_B, kind="stable")
    at, column_A = np.nonzero(mask_BT[order])
    row_A = order[at]
    if turn_BT is None:
        begins_A = np.append(True, (np.diff(at) != 0) | (np.diff(column_A) != 1))
    else:
        turn_A = np.asarray(turn_BT)[row_A, column_A]
        begins_A = np.append(True, (np.diff(at) != 0) | (np.diff(turn_A) != 0))
    first = np.flatnonzero(begins_A)
    row_N = row_A[first]
    reward_N = _turn_rewards(reward_BT, row_N, column_A[first])
    first_M = np.flatnonzero(np.append(True, np.diff(traj_B[row_N]) != 0))
    last_row_M = row_N[np.append(first_M[1:], len(row_N)) - 1]
    group_M = _numbers([group_B[i] for i in last_row_M])
    batch = Batch(
        group_M=group_M,
        traj_N=traj_B[row_N],
        reward_N=reward_N,
        turn_A=np.cumsum(begins_A) - 1,
        truncated_M=np.zeros(len(first_M), bool) if truncated_B is None else np.asarray(truncated_B, bool)[last_row_M],
        anchor_N=_anchors(states, row_N),
        logprob_A=np.zeros(len(row_A), np.float32),
    )
    level = {"_A": slice(None), "_N": first, "_M": first[first_M]}
    read = {name: np.asarray(x, np.float64)[row_A, column_A][level[name[-2:]]] for name, x in columns_BT.items()}
    return TokenRows(replace(batch, x=read), row_A, column_A, mask_BT.shape)


def _check_shapes(
    mask_BT: np.ndarray, given_BT: dict[str, np.ndarray | None], columns_BT: dict[str, np.ndarray]
) -> None:
    """Raise ValueError unless there are rows, each with an action token, all else has the mask's shape, and columns
    have names."""
    if unknown := [name for name in columns_BT if not name.endswith(LEVELS)]:
        raise ValueError(f"{', '.join(unknown)}: a column's name ends in its level, {', '.join(LEVELS)}")
    if mask_BT.ndim != 2:
        raise ValueError(f"the mask is [rows, tokens]; not {mask_BT.shape}")
    for name, given in {**given_BT, **columns_BT}.items():
        if given is not None and np.shape(given) != mask_BT.shape:
            raise ValueError(f"{name}: [rows, tokens] as the mask, {mask_BT.shape}; not {np.shape(given)}")
    if not len(mask_BT):
        raise ValueError("there are no rows: give one or more")
    if idle := np.flatnonzero(~mask_BT.any(axis=1)).tolist():
        raise ValueError(f"rows {idle} have no action token: leave them out")


def _turn_rewards(reward_BT: np.ndarray, row_N: np.ndarray, start_N: np.ndarray) -> np.ndarray:
    """Each row's rewards from a turn's first token to the next turn's; what comes before the first counts for it."""
    opens_N = np.append(True, row_N[1:] != row_N[:-1])
    begin_N = (np.cumsum(opens_N) - 1) * reward_BT.shape[1] + np.where(opens_N, 0, start_N)
    return np.add.reduceat(reward_BT[row_N[opens_N]].ravel(), begin_N)  # a turn's lone reward stays as it is, exactly


def _anchors(states: Sequence[Sequence[Hashable | None]] | None, row_N: np.ndarray) -> np.ndarray:
    if states is None:
        return np.full(len(row_N), -1)
    count = np.bincount(row_N, minlength=len(states))
    for row, named in enumerate(states):
        if len(named) != count[row]:
            raise ValueError(f"row {row} has {count[row]} turns and {len(named)} states: one state before each turn")
    flat = [state for row in dict.fromkeys(row_N.tolist()) for state in states[row]]
    number: dict[Hashable, int] = {}
    return np.array([-1 if state is None else number.setdefault(state, len(number)) for state in flat])


def _numbers(names: Sequence[Hashable]) -> np.ndarray:
    """0, 1, 2, … in the order in which names first come; numpy's and tensors' scalars count as plain numbers."""
    number: dict[Hashable, int] = {}
    plain = (getattr(name, "item", lambda name=name: name)() for name in names)
    return np.array([number.setdefault(name, len(number)) for name in plain])
