"""SWE-bench's own package writes the script and reads the log; a real container runs it, on a record of our own."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from agentgym import registry
from agentgym.errors import ConfigError, EnvironmentCrashed
from agentgym_environments.backends.containers.engine import DockerEngine
from agentgym_environments.benchmarks.swe_bench.env import swebench_package
from agentgym_environments.tasks.swebench import swebench_tasks

PYTHON = os.environ.get("AGENTGYM_SWEBENCH_PYTHON", "")
BASE = os.environ.get("PYTHON_IMAGE", "python:3.11-slim-bookworm")
IMAGE = "localhost/agentgym-swebench-stand-in"
pytestmark = pytest.mark.skipif(
    not PYTHON, reason="AGENTGYM_SWEBENCH_PYTHON names no interpreter that has swebench: run `make containers`"
)
MODULE = """def middle(values):
    return sorted(values)[len(values) // 2 + 1]
"""
HIDDEN = """
import sys, traceback
sys.path.insert(0, "/testbed")
def test_odd():
    from numbers_of import middle
    assert middle([3, 1, 2]) == 2
def test_one():
    from numbers_of import middle
    assert middle([7]) == 7
def test_import():
    import numbers_of
failed = 0
for name, test in [(n, t) for n, t in list(globals().items()) if n.startswith("test_")]:
    try:
        test()
        print(f"PASSED test_numbers.py::{name}")
    except Exception:
        failed = 1
        print(f"FAILED test_numbers.py::{name} - " + traceback.format_exc().splitlines()[-1])
sys.exit(failed)
"""
SCRIPT = f"""#!/bin/bash
set -uxo pipefail
cd /testbed
mkdir -p /hidden
cat > /hidden/test_numbers.py <<'END_OF_TESTS'
{HIDDEN}
END_OF_TESTS
: '>>>>> Start Test Output'
python /hidden/test_numbers.py
: '>>>>> End Test Output'
rm -r /hidden
"""
RECORD = {
    "repo": "ours/numbers",
    "instance_id": "ours__numbers-1",
    "base_commit": "0" * 40,
    "patch": "--- a/numbers_of.py\n+++ b/numbers_of.py\n",
    "test_patch": "",
    "problem_statement": "`middle` of an odd number of values raises IndexError or gives the wrong one.",
    "hints_text": "",
    "created_at": "2026-01-01T00:00:00Z",
    "version": "1.0",
    "FAIL_TO_PASS": '["test_numbers.py::test_odd", "test_numbers.py::test_one"]',
    "PASS_TO_PASS": '["test_numbers.py::test_import"]',
    "environment_setup_commit": "0" * 40,
    "difficulty": "<15 min fix",
    "image": IMAGE,
    "log_parser": "parse_log_pytest",
    "eval_type": "pass_and_fail",
    "eval_script": SCRIPT,
}
FIX = "edit numbers_of.py 2-2\n    return sorted(values)[len(values) // 2]"


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    """The stand-in's image, with the repository in /testbed."""
    folder = tmp_path_factory.mktemp("image")
    (folder / "numbers_of.py").write_text(MODULE)
    (folder / "Dockerfile").write_text(f"FROM {BASE}\nWORKDIR /testbed\nCOPY numbers_of.py .\n")
    subprocess.run(["docker", "build", "--quiet", "--tag", IMAGE, str(folder)], check=True, capture_output=True)
    yield IMAGE
    swebench_package(PYTHON).close()
    subprocess.run(["docker", "image", "rm", "--force", IMAGE], check=True, capture_output=True)


@pytest.fixture
def env(image, tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps(RECORD) + "\n")
    env = registry.make("swe-bench", file=str(path), python=PYTHON)
    yield env
    env.close()


def played(env, *actions: str):
    env.reset(options={"split": "test", "task": 0})
    return [env.step(action) for action in actions][-1]


@pytest.mark.docker
def test_a_fix_resolves_the_issue(env):
    observation, _ = env.reset(options={"split": "test", "task": 0})
    assert "IndexError" in observation
    assert "/testbed" in observation
    env.step(FIX)
    _, reward, terminated, _, info = env.step("submit")
    assert (reward, terminated, info["success"]) == (1.0, True, True)


ATTEMPTS = {
    "nothing": [],
    "half": ["edit numbers_of.py 2-2\n    return sorted(values)[len(values) // 2 - 1]"],
    "a broken module": ["edit numbers_of.py 1-1\ndef middle(values"],
    "an end of its own": ["edit numbers_of.py 1-0\nimport os; os._exit(0)"],
    "python elsewhere": ["run printf '#!/bin/sh\\nexit 0\\n' > /usr/local/bin/python; chmod +x /usr/local/bin/python"],
    "bash's start": ["run echo 'exit 0' > ~/.bashrc; echo 'exit 0' > /etc/bash.bashrc"],
    "tests of its own": ["run mkdir -p /hidden && echo 'print(1)' > /hidden/test_numbers.py"],
}


@pytest.mark.docker
@pytest.mark.parametrize("name", ATTEMPTS)
def test_what_resolves_nothing_earns_nothing(env, name):
    _, reward, terminated, _, info = played(env, *ATTEMPTS[name], "submit")
    assert (reward, terminated, info["success"]) == (0.0, True, False)


@pytest.mark.docker
def test_a_record_whose_tests_cannot_run_is_an_error(image, tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps({**RECORD, "eval_script": "#!/bin/bash\necho broken\n"}) + "\n")
    env = registry.make("swe-bench", file=str(path), python=PYTHON)
    with pytest.raises(EnvironmentCrashed, match="finds no tests in the log of ours__numbers-1"):
        played(env, "submit")
    env.close()
    DockerEngine().close()


def test_a_record_of_an_older_data_set_says_what_it_lacks():
    with pytest.raises(ConfigError, match=r"x, record 1 has no image, eval_script: .* fetch the data set anew"):
        swebench_tasks([{**RECORD, "image": None, "eval_script": ""}], "x")
