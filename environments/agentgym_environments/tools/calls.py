"""CallEnv: a world of turns whose actions are tool calls on a database."""

from __future__ import annotations

from typing import Any, ClassVar

from agentgym.env import Action
from agentgym.spec import EnvSpec
from agentgym_environments.tools.database import Change, Database, Dump, changes, digest
from agentgym_environments.tools.registry import Call, Refused, Tool, call, read_call, render
from agentgym_environments.turns import Outcome, TurnEnv


class CallEnv(TurnEnv):
    """An action is one call, carried out wholly or refused with a reason; comparing databases tells what changed."""

    tools: ClassVar[dict[str, Tool]]
    """Called with `desk`."""
    world_tools: ClassVar[dict[str, Tool]]
    """Called with the world itself: help, and what ends the episode."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec)
        self.desk: Any = None
        """What the tools work on; has `db`."""
        self.told = ""
        """The last observation."""
        self.done = False
        self._before: Dump = {}
        self._after: Dump = {}
        self._changes: list[Change] = []
        self._seen = -1
        self._action: Action = ""
        self._call: Call | None = None

    # What a world implements beside `begin`, `save` and `load`.

    def judge(self) -> Outcome:
        """What the episode is worth, once it is done."""
        raise NotImplementedError

    # Turns.

    def opened(self, desk: Any) -> None:
        """To be called by `begin` and `load` when the database is as the task found it: it is compared with."""
        if self.desk is not None:
            self.desk.db.close()
        self.desk, self._before, self._seen, self.done = desk, desk.db.dump(), -1, False

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._action = action  # TurnEnv would make it lower case
        return super().step("")

    def act(self, action: str) -> Outcome | None:
        try:
            self._call = read_call(self._action)
            self.told = render(self.run(*self._call))
        except Refused as reason:
            self.told, self._call = f"error: {reason}", None
            return None
        return self.judge() if self.done else Outcome()

    def run(self, name: str, arguments: dict[str, Any]) -> Any:
        """Raises Refused."""
        if name in self.world_tools:
            return call(self.world_tools, self, name, arguments)
        with self.db.whole():
            return call(self.tools, self.desk, name, arguments)

    def observe(self) -> str:
        return self.told

    def refuse(self, action: str) -> str:
        return self.told

    def close(self) -> None:
        if self.desk is not None:
            self.desk.db.close()
            self.desk, self.turn = None, -1

    # The database.

    @property
    def db(self) -> Database:
        return self.desk.db

    @property
    def found(self) -> list[Change]:
        """Every row that is not as it was at the beginning."""
        self._look()
        return self._changes

    @property
    def rows(self) -> Dump:
        self._look()
        return self._after

    def key(self) -> str:
        self._look()
        return digest(self._name, self.own_key())

    def own_key(self) -> Any:
        """What of the state is not in the database."""
        return self.done

    def _look(self) -> None:
        if self._seen != self.db.written:
            self._after = self.db.dump()
            self._changes, self._seen = changes(self._before, self._after), self.db.written
            self._name = digest(self._after)
