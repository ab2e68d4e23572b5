"""Tools: errands in a person's mail, calendar, notes, contacts, shop and bank, judged by the database's last state."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from agentgym.env import Action
from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym_environments.synthetic.tools.apps import bank, calendar, contacts, mail, notes, shop
from agentgym_environments.synthetic.tools.calls import JobEnv, as_text
from agentgym_environments.synthetic.tools.database import Dump
from agentgym_environments.synthetic.tools.goals import says
from agentgym_environments.synthetic.tools.job import Job
from agentgym_environments.synthetic.tools.registry import CallRefused, Line, Tool, tool, tools_of
from agentgym_environments.synthetic.tools.tasks import KINDS, LEVELS, ToolsLevel, task

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
def help(env: Any, app: Line = "") -> str:
    """The task once more, and the apps; with the name of an app, how its tools are called."""
    if not app:
        return f'{env.opening}\nApps: {", ".join(APPS)}. Call help with {{"app": ...}} for the tools of one.'
    if app not in APPS:
        raise CallRefused(f"there is no app {app!r}; there are {', '.join(APPS)}")
    return "\n".join(one.usage for one in tools_of(APPS[app]).values())


@tool
def finish(env: Any, answer: Line = "") -> str:
    """Finish the task once everything is done; with the answer if one was asked for. It ends the task."""
    env.answer, env.done = answer, True
    return "finished"


class Tools(JobEnv):
    """Errands in one person's apps.

    level: "one" app, "several" apps, or "long", three jobs over several apps.
    kind: tasks of this kind only; "" draws from all of the level.
    """

    tools: ClassVar[dict[str, Tool]] = tools_of(*APPS.values())
    env_tools: ClassVar[dict[str, Tool]] = {"help": help, "finish": finish}

    def __init__(self, spec: EnvSpec | None = None, *, level: str = "several", kind: str = "") -> None:
        super().__init__(spec or EnvSpec.load(Path(__file__).with_name("spec.toml")))
        if level not in LEVELS or kind not in ("", *KINDS):
            raise ConfigError(f"tools: level is one of {', '.join(LEVELS)}; kind is one of {', '.join(KINDS)}")
        self.level = ToolsLevel((KINDS[kind],), 1, LEVELS[level].size) if kind else LEVELS[level]
        self.name = f"{level} {kind}".strip()
        self.answer = ""

    def choose(self, split: str, index: int) -> tuple[Any, Dump, Job, str]:
        chosen = task(self.level, split, index, self.name)
        self.answer = ""
        opening = f"It is {chosen.now}. You act for {chosen.name}, who asks:\n{chosen.job.text}"
        return chosen.desk(), chosen.before, chosen.job, opening

    def answered(self) -> bool | None:
        return None if self.job.answer is None else self.done and says(self.answer, self.job.answer)

    def farewell(self) -> Action:
        return {"name": "finish", "arguments": {"answer": self.job.answer_text} if self.job.answer else {}}

    def extra(self) -> Any:
        return self.answer

    def set_extra(self, extra: Any) -> None:
        self.answer = str(extra)

    def offered(self) -> list[str]:
        """Calls that would be understood now: all reads, some deletions, finish."""
        calls = [_offer(name) for name in (*READS, "finish")]
        for table, names in BY_ID.items():
            calls += [_offer(name, id) for id in self.ids(table)[:OFFERED] for name in names]
        return calls


@lru_cache(maxsize=4096)
def _offer(name: str, id: int | None = None) -> str:
    """A call with the one argument that the tool needs, or none."""
    return as_text(name, {} if id is None else {next(iter(Tools.tools[name].arguments.model_fields)): id})
