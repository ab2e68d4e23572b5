"""JobEnv: an environment whose actions are tool calls on a database, and whose task is a Job: rows that should
change."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from agentgym.env import Action
from agentgym.spec import EnvSpec
from agentgym_environments.base.text_env import Outcome, TurnEnv
from agentgym_environments.synthetic.tools.database import Change, Database, Dump, changes, digest
from agentgym_environments.synthetic.tools.goals import match
from agentgym_environments.synthetic.tools.job import Job, PlannedStep
from agentgym_environments.synthetic.tools.registry import Call, CallRefused, Tool, call, read_call, render


class JobEnv(TurnEnv):
    """An action is one call, carried out wholly or refused with a reason; comparing databases tells what changed.

    The only reward is 1, at the end that the agent declares, when all goals are met, nothing else has changed, and what
    had to be said was said.
    """

    tools: ClassVar[dict[str, Tool]]
    """Called with `desk`."""
    env_tools: ClassVar[dict[str, Tool]]
    """Called with the environment itself: help, and what ends the episode."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec)
        self.desk: Any = None
        """Object that the tools work on; has `db`."""
        self.job = Job()
        self.opening = ""
        self.output = ""
        """The last observation."""
        self.done = False
        """The agent said that it is done."""
        self._executed: set[str] = set()
        self._where = ("", -1)
        self._before: Dump = {}
        self._after: Dump = {}
        self._changes: dict[str, list[Change]] = {}
        self._action: Action = ""
        self._call: Call | None = None

    # What an environment implements.

    def choose(self, split: str, task: int) -> tuple[Any, Dump, Job, str]:
        """A new desk, the dump of its database, the job, and the first observation."""
        raise NotImplementedError

    def answered(self) -> bool | None:
        """Return whether what had to be said was said; None where nothing has to be."""
        raise NotImplementedError

    def offered(self) -> list[str]:
        """`available_actions`."""
        raise NotImplementedError

    def farewell(self) -> Action:
        """The solver's last call."""
        raise NotImplementedError

    def extra(self) -> Any:
        """Return what of the state is not in the database, as JSON."""
        raise NotImplementedError

    def set_extra(self, extra: Any) -> None:
        raise NotImplementedError

    def beside(self) -> Any:
        """Return what `state_key` tells of `extra`."""
        return self.extra()

    # Turns.

    def begin(self, split: str, task: int) -> None:
        self._open(split, task)
        self.output, self._executed, self.done = self.opening, set(), False

    def _open(self, split: str, task: int) -> None:
        if self.desk is not None:
            self.desk.db.close()
        self.desk, self._before, self.job, self.opening = self.choose(split, task)
        self._where, self._after, self._changes = (split, task), dict(self._before), {}
        self.db.touched.clear()

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._action = action  # TurnEnv would make it lower case
        return super().step("")

    def act(self, action: str) -> Outcome | None:
        try:
            self._call = read_call(self._action)
            self.output = render(self.run(*self._call))
        except CallRefused as reason:
            self.output, self._call = f"error: {reason}", None
            return None
        self._executed.add(as_text(*self._call))
        if not self.done:
            return Outcome()
        met, unwanted = self.score()
        success = met == len(self.job.goals) and not unwanted and self.answered() is not False
        return Outcome(float(success), ended=True, success=success)

    def run(self, name: str, arguments: dict[str, Any]) -> Any:
        """Raises CallRefused."""
        if name in self.env_tools:
            return call(self.env_tools, self, name, arguments)
        with self.db.transaction():
            return call(self.tools, self.desk, name, arguments)

    def observe(self) -> str:
        return self.output

    def refuse(self, action: str) -> str:
        return self.output

    def describe(self) -> dict[str, Any]:
        """`progress`: goals met, over all goals and unwanted changes; what has to be said counts as a goal."""
        (met, unwanted), answered = self.score(), self.answered()
        goals = len(self.job.goals) + unwanted + (answered is not None)
        return {"progress": (met + bool(answered)) / goals, "available_actions": [] if self.done else self.offered()}

    def score(self) -> tuple[int, int]:
        """(goals met, unwanted changes)."""
        met = len(match(self.job.goals, self.found))
        return met, len(self.found) - met

    def key(self) -> str:
        return digest(self.opening, self.found, self.done, self.beside())

    # The solver.

    def solver(self) -> Action:
        """The next call of the plan whose changes are not made yet, then the end."""
        self.require_episode("solver")
        step = self.next_step()
        return self.farewell() if step is None else {"name": step.name, "arguments": step.arguments}

    def next_step(self) -> PlannedStep | None:
        met = match(self.job.goals, self.found)
        waiting = [any(goal not in met for goal in step.goals) for step in self.job.plan]
        for number, step in enumerate(self.job.plan):
            needed = any(waiting[number:]) or self.answered() is False
            if waiting[number] or (
                not step.goals and needed and as_text(step.name, step.arguments) not in self._executed
            ):
                return step
        return None

    def hint(self) -> str:
        self.require_episode("hint")
        (met, unwanted), step = self.score(), self.next_step()
        wrong = f" {unwanted} rows were changed that should not be; undo it where you can." if unwanted else ""
        usage = {**self.tools, **self.env_tools}[step.name if step else "finish"].usage
        return f"{met} of {len(self.job.goals)} changes are made.{wrong} Next: {usage}"

    # State.

    def save(self) -> Any:
        progress = {"done": self.done, "said": sorted(self._executed), "extra": self.extra()}
        return {"where": self._where, "db": self.db.save(), **progress}

    def load(self, state: Any) -> None:
        self._open(*state["where"])  # what the database is compared with
        self.db.load(state["db"])
        self.done, self._executed, self.output = state["done"], set(state["said"]), ""
        self.set_extra(state["extra"])

    def close(self) -> None:
        if self.desk is not None:
            self.desk.db.close()
            self.desk, self.turn = None, -1

    @property
    def db(self) -> Database:
        return self.desk.db

    @property
    def found(self) -> list[Change]:
        """Every row that is not as it was at the beginning."""
        self._look()
        return [change for table in sorted(self._changes) for change in self._changes[table]]

    def ids(self, table: str) -> list[int]:
        self._look()
        return list(self._after[table])

    def _look(self) -> None:
        """Compare the tables in which something was written since the last look."""
        for table in self.db.touched:
            new = self._after[table] = self.db.table(table)
            self._changes[table] = changes(self.db.columns[table], table, self._before[table], new)
        self.db.touched.clear()


def as_text(name: str, arguments: dict[str, Any]) -> str:
    """A call as a text action."""
    return json.dumps({"name": name, "arguments": arguments})
