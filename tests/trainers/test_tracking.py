"""Trackers of a run: what they receive, how they go on, and that none of them ends a run. No tracker but TensorBoard is
needed here; tests/interop has the others."""

from __future__ import annotations

import importlib.util
import logging
from dataclasses import dataclass, field, replace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agentgym.errors import CheckpointError, ConfigError, MissingDependency
from agentgym.rollouts.trajectory import StopReason, Trajectory, Turn
from agentgym_trainers.monitoring.metrics import MetricsLog
from agentgym_trainers.monitoring.tracking import trackers as tracking
from agentgym_trainers.monitoring.tracking.episodes import COLUMNS, MAX_TRANSCRIPT, episode_rows
from agentgym_trainers.monitoring.tracking.options import TrackingOptions
from agentgym_trainers.monitoring.tracking.tracker import TrackedRun
from agentgym_trainers.monitoring.tracking.trackers import Trackers, open_trackers, require_trackers

EPISODE = Trajectory(
    env="e", split="train", task=3, seed=5, attempt=1, stop=StopReason.TERMINATED, final_observation="the end",
    turns=(Turn(index=0, observation="hello", reply="go\ud800", action="go", reward=0.5),),
)  # fmt: skip


@dataclass
class MemoryTracker:
    """Keeps what it receives; `broken` calls fail."""

    run: TrackedRun | None = None
    broken: tuple[str, ...] = ()
    id: str = "kept"
    calls: list[tuple] = field(default_factory=list)

    def log(self, phase, step, metrics) -> None:
        self._note("log", phase, step, metrics)

    def log_episodes(self, step, columns, rows) -> None:
        self._note("log_episodes", step, columns, rows)

    def close(self, finished) -> None:
        self._note("close", finished)

    def _note(self, name, *arguments) -> None:
        self.calls.append((name, *arguments))
        if name in self.broken:
            raise OSError("no route to the tracker")


def test_a_tracker_that_fails_is_named_once_and_left_out(tmp_path, caplog) -> None:
    bad, good = MemoryTracker(broken=("log",)), MemoryTracker()
    log = MetricsLog(tmp_path, trackers=Trackers({"bad": bad, "good": good}))
    with caplog.at_level(logging.WARNING):
        for step in (1, 2):
            log.write("rl", step, {"a/x": 0.5, "a/y": float("nan")})
        log.close()
    assert len(log.path.read_text().splitlines()) == 2
    assert len(bad.calls) == 1
    assert good.calls == [("log", "rl", 1, {"a/x": 0.5}), ("log", "rl", 2, {"a/x": 0.5}), ("close", True)]
    (record,) = caplog.records
    assert "the tracker bad failed" in record.getMessage()
    assert "OSError: no route" in record.getMessage()


def test_ids_are_kept_for_the_resumed_run(tmp_path, monkeypatch) -> None:
    opened = []

    def opener(name):
        return lambda run: opened.append(run) or MemoryTracker(run, id=run.id or f"{name}-1")

    monkeypatch.setattr(tracking, "opener", opener)
    options = TrackingOptions(trackers=("wandb", "trackio"))
    for _ in range(2):
        with open_trackers(options, tmp_path, {}):
            pass
    assert [run.id for run in opened] == [None, None, "wandb-1", "trackio-1"]
    (tmp_path / "trackers.json").write_text("[1")
    with (
        pytest.raises(CheckpointError, match=r"trackers\.json is no table of ids; delete it"),
        open_trackers(options, tmp_path, {}),
    ):
        pass


def test_a_key_is_not_handed_on(tmp_path, monkeypatch) -> None:
    opened = []
    monkeypatch.setattr(tracking, "opener", lambda name: lambda run: opened.append(run) or MemoryTracker(run))
    name = "tools-dialogue:user=http://h/v1,api_key={},model=m"
    with open_trackers(TrackingOptions(), tmp_path, {"env": {"name": name.format("mine")}, "run": {"steps": 3}}):
        pass
    assert opened[0].config == {"env": {"name": name.format("removed")}, "run": {"steps": 3}}


def test_what_cannot_be_opened_closes_the_others(tmp_path, monkeypatch) -> None:
    first = MemoryTracker()

    def opener(name):
        def fail(run):
            raise RuntimeError("no key")

        return fail if name == "wandb" else lambda run: first

    monkeypatch.setattr(tracking, "opener", opener)
    options = TrackingOptions(trackers=("mlflow", "wandb"))
    with pytest.raises(ConfigError, match="tracker wandb cannot be opened"), open_trackers(options, tmp_path, {}):
        pass
    assert first.calls == [("close", False)]


def test_a_stopped_run_is_not_a_finished_one(tmp_path, monkeypatch) -> None:
    tracker = MemoryTracker()
    monkeypatch.setattr(tracking, "opener", lambda name: lambda run: tracker)
    with pytest.raises(KeyboardInterrupt), open_trackers(TrackingOptions(), tmp_path, {}):
        raise KeyboardInterrupt
    assert tracker.calls == [("close", False)]


def test_a_missing_package_is_one_sentence(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"names trackio: pip install 'turngym\[trackio\]'"):
        require_trackers(TrackingOptions(trackers=("trackio",)))
    require_trackers(TrackingOptions(trackers=()))


def test_tensorboard_has_every_number(tmp_path) -> None:
    with open_trackers(TrackingOptions(), tmp_path, {}) as trackers:
        trackers.log("rl", 3, {"a/x": 0.5})
        trackers.log_episodes(3, [EPISODE])
    with open_trackers(TrackingOptions(), tmp_path, {}) as trackers:
        trackers.log("rl", 4, {"a/x": 0.25})
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("rl/a/x")] == [(3, 0.5), (4, 0.25)]


def test_tensorboard_fails_where_it_is_called_on_a_full_disk(tmp_path) -> None:
    """A thread that wrote it would end in a traceback of its own, in the middle of the run's error."""
    with open_trackers(None, tmp_path, {}) as opened:
        (events,) = (tmp_path / "tensorboard").iterdir()
        events.unlink()
        events.symlink_to("/dev/full")
        opened.log("train", 1, {"loss": 0.5})
        assert not opened._trackers


def test_rows_are_spread_and_transcripts_bounded() -> None:
    episodes = [replace(EPISODE, task=task) for task in range(8)]
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in episode_rows(7, episodes, 4)]
    assert [row["task"] for row in rows] == [0, 2, 4, 6]
    assert rows[0] == {
        "step": 7, "env": "e", "split": "train", "task": 0, "seed": 5, "attempt": 1, "score": 0.5, "success": True,
        "turns": 1, "stop": "terminated", "transcript": "< hello\n> go?\n< the end",
    }  # fmt: skip
    long = replace(EPISODE, turns=(replace(EPISODE.turns[0], observation="x" * 9000),))
    (row,) = episode_rows(1, [long], 4)
    assert len(row[-1]) <= MAX_TRANSCRIPT
    assert row[-1].endswith("< the end")
    assert "more characters" in row[-1]
