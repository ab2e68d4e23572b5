"""`agentgym train` in processes that tests kill. They are forked from one that has imported everything: that is most of
what such a process takes to start."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from chaos.processes import MARK, command_of, kill, marked, wait_for

from agentgym_trainers.rollout.journal import Journal

DEADLINE_S = 300.0
"""A training that takes longer hangs: alone on the machine none needs a tenth of it, unless vLLM starts in it."""
GONE_S = 20.0
"""A killed trainer's server ends by itself."""

# Each line on stdin is (mark, log, arguments): a child carries out `agentgym ARGUMENTS`. Its id, then its status.
PARENT = f"""
import json, os, sys, traceback
import agentgym_trainers.run
from agentgym.cli.main import main
for line in sys.stdin:
    mark, log, arguments = json.loads(line)
    child = os.fork()
    if not child:
        os.environ[{MARK!r}] = mark
        for number, path in enumerate((os.devnull, log, log)):
            os.dup2(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), number)
        status = 1
        try:
            main(arguments)
            status = 0
        except SystemExit as exit:
            status = exit.code or 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

Whom = Literal["trainer", "env", "engine"]
"""The engine is a vLLM server that the trainer started."""


@dataclass(frozen=True)
class Deed:
    """Something done to a training while it runs."""

    when: Callable[[], bool]
    after_s: float
    """So long after `when` held first."""
    what: Whom | Callable[[], object]
    """Whom to kill, or what else to do; what gives False is tried again."""


@dataclass(frozen=True)
class Ended:
    """A process that has ended."""

    status: int
    """Minus the signal that killed it."""
    output: str

    @property
    def complaint(self) -> str:
        """Its one sentence: fails when it is a traceback."""
        assert "Traceback" not in self.output, self.output
        return self.output.rpartition("error: ")[2]


class Trainings:
    """One after the other. `parent` is the process that they are forked from."""

    def __init__(self, home: Path, parent: subprocess.Popen[str], deadline_s: float) -> None:
        self.home, self.parent, self.deadline_s = home, parent, deadline_s

    def go_on(self, folder: Path, *arguments: str, deeds: Sequence[Deed] = ()) -> Ended:
        """`agentgym train ARGUMENTS --out FOLDER`, or `--resume FOLDER` where that holds a run, to its end. Fails when
        it hangs, or leaves a process behind."""
        begun = (self.host_path(folder) / "config.toml").exists()
        where = ["--resume", str(folder)] if begun else [*arguments, "--out", str(folder)]
        mark, log = uuid.uuid4().hex, self.home / f"{uuid.uuid4().hex}.log"
        assert self.parent.stdin is not None
        assert self.parent.stdout is not None
        self.parent.stdin.write(json.dumps([mark, str(log), ["train", *where]]) + "\n")
        self.parent.stdin.flush()
        child = int(self.parent.stdout.readline())
        try:
            self._watch(child, mark, log, list(deeds))
        except BaseException:  # pytest's timeout, too: the next training's answers must not begin with this one's
            kill(child)
            self.parent.stdout.readline()
            raise
        status = int(self.parent.stdout.readline())
        wait_for(lambda: not marked(mark), GONE_S, lambda: f"no processes: {[command_of(pid) for pid in marked(mark)]}")
        return Ended(status, log.read_text(errors="replace") if log.exists() else "")

    def _watch(self, child: int, mark: str, log: Path, waiting: list[Deed]) -> None:
        """Until the child ends. Does each deed at its time."""
        until = time.monotonic() + self.deadline_s
        while Path(f"/proc/{child}").exists():
            if waiting and waiting[0].when():
                time.sleep(waiting[0].after_s)
                if _done(waiting[0], child, mark):
                    waiting.pop(0)
            assert time.monotonic() < until, f"it still ran after {self.deadline_s:g} s:\n{log.read_text()[-3000:]}"
            time.sleep(0.005)

    def host_path(self, path: Path) -> Path:
        """A path of the trainings as it is for this process, whose file systems may be others."""
        return Path(f"/proc/{self.parent.pid}/root{path}")


@contextmanager
def trainings(home: Path, within: Sequence[str] = (), deadline_s: float = DEADLINE_S) -> Iterator[Trainings]:
    """`within` is a command that runs them, as for `chaos.processes.Server`."""
    path = os.pathsep.join(folder for folder in sys.path if folder)
    parent = subprocess.Popen(
        [*within, sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
    )
    assert parent.stdin is not None
    assert parent.stdout is not None
    try:
        yield Trainings(home, parent, deadline_s)
    finally:
        parent.stdin.close()
        parent.wait(DEADLINE_S)
        parent.stdout.close()


def _done(deed: Deed, child: int, mark: str) -> bool:
    """Whether it could be done: the environment's server may not be there yet."""
    if deed.what == "trainer":
        kill(child)
    elif deed.what == "env":
        servers = [pid for pid in marked(mark) if "agentgym_servers.env_server.app" in command_of(pid)]
        for pid in servers:
            kill(pid)
        return bool(servers)
    elif deed.what == "engine":
        servers = [pid for pid in marked(mark) if re.match(r"\S+ -m vllm\.entrypoints", command_of(pid))]
        for pid in servers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(os.getpgid(pid), signal.SIGKILL)
        return bool(servers)
    else:
        return deed.what() is not False
    return True


def victims(
    chance: random.Random, number: int, first: list[str], kinds: Sequence[str], counts: Sequence[int]
) -> list[list[str]]:
    """Whom to kill in each process of training `number`; the last process is left in peace.

    Training 0 is the short proof: `first` are killed in its one process. The others have three processes, and each
    process one of `counts` kills of `kinds`: the trainer's is the last.
    """
    if number == 0:
        return [first, []]
    processes: list[list[str]] = []
    for _ in range(3):
        drawn = [chance.choice(kinds) for _ in range(chance.choice(counts))]
        processes.append(drawn[: drawn.index("trainer") + 1] if "trainer" in drawn else drawn)
    return [*processes, []]


def steps_of(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's steps, as far as they are whole."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return [line for line in records if line["phase"] == "rl"]


def check(folder: Path, steps: int, groups: int, staleness: int) -> None:
    """A run that has ended: every step told once, each prompt learned from once or under way when it ended."""
    lines = steps_of(folder)
    assert [line["step"] for line in lines] == list(range(1, steps + 1))
    assert all(line["async/staleness_max"] <= staleness for line in lines)
    journal = Journal(folder / "journal.sqlite")
    try:
        found = journal.steps()
    finally:
        journal.close()
    assert list(found) == list(range(1, len(found) + 1))
    taken = Counter(step for step in found.values() if step is not None)
    assert taken == {line["step"]: groups + line["async/failed_groups"] for line in lines}
    # As many as may be under way at once; and where every group of a step failed, which made room for other prompts, as
    # many again that wait to be played once more.
    assert sum(step is None for step in found.values()) <= 2 * (1 + staleness) * groups, found
