"""A run spread over a Ray cluster of two nodes (processes of this machine): it learns what one process learns, is on
both nodes, and outlives its workers.

`make scale` installs Ray beside this environment and runs these.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from typing import Any

import pytest
import torch
from ray_nodes import connected
from running import running
from token_versions import compare_versions

from agentgym import registry
from agentgym.errors import ConfigError, LearnerLost
from agentgym.rollouts.policy import EpisodeSpec
from agentgym.rollouts.trajectory import Group, Trajectory
from agentgym.session import LocalSession
from agentgym_trainers.build import build
from agentgym_trainers.config.sections import Config
from agentgym_trainers.distributed.build import BroadcastingEngine
from agentgym_trainers.distributed.learner_group import LearnerWorker
from agentgym_trainers.monitoring.metrics import MetricsLog
from agentgym_trainers.nn import checkpoint, tiny
from agentgym_trainers.train import Trainer, TrainStepResult

pytestmark = [
    pytest.mark.skipif(util.find_spec("ray") is None, reason="Ray is not installed here: run `make scale`"),
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("default"),  # Ray's own
]
ENV = "keydoor"


PAUSED = """
import os
import time
from itertools import count
from pathlib import Path

from agentgym_environments.diagnostics.keydoor.env import KeyDoor

FOLDER = Path(__file__).parent
GROUPS = 2  # of a training step


class PausedKeyDoor(KeyDoor):
    env_spec = KeyDoor().env_spec.model_copy(update={"inline": False})  # it waits: in a thread of its own

    def __init__(self):
        super().__init__(self.env_spec)

    def begin(self, split, task):
        super().begin(split, task)
        self.turn = 0
        for self.group in count():  # tasks are numbered in the order in which they begin
            try:
                os.symlink(str(task), FOLDER / f"group-{self.group}")
                break
            except FileExistsError:
                if os.readlink(FOLDER / f"group-{self.group}") == str(task):
                    break

    def act(self, action):
        self.turn += 1
        while self.turn == 1 and self.group % 2 and self.group >= GROUPS * (len(list(FOLDER.glob("published-*"))) + 1):
            time.sleep(0.01)
        return super().act(action)
"""
"""An environment in which every other group waits in its first turn until the steps that the groups before it fill have
been learned from, so that it goes on under other weights than it began under. The others are in the midst of whatever
they do when the weights change."""


@pytest.fixture(scope="module")
def modules(tmp_path_factory) -> Path:
    """A folder that Ray's workers import from."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "paused.py").write_text(PAUSED)
    return folder


@pytest.fixture(scope="module")
def nodes(modules) -> Iterator[None]:
    """Two nodes with room for two processes each."""
    with connected(2, 2, modules=modules):
        yield


def config(**more: Any) -> Config:
    tree = {
        "name": "test",
        "run": {"steps": 3, "checkpoint_every": 1, "threads": 1},
        "env": {"name": ENV, "serve": False},
        "rollout": {
            "groups": 2, "group_size": 4, "max_new_tokens": 4, "max_length": 640, "concurrency": 8, "lockstep": True
        },
        "credit": {"assigner": "turn_gae"},
        "value": {},
        "loss": {"entropy": 0.1, "kl": 0.1},  # there is something to learn from also where nobody succeeds
        "optim": {"lr": 1e-3},
        "eval": {"tasks": 0},
        **more,
    }  # fmt: skip
    return Config.model_validate(tree)


def test_where_learners_meet_is_listened_on_at_once(nodes) -> None:
    """A port that was only looked up was another process's in the moment in which it was bound: EADDRINUSE."""
    worker = LearnerWorker(config(), 0, 2)
    host, port = worker.address()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((host, port))


SCALE = {"kind": "ray", "learners": 2, "workers": 2, "deadline_s": 240.0}


def trainer_of(chosen: Config, tokenizer: Any, folder: Path, model: Any = None) -> Trainer:
    async def local() -> LocalSession:
        return LocalSession(registry.make(ENV))

    first = tiny.make_model(tiny.TinyModel(layers=2), tokenizer, 0).eval()
    return build(chosen, folder, registry.get_spec(ENV), local, model or first, first, tokenizer)


def pids(actors: list[Any]) -> list[int]:
    import ray  # pyright: ignore[reportMissingImports]

    return ray.get([actor.__ray_call__.remote(lambda self: os.getpid()) for actor in actors], timeout=60)


def texts(trajectories: list[Trajectory]) -> list[list[str]]:
    return [[turn.reply for turn in trajectory.turns] for trajectory in trajectories]


def test_two_learners_and_two_workers_do_what_one_process_does(nodes, tokenizer, tmp_path) -> None:
    """The same episodes; and from the same groups, over three steps, the same weights, on two nodes."""
    import ray  # pyright: ignore[reportMissingImports]

    async def both() -> None:
        alone = trainer_of(config(), tokenizer, tmp_path / "alone")
        spread = trainer_of(config(scale=SCALE), tokenizer, tmp_path / "spread")
        assert isinstance(spread.engine, BroadcastingEngine)
        try:
            placed = ray.util.placement_group_table(spread.engine.cluster._group)["bundles_to_node_id"]
            assert len(placed) == 4
            assert len(set(placed.values())) == 2
            first = {name: weight.clone() for name, weight in alone.learner.weights().items()}
            for step in range(3):
                await alone.publish()
                await spread.publish()
                groups, theirs = [await trainer.collect() for trainer in (alone, spread)]
                for ours, other in zip(groups, theirs, strict=True):
                    assert texts(list(ours.trajectories)) == texts(list(other.trajectories))
                expected, result = [(await trainer.learn(groups)).metrics for trainer in (alone, spread)]
                assert result == pytest.approx(expected, rel=1e-3, abs=1e-5)
                alone.step = spread.step = step + 1
            weights = spread.learner.weights()
            moved = max((weights[name] - weight).abs().max().item() for name, weight in first.items())
            assert moved > 1e-3
            for name, weight in alone.learner.weights().items():
                torch.testing.assert_close(weights[name], weight, atol=1e-5, rtol=0)
        finally:
            await spread.engine.aclose()
            await alone.engine.aclose()

    asyncio.run(both())


def test_a_killed_worker_loses_no_episode(nodes, tokenizer, tmp_path) -> None:
    """SIGKILL in the middle of a share: each episode is there once, in order, and says what it would have said."""

    async def play() -> None:
        trainer = trainer_of(config(scale=SCALE), tokenizer, tmp_path)
        assert isinstance(trainer.engine, BroadcastingEngine)
        pool = trainer.engine.pool
        try:
            await trainer.publish()
            episodes = [EpisodeSpec(ENV, "train", task, 0, attempt) for task in range(4) for attempt in range(2)]
            undisturbed = await trainer.runner.run(trainer.policy(7), episodes)
            before = await asyncio.to_thread(pids, pool.workers)
            again = asyncio.ensure_future(trainer.runner.run(trainer.policy(7), episodes))
            while not all(pool._playing):
                await asyncio.sleep(0.001)
            os.kill(before[0], signal.SIGKILL)
            played = await again
            assert pool.lost == 1
            assert [(t.task, t.attempt) for t in played] == [(e.task, e.attempt) for e in episodes]
            assert texts(played) == texts(undisturbed)
            assert not any(t.stop.is_failure for t in played)
            while pool.starting:
                await asyncio.sleep(0.1)
            after = await asyncio.to_thread(pids, pool.workers)  # Ray has started another in its place
            assert after[0] != before[0]
            assert after[1] == before[1]
        finally:
            await trainer.engine.aclose()

    asyncio.run(play())


def test_a_lost_learner_stops_the_run_and_it_resumes(nodes, tokenizer, tmp_path) -> None:
    """The resumed run ends with the weights of one that lost nobody."""
    chosen = config(scale=SCALE)

    def run(folder: Path, trainer: Trainer, on_step: Any = lambda step, metrics: None, position: int = 0) -> None:
        async def steps() -> None:
            log = MetricsLog(folder, position)
            try:
                await trainer.run(log, on_step)
            finally:
                log.close()
                await trainer.engine.aclose()

        asyncio.run(steps())

    def kill(step: int, metrics: dict[str, float]) -> None:
        if step == 2:
            os.kill(pids(trainer.learner._ranks)[1], signal.SIGKILL)  # type: ignore[union-attr]

    for name in ("whole", "lost"):
        (tmp_path / name).mkdir()
    run(tmp_path / "whole", trainer_of(chosen, tokenizer, tmp_path / "whole"))
    trainer = trainer_of(chosen, tokenizer, tmp_path / "lost")
    with pytest.raises(LearnerLost, match=r"a learner's process is gone .* resume the run"):
        run(tmp_path / "lost", trainer, kill)
    newest = checkpoint.latest(tmp_path / "lost")
    assert newest is not None
    assert checkpoint.step_of(newest) == 2
    state = checkpoint.load_state(newest)
    trainer = trainer_of(chosen, tokenizer, tmp_path / "lost", checkpoint.load_model(newest)[0])
    trainer.load(state)
    run(tmp_path / "lost", trainer, position=state["metrics_bytes"])
    ours, theirs = [
        checkpoint.load_model(tmp_path / name / "checkpoints" / "step-000003")[0] for name in ("whole", "lost")
    ]
    for (name, weight), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(other, weight, atol=1e-5, rtol=0, msg=lambda m, n=name: f"{n}: {m}")


def test_a_cluster_without_room_is_refused_in_one_sentence(nodes, tokenizer, tmp_path) -> None:
    wide = config(scale={**SCALE, "learners": 7, "deadline_s": 2.0})
    with pytest.raises(ConfigError, match=r"no room for 7 learners .* within 2 s: it has .*'CPU': 4.0"):
        trainer_of(wide, tokenizer, tmp_path)


def streamed(
    trainer: Trainer, folder: Path, modules: Path
) -> tuple[list[Trajectory], list[dict[str, torch.Tensor]], list[float]]:
    """A whole run in the paused environment: what was learned from, the weights of every version, and the age of each
    step's oldest token."""
    learned: list[Trajectory] = []
    weights: list[dict[str, torch.Tensor]] = []
    ages: list[float] = []
    learn = trainer.learn

    async def learn_and_record(groups: list[Group]) -> TrainStepResult:
        weights.append({name: weight.clone() for name, weight in trainer.learner.weights().items()})
        learned.extend(t for group in groups for t in group.trajectories)
        return await learn(groups)

    def step_ended(step: int, metrics: dict[str, float]) -> None:
        ages.append(metrics["async/staleness_max"])
        (modules / f"published-{step}").touch()

    async def steps() -> None:
        log = MetricsLog(folder)
        try:
            await trainer.run(log, step_ended)
        finally:
            log.close()
            await trainer.engine.aclose()

    trainer.learn = learn_and_record  # type: ignore[method-assign]
    asyncio.run(steps())
    return learned, weights, ages


@pytest.mark.parametrize("kind", ["inprocess", "vllm"])
def test_workers_play_during_weight_sync_with_versioned_tokens(nodes, modules, tokenizer, tmp_path, kind) -> None:
    for left in [*modules.glob("published-*"), *modules.glob("group-*")]:  # by the run with the other engine
        left.unlink()
    if kind == "vllm" and util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed here: run `make scale`")
    rollout = {"staleness": 2, "lockstep": False, "groups": 2, "group_size": 2, "concurrency": 8, "max_length": 1024}
    placed = {"learners": 1, "workers": 2, "servers": 1, "server_gpus": 0} if kind == "vllm" else {}
    chosen = config(
        run={"steps": 6, "checkpoint_every": 6, "threads": 1},
        env={"name": "paused:PausedKeyDoor", "serve": False, "max_turns": 10},
        rollout={**rollout, "max_new_tokens": 32},
        engine={"kind": kind},
        scale={**SCALE, **placed},
        optim={"lr": 2e-2},
        eval={"tasks": 0},
    )
    trainer = trainer_of(chosen, tokenizer, tmp_path)
    learned, weights, ages = streamed(trainer, tmp_path, modules)
    assert len(learned) == 6 * 2 * 2
    assert not any(t.stop.is_failure for t in learned)
    assert 0 < max(ages) <= 2
    models = [tiny.make_model(tiny.TinyModel(layers=2), tokenizer, 0).eval() for _ in weights]
    for model, state in zip(models, weights, strict=True):
        model.load_state_dict(state)
    mixed, apart = compare_versions(learned, models)
    assert mixed >= 2  # sequences that weights changed under: those of the first group that was made to wait, at least
    assert apart > 0.1  # and other weights would have been noticed


@pytest.mark.timeout(600)
@pytest.mark.skipif(util.find_spec("vllm") is None, reason="vLLM is not installed here: run `make scale`")
def test_every_worker_samples_a_placed_vllm_with_new_adapters(nodes, tokenizer, tmp_path) -> None:
    """After a new adapter, what it says of its tokens is what the learner says of them."""
    rollout = {"groups": 2, "group_size": 2, "max_new_tokens": 4, "max_length": 640, "concurrency": 4}
    short = {"name": ENV, "serve": False, "max_turns": 3}
    placed = {**SCALE, "learners": 1, "servers": 1, "server_gpus": 0}
    model, optim = {"lora": {"rank": 4, "alpha": 8.0}}, {"lr": 1e-1}  # an adapter begins as nothing
    chosen = config(scale=placed, engine={"kind": "vllm"}, rollout=rollout, env=short, model=model, optim=optim)

    async def play() -> None:
        trainer = trainer_of(chosen, tokenizer, tmp_path)
        try:
            first = {name: weight.clone() for name, weight in trainer.learner.weights().items()}
            for step in range(2):
                trainer.step = step
                await trainer.publish()
                groups = await trainer.collect()
                versions = {v for g in groups for t in g.trajectories for b in t.branches for v in b.versions.tolist()}
                assert versions == {-1, step}
                assert (await trainer.learn(groups)).metrics["policy/engine_gap"] < 1e-3
                if not step:  # or the first weights would do for both
                    weights = trainer.learner.weights()
                    assert max((weights[name] - weight).abs().max().item() for name, weight in first.items()) > 1e-3
        finally:
            await trainer.engine.aclose()
        while running(str(tmp_path)):  # or the test's deadline
            time.sleep(0.2)

    asyncio.run(play())
