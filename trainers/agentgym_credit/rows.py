"""Rows of tokens, as other trainers hold them, to a Batch and back. Suffix BT: rows × tokens, B: rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from agentgym_credit.assigners import ASSIGNERS
from agentgym_credit.batch import Batch, Credit
from agentgym_credit.bounds import check_options, check_value
from agentgym_credit.normalize import normalize as normalized

LEVELS = ("_A", "_N", "_M")
"""Ends of columns' names."""
Normalization = Literal["none", "token", "turn", "trajectory"]


def check_assigner(name: str, *, normalize: Normalization = "none", **options: Any) -> None:
    """Raise ValueError where there is no such assigner, and for an option that it does not have or cannot take."""
    if name not in ASSIGNERS:
        raise ValueError(f"there is no assigner {name!r}; there are {', '.join(ASSIGNERS)}")
    check_value("normalize", Normalization, normalize)
    check_options(name, ASSIGNERS[name].function, options)


@dataclass(frozen=True)
class TokenRows:
    """A Batch, and where in the rows its action tokens are."""

    batch: Batch
    row_A: np.ndarray
    """int64[A]: the row of each action token."""
    column_A: np.ndarray
    """int64[A]: its place in the row."""
    shape: tuple[int, int]
    group_size: int
    """Attempts in the largest group, idle ones included."""

    def assign(self, name: str, *, normalize: Normalization = "none", **options: Any) -> np.ndarray:
        """float64[B, T]: the advantage of every action token, 0 elsewhere. `options` are the assigner's own.

        Raises ValueError as `check_assigner` does, and where the rows lack what the assigner reads or compares.
        """
        return self.padded(self.credit(name, normalize=normalize, **options).advantage_A)

    def credit(self, name: str, *, normalize: Normalization = "none", **options: Any) -> Credit:
        """The same before it is padded, with the targets of a critic. Raises ValueError as `assign` does."""
        check_assigner(name, normalize=normalize, **options)
        self._check_needs(name, ASSIGNERS[name].needs_with(options))
        credit = ASSIGNERS[name].function(self.batch, **options)
        return credit if normalize == "none" else normalized(credit, self.batch, population=normalize)

    def _check_needs(self, name: str, needs: frozenset[str]) -> None:
        """Raise ValueError where a need is not met: the credit would be 0, or another assigner's."""
        columns = {need for need in needs if need.endswith(LEVELS)}
        if not self.batch.truncated_M.any():
            columns.discard("bootstrap_M")
        if missing := sorted(columns - self.batch.x.keys()):
            raise ValueError(
                f"{name} reads {', '.join(missing)}: give each to from_rows by its name, as float[B, T]; the adapters "
                "for TRL and prime-rl have none of them: there take an assigner that reads none, as mt_grpo"
            )
        if "groups" in needs and self.group_size < 2:
            raise ValueError(
                f"{name} compares attempts at one task, and there is one attempt at each: play each task more often "
                "and give its attempts equal groups, or take an assigner that compares nothing, as reinforce"
            )
        if "anchors" in needs and (self.batch.anchor_N < 0).all():
            raise ValueError(
                f"{name} compares turns at equal states, and no turn has a state: give from_rows `states` (in verl "
                "anchor_obs, in TRL turn_states, in prime-rl state_key), or take an assigner without, as mt_grpo"
            )

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
    states: Sequence[Sequence[Hashable | None] | None] | None = None,
    truncated_B: np.ndarray | None = None,
    skip_idle: bool = False,
    **columns_BT: np.ndarray,
) -> TokenRows:
    """The rows' action tokens as a Batch.

    mask_BT: bool or 0/1 [B, T], 1 where the policy sampled the token; prompts, observations and padding are 0.
    reward_BT: float [B, T]; a reward belongs to the last turn that has begun by then, wherever in it or after it it is.
    group_B: equal for rows that are attempts at the same task.
    trajectory_B: equal for rows that are parts of one attempt, in their order (a row a turn); None: a row an attempt.
    turn_BT: int [B, T], read where the mask is 1; the turn of each token. None: every run of 1s in the mask is a turn.
    states: for each row the state of the environment before each of its turns, None where it has no name, or None for
        the row; equal states of a group are compared by assigners such as `gigpo`. None: no state has a name.
    truncated_B: bool [B], of an attempt's last row: cut by a limit of the trainer's. None: none was.
    skip_idle: rows without an action token, as cut attempts, have no credit; else they are refused.
    columns_BT: float [B, T], further columns by their names in a Batch ("value_A", "value_N", "prm_A"); of a turn's
        column the turn's first token is read, of a trajectory's the first token of all.
    Raises ValueError that says what does not fit.
    """
    reward_BT = np.asarray(reward_BT, dtype=np.float64)
    mask_BT = _checked_mask(mask_BT, skip_idle=skip_idle)
    _check_shapes(mask_BT, {"rewards": reward_BT, "turn_BT": turn_BT}, columns_BT)
    _refuse(~np.isfinite(reward_BT) & mask_BT.any(axis=1, keepdims=True), reward_BT, "rewards are finite numbers")
    lengths = {"groups": group_B, "trajectories": trajectory_B, "states": states, "truncated flags": truncated_B}
    for name, given in lengths.items():
        if given is not None and len(given) != len(mask_BT):
            raise ValueError(f"{len(given)} {name} for {len(mask_BT)} rows")
    traj_B = _numbers(range(len(mask_BT)) if trajectory_B is None else trajectory_B, "trajectories")
    group_size = _group_size(traj_B, _numbers(group_B, "groups"))
    order = np.argsort(traj_B, kind="stable")
    at, column_A = np.nonzero(mask_BT[order])
    row_A = order[at]
    new_turn = np.diff(column_A) != 1 if turn_BT is None else np.diff(np.asarray(turn_BT)[row_A, column_A]) != 0
    begins_A = np.append(True, (np.diff(at) != 0) | new_turn)
    first = np.flatnonzero(begins_A)
    row_N = row_A[first]
    reward_N = _turn_rewards(reward_BT, row_N, column_A[first])
    first_M = np.flatnonzero(np.append(True, np.diff(traj_B[row_N]) != 0))
    last_row_M = row_N[np.append(first_M[1:], len(row_N)) - 1]
    group_M = _numbers([group_B[i] for i in last_row_M], "groups")
    batch = Batch(
        group_M=group_M,
        traj_N=np.unique(traj_B[row_N], return_inverse=True)[1],
        reward_N=reward_N,
        turn_A=np.cumsum(begins_A) - 1,
        truncated_M=np.zeros(len(first_M), bool) if truncated_B is None else np.asarray(truncated_B, bool)[last_row_M],
        anchor_N=_anchors(states, row_N),
        logprob_A=np.zeros(len(row_A), np.float32),
    )
    level = {"_A": slice(None), "_N": first, "_M": first[first_M]}
    read = {name: np.asarray(x, np.float64)[row_A, column_A][level[name[-2:]]] for name, x in columns_BT.items()}
    return TokenRows(replace(batch, x=read), row_A, column_A, mask_BT.shape, group_size)


def _checked_mask(given: Any, *, skip_idle: bool) -> np.ndarray:
    """The mask as bool [B, T]. Raises ValueError for other numbers than 0 and 1, and without a row to learn from."""
    mask = np.asarray(given)
    if mask.ndim != 2 or mask.dtype.kind not in "biuf":
        raise ValueError(f"the mask is numbers [rows, tokens]; not {mask.dtype} {mask.shape}")
    if not len(mask):
        raise ValueError("there are no rows: give one or more")
    _refuse((mask != 0) & (mask != 1), mask, "the mask is 1 where the policy sampled the token, else 0")
    mask_BT = mask.astype(bool)
    idle = np.flatnonzero(~mask_BT.any(axis=1)).tolist()
    if len(idle) == len(mask) or (idle and not skip_idle):
        raise ValueError(f"rows {idle} have no action token: leave them out")
    return mask_BT


def _refuse(wrong_BT: np.ndarray, given_BT: np.ndarray, rule: str) -> None:
    """Raise ValueError with the rule and the place of the first wrong number, if any."""
    if wrong_BT.any():
        row, column = np.argwhere(wrong_BT)[0]
        raise ValueError(f"{rule}; row {row}, column {column} is {given_BT[row, column]}")


def _check_shapes(
    mask_BT: np.ndarray, given_BT: dict[str, np.ndarray | None], columns_BT: dict[str, np.ndarray]
) -> None:
    """Raise ValueError unless all has the mask's shape, and columns have names."""
    if unknown := [name for name in columns_BT if not name.endswith(LEVELS)]:
        raise ValueError(f"{', '.join(unknown)}: a column's name ends in its level, {', '.join(LEVELS)}")
    for name, given in {**given_BT, **columns_BT}.items():
        if given is not None and np.shape(given) != mask_BT.shape:
            raise ValueError(f"{name}: [rows, tokens] as the mask, {mask_BT.shape}; not {np.shape(given)}")


def _group_size(traj_B: np.ndarray, group_B: np.ndarray) -> int:
    """Attempts in the largest group. Raises ValueError where an attempt is in two."""
    attempts = {*zip(traj_B.tolist(), group_B.tolist(), strict=True)}
    if len(attempts) > traj_B.max() + 1:
        raise ValueError("an attempt has rows of two groups: give all its rows its task's group")
    return max(Counter(group for _, group in attempts).values())


def _turn_rewards(reward_BT: np.ndarray, row_N: np.ndarray, start_N: np.ndarray) -> np.ndarray:
    """Each row's rewards from a turn's first token to the next turn's; what comes before the first counts for it."""
    opens_N = np.append(True, row_N[1:] != row_N[:-1])
    begin_N = (np.cumsum(opens_N) - 1) * reward_BT.shape[1] + np.where(opens_N, 0, start_N)
    return np.add.reduceat(reward_BT[row_N[opens_N]].ravel(), begin_N)  # a turn's lone reward stays as it is, exactly


def _anchors(states: Sequence[Sequence[Hashable | None] | None] | None, row_N: np.ndarray) -> np.ndarray:
    """Numbers of the states before turns, -1 where one has no name."""
    if states is None:
        return np.full(len(row_N), -1)
    count, number, flat = np.bincount(row_N), dict[Hashable, int](), list[int]()
    for row in dict.fromkeys(row_N.tolist()):
        named = [None] * count[row] if (given := states[row]) is None else given
        if len(named) != count[row]:
            raise ValueError(f"row {row} has {count[row]} turns and {len(named)} states: one state before each turn")
        for turn, state in enumerate(named):
            flat.append(-1 if state is None else _number(state, number, f"states: row {row}, turn {turn}"))
    return np.array(flat)


def _numbers(names: Iterable[Hashable], what: str) -> np.ndarray:
    """0, 1, 2, … in the order in which names first come; numpy's and tensors' scalars count as plain numbers."""
    number: dict[Hashable, int] = {}
    plain = (getattr(name, "item", lambda name=name: name)() for name in names)
    return np.array([_number(name, number, f"{what}: row {row}") for row, name in enumerate(plain)])


def _number(name: Hashable, number: dict[Hashable, int], where: str) -> int:
    """The number of a name, the next one if it is new."""
    try:
        return number.setdefault(name, len(number))
    except TypeError as error:
        kind = type(name).__name__
        raise ValueError(f"{where} is of type {kind}, which has no hash: give strings, numbers or tuples") from error
