"""Records of SWE-Gym, SWE-smith and R2E-Gym in their published form, and the grader of pytest's summary."""

from __future__ import annotations

import json

import pytest

from agentgym import registry
from agentgym.errors import ConfigError
from agentgym_environments.benchmarks.swe_bench.env import repository_changes
from agentgym_environments.benchmarks.swe_bench.pytest_log import as_expected, outcomes, resolved

PATCH = "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
COMMON = {
    "problem_statement": " x is wrong. ",
    "patch": PATCH,
    "FAIL_TO_PASS": ["tests/test_x.py::test_a"],
    "PASS_TO_PASS": ["tests/test_x.py::test_b", "tests/test_y.py::test_c"],
}
GYM = {**COMMON, "instance_id": "Owner__repo-12", "repo": "Owner/repo", "version": "1.0", "base_commit": "0" * 40,
       "test_patch": "--- a/tests/test_x.py\n+++ b/tests/test_x.py\n@@ -1 +1 @@\n-a\n+b\n"}  # fmt: skip
SMITH = {
    **COMMON,
    "instance_id": "o__r.1234.func_pm__1",
    "repo": "swesmith/o__r.1234",
    "image_name": "jyangballin/swesmith",
}
R2E = {"problem_statement": "y is wrong.", "repo_name": "sympy", "docker_image": "namanjain12/sympy_final:abc",
       "commit_hash": "abcdef" * 6, "expected_output_json": json.dumps({"test_a": "PASSED"})}  # fmt: skip


@pytest.fixture
def tasks(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in (GYM, SMITH, R2E)))
    env = registry.make("swe-bench", file=str(path))
    yield [env.tasks["test", index] for index in range(3)]
    env.close()


def test_records_of_each_set_become_tasks(tasks):
    gym, smith, r2e = tasks
    assert [one.id for one in tasks] == ["Owner__repo-12", "o__r.1234.func_pm__1", "sympy-abcdefabcdef"]
    assert gym.setup["image"] == "xingyaoww/sweb.eval.x86_64.owner_s_repo-12:latest"
    assert gym.prompt == "x is wrong."
    assert "+++ b/tests/test_x.py" in gym.grader["script"]
    assert "pytest -rA --tb=no -p no:cacheprovider tests/test_x.py tests/test_y.py" in gym.grader["script"]
    assert "+x = 2" in smith.setup["prepare"]
    assert all("rm -rf .git" in task.setup["prepare"] for task in (gym, smith, r2e))
    assert smith.grader["reverse"]
    assert "/r2e_tests" in r2e.setup["prepare"]
    assert r2e.grader["expected"] == {"test_a": "PASSED"}


@pytest.mark.parametrize(("record", "field"), [(GYM, "patch"), (SMITH, "problem_statement"), (R2E, "docker_image")])
def test_a_record_says_what_it_lacks(tmp_path, record, field):
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps({**record, field: ""}))
    with pytest.raises(ConfigError, match=f"record 1 has no {field}"):
        registry.make("swe-bench", file=str(path))


LOG = """FAILED tests/test_x.py::test_b - printed before the summary
==== short test summary info ====
\x1b[32mPASSED\x1b[0m tests/test_x.py::test_a[1 - 2]
PASSED tests/test_x.py::TestB::test_b
FAILED tests/test_x.py::test_c - assert 1 == 2
ERROR tests/test_y.py
XFAIL tests/test_x.py::test_d - known
==== 1 failed ===="""


def test_outcomes_are_read_from_the_summary():
    tests = outcomes(LOG)
    assert tests["tests/test_x.py::test_a[1 - 2]"] == "PASSED"
    assert tests["tests/test_x.py::test_c"] == "FAILED"
    assert "tests/test_x.py::test_b" not in tests
    assert outcomes("Killed") == {}
    assert resolved(tests, ["tests/test_x.py::test_d", "tests/test_x.py::TestB::test_b"])
    assert not resolved(tests, ["tests/test_x.py::test_c"])
    assert not resolved(tests, ["tests/test_x.py::missing"])


def test_expected_outcomes_hold_failures_too():
    """Names as R2E-Gym's records have them: without the file, with dots."""
    log = "short test summary info\nPASSED r2e_tests/test_1.py::TestA::test_a\nFAILED r2e_tests/test_1.py::test_b - no"
    expected = {"TestA.test_a": "PASSED", "\x1b[1mtest_b\x1b[0m - no": "FAILED"}
    assert as_expected(outcomes(log), expected)
    assert not as_expected(outcomes(log), {**expected, "test_c": "PASSED"})
    assert not as_expected(outcomes(log.replace("FAILED", "PASSED")), expected)
    assert not as_expected(outcomes(f"{log}\nERROR r2e_tests/test_2.py - ImportError"), expected)


def test_hidden_tests_stay_as_the_image_has_them():
    keep = repository_changes(frozenset(), ("r2e_tests", "tests/test_x.py"))
    kept = {path: keep(f"/testbed/{path}", "changed", bytes) for path in ("x.py", "r2e_tests/a.py", "tests/test_x.py")}
    assert kept == {"x.py": True, "r2e_tests/a.py": False, "tests/test_x.py": False}
