"""Tic-tac-toe, from openings of up to four marks that neither player has to lose."""

from __future__ import annotations

from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from agentgym.spec import EnvSpec
from agentgym_environments.base.text_env import split_of, task_random
from agentgym_environments.base.two_player_env import Game
from agentgym_environments.base.two_player_rules import Scores

MARKS = "xo"
LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
TURNS = (
    (0, 1, 2, 3, 4, 5, 6, 7, 8),
    (2, 5, 8, 1, 4, 7, 0, 3, 6),
    (8, 7, 6, 5, 4, 3, 2, 1, 0),
    (6, 3, 0, 7, 4, 1, 8, 5, 2),
)
MIRRORED = ((0, 1, 2, 3, 4, 5, 6, 7, 8), (2, 1, 0, 5, 4, 3, 8, 7, 6))
EMPTY = "." * 9


class TicTacToeRules:
    """A state is nine characters, row by row: "x" (role 0, which moves first), "o" (role 1) or "."."""

    actions: tuple[str, ...] = tuple("123456789")
    moves: tuple[int, int] = (5, 4)
    reward_range: tuple[float, float] = (-1.0, 1.0)

    def start(self, split: str, task: int, side: int | None) -> str:
        return openings(side)[split][task]

    def mover(self, state: str) -> int | None:
        return None if winner(state) is not None or "." not in state else mover(state)

    def legal(self, state: str) -> tuple[str, ...]:
        return tuple(str(cell + 1) for cell in free(state))

    def play(self, state: str, action: str) -> str:
        return put(state, int(action) - 1)

    def scores(self, state: str) -> Scores:
        won = winner(state)
        return (0.0, 0.0) if won is None else (1.0, -1.0) if won == 0 else (-1.0, 1.0)

    def forfeit(self, state: str, role: int) -> Scores:
        return (-1.0, 1.0) if role == 0 else (1.0, -1.0)

    def success(self, state: str, role: int) -> bool:
        """A win or a draw: no opening is lost."""
        return self.scores(state)[role] >= 0

    def observe(self, state: str, role: int) -> str:
        won = winner(state)
        cells = [str(i + 1) if mark == "." else mark for i, mark in enumerate(state)]
        grid = "\n".join(" ".join(cells[row : row + 3]) for row in (0, 3, 6))
        if won is not None:
            return f"{grid}\n{MARKS[won]} wins"
        return f"{grid}\ndraw" if "." not in state else f"{grid}\nyou are {MARKS[role]}"

    def key(self, state: str) -> str:
        return state

    def information(self, state: str, role: int) -> str:
        return state

    def save(self, state: str) -> Any:
        return state

    def load(self, saved: Any) -> str:
        return str(saved)


class TicTacToe(Game):
    """opponent: "random"; "minimax", which wins or blocks where one move does it and is random otherwise; "expert",
    which plays perfectly; "self"."""

    beatable = ("random", "minimax", "expert")

    def __init__(
        self, spec: EnvSpec | None = None, *, opponent: str = "minimax", side: int | str = "alternate"
    ) -> None:
        tasks = (
            {} if side == "alternate" else {"splits": {split: len(found) for split, found in openings(side).items()}}
        )
        opponents = {"random": at_random, "minimax": glance, "expert": perfect}
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        super().__init__(spec, TicTacToeRules(), opponents, opponent, side, **tasks)

    def seat(self, task: int) -> int:
        return mover(self.state)

    def best(self, state: str) -> str:
        return str(best_cells(state)[0] + 1)


def mover(state: str) -> int:
    return (9 - state.count(".")) % 2


def free(state: str) -> list[int]:
    return [cell for cell, mark in enumerate(state) if mark == "."]


def put(state: str, cell: int) -> str:
    return f"{state[:cell]}{MARKS[mover(state)]}{state[cell + 1 :]}"


def winner(state: str) -> int | None:
    for a, b, c in LINES:
        if state[a] != "." and state[a] == state[b] == state[c]:
            return MARKS.index(state[a])
    return None


@cache
def value(state: str) -> int:
    """Return what whoever is to move gets under perfect play: 1, 0 or −1."""
    if winner(state) is not None:
        return -1
    return max((-value(put(state, cell)) for cell in free(state)), default=0)


def best_cells(state: str) -> list[int]:
    """The moves that perfect play allows, those that win at once first."""
    scored = {cell: -value(put(state, cell)) for cell in free(state)}
    best = [cell for cell, worth in scored.items() if worth == max(scored.values())]
    return sorted(best, key=lambda cell: winner(put(state, cell)) is None)


def at_random(state: str, random: np.random.Generator) -> str:
    return str(random.choice(free(state)) + 1)


def glance(state: str, random: np.random.Generator) -> str:
    """A move that wins, else one that keeps the other from winning at once, else any."""
    won = [cell for cell in free(state) if winner(put(state, cell)) is not None]
    other = MARKS[1 - mover(state)]
    blocks = [cell for cell in free(state) if winner(f"{state[:cell]}{other}{state[cell + 1 :]}") is not None]
    return str(random.choice(won or blocks or free(state)) + 1)


def perfect(state: str, random: np.random.Generator) -> str:
    return str(random.choice(best_cells(state)) + 1)


@lru_cache
def openings(side: int | str | None) -> dict[str, list[str]]:
    """Return of each split, in an order that is drawn once, the boards of up to four marks in which the game goes on
    and perfect play draws; with `side`, those in which that role moves. A board and its reflections share a split."""
    found, edge = {EMPTY}, [EMPTY]
    for _ in range(4):
        edge = sorted({put(board, cell) for board in edge for cell in free(board) if winner(board) is None})
        found |= set(edge)
    boards = [b for b in sorted(found) if winner(b) is None and value(b) == 0 and side in (None, mover(b))]
    task_random("tic-tac-toe").shuffle(boards)
    splits: dict[str, list[str]] = {"train": [], "validation": [], "test": []}
    for board in boards:
        splits[split_of(f"tic-tac-toe {canonical(board)}")].append(board)
    return splits


def canonical(board: str) -> str:
    return min("".join(board[mirror[i]] for i in turn) for turn in TURNS for mirror in MIRRORED)
