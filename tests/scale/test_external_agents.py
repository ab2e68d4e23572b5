"""External agents on a Ray cluster: each rollout worker serves its own policy to the programs that it starts.

`make scale` installs Ray beside this environment and runs this.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
import time
from collections import Counter
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
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.trajectory import Group, Trajectory
from agentgym.session import LocalSession
from agentgym_servers.inference.app import serve_episodes
from agentgym_trainers.build import build
from agentgym_trainers.config.sections import Config
from agentgym_trainers.distributed.build import BroadcastingEngine
from agentgym_trainers.monitoring.metrics import MetricsLog
from agentgym_trainers.nn import tiny
from agentgym_trainers.rollout.external.serving import use_host
from agentgym_trainers.rollout.tasks import UniformTasks

pytestmark = [
    pytest.mark.skipif(util.find_spec("ray") is None, reason="Ray is not installed here: run `make scale`"),
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("default"),  # Ray's own
]
AGENTS = Path(__file__).parent.parent / "shape_agents.py"
STEPS, STALENESS, SIZE = 4, 1, 3


@pytest.fixture(scope="module")
def node() -> Iterator[None]:
    """With room for a learner and two workers."""
    with connected(3):
        yield


def config(agents: Path, **rollout: Any) -> Config:
    tree: dict[str, Any] = {
        "name": "test",
        "run": {"steps": STEPS, "checkpoint_every": STEPS, "threads": 1},
        "env": {"name": "oracle", "serve": False},
        "source": {"kind": "external_agent", "command": shlex.join([sys.executable, str(AGENTS), str(agents)])},
        "rollout": {
            "groups": 1, "group_size": SIZE, "max_new_tokens": 6, "max_length": 640, "concurrency": 6, **rollout
        },
        "credit": {"assigner": "rloo"},
        "loss": {"entropy": 0.1},
        "optim": {"lr": 2e-2, "minibatches": 1},
        "scale": {"kind": "ray", "learners": 1, "workers": 2, "deadline_s": 240.0},
    }  # fmt: skip
    return Config.model_validate(tree)


def assert_clean(learned: list[Trajectory], groups: int) -> None:
    """Agents fail where a call is not clean."""
    assert {(len(t.turns), len(t.branches), t.forks, t.stop.is_failure) for t in learned} == {(2, 1, (), False)}
    episodes = Counter((t.task, t.seed, t.attempt) for t in learned)
    assert len(episodes) == episodes.total() == groups * SIZE


def test_agents_of_each_shape_train_on_ray(node, tmp_path) -> None:
    """First a step in turns. Then asynchronously, over weights that change, and a worker that is killed."""
    agents, spec = tmp_path / "agents", registry.get_spec("oracle")
    agents.mkdir()
    tokenizer = tiny.make_tokenizer([PromptFormat().instructions(spec), "user\n", "assistant\n"] * 3, 320, 1024)
    learned: list[Trajectory] = []
    weights: list[dict[str, torch.Tensor]] = []

    async def local() -> LocalSession:
        return LocalSession(registry.make("oracle"))

    def model() -> Any:
        return tiny.make_model(tiny.TinyModel(layers=1), tokenizer, 0).eval()

    async def in_turns() -> None:
        use_host(serve_episodes)
        trainer = build(config(agents), tmp_path / "in-turns", spec, local, model(), model(), tokenizer)
        try:
            await trainer.publish()
            groups = await trainer.collect()
            assert_clean([t for group in groups for t in group.trajectories], 1)
            assert (await trainer.learn(groups)).metrics["policy/engine_gap"] < 1e-3
        finally:
            await trainer.engine.aclose()

    async def streamed() -> None:
        use_host(serve_episodes)
        folder = tmp_path / "run"
        folder.mkdir()
        trainer = build(config(agents, staleness=STALENESS), folder, spec, local, model(), model(), tokenizer)
        assert isinstance(trainer.engine, BroadcastingEngine)
        pool, learn, log = trainer.engine.pool, trainer.learn, MetricsLog(folder)

        async def learn_and_record(groups: list[Group]) -> Any:
            weights.append({name: weight.clone() for name, weight in trainer.learner.weights().items()})
            learned.extend(t for group in groups for t in group.trajectories)
            return await learn(groups)

        def step_ended(step: int, metrics: dict[str, float]) -> None:
            assert metrics["async/staleness_max"] <= STALENESS
            (agents / f"published-{step}").touch()
            if step == 1:  # the second group's programs run: they have waited for this
                busy = max(range(2), key=pool._playing.__getitem__)
                assert pool._playing[busy] > 0
                pid = pool.workers[busy].__ray_call__.remote(lambda self: os.getpid())
                os.kill(pool._ray.get(pid), signal.SIGKILL)

        trainer.learn = learn_and_record  # type: ignore[method-assign]
        try:
            await trainer.run(log, step_ended)
            assert pool.lost == 1
        finally:
            log.close()
            await trainer.engine.aclose()

    asyncio.run(in_turns())
    for number, (_, seed) in enumerate(UniformTasks(spec.splits["train"], 0).propose(3 * STEPS), 1):
        if number > STEPS or number % 2 == 0:
            (agents / f"seed-{seed}").write_text("never" if number > STEPS else f"published-{number - 1}")
    asyncio.run(streamed())
    until = time.monotonic() + 20
    while left := running(str(agents)):
        assert time.monotonic() < until, left
        time.sleep(0.05)
    assert_clean(learned, STEPS)
    models = [model() for _ in weights]
    for one, state in zip(models, weights, strict=True):
        one.load_state_dict(state)
    mixed, apart = compare_versions(learned, models)
    assert mixed > 0
    assert apart > 0.1  # other weights would have been noticed
