"""Sokoban: push every box onto a goal. A wrong push can rarely be undone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentgym.spec import EnvSpec
from agentgym_environments.base.text_env import Outcome, TurnEnv
from agentgym_environments.diagnostics.sokoban.level import MOVES, SokobanLevel
from agentgym_environments.diagnostics.sokoban.solver import solve
from agentgym_environments.diagnostics.sokoban.tasks import level


class Sokoban(TurnEnv):
    """The only reward is 1 when all boxes are on goals.

    size: width and height of the floor inside the walls. longest: a solution of at most so many moves exists.
    """

    def __init__(self, spec: EnvSpec | None = None, *, size: int = 5, boxes: int = 1, longest: int = 20) -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        super().__init__(spec.model_copy(update={"max_turns": max(spec.max_turns, longest)}))
        self.size, self.boxes, self.longest = size, boxes, longest
        self.level: SokobanLevel
        self._plan: dict[SokobanLevel, str] = {}

    def begin(self, split: str, task: int) -> None:
        self.level = level(self.size, self.boxes, self.longest, split, task)
        self._plan = {}

    def observe(self) -> str:
        return self.level.draw()

    def act(self, action: str) -> Outcome | None:
        if action not in MOVES:
            return None
        self.level = self.level.move(action)
        solved = self.level.solved
        return Outcome(float(solved), ended=solved, success=solved)

    def key(self) -> str:
        return self.level.draw()

    def describe(self) -> dict[str, Any]:
        """`progress` is the share of boxes on goals; `available_actions` change something."""
        doing = [] if self.level.solved else [way for way in MOVES if self.level.move(way) is not self.level]
        placed = len(self.level.boxes & self.level.goals)
        return {"progress": placed / len(self.level.goals), "available_actions": doing}

    def solver(self) -> str:
        """The next move of a shortest solution; "up" when the level can no longer be solved."""
        self.require_episode("solver")
        if self.level not in self._plan:
            self._plan, here = {}, self.level
            for way in solve(self.level) or ["up"]:
                self._plan[here] = way
                here = here.move(way)
        return self._plan[self.level]

    def save(self) -> Any:
        return self.level.draw()

    def load(self, state: Any) -> None:
        self.level, self._plan = SokobanLevel.parse(state), {}
