"""ToolEpisode: one task with its running server, apart from turns and observations."""

from __future__ import annotations

from typing import Any

from agentgym.errors import EnvironmentCrashed
from agentgym.tasks import Task
from agentgym_environments.backends.tool_server.results import ToolResult
from agentgym_environments.backends.tool_server.server import ServerLost, ToolServer
from agentgym_environments.benchmarks.mcp.checkers import MadeCall, passes
from agentgym_environments.benchmarks.mcp.tasks import checks_of, server_of


class CallEndedServer(Exception):
    """The server ended during the episode, and a new one starts: its end is the episode's own doing."""


class ToolEpisode:
    """A server of its own for one task. options: of `ToolServer`."""

    def __init__(self, task: Task, **options: Any) -> None:
        self.task, self.options = task, options
        self.made: list[MadeCall] = []
        """Calls that the server carried out."""
        self.server = ToolServer(server_of(task), **options)

    def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Call a tool for the agent. Raises CallEndedServer, or EnvironmentCrashed where the machine is at fault."""
        result = self._ask(name, arguments)
        if not result.failed:
            self.made.append(MadeCall(name, arguments))
        return result

    def solved(self, answer: str) -> bool:
        """Return whether the task's checks hold. Raises as `call` does."""
        return passes(checks_of(self.task), answer, self.made, self._ask)

    def close(self) -> None:
        self.server.close()

    def _ask(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        try:
            return self.server.call(name, arguments)
        except ServerLost as lost:
            self.close()
            try:
                ToolServer(server_of(self.task), **self.options).close()
            except EnvironmentCrashed as error:
                raise error from lost
            raise CallEndedServer(str(lost)) from lost
