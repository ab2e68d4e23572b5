"""Signals of a run spread over a Ray cluster: their models are in the learner processes, what they sample is sampled by
the rollout workers, and both may be killed.

`make scale` installs Ray beside this environment and runs these.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ray_nodes import connected

from agentgym import registry
from agentgym.errors import LearnerLost
from agentgym.rollouts.policy import EpisodeSpec
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.session import LocalSession
from agentgym_trainers.build import build
from agentgym_trainers.config.sections import Config
from agentgym_trainers.distributed.build import BroadcastingEngine
from agentgym_trainers.distributed.learner_group import LearnerGroup
from agentgym_trainers.distributed.remote_signals import RemoteSignal
from agentgym_trainers.monitoring.metrics import MetricsLog
from agentgym_trainers.nn import checkpoint, tiny
from agentgym_trainers.train import Trainer

pytestmark = [
    pytest.mark.skipif(util.find_spec("ray") is None, reason="Ray is not installed here: run `make scale`"),
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("default"),  # Ray's own
]
ENV = "oracle"
MODELS = {name: {} for name in ("progress", "prm", "instruction", "answer", "hindsight", "uncertainty")}
PLAYING = {
    "branched_value": {"continuations": 2},
    "twin": {"pool": 12, "updates": 3, "batch": 8, "warmup": 0, "actor_states": 8, "hidden": (16,)},
}
"""Tables of every kind but those without a model: "digiq" has twin's critic, and asks as twin does."""

PAUSING = """
import os
import time
from pathlib import Path

from agentgym_trainers.signals.base import SignalKind
from agentgym_trainers.signals.progress import ProgressHead, ProgressOptions

FOLDER = Path(__file__).parent


class Pausing(ProgressHead):
    async def fit(self, context):
        if context.step == 1:
            (FOLDER / f"fits-{os.getpid()}").touch()
            while not (FOLDER / "go").exists():
                time.sleep(0.01)
        return await super().fit(context)


KIND = SignalKind(ProgressOptions, Pausing, frozenset({"progress_c_N", "progress_skill_M"}), learned=Pausing)
"""
"""A signal that waits in the middle of its second fit until it is let go."""


@pytest.fixture(scope="module")
def modules(tmp_path_factory) -> Path:
    """A folder that Ray's workers import from."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "pausing.py").write_text(PAUSING)
    return folder


@pytest.fixture(scope="module")
def nodes(modules) -> Iterator[None]:
    with connected(4, modules=modules):
        yield


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    spec = registry.get_spec(ENV)
    return tiny.make_tokenizer(
        [PromptFormat().instructions(spec), *spec.actions, "user\n", "assistant\n"] * 3, 320, 1024
    )


def config(**more: Any) -> Config:
    tree = {
        "name": "test",
        "run": {"steps": 3, "checkpoint_every": 1, "threads": 1},
        "env": {"name": ENV, "serve": False},
        "rollout": {
            "groups": 2, "group_size": 4, "max_new_tokens": 4, "max_length": 640, "concurrency": 8, "lockstep": True
        },
        "credit": {"assigner": "q_minus_v"},
        "loss": {"entropy": 0.1},  # there is something to learn from also where nobody succeeds
        "optim": {"lr": 1e-3},
        "eval": {"tasks": 0, "split": "train"},
        **more,
    }  # fmt: skip
    return Config.model_validate(tree)


def scale(learners: int, workers: int) -> dict[str, Any]:
    return {"kind": "ray", "learners": learners, "workers": workers, "deadline_s": 600.0}


def trainer_of(chosen: Config, tokenizer: Any, folder: Path, model: Any = None) -> Trainer:
    async def local() -> LocalSession:
        return LocalSession(registry.make(ENV))

    folder.mkdir(exist_ok=True)
    first = tiny.make_model(tiny.TinyModel(layers=2), tokenizer, 0).eval()
    return build(chosen, folder, registry.get_spec(ENV), local, model or first, first, tokenizer)


def pids(actors: list[Any]) -> list[int]:
    import ray  # pyright: ignore[reportMissingImports]

    return ray.get([actor.__ray_call__.remote(lambda self: os.getpid()) for actor in actors], timeout=300)


def same(ours: Any, theirs: Any, tolerance: float) -> None:
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance, equal_nan=True)


def test_signals_learn_over_ray_what_they_learn_without(nodes, tokenizer, tmp_path) -> None:
    """Columns, metrics and weights of every kind over three steps, the policy's too, from the same episodes."""

    async def both() -> None:
        tables = {**MODELS, **PLAYING}
        alone = trainer_of(config(signals=tables), tokenizer, tmp_path / "alone")
        spread = trainer_of(config(signals=tables, scale=scale(1, 1)), tokenizer, tmp_path / "spread")
        assert all(isinstance(spread.signals[name], RemoteSignal) for name in MODELS)
        try:
            for step in range(3):
                await alone.publish()
                await spread.publish()
                groups = await alone.collect()
                expected, found = [await trainer.learn(groups) for trainer in (alone, spread)]
                assert found.metrics == pytest.approx(expected.metrics, rel=1e-5, abs=1e-6, nan_ok=True)
                assert {"progress/loss", "twin/loss", "branched_value/bias"} <= found.metrics.keys()
                assert set(found.batch.x) == set(expected.batch.x)
                for name, column in expected.batch.x.items():
                    np.testing.assert_allclose(found.batch.x[name], column, rtol=1e-6, atol=1e-6, err_msg=name)
                alone.step = spread.step = step + 1
            for name, part in alone.signals.items():
                same(spread.signals[name].state_dict(), part.state_dict(), 1e-6)
            same(dict(spread.learner.weights()), dict(alone.learner.weights()), 1e-6)
        finally:
            await spread.engine.aclose()
            await alone.engine.aclose()

    asyncio.run(both())


def run(trainer: Trainer, position: int = 0) -> list[dict[str, Any]]:
    log = MetricsLog(trainer.folder, position)

    async def steps() -> None:
        try:
            await trainer.run(log)
        finally:
            log.close()
            await trainer.engine.aclose()

    asyncio.run(steps())
    return [json.loads(line) for line in log.path.read_text().splitlines()]


def numbers(line: dict[str, Any]) -> dict[str, float]:
    """Metrics of a step, but times and those without a value."""
    kept = {name: value for name, value in line.items() if name != "phase" and not name.startswith("time/")}
    return {name: value for name, value in kept.items() if value is not None}


def test_a_learner_killed_while_a_signal_fits_resumes(nodes, modules, tokenizer, tmp_path) -> None:
    """It says so in one sentence; resumed without Ray, the run ends with the numbers of an undisturbed one."""
    tables = {"pausing:KIND": {}, **PLAYING}
    (modules / "go").touch()
    expected_lines = run(trainer_of(config(signals=tables), tokenizer, tmp_path / "undisturbed"))
    (modules / "go").unlink()
    for path in modules.glob("fits-*"):
        path.unlink()
    trainer = trainer_of(config(signals=tables, scale=scale(2, 1)), tokenizer, tmp_path / "lost")
    assert isinstance(trainer.learner, LearnerGroup)
    victim = pids(trainer.learner._ranks)[1]

    def kill_in_the_fit() -> None:
        while len(list(modules.glob("fits-*"))) < 2:
            time.sleep(0.05)
        os.kill(victim, signal.SIGKILL)
        (modules / "go").touch()

    killer = threading.Thread(target=kill_in_the_fit, daemon=True)
    killer.start()
    with pytest.raises(LearnerLost, match=r"a learner's process is gone .* resume the run"):
        run(trainer)
    killer.join()
    newest = checkpoint.latest(tmp_path / "lost")
    assert newest is not None
    assert checkpoint.step_of(newest) == 1
    state = checkpoint.load_state(newest)
    trainer = trainer_of(config(signals=tables), tokenizer, tmp_path / "lost", checkpoint.load_model(newest)[0])
    trainer.load(state)
    resumed = run(trainer, state["metrics_bytes"])
    for line, other in zip(resumed, expected_lines, strict=True):
        assert {name: line[name] for name in numbers(other)} == pytest.approx(numbers(other), rel=1e-3, abs=1e-4)
    ours, theirs = [
        checkpoint.load_state(tmp_path / name / "checkpoints" / "step-000003") for name in ("undisturbed", "lost")
    ]
    same(theirs["signals"], ours["signals"], 1e-4)


def test_a_worker_killed_while_signals_sample_loses_nothing(nodes, tokenizer, tmp_path) -> None:
    """Replies and continuations are those of a run that nothing happened to; then signals sample beside episodes."""
    rollout = {**config().rollout.model_dump(), "lockstep": False, "staleness": 1}
    chosen = config(signals={"progress": {}, **PLAYING}, rollout=rollout, scale=scale(1, 2))
    trainer = trainer_of(chosen, tokenizer, tmp_path)
    assert isinstance(trainer.engine, BroadcastingEngine)
    pool, player = trainer.engine.pool, trainer.signals["twin"].player  # type: ignore[attr-defined]
    log = MetricsLog(trainer.folder)
    fitted: list[tuple[int, list[tuple[int, int]]]] = []
    fit = trainer.signals["progress"].fit

    async def killed(work: Any) -> Any:
        """The result of `work`, of which a worker is killed in the middle."""
        before = await asyncio.to_thread(pids, pool.workers)
        lost, begun = pool.lost, asyncio.ensure_future(work)
        while not all(pool._playing):
            await asyncio.sleep(0.001)
        os.kill(before[0], signal.SIGKILL)
        result = await begun
        assert pool.lost == lost + 1
        while pool.starting:
            await asyncio.sleep(0.1)
        return result

    async def remember(context: Any) -> dict[str, float]:
        fitted.append((context.step, [(t.task, t.seed) for t in context.trajectories]))
        return await fit(context)

    async def play() -> None:
        try:
            await trainer.publish()
            trajectories = await trainer.runner.run(
                trainer.policy(7), [EpisodeSpec(ENV, "train", 0, seed, 0) for seed in range(4)]
            )
            states = [t.branches[0].ids[: t.turns[0].span.start].tolist() for t in trajectories if t.turns[0].span]
            states, seeds = states * 8, list(range(8 * len(states)))
            undisturbed = await player.replies(states, seeds, 2)
            disturbed = await killed(player.replies(states, seeds, 2))
            assert [[c.ids for c in each] for each in disturbed] == [[c.ids for c in each] for each in undisturbed]
            assert {c.version for each in disturbed for c in each} == {0}
            values = [
                player.values(trajectories, (5,), continuations=16),
                player.values(trajectories, (5,), continuations=16),
            ]
            expected, found = await values[0], await killed(values[1])
            np.testing.assert_allclose(found.value_N, expected.value_N, atol=1e-9)
            assert found.lost == 0
            assert found.played == expected.played
            trainer.signals["progress"].fit = remember  # type: ignore[method-assign]
            await trainer.run(log)
        finally:
            log.close()
            await trainer.engine.aclose()

    asyncio.run(play())
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [step + 1 for step, _ in fitted] == [1, 2, 3]
    assert len({prompt for _, prompts in fitted for prompt in prompts}) == 3 * 2  # groups, each once
    for line in lines:
        assert line["async/staleness_max"] == 0  # what the policy learns from was sampled by the present one
        assert line["branched_value/lost"] == 0
