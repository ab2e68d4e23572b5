"""Attacks on a sandbox: after each, the next command works, and the machine's memory was taken within its limit.

What an agent does to its sandbox is its turn: an observation, or the end of the episode without reward.
"""

from __future__ import annotations

import os
import platform
import re
import signal
import threading
import time
from typing import Any

import psutil
import pytest
from security.memory_group import measured, supervisor
from security.sandbox_attacks import ALL, CALL

from agentgym.errors import MissingDependency
from agentgym.spec import EnvSpec
from agentgym_environments.backends.sandbox import (
    Sandbox,
    SandboxEnded,
    SandboxLimits,
    SandboxLost,
    WorkRefused,
    backends,
)
from agentgym_environments.backends.sandbox import (
    box as boxes,
)
from agentgym_environments.base.shell_env import Judged, ShellEnv

LIMITS = SandboxLimits(memory_mb=192, processes=32, disk_mb=16, files=2000)  # pyright: ignore[reportCallIssue]
FILES = {"a.py": b"print(1)\n", "d/e.txt": b"e"}
pytestmark = pytest.mark.timeout(180)


class Watched:
    """A sandbox whose memory is measured all the time, put back as it was after each attack."""

    def __init__(self, backend: str) -> None:
        self.box = Sandbox(FILES, limits=LIMITS, backend=backend)
        self.first, self.peak, self._over = self.box.snapshot(), 0, threading.Event()
        self._group = measured(self.box._process.pid)
        self._now = self._group.__enter__()
        self._thread = threading.Thread(target=self._measure, daemon=True)
        self._thread.start()

    def _measure(self) -> None:
        while not self._over.wait(0.005):
            self.peak = max(self.peak, self._now())

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self.box.close()
        self._group.__exit__(None, None, None)


@pytest.fixture(scope="module", params=["bubblewrap", "docker"])
def watched(request):
    if request.param == "docker" and not backends.docker_answers():
        raise MissingDependency(backends.NO_DOCKER)
    watched = Watched(request.param)
    yield watched
    watched.close()


@pytest.mark.parametrize("attack", ALL, ids=[one.name.replace(" ", "-") for one in ALL])
def test_a_sandbox_outlives_an_attack(watched, attack):
    if CALL in attack.code and platform.machine() != "x86_64":
        pytest.skip("the numbers of the calls are those of x86-64")
    box, watched.peak = watched.box, 0
    code = attack.code
    if "\n" in code:
        assert box.write("/tmp/attack.py", code.encode()) == ""
        code = "python3 /tmp/attack.py"
    ran = box.run(code, attack.timeout_s)
    if not attack.counted or box.backend == "bubblewrap":  # a container's control group counts these: they may run
        assert re.search(attack.output, ran.output + ran.stopped), ran
    assert box.run("cd /work; echo alive").output == "alive\n"
    assert len(box.digest()) == 64
    try:
        assert all(content is None or len(content) <= 16 << 20 for content in box.changes().values())
        refused = ""
    except WorkRefused as error:
        refused = str(error)
    assert re.search(attack.refused, refused)
    assert bool(attack.refused) == bool(refused), refused
    for path in ("a.py", "k", "fd/1", "root/etc/hostname", "/proc/self/attr/exec", "/dev/zero"):
        box.read(path)
    box.restore(watched.first)
    assert box.changes() == {}
    assert watched.peak < LIMITS.host_mb << 20


def test_a_forged_answer_cannot_be_written(watched):
    box = watched.box
    box.run("ln -s /proc/self/fd fd; ln -s /proc/self/fd/1 out")
    for path in ("/proc/self/fd/1", "/proc/1/fd/1", "/dev/stdout", "fd/1", "out"):
        assert box.write(path, b'{"result": {"value": {}}}\n') != ""
    assert box.read("/proc/1/environ") is None
    box.restore(watched.first)


class Probe(ShellEnv):
    """An environment that gives a reward for what can be read and is not the attack's."""

    def __init__(self) -> None:
        spec = EnvSpec(id="probe", description="", instructions="", max_turns=5, splits={"train": 1})
        super().__init__(spec, interface="text", command_s=20.0)

    def open_sandbox(self) -> Sandbox:
        return Sandbox(FILES, limits=LIMITS)

    def observe(self) -> str:
        return "begin"

    def judged(self) -> Judged:
        return Judged(f"judged {sorted(self.box.changes())}")

    def offers(self) -> list[str]:
        return ["submit"]

    def subject(self) -> str:
        return "probe"


@pytest.fixture
def env():
    env = Probe()
    yield env
    env.close()


EPISODES = {
    "deep": (
        "run for i in $(seq 22); do d=$(printf 'n%.0s' $(seq 200)); mkdir $d && cd -P $d; done; cd /work",
        "submit",
    ),
    "odd-link": ("run ln -s /proc/self/attr/exec solve.py", "view solve.py", "edit solve.py 1-1\nx", "submit"),
    "files-limit": (
        "run python3 -c 'import resource as r; r.prlimit(1, r.RLIMIT_NOFILE, (3, 3))'",
        "run echo",
        "submit",
    ),
    "process-limit": (
        "run python3 -c 'import resource as r; r.prlimit(1, r.RLIMIT_NPROC, (1, 1))'",
        "run echo",
        "submit",
    ),
    "memory-limit": ("run python3 -c 'import resource as r; r.prlimit(1, r.RLIMIT_AS, (1, 1))'", "run echo", "submit"),
    "interrupt": ("run kill -INT 1", "run echo", "submit"),
    "sparse": (
        "run truncate -s 16M a b; for i in 1 2 3 4 5 6 7 8 9; do ln -s a $i; ln b l$i; done",
        "submit",
        "submit",
    ),
    "odd-name": ("run touch $'\\xff'", "submit"),
    "odd-paths": ("view /proc/self/mem", "view \0", "edit /proc/self/fd/1 1-0\n{}", "edit d 1-0\nx", "submit"),
    "nested": ('run python3 -c \'import os\nfor _ in range(900): os.mkdir("q"); os.chdir("q")\'', "submit"),
    "long": (f"run echo {'x' * 200_000}", f"run echo {'x' * 2_000_000}", "submit"),
}


@pytest.mark.parametrize("actions", EPISODES.values(), ids=EPISODES)
def test_an_attack_is_a_turn_without_reward(env, actions):
    env.reset(seed=0)
    for action in actions:
        observation, reward, _, _, info = env.step(action)
        assert isinstance(observation, str)
        assert (reward, info["success"]) == (0.0, False)
        observation.encode()


def during_a_command(box: Sandbox, what: Any) -> None:
    """Call `what` while a command runs."""
    timer = threading.Timer(0.5, what)
    timer.start()
    try:
        box.run("sleep 20")
    finally:
        timer.join()


def test_a_sandbox_that_a_command_ended_ends_the_episode(env, monkeypatch):
    """The kernel killed process 1 for want of memory: its count of such kills is higher than before the command."""
    env.reset(seed=0)
    counts = iter([0, 1])
    monkeypatch.setattr(boxes, "_out_of_memory_kills", lambda: next(counts))
    process = supervisor(env.box._process.pid)
    threading.Timer(0.5, lambda: os.kill(process, signal.SIGKILL)).start()
    observation, reward, terminated, truncated, info = env.step("run sleep 20")
    assert observation == "the command ended the sandbox: the episode is over, without a reward"
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)
    with pytest.raises(SandboxEnded):
        env.snapshot()


def has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_command_that_stops_every_answer_ended_the_sandbox(monkeypatch):
    monkeypatch.setattr(boxes, "GRACE_S", 0.5)
    with Sandbox(limits=LIMITS, backend="bubblewrap") as box:
        process = psutil.Process(supervisor(box._process.pid))
        threading.Timer(0.3, process.suspend).start()
        with pytest.raises(SandboxEnded):
            box.run("sleep 20", timeout_s=0.5)
    for _ in range(50):
        if has_ended(process):
            break
        time.sleep(0.1)
    assert has_ended(process)  # stopped as it was


def test_a_sandbox_killed_from_outside_is_the_machines_fault():
    with Sandbox(limits=LIMITS, backend="bubblewrap") as box:
        process = supervisor(box._process.pid)
        with pytest.raises(SandboxLost):
            during_a_command(box, lambda: os.kill(process, signal.SIGKILL))


def test_a_sandbox_killed_between_commands_is_lost():
    with Sandbox(limits=LIMITS, backend="bubblewrap") as box:
        os.kill(supervisor(box._process.pid), signal.SIGKILL)
        time.sleep(0.2)
        with pytest.raises(SandboxLost):
            box.run("true")


def test_the_kernel_picks_a_command_when_memory_is_short(watched):
    """Sockets filled their sandbox before the meter looked, and the kernel ended the supervisor in place of them."""
    assert watched.box.run("cat /proc/self/oom_score_adj; echo 0 >/proc/self/oom_score_adj").output.split()[0] == "1000"
