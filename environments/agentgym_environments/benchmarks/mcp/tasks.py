"""Tasks of a file: an instruction, a server, a checker, and perhaps a solution."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from agentgym.errors import ConfigError
from agentgym.tasks import Task
from agentgym_environments.backends.tool_server.definition import ServerDefinition, server_definition
from agentgym_environments.benchmarks.mcp.checkers import AnswerCheck, CallsCheck, Check, StateCheck
from agentgym_environments.tasks.records import HUB, read_records

FIELDS = "instruction, checker, and perhaps server, solution and id"
CHECKS = TypeAdapter(list[Check])


class SolutionCall(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    arguments: dict[str, Any] = {}


class Solution(BaseModel):
    """Calls that solve a task, and the answer of `finish`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    calls: tuple[SolutionCall, ...] = ()
    answer: str = ""


class ToolRecord(BaseModel):
    """One line of a task file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = ""
    instruction: str = Field(min_length=1)
    server: dict[str, Any] = {}
    checker: Check | list[Check]
    """One checker, or several that must all hold."""
    solution: Solution | None = None

    @property
    def checks(self) -> list[Any]:
        return self.checker if isinstance(self.checker, list) else [self.checker]


def tool_tasks(source: str, line: str) -> list[Task]:
    """Return the tasks of a file. `line` is the command line or URL of tasks that name no server of their own.

    Raises ConfigError that names the record and its field.
    """
    folder = "" if source.startswith(HUB) else str(Path(source).expanduser().resolve().parent)
    return [_task(fields, line, folder, number, source) for number, fields in enumerate(read_records(source))]


def checks_of(task: Task) -> Sequence[AnswerCheck | CallsCheck | StateCheck]:
    return CHECKS.validate_python(task.grader["checks"])


def server_of(task: Task) -> ServerDefinition:
    """Return the server that a task is played with. Raises ConfigError for a folder that does not exist."""
    return ServerDefinition.model_validate(task.setup["server"]).within(Path(task.source or "."))


def solution_of(task: Task) -> Solution | None:
    found = task.metadata.get("solution")
    return None if found is None else Solution.model_validate(found)


def _task(fields: dict[str, Any], line: str, folder: str, number: int, source: str) -> Task:
    where = f"{source}, record {number + 1}"
    try:
        record = ToolRecord.model_validate(fields)
    except ValidationError as error:
        problem = error.errors()[0]
        name = ".".join(map(str, problem["loc"]))
        message = problem["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{where}: {name}: {message}; a record has {FIELDS}") from error
    if not record.checks:
        raise ConfigError(f"{where}: checker: it is empty, so that everything would be right")
    server = server_definition(record.server, line, where)
    if folder and any(Path(folder).is_relative_to(one) for one in server.within(Path(folder)).folders):
        raise ConfigError(
            f"{where}: server.folders shows {folder}, where the checkers are: keep the server's files in another folder"
        )
    return Task(
        id=record.id or str(number),
        prompt=record.instruction,
        setup={"server": server.model_dump(mode="json")},
        grader={"checks": [one.model_dump(mode="json", exclude_none=True) for one in record.checks]},
        metadata={} if record.solution is None else {"solution": record.solution.model_dump(mode="json")},
        source=folder,
    )
