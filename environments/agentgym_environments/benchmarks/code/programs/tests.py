"""Run a task's tests on functions that are in another sandbox: each call goes out as data, and so does its result back.

The verdict is the last line of the output, after a word that nobody but the environment knows.
"""

from __future__ import annotations

import builtins
import json
import os
import random
import sys
import types
from collections.abc import Callable
from typing import Any

from agentgym_environments.benchmarks.code.programs.values import MOST_BYTES, decode, encode

SHOWN = 200
"""Characters of a value that are shown."""
NOT_RAISED = (StopIteration, StopAsyncIteration)
"""They would end a loop of the tests without a failure."""


class SubmissionEnded(BaseException):
    """The other sandbox answers no more. No test can catch this by accident."""


class SubmissionCaller:
    """The other end of the pipe."""

    def __init__(self, reading: Any, writing: Any) -> None:
        self.reading, self.writing, self.calls = reading, writing, 0
        self.objects: dict[int, RemoteObject] = {}

    def ask(self, request: dict[str, Any]) -> Any:
        """Return the result of a call, or raise its exception."""
        self.calls += 1
        try:
            self.writing.write(json.dumps(request).encode() + b"\n")
            self.writing.flush()
            line = self.reading.readline(MOST_BYTES)
        except OSError as error:
            raise SubmissionEnded("it has ended") from error
        if not line.endswith(b"\n"):
            raise SubmissionEnded("a result is too large" if len(line) == MOST_BYTES else "it has ended")
        try:
            reply = json.loads(line)
            if "raise" not in reply:
                return decode(reply["value"], self.object)
            name, message = reply["raise"]
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            raise SubmissionEnded("it wrote what is no result") from error
        raise exception(name, message)

    def object(self, number: int) -> RemoteObject:
        if number not in self.objects:
            self.objects[number] = RemoteObject(self, number)
        return self.objects[number]

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function that calls the one of this name, whose result must be plain data."""

        def candidate(*args: Any, **options: Any) -> Any:
            found = self.ask({"do": "call", "name": name, "args": sent(args), "options": sent(options)})
            if holds_object(found):
                raise TypeError(f"{name} returned an object that is no data")
            return found

        candidate.__name__ = candidate.__qualname__ = name
        return candidate

    def kind(self, name: str) -> Callable[..., Any]:
        """Return a function that makes an object of the class of this name, which stays there."""
        return lambda *args, **options: self.ask(
            {"do": "call", "name": name, "args": sent(args), "options": sent(options)}
        )


class RemoteObject:
    """An object of the submission's own class. It has attributes, and nothing that the submission could define."""

    __slots__ = ("_caller", "_number")

    def __init__(self, caller: SubmissionCaller, number: int) -> None:
        object.__setattr__(self, "_caller", caller)
        object.__setattr__(self, "_number", number)

    def __getattr__(self, name: str) -> Any:
        return self._caller.ask({"do": "get", "of": self._number, "name": name, "args": sent(())})

    def __setattr__(self, name: str, value: Any) -> None:
        self._caller.ask({"do": "set", "of": self._number, "name": name, "args": sent((value,))})


def sent(value: Any) -> Any:
    def number(one: Any) -> int | None:
        return object.__getattribute__(one, "_number") if type(one) is RemoteObject else None

    return encode(value, number)


def holds_object(value: Any) -> bool:
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(holds_object, value))
    return any(map(holds_object, (*value, *value.values()))) if isinstance(value, dict) else type(value) is RemoteObject


def exception(name: Any, message: Any) -> Exception:
    """Return the built-in exception of this name; RuntimeError where there is none, or none that may be raised here."""
    kind = getattr(builtins, name, None) if isinstance(name, str) else None
    if not (isinstance(kind, type) and issubclass(kind, Exception)) or issubclass(kind, NOT_RAISED):
        return RuntimeError(f"{name}: {message}")
    try:
        return kind(str(message))
    except Exception:  # noqa: BLE001  (one whose arguments are others)
        return RuntimeError(f"{name}: {message}")


def judged(job: dict[str, Any], space: dict[str, Any], caller: SubmissionCaller) -> dict[str, Any]:
    """Run all tests. The first that fails decides."""
    try:
        for test in job["tests"]:
            exec(compile(test, "<test>", "exec"), space)
        if job["check"]:
            space["check"](space[job["entry_point"]])
    except SubmissionEnded as error:
        return {"passed": False, "why": f"the submission: {error}", "ended": True}
    except BaseException as error:  # noqa: BLE001  (a test that raises anything has failed)
        return {"passed": False, "why": f"{type(error).__name__}: {str(error)[:SHOWN]}"}
    if not caller.calls:
        return {"passed": False, "why": "the tests call nothing"}
    return {"passed": True, "why": ""}


def shown(job: dict[str, Any], space: dict[str, Any]) -> dict[str, Any]:
    """Return a line for each example: what it gave. The last is that during which the submission ended, if it did."""
    lines = []
    for call, expected in job["examples"]:
        try:
            found = eval(compile(call, "<example>", "eval"), space)
            right = bool(found == eval(compile(expected, "<example>", "eval"), space)) if expected else bool(found)
            result = "right" if right else f"gave {short(found)}" + (f", not {expected}" if expected else "")
        except SubmissionEnded as error:
            return {"lines": [*lines, f"{call}: {error}"], "ended": True}
        except Exception as error:  # noqa: BLE001
            result = f"raised {type(error).__name__}: {str(error)[:SHOWN]}"
        lines.append(f"{call}: {result}")
    return {"lines": lines}


def short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001  (a number of too many digits)
        return f"a value that cannot be shown ({type(error).__name__})"
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def main() -> None:
    with open("/work/job.json", encoding="utf-8") as file:
        job = json.load(file)
    os.remove("/work/job.json")
    random.seed(0)
    with open("/channel/calls", "wb") as writing, open("/channel/results", "rb") as reading:
        caller = SubmissionCaller(reading, writing)
        space = vars(types.ModuleType("tests"))
        exec(compile(job["before"], "<prompt>", "exec"), space)
        space |= {name: caller.function(name) for name in job["functions"]}
        space |= {name: caller.kind(name) for name in job["classes"]}
        try:
            exec(compile(job["setup"], "<setup>", "exec"), space)
            verdict = shown(job, space) if job["examples"] else judged(job, space, caller)
        except SubmissionEnded as error:
            verdict = {"passed": False, "why": f"the submission: {error}", "ended": True, "lines": [str(error)]}
        except Exception as error:  # noqa: BLE001
            why = f"the setup raised {type(error).__name__}: {error}"
            verdict = {"passed": False, "why": why, "lines": [why]}
        sys.stdout.flush()
        os.write(1, f"\n{job['word']}{json.dumps(verdict)}\n".encode())
        os._exit(0)  # a submission that goes on writing is not waited for


if __name__ == "__main__":
    sys.path.remove("/work")
    main()
