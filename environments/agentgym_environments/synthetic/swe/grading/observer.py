"""Report what tests compute. Runs beside the tests in the grading sandbox, as a plugin of pytest.

It imports the standard library alone, decides nothing and knows no expected value: each line that it writes is data,
which the environment's process compares with what the package without the bug computes. Code of the agent shares the
process and may write what it likes.

A log has a line `> TEST` where a test begins, `KEY TEXT` for what a check is of, `KEY= TEXT` for how it came out, and
`< HOW` where a phase of the test ended.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from typing import Any

CHANNEL = ""
"""Path of the log; written here for each run."""
ALARM_S = 0
"""Seconds that a test may take; 0 for no limit."""

DEEPEST, MOST_ITEMS, LONGEST, MOST_OF_ONE = 8, 2000, 96, 200
ADDRESS = re.compile(r"0x[0-9a-fA-F]+|(?<!\w)\w+\.<locals>\.|(?<=, line )\d+")
"""Parts of texts that differ from run to run; names of tests, and where they stand, do."""
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "is": lambda a, b: a is b,
    "is not": lambda a, b: a is not b,
    "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
}
_file: list[int] = []
_counts: dict[str, int] = {}


def write(line: str) -> None:
    """Append a line to the log."""
    if not _file:
        _file.append(os.open(CHANNEL, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    os.write(_file[0], line.encode("ascii", "backslashreplace") + b"\n")


def report(key: str, text: str) -> None:
    """Write an observation; those of a loop end after `MOST_OF_ONE` turns."""
    _counts[key] = _counts.get(key, 0) + 1
    if _counts[key] <= MOST_OF_ONE:
        write(f"{key} {text}")


# What the rewritten tests call.


def operand(key: str, value: Any) -> bool:
    """Report one side of an equality whose other side is not here; "~" marks a value whose text does not say all."""
    shown = Plain()
    report(key, f"{short(shown.text(value))}{'' if shown.complete else '~'}")
    return True


def value(key: str, value: Any) -> Any:
    """Report what is asserted to be true."""
    report(key, short(plain(value)))
    return value


def compare(key: str, operators: tuple[str, ...], *operands: Any) -> Any:
    """Report both sides of a comparison and how it came out."""
    shown = [plain(value) for value in operands]
    result: Any = True
    try:
        for operator, left, right in zip(operators, operands, operands[1:]):
            result = COMPARISONS[operator](left, right)
            if not result:
                break
    finally:
        report(key, short(" ".join(shown)))
        report(f"{key}=", short(plain(result)))
    return result


def call(key: str, function: Any, *args: Any, **options: Any) -> Any:
    """Report a call's object, arguments and result."""
    subject = getattr(function, "__self__", None)
    shown = [plain(value) for value in (subject, *args, *options.values())]
    result = function(*args, **options)
    report(key, short(" ".join(shown)))
    report(f"{key}=", short(plain(result)))
    return result


def check(key: str, method: Any, *args: Any, **options: Any) -> None:
    """Report the arguments of `self.assertX`, and whether it holds; the test goes on when it does not."""
    shown = [plain(value) for value in (*args, *options.values())]
    holds = True
    try:
        method(*args, **options)
    except AssertionError:
        holds = False
    report(key, short(" ".join(shown)))
    report(f"{key}=", str(holds))


class Raised:
    """The exception of a `with raises(...)` block, under pytest's names for it and unittest's."""

    def __init__(self) -> None:
        self.value: BaseException | None = None

    @property
    def exception(self) -> BaseException | None:
        return self.value

    @property
    def type(self) -> type:
        return type(self.value)

    @property
    def typename(self) -> str:
        return type(self.value).__name__

    @property
    def tb(self) -> Any:
        return self.value.__traceback__ if self.value is not None else None

    def match(self, pattern: str) -> bool:
        return re.search(pattern, str(self.value)) is not None


class Raises:
    """Context that reports which exception leaves it, if one does; the same one may be entered many times."""

    def __init__(self, key: str, message: bool) -> None:
        self.key, self.message = key, message
        self.entered: list[Raised] = []

    def __enter__(self) -> Raised:
        self.entered.append(Raised())
        return self.entered[-1]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> bool:
        self.entered.pop().value = error
        text = short(plain(str(error))) if self.message and error is not None else ""
        report(self.key, f"{kind.__name__ if kind else ''} {text}")
        return kind is not None and issubclass(kind, Exception)


def raises(key: str, message: bool = False) -> Raises:
    """Stand in place of `pytest.raises(...)` and `self.assertRaises(...)`."""
    return Raises(key, message)


def raising(key: str, function: Any, *args: Any, **options: Any) -> Raised:
    """Report which exception a call raises."""
    context = Raises(key, False)
    with context as found:
        function(*args, **options)
    return found


# Texts of values.


def plain(value: Any) -> str:
    """A text of the value that is the same in every process."""
    return Plain().text(value)


def short(text: str) -> str:
    """The text, or its hash where it is long."""
    text = ADDRESS.sub("", text)
    return text if len(text) <= LONGEST else "#" + hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


class Plain:
    """Writes a value; `complete` tells whether equal texts mean equal values."""

    def __init__(self) -> None:
        self.complete, self.left = True, MOST_ITEMS

    def text(self, value: Any, depth: int = 0) -> str:
        self.left -= 1
        if depth > DEEPEST or self.left < 0:
            self.complete = False
            return "..."
        try:
            for base, write_as in WRITERS:
                if isinstance(value, base):
                    own = "" if type(value) is base else f"{type(value).__name__}:"
                    return own + write_as(self, value, depth)
            return self.other(value)
        except Exception as error:  # noqa: BLE001  (an object that is not as its class says)
            self.complete = False
            return f"<{type(value).__name__} {type(error).__name__}>"

    def other(self, value: Any) -> str:
        """Name of the type, and its own text where it has one; no method that could change the value is called."""
        if value is None or value is NotImplemented or value is Ellipsis:
            return repr(value)
        if isinstance(value, type) or callable(getattr(value, "__get__", None)):
            return f"<{type(value).__name__} {getattr(value, '__qualname__', '')}>"
        self.complete = False
        if isinstance(value, BaseException) or type(value).__repr__ is object.__repr__:
            return f"<{type(value).__name__}>"
        own = ADDRESS.sub("", repr(value))
        return f"<{type(value).__name__} {own[:MOST_ITEMS]}>"

    def items(self, values: Any, depth: int) -> Iterator[str]:
        for value in values:
            yield self.text(value, depth + 1)
            if self.left < 0:
                return

    def pairs(self, values: Any, depth: int) -> Iterator[str]:
        for key, value in values:
            yield f"{self.text(key, depth + 1)}: {self.text(value, depth + 1)}"
            if self.left < 0:
                return


WRITERS: tuple[tuple[Any, Callable[[Plain, Any, int], str]], ...] = (
    (bool, lambda writer, value, depth: str(bool(value))),
    (int, lambda writer, value, depth: format(int(value), "x")),
    (float, lambda writer, value, depth: format(float(value), ".12g")),
    (complex, lambda writer, value, depth: format(complex(value), ".12g")),
    (str, lambda writer, value, depth: json.dumps(str.__str__(value))),
    (bytes, lambda writer, value, depth: "b" + bytes.hex(value)),
    (bytearray, lambda writer, value, depth: "a" + bytearray.hex(value)),
    (tuple, lambda writer, value, depth: f"({', '.join(writer.items(tuple.__iter__(value), depth))})"),
    (list, lambda writer, value, depth: f"[{', '.join(writer.items(list.__iter__(value), depth))}]"),
    (dict, lambda writer, value, depth: f"{{{', '.join(sorted(writer.pairs(dict.items(value), depth)))}}}"),
    (set, lambda writer, value, depth: f"{{{', '.join(sorted(writer.items(set.__iter__(value), depth)))}}}"),
    (
        frozenset,
        lambda writer, value, depth: f"{{{', '.join(sorted(writer.items(frozenset.__iter__(value), depth)))}}}",
    ),
)


# What pytest calls.


class Overdue(BaseException):
    """A test that takes longer than `ALARM_S`."""


def ring(*_: Any) -> None:
    """Answer the alarm's signal."""
    raise Overdue


def pytest_runtest_logstart(nodeid: str) -> None:
    """Name the test that begins."""
    _counts.clear()
    write(f"> {nodeid.partition('[')[0]}")


def pytest_runtest_setup(item: Any) -> None:
    """Set the alarm of a test, and begin its random numbers where every run of it does."""
    random.seed(0)
    if ALARM_S:
        signal.signal(signal.SIGALRM, ring)
        signal.alarm(ALARM_S)
        faulthandler.dump_traceback_later(2 * ALARM_S, exit=True)  # where no exception ends the test


def pytest_runtest_logreport(report: Any) -> None:
    """Say how a phase of a test ended."""
    write(f"< {report.when} {report.outcome}")


def pytest_runtest_makereport(item: Any, call: Any) -> None:
    """Say which exception ended a phase of a test."""
    if call.when == "teardown":
        signal.alarm(0)
    if call.excinfo is not None:
        write(f"< {call.when} {call.excinfo.typename}")


def pytest_unconfigure() -> None:
    """End the process, which threads that a test has left behind would keep from ending."""
    os._exit(0)
