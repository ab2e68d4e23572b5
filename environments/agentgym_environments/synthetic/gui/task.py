"""A task: what the documents hold at first, what is asked, and what must be there in the end."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from agentgym_environments.backends.desktop.setup import COMMANDS, FOLDER

Tree = dict[str, str | None]
"""Path to a file's text; None for a folder."""


@dataclass(frozen=True)
class Operation:
    """A change of the file tree, for the solver: mkdir, touch, rename, delete, move, copy, edit."""

    verb: str
    path: str
    to: str = ""
    text: str = ""


@dataclass(frozen=True)
class GuiTask:
    kind: str
    goal: str
    apps: tuple[str, ...]
    opened: str = ""
    """File of the documents that the editor opens with."""
    before: Tree = field(default_factory=dict)
    after: Tree = field(default_factory=dict)
    """The documents when it is done: these and no others."""
    shows: str = ""
    """Text that the calculator must show."""
    plan: tuple[Operation, ...] = ()
    keys: str = ""
    """Keys that the solver presses on the calculator."""

    @property
    def content(self) -> str:
        return json.dumps([self.goal, self.before], sort_keys=True)

    @property
    def commands(self) -> list[list[str]]:
        """Programs to start, each with its arguments."""
        started = []
        for app in self.apps:
            opens = {"editor": f"/{self.opened}", "files": ""}
            argument = [f"@HOME@/{FOLDER}{opens[app]}"] if app in opens and (app != "editor" or self.opened) else []
            started.append([COMMANDS[app], *argument])
        return started
