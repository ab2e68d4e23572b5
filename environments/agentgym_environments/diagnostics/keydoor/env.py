"""KeyDoor: fetch a key and open a door. In a room (`corridor=0`), or with a deciding turn long before the door."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym_environments.base.text_env import Outcome, TurnEnv
from agentgym_environments.diagnostics.keydoor.corridor import COLOURS, Corridor
from agentgym_environments.diagnostics.keydoor.grid import Grid


class KeyDoor(TurnEnv):
    """The only reward is 1 when the door opens.

    size: the room is size by size cells. Unused with a corridor.
    corridor: places between the first room and the door; 0 is the single room.
    colours: keys to choose from, 2 to 6. distractors: probability that a place shows something that means nothing.
    reveal: the opening names the far door's colour; otherwise it is always the same one and only reward tells.
    wide: a meadow instead of a corridor, every way leads on.
    """

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        size: int = 3,
        corridor: int = 0,
        colours: int = 3,
        distractors: float = 0.5,
        reveal: bool = True,
        wide: bool = False,
    ) -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        if corridor and not 2 <= colours <= len(COLOURS):
            raise ConfigError(f"keydoor: colours is 2 to {len(COLOURS)}, not {colours}")
        self.rules = Corridor(corridor, colours, distractors, reveal, wide) if corridor else Grid(size)
        if isinstance(self.rules, Grid) and sum(spec.splits.values()) > self.rules.layouts:
            raise ConfigError(f"keydoor: a room of size {size} has {self.rules.layouts} layouts, fewer than the tasks")
        slack = 4 if corridor else 0
        turns = max(spec.max_turns, self.rules.needed + slack)
        super().__init__(spec.model_copy(update={"actions": tuple(self.rules.actions), "max_turns": turns}))
        self.state: Any = None
        """GridState or CorridorState."""

    def begin(self, split: str, task: int) -> None:
        self.state = self.rules.start(split, task, self.env_spec.splits)

    def observe(self) -> str:
        return self.rules.observe(self.state)

    def act(self, action: str) -> Outcome | None:
        done = self.rules.act(self.state, action)
        if done is None:
            return None
        self.state, outcome = done
        return outcome

    def key(self) -> str:
        return self.rules.key(self.state)

    def describe(self) -> dict[str, Any]:
        return self.rules.describe(self.state)

    def solver(self) -> str:
        self.require_episode("solver")
        return self.rules.solver(self.state)

    def save(self) -> Any:
        return self.rules.save(self.state)

    def load(self, state: Any) -> None:
        self.state = self.rules.load(state)
