"""ServerDefinition: which program or URL a tool server is."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from agentgym.errors import ConfigError


class ServerDefinition(BaseModel):
    """A program that speaks MCP on its standard input and output, or the URL of a server that is running."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: str = ""
    """Program of the server, looked up in PATH; "python" is this interpreter."""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    """Variables beside PATH and HOME."""
    folders: tuple[str, ...] = ()
    """Folders that the server may read, relative to the task file; it starts in the first."""
    hidden: tuple[str, ...] = ()
    """Tools that the agent is not offered and cannot call: those of the grader."""
    url: str = ""
    """Streamable HTTP endpoint, in place of a command."""

    @model_validator(mode="after")
    def _one_source(self) -> ServerDefinition:
        if bool(self.command) == bool(self.url):
            raise ValueError("a server has a command or a url, and not both")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url is http://HOST/PATH or https://HOST/PATH, not {self.url!r}")
        if self.url and (self.args or self.env or self.folders):
            raise ValueError("args, env and folders are of a command: leave them out beside a url")
        return self

    @property
    def program(self) -> tuple[str, str, tuple[str, ...]]:
        """Part that all tasks of an environment share: its tools are those of one program."""
        return self.command, self.url, self.hidden

    def within(self, folder: Path) -> ServerDefinition:
        """Return the definition with folders as absolute paths. Raises ConfigError for one that does not exist."""
        found = [str((folder / Path(one).expanduser()).resolve()) for one in self.folders]
        for path in found:
            if not Path(path).is_dir():
                raise ConfigError(f"the server's folder {path} does not exist: folders are relative to the task file")
        return self.model_copy(update={"folders": tuple(found)})


def server_definition(fields: Any, line: str, where: str) -> ServerDefinition:
    """Return the server of a record, whose fields win over the command line or URL `line`.

    Raises ConfigError that begins with `where`.
    """
    if not isinstance(fields, dict):
        raise ConfigError(f"{where}: server is an object, not {type(fields).__name__}")
    try:
        return ServerDefinition.model_validate(_of_line(line) | fields)
    except (ValidationError, ValueError) as error:
        problem = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": str(error)}
        name = ".".join(map(str, ("server", *problem["loc"])))
        raise ConfigError(f"{where}: {name}: {problem['msg'].removeprefix('Value error, ')}") from error


def _of_line(line: str) -> dict[str, Any]:
    if line.startswith(("http://", "https://")):
        return {"url": line}
    words = shlex.split(line)
    return {"command": words[0], "args": words[1:]} if words else {}
