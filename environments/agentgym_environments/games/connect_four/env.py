"""Connect Four: drop stones into columns, four in a row win. Alpha-beta to a fixed depth plays against the agent."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym_environments.base.text_env import split_of, task_random
from agentgym_environments.base.two_player_env import Game
from agentgym_environments.base.two_player_rules import Scores
from agentgym_environments.games.connect_four.bitboard import WIN, Position, rated

MARKS = "xo"


class ConnectFourRules:
    """Role 0, x, moved first on the empty board; an episode begins after two to five random stones, neither player able
    to win at once."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.actions: tuple[str, ...] = tuple(str(column + 1) for column in range(columns))
        cells = columns * rows
        self.moves: tuple[int, int] = ((cells - 2 + 1) // 2, (cells - 2 + 1) // 2)
        self.reward_range: tuple[float, float] = (-1.0, 1.0)

    def start(self, split: str, task: int, side: int | None) -> Position:
        random = task_random("connect-four", self.columns, self.rows, split, task, "any" if side is None else side)
        while True:
            position = Position(self.columns, self.rows)
            for _ in range(random.choice([n for n in range(2, 6) if side in (None, n % 2)])):
                cells = [position.cell(column) for column in range(self.columns)]
                position = position.put(random.choice([cell for cell in cells if cell]))
            threats = position.completes(position.mine) | position.completes(position.theirs)
            quiet = not threats & position.playable and not position.won()
            if quiet and split_of(f"connect-four {min(self.key(position), self._mirrored(position))}") == split:
                return position

    def mover(self, state: Position) -> int | None:
        return None if state.won() or not state.playable else state.count % 2

    def legal(self, state: Position) -> tuple[str, ...]:
        return () if state.won() else tuple(a for a in self.actions if state.cell(int(a) - 1))

    def play(self, state: Position, action: str) -> Position:
        return state.put(state.cell(int(action) - 1))

    def scores(self, state: Position) -> Scores:
        if not state.won():
            return (0.0, 0.0)
        return (1.0, -1.0) if state.count % 2 else (-1.0, 1.0)

    def forfeit(self, state: Position, role: int) -> Scores:
        return (-1.0, 1.0) if role == 0 else (1.0, -1.0)

    def success(self, state: Position, role: int) -> bool:
        """A win."""
        return self.scores(state)[role] > 0

    def observe(self, state: Position, role: int) -> str:
        grid = "\n".join([*(" ".join(row) for row in self._drawn(state)), " ".join(self.actions)])
        if state.won():
            return f"{grid}\n{MARKS[(state.count - 1) % 2]} wins"
        return f"{grid}\nyou are {MARKS[role]}" if state.playable else f"{grid}\ndraw"

    def key(self, state: Position) -> str:
        return "/".join(self._drawn(state))

    def information(self, state: Position, role: int) -> str:
        return self.key(state)

    def save(self, state: Position) -> Any:
        return [state.mine, state.stones]

    def load(self, saved: Any) -> Position:
        return Position(self.columns, self.rows, *saved)

    def _drawn(self, state: Position) -> list[str]:
        """The rows from the top."""
        x = state.mine if state.count % 2 == 0 else state.theirs
        bits = [[1 << column * (self.rows + 1) + row for column in range(self.columns)] for row in range(self.rows)]
        return ["".join("." if not state.stones & b else "x" if x & b else "o" for b in row) for row in bits[::-1]]

    def _mirrored(self, state: Position) -> str:
        return "/".join(row[::-1] for row in self._drawn(state))


class ConnectFour(Game):
    """opponent: "random"; "minimax", which wins or blocks within two moves and is random otherwise; "expert",
    alpha-beta `depth` moves ahead; "self".
    columns, rows: of the board, 4 to 9 each. depth: moves that the expert looks ahead."""

    beatable = ("random", "minimax")

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        opponent: str = "minimax",
        side: int | str = "alternate",
        columns: int = 7,
        rows: int = 6,
        depth: int = 6,
    ) -> None:
        if not (4 <= columns <= 9 and 4 <= rows <= 9 and 1 <= depth <= 10):
            raise ConfigError(
                f"connect-four: columns and rows are 4 to 9, depth 1 to 10, not {columns}, {rows}, {depth}"
            )
        self.depth = depth
        opponents = {"random": at_random, "minimax": glance, "expert": partial(ahead, depth)}
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        super().__init__(spec, ConnectFourRules(columns, rows), opponents, opponent, side)

    def seat(self, task: int) -> int:
        return self.state.count % 2

    def best(self, state: Position) -> str:
        found = rated(state, self.depth)
        return action_of(state, max(found, key=lambda one: one[0])[1])


def at_random(state: Position, random: np.random.Generator) -> str:
    cells = [cell for column in range(state.columns) if (cell := state.cell(column))]
    return action_of(state, cells[int(random.integers(len(cells)))])


def glance(state: Position, random: np.random.Generator) -> str:
    """A move that wins or, failing that, does not lose at once."""
    found = [(worth if abs(worth) > WIN // 2 else 0, cell) for worth, cell in rated(state, 1)]
    best = [cell for worth, cell in found if worth == max(found)[0]]
    return action_of(state, best[int(random.integers(len(best)))])


def ahead(depth: int, state: Position, random: np.random.Generator) -> str:
    """One of the moves that are best so far ahead."""
    found = rated(state, depth)
    best = [cell for worth, cell in found if worth == max(found)[0]]
    return action_of(state, best[int(random.integers(len(best)))])


def action_of(state: Position, cell: int) -> str:
    return str((cell.bit_length() - 1) // (state.rows + 1) + 1)
