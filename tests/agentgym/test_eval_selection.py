"""Parts of a suite, the tasks that were played (the panel), and what goes on in a folder."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest
from pydantic import ValidationError
from rich.console import Console

from agentgym.errors import ConfigError, UsageError
from agentgym.evaluation.evaluate import compare, evaluate
from agentgym.evaluation.run_folder import read_attempts, read_description, read_specs
from agentgym.evaluation.selection import SuiteSelection
from agentgym.evaluation.suite import Suite
from agentgym.rollouts.policy import ScriptedPolicy
from agentgym.testing import EchoEnv

ECHO = "agentgym.testing:EchoEnv"
SUITE = Suite.model_validate(
    {"name": "s", "env": [{"name": ECHO, "tasks": 4}, {"name": ECHO, "split": "train", "tasks": [7, 0, 3]}]}
)
HASHES = [f"sha256:{digit * 64}" for digit in "ab"]


class HashedEcho(EchoEnv):
    """Environment with a task set, whose hash is its argument."""

    def __init__(self, tasks: str) -> None:
        super().__init__()
        self.env_spec = self.env_spec.model_copy(update={"task_set": HASHES[int(Path(tasks).read_text())]})


@pytest.fixture
def hashed(tmp_path):
    """(suite of an environment with a task set, the file that says which)."""
    file = tmp_path / "tasks"
    file.write_text("0")
    env = {"name": f"{__name__}:HashedEcho", "tasks": 2, "kwargs": {"tasks": str(file)}}
    return Suite.model_validate({"name": "h", "env": [env]}), file


def play(out: Path, suite: Suite = SUITE, **options):
    policy = ScriptedPolicy(lambda ask: ask.session.env.solver())
    return asyncio.run(evaluate(suite, policy, out, identity="coin", **options))


def shown(report) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(report.table())
    return " ".join(console.file.getvalue().split())


def tasks_of(out: Path) -> list[tuple[str, int]]:
    return [(row.split, row.task) for row in read_attempts(out)]


def test_limit_plays_the_first_tasks_of_each_env(tmp_path):
    report = play(tmp_path, selection=SuiteSelection(limit=2))
    assert tasks_of(tmp_path) == [("test", 0), ("test", 1), ("train", 0), ("train", 3)]
    assert "only 2 tasks of every environment" in shown(report)


def test_shuffle_draws_tasks_and_a_greater_limit_adds_to_them():
    suite = Suite.model_validate({"name": "big", "env": [{"name": ECHO, "tasks": 1000}]})
    draws = [SuiteSelection(limit=n, shuffle=3).of(suite).envs[0].indices for n in (10, 20, 1000)]
    assert len(draws[0]) == 10
    assert max(draws[0]) > 100
    assert set(draws[0]) < set(draws[1]) < set(draws[2])
    assert draws[2] == tuple(range(1000))
    assert set(SuiteSelection(limit=10, shuffle=4).of(suite).envs[0].indices) != set(draws[0])
    with pytest.raises(ValidationError, match="give both"):
        SuiteSelection(shuffle=1)


def test_envs_are_named_with_or_without_options():
    envs = [{"name": "sokoban:size=6", "tasks": 1}, {"name": "keydoor", "tasks": 1}]
    suite = Suite.model_validate({"name": "two", "env": envs})
    assert [env.name for env in SuiteSelection(envs=("sokoban",)).of(suite).envs] == ["sokoban:size=6"]
    assert SuiteSelection(envs=("keydoor", "sokoban:size=6")).of(suite).envs == suite.envs
    with pytest.raises(UsageError, match=r"two has no environment 'keydor'\. Did you mean keydoor\?"):
        SuiteSelection(envs=("keydor",)).of(suite)


def test_a_wider_part_goes_on_and_another_is_refused(tmp_path):
    drawn = SuiteSelection(limit=2, shuffle=3)
    play(tmp_path, selection=drawn)
    before = (tmp_path / "attempts.jsonl").read_bytes()
    play(tmp_path, selection=drawn)
    assert (tmp_path / "attempts.jsonl").read_bytes() == before
    with pytest.raises(ConfigError, match="holds attempts at 2 tasks of every environment, drawn with seed 3, which 1"):
        play(tmp_path, selection=SuiteSelection(limit=1, shuffle=3))
    assert len(play(tmp_path).rows) == 7
    assert (tmp_path / "attempts.jsonl").read_bytes().startswith(before)
    assert read_description(tmp_path)["selection"] == SuiteSelection().model_dump(mode="json")
    with pytest.raises(ConfigError, match="holds attempts at all tasks of every environment, which 2 tasks of every"):
        play(tmp_path, selection=drawn)


def test_failed_attempts_are_kept_when_not_retried(tmp_path):
    suite = Suite.model_validate({"name": "gone", "env": [{"name": "http://127.0.0.1:9/", "tasks": 2}]})
    play(tmp_path, suite, retries=0)
    lines = (tmp_path / "attempts.jsonl").read_bytes()
    report = play(tmp_path, suite, retries=0, retry_failed=False)
    assert (tmp_path / "attempts.jsonl").read_bytes() == lines
    assert (report.failed, report.stopped) == (2, "")
    play(tmp_path, suite, retries=0)
    assert len((tmp_path / "attempts.jsonl").read_bytes().splitlines()) == 4


def test_panel_is_stored_shown_and_kept_to(tmp_path, hashed):
    suite, file = hashed
    out, place = tmp_path / "run", f"{__name__}:HashedEcho test"
    report = play(out, suite, selection=SuiteSelection(limit=1))
    assert report.panel == {place: HASHES[0]}
    assert f"tasks: {place} {HASHES[0][:19]}" in shown(report)
    for name in ("run.json", "summary.json"):
        assert json.loads((out / name).read_text())["panel"] == {place: HASHES[0]}
    assert read_specs(out)[place].task_set == HASHES[0]
    file.write_text("1")
    with pytest.raises(ConfigError, match=f"holds attempts at other tasks of {place} .{HASHES[0]} there, {HASHES[1]}"):
        play(out, suite)
    play(tmp_path / "other", suite)
    found = compare(out, tmp_path / "other")
    assert found.notes == (f"the runs played other tasks of {place} (a: {HASHES[0][:19]}, b: {HASHES[1][:19]})",)


def test_panel_of_an_env_without_a_task_set_is_its_version(tmp_path):
    report = play(tmp_path)
    assert report.panel == {f"{ECHO} test": "echo 1.0.0", f"{ECHO} train": "echo 1.0.0"}
    assert "tasks: " not in shown(report)


def test_folder_of_an_older_form_goes_on_and_is_compared(tmp_path):
    play(tmp_path / "new")
    play(tmp_path / "old", selection=SuiteSelection(envs=(ECHO,)))
    about = json.loads((tmp_path / "old" / "run.json").read_text())
    del about["panel"], about["selection"]
    (tmp_path / "old" / "run.json").write_text(json.dumps(about))
    (tmp_path / "old" / "specs.json").unlink()
    lines = [json.loads(line) for line in (tmp_path / "old" / "attempts.jsonl").read_text().splitlines()]
    older = [{key: value for key, value in line.items() if "tokens" not in key} for line in lines[:-1]]
    (tmp_path / "old" / "attempts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in older))
    assert compare(tmp_path / "old", tmp_path / "new").notes == ()
    assert len(play(tmp_path / "old").rows) == 7
    assert compare(tmp_path / "old", tmp_path / "new").overall.dropped == 0
