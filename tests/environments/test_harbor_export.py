"""Tasks of our own as Harbor folders: what the reader makes of them, what lies where, and refusals."""

from __future__ import annotations

import contextlib

import pytest

from agentgym import registry
from agentgym.cli.main import main
from agentgym.errors import ConfigError
from agentgym_environments.synthetic.research.tasks import csv, task
from agentgym_environments.tasks.harbor import harbor_tasks
from agentgym_environments.tasks.harbor_folder import HarborFolder, write_folder


@pytest.fixture
def exported(capsys):
    """exported(*arguments) -> what the command prints, its error if it fails."""

    def run(*arguments: object) -> str:
        with contextlib.suppress(SystemExit):
            main(["envs", "export", "harbor", *map(str, arguments)])
        printed = capsys.readouterr()
        return printed.err or printed.out

    return run


def test_research_tasks_are_read_as_harbor_tasks(tmp_path, exported):
    lines = exported("research-hard", "--out", tmp_path / "r", "--split", "validation", "--tasks", "2").splitlines()
    assert lines[:2] == [str(tmp_path / "r" / f"research-hard-validation-00{i}") for i in range(2)]
    tasks, others = harbor_tasks(tmp_path / "r")
    assert not others
    assert [one.id for one in tasks] == [f"agentgym/research-hard-validation-00{i}" for i in range(2)]
    first = tasks[0]
    assert (first.setup["network"], first.setup["memory_mb"], first.setup["workdir"]) == (False, 1024, "/app")
    assert (first.setup["agent_s"], first.grader["timeout_s"]) == (1800, 150)
    assert "counts as solved" in first.prompt
    assert registry.make("harbor", folder=str(tmp_path / "r")).env_spec.splits == {"test": 2}


def test_held_out_inputs_and_answers_lie_in_the_tests_alone(tmp_path, exported):
    exported("research", "--out", tmp_path, "--tasks", "1")
    one = task(False, "test", 0)
    secrets = [csv(one.inputs), str(one.held_out[0]).encode(), repr(one.clues).encode()]
    place = tmp_path / "research-test-000"
    where = {
        path.relative_to(place).parts[0]
        for path in place.rglob("*")
        if path.is_file() and any(secret in path.read_bytes() for secret in secrets)
    }
    assert where == {"tests", "solution"}


def test_what_cannot_be_exported_says_why(tmp_path, exported):
    assert "research has no split 'dev'; it has train" in exported("research", "--out", tmp_path, "--split", "dev")
    assert "10 tasks in 'test', so there are no 11" in exported("research", "--out", tmp_path, "--tasks", "11")
    assert "its actions are tool calls" in exported("tools", "--out", tmp_path)
    assert "has no method harbor_folder" in exported("keydoor", "--out", tmp_path)
    assert "not from its URL" in exported("http://127.0.0.1:1", "--out", tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path, exported):
    (tmp_path / "file").write_text("")
    assert exported("research", "--out", tmp_path / "file" / "below", "--tasks", "1") == (
        f"error: {tmp_path}/file/below/research-test-000 cannot be written (Not a directory); "
        "name another folder for the tasks\n"
    )


def test_a_folder_that_exists_is_not_written_over(tmp_path):
    folder = HarborFolder("a", 'a "b"', "Do.", ("x",), {"Dockerfile": b"FROM x"}, {"checks.py": b""}, "true", 64, 1, 1)
    place = write_folder(folder, tmp_path)
    (place / "instruction.md").write_text("mine")
    with pytest.raises(ConfigError, match="exists: remove it, or name another folder"):
        write_folder(folder, tmp_path)
    assert (place / "instruction.md").read_text() == "mine"
    assert (place / "tests" / "test.sh").stat().st_mode & 0o111
