"""The warm-up from a file: an environment without a scripted solver learns from what others played."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from agentgym import registry
from agentgym.errors import CheckpointError, ConfigError
from agentgym.rollouts.policy import EpisodeSpec, RandomPolicy, SolverPolicy
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits, Runner
from agentgym.rollouts.trajectory import Trajectory, write_jsonl
from agentgym.session import LocalSession
from agentgym_trainers.config.sections import Config
from agentgym_trainers.learner.sft import read_demonstrations
from agentgym_trainers.run import run

BARE = """
from agentgym_environments.diagnostics.keydoor.env import KeyDoor

given = KeyDoor().env_spec


class Bare(KeyDoor):
    env_spec = given.model_copy(update={"capabilities": ()})

    def __init__(self):
        super().__init__(self.env_spec)
"""


def episodes(policy: SolverPolicy | RandomPolicy, count: int) -> list[Trajectory]:
    async def session() -> LocalSession:
        return LocalSession(registry.make("keydoor"))

    specs = [EpisodeSpec("keydoor", "train", i, 0, 0) for i in range(count)]
    return asyncio.run(Runner(session, PromptFormat(), Limits(None)).run(policy, specs))


@pytest.mark.learning
def test_a_warm_up_imitates_the_episodes_of_a_file(tmp_path, monkeypatch) -> None:
    (tmp_path / "bare.py").write_text(BARE)
    monkeypatch.syspath_prepend(tmp_path)
    write_jsonl(tmp_path / "shown.jsonl", episodes(SolverPolicy(), 40))
    tree = {
        "name": "shown",
        "run": {"steps": 1, "threads": 1},
        "model": {"tiny": {"hidden_size": 32, "layers": 2, "intermediate_size": 48, "vocab_size": 320}},
        "env": {"name": "bare:Bare", "serve": False},
        "rollout": {"groups": 2, "group_size": 2, "max_new_tokens": 6, "max_length": 640},
        "credit": {"assigner": "reinforce"},
        "sft": {"path": str(tmp_path / "shown.jsonl"), "batch": 8, "max_steps": 40, "lr": 5e-3},
        "eval": {"tasks": 0},
    }
    asyncio.run(run(Config.model_validate(tree), tmp_path / "run"))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss/cross_entropy"] for line in lines if line["phase"] == "sft"]
    assert len(losses) == 40
    assert sum(losses[-5:]) < sum(losses[:5]) / 2


def test_only_episodes_that_succeeded_are_imitated(tmp_path) -> None:
    shown, tried = episodes(SolverPolicy(), 3), [t for t in episodes(RandomPolicy(), 6) if not t.success]
    assert tried
    write_jsonl(tmp_path / "mixed.jsonl", [*tried, *shown])
    assert [t.task for t in read_demonstrations(tmp_path / "mixed.jsonl", 10)] == [0, 1, 2]
    assert [t.task for t in read_demonstrations(tmp_path / "mixed.jsonl", 2)] == [0, 1]
    write_jsonl(tmp_path / "failed.jsonl", tried)
    with pytest.raises(ConfigError, match=r"sft\.path: .*failed\.jsonl holds no episode that succeeded"):
        read_demonstrations(tmp_path / "failed.jsonl", 10)
    Path(tmp_path / "broken.jsonl").write_text('{"env": "keydoor"}\n')
    with pytest.raises(CheckpointError, match=r"broken\.jsonl, line 1 is not a trajectory"):
        read_demonstrations(tmp_path / "broken.jsonl", 10)
