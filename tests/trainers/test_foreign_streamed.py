"""Asynchronous training on external agents of each API shape: clean calls, right versions, no program left."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from running import running
from token_versions import compare_versions

from agentgym import registry
from agentgym.errors import ConfigError
from agentgym.rollouts.policy import EpisodeSpec
from agentgym.rollouts.programs import guarded_programs
from agentgym.rollouts.runner import Limits
from agentgym.rollouts.trajectory import Group, Trajectory
from agentgym.session import LocalSession
from agentgym_servers.inference.app import serve_episodes
from agentgym_trainers.build import build
from agentgym_trainers.config.sections import Config
from agentgym_trainers.distributed.rollout_jobs import RolloutJob, Weights
from agentgym_trainers.distributed.rollout_workers import RolloutWorker, WorkerSetup
from agentgym_trainers.monitoring.metrics import MetricsLog
from agentgym_trainers.rollout.external.serving import use_host
from agentgym_trainers.rollout.journal import Journal
from agentgym_trainers.rollout.tasks import UniformTasks

AGENTS = Path(__file__).parent.parent / "shape_agents.py"
STEPS, STALENESS = 4, 1


def config(agents: Path) -> Config:
    rollout = {
        "groups": 1, "group_size": 3, "max_new_tokens": 6, "max_length": 640, "concurrency": 6, "staleness": STALENESS
    }  # fmt: skip
    tree: dict[str, Any] = {
        "name": "test",
        "run": {"steps": STEPS, "checkpoint_every": STEPS},
        "env": {"name": "oracle", "serve": False},
        "source": {"kind": "external_agent", "command": shlex.join([sys.executable, str(AGENTS), str(agents)])},
        "rollout": rollout,
        "credit": {"assigner": "rloo"},
        "loss": {"entropy": 0.1},
        "optim": {"lr": 2e-2, "minibatches": 1},
    }
    return Config.model_validate(tree)


def test_agents_of_each_shape_train_while_they_play(chatty, tokenizer, tmp_path, kit) -> None:
    """Every other group waits in the midst of its episodes until the step before its own was learned from."""
    agents = tmp_path / "agents"
    agents.mkdir()
    (tmp_path / "run").mkdir()
    chosen = config(agents)
    spec = registry.get_spec("oracle")
    tasks = UniformTasks(spec.splits["train"], chosen.run.seed).propose(3 * STEPS)
    for number, (_, seed) in enumerate(tasks, 1):
        if number > STEPS or number % 2 == 0:
            (agents / f"seed-{seed}").write_text("never" if number > STEPS else f"published-{number - 1}")

    async def local() -> LocalSession:
        return LocalSession(registry.make("oracle"))

    model = chatty()
    trainer = build(chosen, tmp_path / "run", spec, local, model, model, tokenizer)
    weights: list[dict[str, Any]] = []
    learned: list[Trajectory] = []
    learn = trainer.learn

    async def learn_and_record(groups: list[Group]) -> Any:
        weights.append({name: weight.clone() for name, weight in trainer.learner.weights().items()})
        learned.extend(t for group in groups for t in group.trajectories)
        return await learn(groups)

    def step_ended(step: int, metrics: dict[str, float]) -> None:
        assert metrics["async/staleness_max"] <= STALENESS
        assert running(str(agents))  # also in the last: nobody will learn from the next group
        (agents / f"published-{step}").touch()

    async def train() -> None:
        use_host(serve_episodes)
        log = MetricsLog(tmp_path / "run")
        try:
            async with asyncio.timeout(100):
                await trainer.run(log, step_ended)
        finally:
            log.close()
            await trainer.engine.aclose()

    trainer.learn = learn_and_record  # type: ignore[method-assign]
    asyncio.run(train())
    assert not running(str(agents))  # those that would wait for steps which never come
    assert len(learned) == 3 * STEPS
    assert max(Counter((t.task, t.seed, t.attempt) for t in learned).values()) == 1
    # The agents fail where a call is not clean, so that all of a group's attempts are there says that all were.
    assert {(len(t.turns), len(t.branches), t.forks, t.stop.is_failure) for t in learned} == {(2, 1, (), False)}
    journal = Journal(tmp_path / "run" / "journal.sqlite")
    taken = Counter(step for step in journal.steps().values() if step is not None)
    journal.close()
    assert taken == dict.fromkeys(range(1, STEPS + 1), 1)
    models = [kit.build(vocabulary=len(tokenizer)) for _ in weights]
    for one, state in zip(models, weights, strict=True):
        one.load_state_dict(state)
    mixed, apart = compare_versions(learned, models)
    assert mixed >= 3  # the first group that was made to wait, at least
    assert apart > 0.1  # other weights would have been noticed


def test_a_rollout_worker_serves_its_own_programs(chatty, tokenizer, tmp_path, kit) -> None:
    """As on Ray, but in this process: new weights come in the midst of three programs."""
    agents, chosen = tmp_path / "agents", config(tmp_path / "agents")
    agents.mkdir()
    (agents / "seed-5").write_text("renewed")
    models = [chatty(), kit.build(vocabulary=len(tokenizer), seed=1)]

    async def fetched(value: Any) -> Any:
        return value

    async def play() -> list[Trajectory]:
        use_host(None)  # a worker uses the one that it is given
        setup = WorkerSetup(chosen, chatty(), tokenizer, tmp_path / "run", None, serve_episodes)
        worker = RolloutWorker((fetched(setup),))
        job = RolloutJob((7,), chosen.prompt_format, Limits(), 6, 1)
        first, second = [Weights(i, (fetched(model.state_dict()),)) for i, model in enumerate(models)]
        episodes = [EpisodeSpec("oracle", "train", 0, 5, attempt) for attempt in range(3)]
        playing = asyncio.ensure_future(worker.play(job, first, episodes))
        while len(running(f"sh -c sleep 600; exit {agents}")) < 3 and not playing.done():
            await asyncio.sleep(0.05)
        await worker.renew(second)
        (agents / "renewed").touch()
        try:
            return await playing
        finally:
            await worker._engine.aclose()

    played = asyncio.run(play())
    assert [(t.attempt, t.stop.is_failure, t.error, t.forks) for t in played] == [(i, False, "", ()) for i in range(3)]
    assert compare_versions(played, models)[0] == 3
    assert not running(str(agents))


def test_programs_end_with_whoever_started_them(tmp_path) -> None:
    """Killed outright, in the midst of starting programs or while they run."""
    program = ["sh", "-c", 'sleep 600 & echo begun >>"$0"; wait', str(tmp_path / "begun")]
    script = (
        "import asyncio, os, sys\n"
        "from agentgym.rollouts.programs import guarded_programs\n"
        "async def main():\n"
        "    async with guarded_programs() as programs:\n"
        "        runs = [programs.run(sys.argv[1:], os.environ, open(os.devnull, 'wb'), 600) for _ in range(3)]\n"
        "        await asyncio.gather(*runs)\n"
        "asyncio.run(main())\n"
    )
    starter = subprocess.Popen([sys.executable, "-c", script, *program])
    while not (tmp_path / "begun").exists():
        assert starter.poll() is None
        time.sleep(0.005)
    assert len(running(str(tmp_path))) > 1  # the starter is one of them
    os.kill(starter.pid, signal.SIGKILL)
    starter.wait()
    until = time.monotonic() + 20
    while left := running(str(tmp_path)):
        assert time.monotonic() < until, left
        time.sleep(0.05)


def test_a_program_is_limited_and_its_status_is_kept(tmp_path) -> None:
    async def run(*command: str, limit_s: float = 20.0) -> int | None:
        with (tmp_path / "log").open("wb") as output:
            async with guarded_programs() as programs:
                return await programs.run(command, os.environ, output, limit_s)

    assert asyncio.run(run("sh", "-c", "exit 7")) == 7
    assert asyncio.run(run("sh", "-c", 'test -z "$(cat)" && echo "$0 $1"', "two words", "'")) == 0
    assert (tmp_path / "log").read_text() == "two words '\n"
    assert asyncio.run(run("sleep", "600", limit_s=0.1)) is None
    with pytest.raises(ConfigError, match=r"the agent.s command: there is no program 'no-such-program'"):
        asyncio.run(run("no-such-program"))
