"""Getting out of the sandbox, and getting the reward without mending the bug: every attempt fails."""

from __future__ import annotations

import importlib.util
import socket
import threading
import time
from pathlib import Path

import pytest

from agentgym import registry
from agentgym_environments.backends.sandbox import Sandbox, SandboxLost

here = importlib.util.spec_from_file_location("escapes", Path(__file__).with_name("escapes.py"))
assert here is not None
assert here.loader is not None
escapes = importlib.util.module_from_spec(here)
here.loader.exec_module(escapes)


@pytest.fixture
def port():
    """A server of the machine that a sandbox must not reach."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        yield server.getsockname()[1]
        with pytest.raises(TimeoutError):
            server.accept()


def test_nothing_gets_out_of_bubblewrap(tmp_path, port):
    escapes.attempt_all(lambda **more: Sandbox(backend="bubblewrap", **more), tmp_path, port)


def test_closing_during_a_command_leaves_no_process():
    box = Sandbox(backend="bubblewrap")
    mark = "27182.8"

    def sleep() -> None:
        with pytest.raises((SandboxLost, OSError, ValueError)):  # whichever end of the pipe is missed first
            box.run(f"sleep {mark}")

    asleep = threading.Thread(target=sleep)
    asleep.start()
    while not escapes.running(mark):
        time.sleep(0.02)
    box.close()
    asleep.join(10)
    assert not escapes.running(mark)


CHEATS = {
    "conftest.py": "def pytest_runtest_call(item): item.obj = lambda *a: None",
    "tests/conftest.py": "collect_ignore_glob = ['*']",
    "sitecustomize.py": "import os; os._exit(0)",
    "usercustomize.py": "import os; os._exit(0)",
    "pytest.py": "raise SystemExit(0)",
    "pytest.ini": "[pytest]\naddopts = --collect-only",
    "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--collect-only'",
    "setup.cfg": "[tool:pytest]\naddopts = --collect-only",
    "x.pth": "import os; os._exit(0)",
    "tests/test_all.py": "def test(): pass",
}


@pytest.fixture
def env():
    env = registry.make("swe", sandbox="bubblewrap")
    yield env
    env.close()


def begin(env, package=""):
    found = [i for i, task in enumerate(env._tasks["train"]) if package in task.package]
    env.reset(seed=0, options={"split": "train", "task": found[0]})
    return env.source


def test_the_hidden_tests_are_nowhere_to_be_read(env):
    source = begin(env)
    names = {path.rpartition("/")[2] for path in source.hidden if path.endswith(".py")} - {"__init__.py", "conftest.py"}
    found = env.step("run find / -name '*.py' 2>/dev/null | grep -v ^/proc | grep -v ^/opt/tools")[0]
    assert not {name for name in names if f"/{name}\n" in found}
    test = min(env.task.fail_to_pass).rpartition("::")[2].partition("[")[0]
    assert env.step(f"run grep -rl 'def {test}' /work /tmp /opt /etc /dev/shm 2>/dev/null | cat")[0] == "[no output]"
    module = source.module.rstrip("/").rpartition("/")[2]
    elsewhere = f"run find / -path /work -prune -o -path /proc -prune -o -name '{module}*' -print 2>/dev/null | cat"
    assert env.step(elsewhere)[0] == "[no output]"


def test_files_that_rule_pytest_change_nothing(env):
    begin(env)
    for path, content in CHEATS.items():
        assert env.step(f"edit {path} 1-0\n{content}")[4]["valid_action"]
        env.box.write(path, content.encode())
    env.step("run touch /opt/tools/pytest/x; rm -rf /opt/tools; echo x > /opt/tools/sitecustomize.py; pip install -e .")
    observation, reward, terminated, _, info = env.step("submit")
    assert (reward, terminated, info["success"]) == (0.0, True, False)
    assert "no file of the package has changed" in observation
