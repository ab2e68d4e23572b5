"""Training on agents that we did not write: from a recorded file, and by running their programs."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from agentgym import registry
from agentgym.errors import ConfigError
from agentgym.rollouts.trajectory import StopReason
from agentgym.session import LocalSession
from agentgym_servers.inference.app import create_inference_app, serve_episodes
from agentgym_servers.web.run import serve_in_thread
from agentgym_trainers.build import build
from agentgym_trainers.config.sections import Config
from agentgym_trainers.engines.inprocess import InProcessEngine
from agentgym_trainers.rollout.external.recorder import Recorder
from agentgym_trainers.rollout.external.serving import use_host
from agentgym_trainers.rollout.served_model import ServedModel
from agentgym_trainers.rollout.tokens import ChatTemplate
from agentgym_trainers.train import Trainer

AGENT = """
import json, os, sys, urllib.request

def post(url, **body):
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request, timeout=60))

messages = [{"role": "user", "content": "task " + os.environ["AGENTGYM_TASK"]}]
for turn in range(2):
    answer = post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", messages=messages)
    messages += [answer["choices"][0]["message"], {"role": "user", "content": "and?"}]
print("the", "last line", flush=True)
BEHAVE
reward = int(os.environ["AGENTGYM_EPISODE"][-1])
post(os.environ["AGENTGYM_EPISODE"] + "/finish", reward=reward, success=bool(reward))
"""
ROLLOUT = {"groups": 2, "group_size": 2, "max_new_tokens": 6, "max_length": 640, "concurrency": 4}


def trainer_of(model: Any, tokenizer: Any, folder: Path, source: dict[str, Any], **sections: Any) -> Trainer:
    base: dict[str, Any] = {
        "name": "test",
        "env": {"name": "oracle", "serve": False},
        "source": source,
        "rollout": ROLLOUT,
        "credit": {"assigner": "rloo"},
        "optim": {"lr": 1e-3},
    }
    config = Config.model_validate({**base, **sections})

    async def local() -> LocalSession:
        return LocalSession(registry.make("oracle"))

    return build(config, folder, registry.get_spec("oracle"), local, model, model, tokenizer)


def agent(tmp_path: Path, behave: str = "") -> dict[str, Any]:
    file = tmp_path / "agent.py"
    file.write_text(AGENT.replace("BEHAVE", behave), encoding="utf-8")
    return {"kind": "external_agent", "command": shlex.join([sys.executable, str(file)])}


async def one_step(trainer: Trainer) -> tuple[list[Any], dict[str, float]]:
    use_host(serve_episodes)
    _, groups, _ = await trainer.collect_until_full()
    return groups, (await trainer.learn(groups)).metrics


def test_a_program_is_given_the_environment_with_its_arguments(chatty, tokenizer, tmp_path):
    check = 'assert os.environ["AGENTGYM_ENV"] == "oracle:turns=3", os.environ["AGENTGYM_ENV"]'
    env = {"name": "oracle:turns=3", "serve": False}
    trainer = trainer_of(chatty(), tokenizer, tmp_path / "run", agent(tmp_path, check), env=env)
    groups, _ = asyncio.run(one_step(trainer))
    assert [t.stop for group in groups for t in group.trajectories] == [StopReason.TERMINATED] * 4


def test_a_step_of_programs(chatty, tokenizer, tmp_path):
    model = chatty()
    before = model.lm_head.weight.detach().clone()
    trainer = trainer_of(model, tokenizer, tmp_path / "run", agent(tmp_path))
    groups, metrics = asyncio.run(one_step(trainer))
    played = [t for group in groups for t in group.trajectories]
    assert [len(group.trajectories) for group in groups] == [2, 2]
    assert {(t.env, t.stop, len(t.turns), len(t.branches)) for t in played} == {("oracle", StopReason.TERMINATED, 2, 1)}
    assert [t.attempt for t in played] == [0, 1, 0, 1]
    assert all(t.turns[0].observation == f"task {t.task}" for t in played)
    assert all(t.score == t.attempt and t.success == (t.attempt == 1) for t in played)
    assert metrics["policy/engine_gap"] < 1e-4
    assert not model.lm_head.weight.equal(before)
    rng = np.random.default_rng(0)
    for conversation in [trainer.engine.open(rng) for _ in range(ROLLOUT["concurrency"])]:  # all are free again
        conversation.close()


@pytest.mark.parametrize(
    ("behave", "stop", "reason"),
    [
        ("sys.exit(3)", StopReason.ENVIRONMENT_FAILED, "ended with status 3: the last line"),
        ("sys.exit(0)", StopReason.ENVIRONMENT_FAILED, "finish was not asked"),
        ("import time; time.sleep(600)", StopReason.DEADLINE, "took longer than 8 s"),
    ],
)
def test_a_program_that_fails_is_never_scored(chatty, tokenizer, tmp_path, behave, stop, reason):
    """Only the first attempt behaves so."""
    behave = f"if os.environ['AGENTGYM_EPISODE'].endswith('attempt-0'): {behave}"
    trainer = trainer_of(
        chatty(), tokenizer, tmp_path / "run", agent(tmp_path, behave),
        env={"name": "oracle", "serve": False, "episode_s": 8}, rollout={**ROLLOUT, "groups": 1},
        optim={"minibatches": 1},
    )  # fmt: skip
    trainer.runner = replace(trainer.runner, retries=0)
    ((group,), _) = asyncio.run(one_step(trainer))
    failed, fine = group.trajectories
    assert (failed.stop, failed.turns) == (stop, ())
    assert reason in failed.error
    assert (fine.stop, len(fine.turns)) == (StopReason.TERMINATED, 2)
    logs = list((tmp_path / "run" / "agents").iterdir())
    assert [log.read_text() for log in logs] == ["the last line\n"]


def test_what_cannot_be_is_refused(chatty, tokenizer, tmp_path):
    trainer = trainer_of(chatty(), tokenizer, tmp_path, agent(tmp_path))
    with pytest.raises(ConfigError, match="start the run by agentgym train"):
        asyncio.run(trainer.collect_until_full())
    with pytest.raises(ConfigError, match="it must be false"):
        trainer_of(chatty(), tokenizer, tmp_path, agent(tmp_path), rollout={**ROLLOUT, "lockstep": True})
    for command in ("", "python 'agent.py"):
        with pytest.raises(ValueError, match="command"):
            trainer_of(chatty(), tokenizer, tmp_path, {"kind": "external_agent", "command": command})
    trainer = trainer_of(chatty(), tokenizer, tmp_path, {"kind": "external_agent", "command": "no-such-program-here"})
    with pytest.raises(ConfigError, match="no-such-program-here"):
        asyncio.run(one_step(trainer))


def test_offline_training_on_what_a_server_recorded(chatty, tokenizer, tmp_path):
    model = chatty()
    engine = InProcessEngine(model, max_sequences=4, max_length=640)
    served = ServedModel(engine, ChatTemplate(tokenizer), name="tiny", max_sequences=4, max_tokens=6)
    recorder = Recorder(served.template, folder=tmp_path / "kept")
    sampled = 0
    with serve_in_thread(create_inference_app(served, recorder=recorder)) as url:
        for episode in range(4):
            messages = [{"role": "user", "content": f"task {episode // 2}"}]
            for _ in range(3):
                path = f"{url}/episodes/e{episode}/v1/chat/completions"
                answer = httpx.post(path, json={"messages": messages}, timeout=60).json()
                sampled += answer["usage"]["completion_tokens"]
                messages += [answer["choices"][0]["message"], {"role": "user", "content": "and?"}]
            ending = {"reward": episode % 2, "task": episode // 2}
            assert httpx.post(f"{url}/episodes/e{episode}/finish", json=ending).status_code == 200
    engine.shutdown()
    lines = (tmp_path / "kept" / "episodes.jsonl").read_text().splitlines()
    assert [json.loads(line)["attempt"] for line in lines] == [0, 1, 0, 1]
    before = model.lm_head.weight.detach().clone()
    source = {"kind": "offline", "path": str(tmp_path / "kept" / "episodes.jsonl")}
    trainer = trainer_of(model, tokenizer, tmp_path / "run", source)

    async def learn() -> tuple[Any, dict[str, float]]:
        _, groups, _ = await trainer.collect_until_full()
        return trainer.make_context(groups).batch, (await trainer.learn(groups)).metrics

    batch, metrics = asyncio.run(learn())
    assert (len(batch.group_M), len(batch.traj_N), len(batch.turn_A)) == (4, 12, sampled)
    assert metrics["policy/engine_gap"] < 1e-4
    assert not model.lm_head.weight.equal(before)
