"""Verdict on a submission: the tests run in one sandbox, the submission in another, and values go between them.

What leaves the submission's sandbox is data of built-in types. It is compared where no code of the agent has ever run.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from agentgym.errors import ConfigError, EnvironmentCrashed
from agentgym.tasks import Task
from agentgym_environments.backends.sandbox import Ran, Sandbox, SandboxEnded, SandboxLimits
from agentgym_environments.base.grading import run_submission
from agentgym_environments.benchmarks.code.readings import Reading, readings

PROGRAMS = Path(__file__).with_name("programs")
VALUES = "agentgym_environments/benchmarks/code/programs/values.py"
"""Path of the module that both programs import, below /work."""
COMMAND = "cd /tmp; python -E -s -B /work/run.py"
LIMITS = SandboxLimits(memory_mb=512, disk_mb=16, output_kb=16)  # pyright: ignore[reportCallIssue]
START_S = 5.0
"""Seconds beyond the tests' own time for the start of two interpreters."""
REPORT_S = 5.0
"""Seconds that the tests have longer than the submission, so that they report the call during which it was stopped."""


class CodeVerdict(NamedTuple):
    passed: bool
    why: str = ""
    stopped: bool = False
    """True where the time was over."""
    lines: tuple[str, ...] = ()
    """Results of the visible examples."""
    output: str = ""
    """Output of the submission's own process."""


def judge(task: Task, answer: str, *, backend: str = "auto", timeout_s: float = 10.0) -> CodeVerdict:
    """Run the task's tests on the functions of an answer. Raises EnvironmentCrashed where the machine is at fault."""
    return _run(task, readings(answer, task.setup["prompt_code"]), (), backend, timeout_s)


def try_examples(
    task: Task, answer: str, examples: Sequence[Sequence[str]], *, backend: str = "auto", timeout_s: float = 10.0
) -> CodeVerdict:
    """Run an answer on examples (a call, and the text of what is expected) that the agent has read."""
    return _run(task, readings(answer, task.setup["prompt_code"]), examples, backend, timeout_s)


def right_examples(task: Task, *, backend: str = "auto", timeout_s: float = 10.0) -> list[list[str]]:
    """Return the examples that the task's own solution gets right: docstrings of benchmarks have mistakes."""
    return [task.setup["examples"][place] for place in _right(task.model_dump_json(), backend, timeout_s)]


@lru_cache(maxsize=4096)
def _right(text: str, backend: str, timeout_s: float) -> tuple[int, ...]:
    task = Task.model_validate_json(text)
    examples = task.setup["examples"]
    if not examples:
        return ()
    verdict = _run(task, [Reading("", task.grader["solution"])], examples, backend, timeout_s)
    if len(verdict.lines) != len(examples):
        raise EnvironmentCrashed(f"{task.id}: its solution did not run on its examples: {verdict.why}")
    return tuple(place for place, line in enumerate(verdict.lines) if line.endswith(": right"))


class CodeAdmission(NamedTuple):
    """Result of the check that decides whether a task is played."""

    task: str
    problem: str
    """Reason against it; "" for a task that is admitted."""


def admit(task: Task, *, backend: str = "auto", timeout_s: float = 10.0) -> CodeAdmission:
    """Judge a task's own solution, which must pass, and an empty body, which must not.

    Raises ConfigError where the solution comes to no end: that says nothing about the task, and is not remembered.
    """
    return _admit(task.model_dump_json(), backend, timeout_s)


@lru_cache(maxsize=4096)
def _admit(text: str, backend: str, timeout_s: float) -> CodeAdmission:
    task = Task.model_validate_json(text)
    solved = _run(task, [Reading("", task.grader["solution"])], (), backend, timeout_s)
    if solved.stopped:
        raise ConfigError(f"{task.id}: its solution came to no end in {timeout_s:g} s: correct it, or raise judge_s")
    if not solved.passed:
        return CodeAdmission(task.id, f"its solution does not pass its tests: {solved.why}")
    if _run(task, [Reading("", empty_answer(task))], (), backend, timeout_s).passed:
        return CodeAdmission(task.id, "an empty body passes its tests")
    return CodeAdmission(task.id, "")


def empty_answer(task: Task) -> str:
    """Return functions and classes of the right names that do nothing."""
    functions = [f"def {name}(*args, **options):\n    pass\n" for name in task.grader["functions"]]
    classes = [
        f"class {name}:\n    def __init__(self, *args, **options):\n        pass\n" for name in task.grader["classes"]
    ]
    return "\n".join((*functions, *classes))


def _run(
    task: Task, tries: list[Reading], examples: Sequence[Sequence[str]], backend: str, timeout_s: float
) -> CodeVerdict:
    if not tries:
        return CodeVerdict(False, "the answer is empty, too long or no text")

    def run(tries: list[Reading]) -> CodeVerdict:
        return _observed(task, tries, examples, backend, timeout_s)

    verdict = run_submission(lambda: run(tries), lambda: run([Reading("", task.grader["solution"])]))
    return verdict or CodeVerdict(False, "the submission made an end of its sandbox")


def _observed(
    task: Task, tries: list[Reading], examples: Sequence[Sequence[str]], backend: str, timeout_s: float
) -> CodeVerdict:
    word, grader = secrets.token_hex(16), task.grader
    names = {name: grader[name] for name in ("entry_point", "functions", "classes")}
    job = {**names, **{name: grader[name] for name in ("setup", "tests", "check")}}
    job |= {"before": task.setup["prompt_code"], "examples": examples, "word": word}
    answer = {**names, "readings": tries}
    with _channel() as channel, ThreadPoolExecutor(1) as pool:
        readonly = {str(channel): "/channel"}
        with (
            Sandbox(_files("submission", answer=answer), limits=LIMITS, readonly=readonly, backend=backend) as theirs,
            Sandbox(_files("tests", job=job), limits=LIMITS, readonly=readonly, backend=backend) as ours,
        ):
            running = pool.submit(theirs.run, COMMAND, timeout_s + START_S)
            try:
                tested = ours.run(COMMAND, timeout_s + START_S + REPORT_S)
            except SandboxEnded as error:  # no code of the agent is there
                raise EnvironmentCrashed("the sandbox of the tests has ended") from error
            finally:
                wait([running])  # a sandbox must not be closed while a thread reads from it
            try:
                ran = running.result()
            except SandboxEnded as error:
                return CodeVerdict(False, f"the submission: {error}")
    return _verdict(tested, ran, word)


def _verdict(tested: Ran, ran: Ran, word: str) -> CodeVerdict:
    stopped = "time" in (tested.stopped, ran.stopped)
    found = [line.removeprefix(word) for line in tested.output.split("\n") if line.startswith(word)]
    if not found:
        why = tested.stopped or f"the tests ended with code {tested.code}: {tested.output[-300:].strip()}"
        return CodeVerdict(False, f"stopped: {why}" if tested.stopped else why, stopped, output=ran.output)
    verdict: dict[str, Any] = json.loads(found[-1])
    limit = f" ({ran.stopped})" if ran.stopped and verdict.get("ended") else ""
    why, lines, passed = f"{verdict.get('why', '')}{limit}", verdict.get("lines", []), verdict.get("passed", False)
    if lines:
        lines[-1] += limit
    return CodeVerdict(passed, why, stopped and not passed, tuple(lines), ran.output)


def _files(program: str, **data: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files of a sandbox: a program, the module that it imports, and its input."""
    files = {"run.py": (PROGRAMS / f"{program}.py").read_bytes(), VALUES: (PROGRAMS / "values.py").read_bytes()}
    return {**files, **{f"{name}.json": json.dumps(content).encode() for name, content in data.items()}}


@contextmanager
def _channel() -> Iterator[Path]:
    """Make a folder of two pipes that every user may open."""
    with tempfile.TemporaryDirectory() as around:
        folder = Path(around, "channel")
        folder.mkdir()
        folder.chmod(0o755)
        for name in ("calls", "results"):
            os.mkfifo(folder / name)
            (folder / name).chmod(0o666)
        yield folder
