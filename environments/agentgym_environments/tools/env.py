"""Tools: errands in a person's mail, calendar, notes, contacts, shop and bank, judged by the database's last state."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from agentgym.env import Action
from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym_environments.tools.apps import bank, calendar, contacts, mail, notes, shop
from agentgym_environments.tools.calls import CallEnv
from agentgym_environments.tools.goals import match, says
from agentgym_environments.tools.job import Job, Step
from agentgym_environments.tools.registry import Line, Refused, Tool, tool, tools_of
from agentgym_environments.tools.tasks import KINDS, LEVELS, Level, task
from agentgym_environments.turns import Outcome

APPS = {"mail": mail, "calendar": calendar, "notes": notes, "contacts": contacts, "shop": shop, "bank": bank}

READS = ("mail_folders", "mail_search", "calendar_search", "notes_search", "contacts_search", "shop_search")
READS += ("shop_basket", "shop_orders", "bank_accounts", "bank_transactions", "bank_payees")
BY_ID = {
    "mails": ("mail_read", "mail_delete"),
    "events": ("calendar_delete",),
    "notes": ("notes_read", "notes_delete"),
    "contacts": ("contacts_delete",),
    "basket": ("shop_remove",),
}
OFFERED = 3
"""Rows of a table for which calls are offered."""


@tool
def help(world: Any, app: Line = "") -> str:
    """The task once more, and the apps; with the name of an app, how its tools are called."""
    if not app:
        return f'{world.opening}\nApps: {", ".join(APPS)}. Call help with {{"app": ...}} for the tools of one.'
    if app not in APPS:
        raise Refused(f"there is no app {app!r}; there are {', '.join(APPS)}")
    return "\n".join(one.usage for one in tools_of(APPS[app]).values())


@tool
def finish(world: Any, answer: Line = "") -> str:
    """Say that the task is done, once all is; with the answer, where one was asked for. It ends the task."""
    world.answer, world.done = answer, True
    return "finished"


class Tools(CallEnv):
    """The only reward is 1, at finish, when all that was asked for has changed and nothing else.

    level: "one" app, "several" apps, or "long", three jobs over several apps.
    kind: tasks of this kind only; "" draws from all of the level.
    """

    tools: ClassVar[dict[str, Tool]] = tools_of(*APPS.values())
    world_tools: ClassVar[dict[str, Tool]] = {"help": help, "finish": finish}

    def __init__(self, spec: EnvSpec | None = None, *, level: str = "several", kind: str = "") -> None:
        super().__init__(spec or EnvSpec.load(Path(__file__).with_name("tools.toml")))
        if level not in LEVELS or kind not in ("", *KINDS):
            raise ConfigError(f"tools: level is one of {', '.join(LEVELS)}; kind is one of {', '.join(KINDS)}")
        self.level = Level([KINDS[kind]], 1, LEVELS[level].size) if kind else LEVELS[level]
        self.name = f"{level} {kind}".strip()
        self.job = Job()
        self.opening = ""
        self.answer = ""
        self._said: set[str] = set()
        self._where = ("", -1)

    def begin(self, split: str, task: int) -> None:
        self._open(split, task)
        self.told, self.answer, self._said = self.opening, "", set()

    def _open(self, split: str, index: int) -> None:
        life, self.job = task(self.level, split, index, self.name)
        self._where = (split, index)
        self.opening = f"It is {life.desk.now}. You act for {life.desk.name}, who asks:\n{self.job.text}"
        self.opened(life.desk)

    def act(self, action: str) -> Outcome | None:
        outcome = super().act(action)
        if self._call is not None:
            self._said.add(_name(*self._call))
        return outcome

    def judge(self) -> Outcome:
        met, unwanted = self._score()
        answered = self.job.answer is None or says(self.answer, self.job.answer)
        success = met == len(self.job.goals) and not unwanted and answered
        return Outcome(float(success), ended=True, success=success)

    def describe(self) -> dict[str, Any]:
        """`progress`: goals met, over all goals and unwanted changes; an answer counts as a goal."""
        met, unwanted = self._score()
        asked = self.job.answer is not None
        met += asked and self.done and says(self.answer, self.job.answer)  # type: ignore[arg-type]
        progress = met / (len(self.job.goals) + asked + unwanted)
        return {"progress": progress, "available_actions": [] if self.done else self._offered()}

    def own_key(self) -> Any:
        return [self.opening, self.done, self.answer]

    def expert(self) -> Action:
        """The next call of the plan whose changes are not made yet, then finish."""
        self._require_episode("expert")
        step = self._next()
        if step is not None:
            return {"name": step.name, "arguments": step.arguments}
        answer = {"answer": self.job.answer_text} if self.job.answer else {}
        return {"name": "finish", "arguments": answer}

    def hint(self) -> str:
        self._require_episode("hint")
        (met, unwanted), step = self._score(), self._next()
        wrong = f" {unwanted} rows were changed that should not be; undo it where you can." if unwanted else ""
        usage = (self.tools[step.name] if step else finish).usage
        return f"{met} of {len(self.job.goals)} changes are made.{wrong} Next: {usage}"

    def save(self) -> Any:
        said = sorted(self._said)
        return {"where": self._where, "db": self.db.save(), "answer": self.answer, "done": self.done, "said": said}

    def load(self, state: Any) -> None:
        split, index = state["where"]
        self._open(split, index)  # what it is compared with
        self.db.load(state["db"])
        self._seen = -1
        self.answer, self.done, self._said = state["answer"], state["done"], set(state["said"])
        self.told = ""

    def _score(self) -> tuple[int, int]:
        """(goals met, unwanted changes)."""
        met = len(match(self.job.goals, self.found))
        return met, len(self.found) - met

    def _next(self) -> Step | None:
        met = match(self.job.goals, self.found)
        waiting = [any(goal not in met for goal in step.goals) for step in self.job.plan]
        for number, step in enumerate(self.job.plan):
            needed = any(waiting[number:]) or self.job.answer is not None
            if waiting[number] or (not step.goals and needed and _name(step.name, step.arguments) not in self._said):
                return step
        return None

    def _offered(self) -> list[str]:
        """Calls that would be understood now, as text: all reads, some deletions, finish."""
        calls = [_name(name, {}) for name in (*READS, "finish")]
        for table, names in BY_ID.items():
            for id in list(self.rows[table])[:OFFERED]:
                calls += [_name(name, {_argument(name): id}) for name in names]
        return calls


@cache
def _argument(name: str) -> str:
    """The one argument that a tool needs."""
    return next(iter(Tools.tools[name].arguments.model_fields))


def _name(name: str, arguments: dict[str, Any]) -> str:
    return json.dumps({"name": name, "arguments": arguments})
