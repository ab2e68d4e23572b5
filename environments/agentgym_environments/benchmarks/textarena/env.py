"""TextArena: one of its single-player games."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym_environments.base.engine_env import EngineEnv, require_flag, require_int
from agentgym_environments.base.text_env import Outcome, split_of, task_random
from agentgym_environments.benchmarks.textarena.engine import chance, make
from agentgym_environments.benchmarks.textarena.games import (
    ALIKE,
    GAMES,
    LEFT_OUT,
    MISTAKES,
    MOST_TURNS,
    RULES,
    SINGLE,
    TURNS,
    is_won,
    move_of,
)
from agentgym_environments.benchmarks.textarena.solver import SOLVERS


class TextArena(EngineEnv):
    """game: an id of TextArena's that `games.py` lists. A game is solved when it ends with the reward 1
    (Blackjack: with more hands won than lost).

    partial: reward what the game gives for less than a solution, too (0 to 1); without, that is 0.
    turns: at most; without, 100, or more where a game needs more. A game's own limit, where it is less, counts.
    """

    verbatim = True

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        game: str = "FrozenLake-v0",
        partial: bool = False,
        turns: int | None = None,
    ) -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        if game not in GAMES:
            why = next((f": {reason}" for name, reason in LEFT_OUT.items() if str(game).startswith(name)), "")
            raise ConfigError(f"textarena: {game!r} is no environment here{why}; the games are {', '.join(GAMES)}")
        require_flag("textarena", "partial", partial)
        turns = TURNS.get(game, MOST_TURNS) if turns is None else turns
        require_int("textarena", "turns", turns, 1)
        self.game, self.partial = game, partial
        self.inner: Any = make(game)
        self._solver = SOLVERS.get(game)
        self._single, self._alike = game.startswith(SINGLE), game.startswith(ALIKE)
        self._chance: list[Any] = [random.Random(0).getstate()]
        kind = game.partition("-")[0]
        self._mistake, self._fatal = MISTAKES.get(kind, (None, 0))
        self._seed, self._text, self._score, self._mistakes = 0, "", 0.0, 0
        self._draw(0)
        limit = self.inner.state.max_turns
        changes: dict[str, Any] = {"max_turns": min(turns, limit or turns), "actions": GAMES[game]}
        if kind in RULES:
            changes["instructions"] = f"{spec.instructions} {RULES[kind]}"
        if self._single:
            changes["splits"] = {"train": 1}
        if self._solver is None:
            changes["capabilities"] = tuple(name for name in spec.capabilities if name != "solver")
        super().__init__(spec.model_copy(update=changes))

    def open(self, split: str, task: int) -> None:
        draws = task_random("textarena", self.game, split, task)
        for _ in range(TRIES):
            self._draw(draws.randrange(2**31))
            if self._single or self._split() == split:
                break
        else:
            raise ConfigError(f"textarena: {self.game} has too few openings for a {split} split")
        self._score, self._mistakes = 0.0, 0
        self._text = self._news()

    def observe(self) -> str:
        return self._text

    def apply(self, action: str) -> Outcome | None:
        move = move_of(self.game, action) if GAMES[self.game] else " ".join(action.split())
        if move is None:
            return None
        state = self.inner.state
        before = state.error_count
        with chance(self._chance):
            done, _ = self.inner.step(move)
        self._text = self._news() or self._text
        if state.error_count > before:
            if self._mistake and self._mistake in self._text:
                return self._blunder()
            self._taken.append(action)  # the game may remember it
            return None
        self._score = min(1.0, max(0.0, float((state.rewards or {}).get(0, 0.0)))) if done else 0.0
        solved = bool(done) and is_won(self.game, self.inner)
        return Outcome(self._score if self.partial else float(solved), ended=bool(done), success=solved)

    def _blunder(self) -> Outcome:
        """Count a mistake; the last one loses the game."""
        self._mistakes += 1
        if self._mistakes < self._fatal:
            return Outcome()
        self._text += "\nThe game is lost."
        self._score = float(self.inner._get_percentage_completion())
        return Outcome(self._score if self.partial else 0.0, ended=True)

    def refuse(self, action: str) -> str:
        return self._text if not GAMES[self.game] else f"say {', '.join(GAMES[self.game])}\n{self._text}"

    def key(self) -> str:
        key = f"{self._seed}:{self._digest()}" if self._alike else self._digest()
        return f"{key}:{self._mistakes}" if self._mistakes else key

    def describe(self) -> dict[str, Any]:
        return {"progress": self._score}

    def solver(self) -> str:
        self.require_episode("solver")
        return self._solver(self.inner) if self._solver else super().solver()  # type: ignore[return-value]

    def _split(self) -> str:
        """The split that the present opening belongs to."""
        if self.game.startswith("GuessTheNumber"):  # with twenty openings a hash may leave a split empty
            return {5: "validation", 8: "test"}.get(self.inner.game_number % 10, "train")
        return split_of(str(self._seed) if self._alike else self._digest())

    def _draw(self, seed: int) -> None:
        self._seed = seed
        with chance(self._chance):
            self.inner.reset(num_players=1, seed=seed)
        self.inner.state.error_allowance = 10**9  # a wrong move costs a turn here, and ends nothing

    def _digest(self) -> str:
        parts = [self.inner.state.game_state, {k: v for k, v in vars(self.inner).items() if k in STATE}]
        return hashlib.sha256(json.dumps(parts, default=_plain, sort_keys=True).encode()).hexdigest()[:32]

    def _news(self) -> str:
        """Return what the game has said since it was last asked, the agent's own words left out."""
        _, messages = self.inner.get_observation()
        return "\n".join(text.strip() for author, text, _ in messages if author == -1)


TRIES = 500
"""Openings drawn until one belongs to the split asked for."""

STATE = ("board", "clues", "expressions", "h_edges", "mapping", "numbers", "v_edges")
"""Attributes in which games keep state that is not in `game_state`."""


def _plain(value: Any) -> Any:
    return sorted(map(str, value)) if isinstance(value, (set, frozenset)) else str(value)
