"""Evaluate: resume after SIGKILL gives the uninterrupted table, failures count apart, comparisons are paired."""

from __future__ import annotations

import asyncio
import io
import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from agentgym.cli import train
from agentgym.errors import CheckpointError, ConfigError, UsageError
from agentgym.evaluation.evaluate import (
    Progress,
    compare,
    evaluate,
)
from agentgym.evaluation.run_folder import AttemptRecord, key_of, open_folder, read_attempts
from agentgym.evaluation.stats import (
    cluster_bootstrap,
    cluster_wilson,
    mean_pass_at_k,
    mean_pass_hat_k,
    paired_bootstrap,
    wilson,
)
from agentgym.evaluation.suite import Suite
from agentgym.evaluation.summary import summarize
from agentgym.evaluation.tables import NOTED, comparison_table, summary_table
from agentgym.rollouts.policy import ModelResponse, ScriptedPolicy, SolverPolicy, TextActor
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits
from agentgym.rollouts.trajectory import StopReason, read_jsonl

ECHO = "agentgym.testing:EchoEnv"
METRICS = ["success", "score", "pass@2", "pass^2", "turns", "invalid", "truncated"]

KILLED = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from test_evaluate import Coin, slow_suite
from agentgym.evaluation.evaluate import evaluate
asyncio.run(evaluate(slow_suite(), Coin(), Path({out!r}), identity="coin", concurrency=4, keep_trajectories=True))
"""


class Coin:
    """Repeats the word when its coin falls well, says nothing when it falls badly twice."""

    def __init__(self, luck: float = 0.6):
        self.luck = luck

    def actor(self, episode):
        return _Coin(episode.rng(), self.luck)


class _Coin(TextActor):
    def __init__(self, rng, luck):
        self.rng, self.luck = rng, luck

    async def act(self, ask):
        await asyncio.sleep(float(self.rng.uniform(0, 0.002)))
        if self.rng.random() < self.luck:
            return ModelResponse(await ask.session.solver())
        return ModelResponse("" if self.rng.random() < 0.3 else "what")


def suite_of(**change) -> Suite:
    envs = [
        {"name": ECHO, "split": "test", "tasks": 4, "max_turns": 5, "kwargs": {"latency_s": 0.001}},
        {"name": ECHO, "split": "train", "tasks": [7, 0, 3], "attempts": 3},
    ]
    return Suite.model_validate(
        {"name": "s", "attempts": 2, "seeds": [0, 1], "metrics": METRICS, "env": envs, **change}
    )


def slow_suite() -> Suite:
    """The same episodes, each long enough to be killed in."""
    slow = [{**env.model_dump(), "kwargs": {"latency_s": 0.01}} for env in suite_of().envs]
    return suite_of(env=slow)


def play(out: Path, suite=None, policy=None, identity="coin", **options):
    return asyncio.run(evaluate(suite or suite_of(), policy or Coin(), out, identity=identity, **options))


def timeless(rows):
    return [replace(row, seconds=0.0) for row in rows]


def shown(table) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(table)
    return console.file.getvalue()


TOTAL = 4 * 2 * 2 + 3 * 2 * 3


def test_every_attempt_is_played_recorded_and_reported(tmp_path):
    updates: list[Progress] = []

    def tell(progress):
        updates.append(progress)
        assert len(read_attempts(tmp_path / "run")) == progress.done, "what is told is on the disk"

    report = play(tmp_path / "run", on_progress=tell, keep_trajectories=True)
    assert [key_of(row) for row in report.rows] == sorted(e for w in suite_of().envs for e in suite_of().episodes(w))
    assert [(p.done, p.total) for p in updates] == [(done, TOTAL) for done in range(TOTAL + 1)]
    assert updates[0].row is None
    assert all(p.row is not None for p in updates[1:])
    assert timeless(read_attempts(tmp_path / "run")) == timeless(report.rows)
    kept = {key_of(t): t for t in read_jsonl(tmp_path / "run" / "trajectories.jsonl")}
    for row in report.rows:
        trajectory = kept.pop(key_of(row))
        assert (row.score, row.success, row.turns) == (trajectory.score, trajectory.success, len(trajectory.turns))
        assert row.turns <= (5 if row.split == "test" else 8)
        assert row.invalid == sum(turn.action is None for turn in trajectory.turns)
    assert not kept
    record = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert record["policy"] == "coin"
    assert record["overall"]["success"]["estimate"] == report.summary.overall.success.estimate
    assert "coin" in shown(report.table())


def test_concurrency_does_not_change_the_table(tmp_path):
    one, many = play(tmp_path / "one", concurrency=1), play(tmp_path / "many", concurrency=16)
    assert timeless(one.rows) == timeless(many.rows)
    assert one.summary == many.summary


def test_resume_after_sigkill_gives_the_uninterrupted_table(tmp_path):
    complete = play(tmp_path / "whole", slow_suite(), keep_trajectories=True)
    out, moment = tmp_path / "killed", random.Random(7)
    script = KILLED.format(here=str(Path(__file__).parent), out=str(out))
    finished: list[int] = []
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE)
        attempts = out / "attempts.jsonl"
        before = attempts.stat().st_size if attempts.exists() else 0
        deadline = time.monotonic() + 60
        while (not attempts.exists() or attempts.stat().st_size <= before) and process.poll() is None:
            assert time.monotonic() < deadline, "the run wrote nothing"
            time.sleep(0.001)
        time.sleep(moment.uniform(0, 0.08))
        process.send_signal(signal.SIGKILL)
        _, errors = process.communicate()
        assert process.returncode in (0, -signal.SIGKILL), errors.decode()
        finished.append(len(read_attempts(out)))
    assert finished == sorted(finished)
    assert 0 < finished[0] < TOTAL, "the first kill came in the middle"
    updates: list[Progress] = []
    resumed = play(out, slow_suite(), on_progress=updates.append, keep_trajectories=True)
    assert updates[0].done == finished[-1]
    assert len(updates) == TOTAL - finished[-1] + 1
    assert timeless(resumed.rows) == timeless(complete.rows)
    assert resumed.summary == complete.summary
    assert shown(resumed.table()) == shown(complete.table())
    kept = [key_of(t) for t in read_jsonl(out / "trajectories.jsonl")]
    assert sorted(kept) == [key_of(row) for row in resumed.rows]


@pytest.mark.parametrize("cut", [1, 40, None])
def test_a_truncated_last_line_is_dropped_and_played_again(tmp_path, cut):
    complete = play(tmp_path)
    path = tmp_path / "attempts.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][: cut or -1])
    assert len(read_attempts(tmp_path)) == TOTAL - 1
    updates: list[Progress] = []
    assert timeless(play(tmp_path, on_progress=updates.append).rows) == timeless(complete.rows)
    assert [p.done for p in updates] == [TOTAL - 1, TOTAL]
    assert timeless(read_attempts(tmp_path)) == timeless(complete.rows)
    assert len(path.read_bytes().splitlines()) == TOTAL


def test_a_line_that_is_no_attempt_is_named(tmp_path):
    play(tmp_path)
    path = tmp_path / "attempts.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    killed = json.dumps({**json.loads(lines[1]), "stop": "killed"}) + "\n"
    for bad in ("{}\n", "[]\n", "{\n", killed):
        path.write_text("".join([lines[0], bad, *lines[2:]]))
        with pytest.raises(CheckpointError, match=r"attempts\.jsonl, line 2 is not an attempt"):
            play(tmp_path)


@pytest.mark.parametrize("bad", [b"{}", b"[]", b"{", b"\xff"])
def test_a_line_that_is_no_trajectory_is_named(tmp_path, bad):
    play(tmp_path)
    path = tmp_path / "trajectories.jsonl"
    path.write_bytes(bad + b"\n" + path.read_bytes())
    with pytest.raises(CheckpointError, match=r"trajectories\.jsonl, line 1 is not a trajectory: remove the line"):
        play(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"identity": "other"}, r"another policy \(coin there, other now\); name another folder"),
        ({"suite": suite_of(name="t")}, r"another suite \(s there, t now\)"),
        ({"suite": suite_of(attempts=3)}, r"another suite \(s has been edited since\)"),
        ({"prompt_format": PromptFormat(grammar="tagged")}, "another prompt_format"),
        ({"limits": Limits(max_turns=2)}, r"another max_turns \(None there, 2 now\)"),
    ],
)
def test_another_run_is_refused_and_left_alone(tmp_path, change, message):
    play(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ConfigError, match=message):
        play(tmp_path, **change)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_metrics_and_description_may_change(tmp_path):
    complete = play(tmp_path)
    updates: list[Progress] = []
    again = play(tmp_path, suite_of(metrics=["success"], description="new"), on_progress=updates.append)
    assert [p.done for p in updates] == [TOTAL]
    assert again.rows == complete.rows


def test_folders_that_cannot_be_used(tmp_path):
    play(tmp_path)
    about = json.loads((tmp_path / "run.json").read_text())
    with open_folder(tmp_path, about, False), pytest.raises(UsageError, match="another process evaluates into"):
        play(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"run\.json cannot be read"):
        play(tmp_path)
    (tmp_path / "run.json").unlink()
    with pytest.raises(ConfigError, match=r"holds attempts but no run\.json"):
        play(tmp_path)
    with pytest.raises(CheckpointError, match=r"there is no attempts\.jsonl"):
        compare(tmp_path / "nowhere", tmp_path)


def test_missing_splits_and_tasks_are_refused_at_once(tmp_path):
    envs = [{"name": ECHO, "tasks": 1}, {"name": ECHO, "split": "train", "tasks": 9}]
    with pytest.raises(ConfigError, match="so there is no task 8"):
        play(tmp_path, suite_of(env=envs))
    assert read_attempts(tmp_path) == []
    with pytest.raises(ConfigError, match="latnecy_s"):
        play(tmp_path / "b", suite_of(env=[{"name": ECHO, "tasks": 1, "kwargs": {"latnecy_s": 1}}]))
    kwargs = [{"name": "echo", "tasks": 1, "kwargs": {"latency_s": 0.1}}]
    with pytest.raises(ConfigError, match="has built its own environments"):
        play(tmp_path / "c", suite_of(env=kwargs), server="http://127.0.0.1:9")


FLAKY = """
from pathlib import Path
from agentgym.testing import EchoEnv

class Flaky(EchoEnv):
    def reset(self, *, seed=None, options=None):
        if options["task"] == 1 and Path({flag!r}).exists():
            raise OSError("the disk is full")
        return super().reset(seed=seed, options=options)
"""


def test_failures_are_not_zeros_and_are_retried_on_resume(tmp_path, monkeypatch):
    flag = tmp_path / "broken"
    flag.touch()
    (tmp_path / "ag_flaky.py").write_text(FLAKY.format(flag=str(flag)))
    monkeypatch.syspath_prepend(tmp_path)
    suite = suite_of(env=[{"name": "ag_flaky:Flaky", "tasks": 4}])
    wins = ScriptedPolicy(lambda ask: ask.session.env.solver())
    report = play(tmp_path / "run", suite, wins, keep_trajectories=True)
    (line,) = report.summary.envs
    failed = [row for row in report.rows if row.failed]
    assert {(row.task, row.success, row.score, row.stop) for row in failed} == {(1, None, None, "environment_failed")}
    assert "the disk is full" in failed[0].error
    assert (line.tasks, line.attempts, line.failed) == (3, 12, {"ENVIRONMENT_FAILED": 4})
    assert line.failures == "4 of 16 (ENVIRONMENT_FAILED 4)"
    assert line.success.estimate == line.score.estimate == line.at_k["pass^2"] == 1.0
    assert "failed: 4 of 16 (ENVIRONMENT_FAILED 4)" in shown(report.table())
    flag.unlink()
    updates: list[Progress] = []
    mended = play(tmp_path / "run", suite, wins, on_progress=updates.append, keep_trajectories=True)
    assert [p.done for p in updates] == [12, 13, 14, 15, 16]
    assert mended.summary.overall.failed == {}
    assert len(list(read_jsonl(tmp_path / "run" / "trajectories.jsonl"))) == 16
    assert mended.rows == tuple(read_attempts(tmp_path / "run"))


def test_an_env_out_of_reach_fails_alone(tmp_path):
    envs = [{"name": "http://127.0.0.1:9/", "tasks": 2}, {"name": ECHO, "tasks": 2}]
    report = play(tmp_path, suite_of(env=envs, seeds=[0]), retries=0)
    assert report.common_error.startswith("UNREACHABLE")
    here, gone = report.summary.envs
    assert (here.attempts, here.failed) == (4, {})
    assert (gone.attempts, gone.failed, gone.success, gone.turns) == (0, {"ENVIRONMENT_FAILED": 4}, None, None)
    assert all(row.error.startswith("UNREACHABLE") for row in report.rows if row.failed)
    assert "–" in shown(report.table())


def rows_of(outcomes: dict[tuple[int, int], str], env="w") -> list[AttemptRecord]:
    """Attempts from {(task, seed): "1" success, "0" none, "F" infrastructure failed, "T" truncated}."""
    rows = []
    for (task, seed), letters in outcomes.items():
        for attempt, letter in enumerate(letters):
            stop = {"F": StopReason.POLICY_FAILED, "T": StopReason.TRUNCATED}.get(letter, StopReason.TERMINATED)
            success, score = (None, None) if letter == "F" else (letter == "1", float(letter == "1"))
            rows.append(AttemptRecord(env, "test", task, seed, attempt, success, score, 4, 1, stop.value, "", 0.0))
    return rows


def test_the_summary_is_the_statistics_of_the_rows():
    rows = rows_of({(0, 0): "110", (0, 1): "1FF", (1, 0): "000", (2, 0): "T1F"})
    (line,) = summarize(rows, METRICS).envs
    clusters = {"0": [2 / 3, 1.0], "1": [0.0], "2": [0.5]}
    assert line.success == cluster_wilson(clusters, 9)
    assert line.score == cluster_bootstrap(clusters)
    assert line.at_k["pass@2"] == pytest.approx((1.0 + 0.0 + 1.0) / 3)
    assert line.at_k["pass@2"] == pytest.approx(mean_pass_at_k([(3, 2), (3, 0), (2, 1)], 2))
    assert line.at_k["pass^2"] == pytest.approx(mean_pass_hat_k([(3, 2), (3, 0), (2, 1)], 2))
    assert (line.tasks, line.attempts, line.failed) == (3, 9, {"POLICY_FAILED": 3})
    assert (line.turns, line.invalid, line.truncated) == (4.0, 0.25, pytest.approx(1 / 9))
    assert summarize(rows, ["pass@9"]).envs[0].at_k == {"pass@9": None}
    assert summarize(reversed(rows), METRICS) == summarize(rows, METRICS)


def test_intervals_of_single_attempts_and_of_a_single_task():
    (line,) = summarize(rows_of({(task, 0): "1" for task in range(5)})).envs
    assert line.success == wilson(5, 5)
    (line,) = summarize(rows_of({(0, seed): "10" for seed in range(4)} | {(0, 9): "11"})).envs
    assert line.success == cluster_wilson({str(seed): [0.5] for seed in range(4)} | {"9": [1.0]}, 10)


def test_overall_weighs_every_task_the_same():
    rows = rows_of({(0, 0): "11"}, "a") + rows_of({(task, 0): "00" for task in range(3)}, "b")
    summary = summarize(rows)
    assert [line.env for line in summary.envs] == ["a", "b"]
    assert summarize(reversed(rows)) == summary
    assert summary.overall.success.estimate == 0.25
    assert summary.overall.score is None, "scores of two environments have unlike scales"
    assert summarize(rows_of({(0, 0): "11", (1, 0): "00"})).overall.score.estimate == 0.5
    nothing = summarize([], METRICS)
    assert nothing.envs == ()
    assert nothing.overall.success is None
    assert "overall" in shown(summary_table(nothing, METRICS, "[bold]not markup"))
    assert "[bold]not markup" in shown(summary_table(nothing, METRICS, "[bold]not markup"))


def record(out: Path, rows: list[AttemptRecord], policy: str, **about) -> Path:
    out.mkdir()
    described = {"suite": {"name": "s"}, "policy": policy, "prompt_format": {}, "max_turns": None, **about}
    (out / "run.json").write_text(json.dumps(described))
    names = AttemptRecord.__slots__
    lines = [json.dumps({name: getattr(row, name) for name in names}) for row in rows]
    (out / "attempts.jsonl").write_text("".join(line + "\n" for line in lines))
    return out


def test_compare_pairs_tasks_and_seeds_and_counts_the_rest(tmp_path):
    a = rows_of({(0, 0): "10", (0, 1): "11", (1, 0): "00", (2, 0): "FF", (3, 0): "11", (5, 0): "1"})
    b = rows_of({(0, 0): "11", (1, 0): "10", (2, 0): "11", (4, 0): "11", (5, 3): "1"})
    found = compare(record(tmp_path / "a", a, "A"), record(tmp_path / "b", b, "B", max_turns=3))
    (line,) = found.envs
    assert line.difference == paired_bootstrap({"0": [0.5], "1": [0.0]}, {"0": [1.0], "1": [0.5]})
    assert (line.a, line.b, line.difference.estimate, line.dropped) == (0.25, 0.75, 0.5, 4)
    assert found.overall.difference == line.difference
    assert found.notes == ("the runs differ in their max_turns",)
    table = shown(comparison_table(found))
    assert "a: A; b: B; the runs differ in their max_turns" in table
    assert "50.0 [50.0, 50.0]*" in table
    assert "* too few" in table


@pytest.mark.parametrize(
    ("tasks", "split", "title", "gap"),
    [(1, "train", "tasks of 'train'", "100.0 [100.0, 100.0]*"), (3, "test", "held-out tasks", "100.0 [100.0, 100.0]")],
)
def test_a_run_s_table_says_of_what_and_how_few(tmp_path, monkeypatch, tasks, split, title, gap):
    """Before and after: with one task an interval had no width and no star, and train tasks were called held out."""
    rows = [[replace(r, split=split) for r in rows_of({(n, 0): was for n in range(tasks)})] for was in "01"]
    found = compare(record(tmp_path / "a", rows[0], "A"), record(tmp_path / "b", rows[1], "B"))
    before, after = (SimpleNamespace(summary=summarize(some)) for some in rows)
    console = Console(file=io.StringIO(), width=200)
    monkeypatch.setattr(train, "console", console)
    train._show(SimpleNamespace(before=before, after=after, comparison=found, seconds=1.0, folder=tmp_path))
    text = console.file.getvalue()
    assert f"Success on {title}" in text
    assert f" {gap} " in text
    assert (NOTED in text) == (tasks < 3)


def test_compare_envs_that_only_one_has(tmp_path):
    a = rows_of({(task, 0): "1" for task in range(3)})
    b = rows_of({(task, 0): "0" for task in range(3)}) + rows_of({(0, 0): "1"}, "only")
    found = compare(record(tmp_path / "a", a, "A"), record(tmp_path / "b", b, "B"), "score")
    only, both = found.envs
    assert (only.env, only.difference, only.dropped) == ("only", None, 1)
    assert (both.difference.estimate, both.dropped, found.overall.dropped) == (-1.0, 0, 1)
    assert found.overall.difference is None, "scores of two environments have unlike scales"
    assert compare(tmp_path / "a", tmp_path / "b").overall.difference.estimate == -1.0
    assert "–" in shown(comparison_table(found))


def test_compare_without_a_shared_task_is_refused(tmp_path):
    a, b = record(tmp_path / "a", rows_of({(0, 0): "1"}), "A"), record(tmp_path / "b", rows_of({(1, 0): "1"}), "B")
    with pytest.raises(UsageError, match="share no scored task"):
        compare(a, b)


def test_environment_without_a_solver_is_left_out_and_named(tmp_path):
    envs = [{"name": "blackjack", "tasks": 2}, {"name": ECHO, "tasks": 2}]
    updates: list[Progress] = []
    report = play(tmp_path, suite_of(env=envs, seeds=[0]), SolverPolicy(), on_progress=updates.append)
    assert {row.env for row in report.rows} == {ECHO}
    assert report.left_out == {"blackjack test": "blackjack has no scripted solver; use another policy"}
    assert (report.failed, updates[-1].done, updates[-1].total) == (0, 4, 4)
    caption = " ".join(shown(report.table()).split())
    assert "left out: blackjack test (blackjack has no scripted solver" in caption
    assert "overall: 1 of 2 environments" in caption
    assert "blackjack test" in json.loads((tmp_path / "summary.json").read_text())["left_out"]


def test_run_that_played_nothing_leaves_its_folder_free(tmp_path):
    def refuse(ask):
        raise UsageError("no model is called that")

    with pytest.raises(UsageError, match="no model"):
        play(tmp_path, policy=ScriptedPolicy(refuse), identity="typo")
    assert not (tmp_path / "run.json").exists()
    assert play(tmp_path, identity="right").summary.overall.attempts == TOTAL


def test_a_better_policy_compares_as_better(tmp_path):
    play(tmp_path / "a", policy=Coin(0.2), identity="poor")
    play(tmp_path / "b", policy=Coin(1.0), identity="good")
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.overall.difference.low > 0
    assert found.overall.dropped == 0
    assert found.notes == ()
