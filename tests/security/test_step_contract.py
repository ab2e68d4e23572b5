"""What an environment answers is checked when it comes: rewards that no learner survives, keys of info of other types,
observations beyond the context."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentgym.clients.client import EnvClient
from agentgym.conformance.run import check_env
from agentgym.errors import EnvironmentCrashed, GuardTripped, PolicyFailure
from agentgym.rollouts.policy import EpisodeSpec, RandomPolicy
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits, rollout
from agentgym.rollouts.trajectory import StopReason, Trajectory
from agentgym.session import LocalSession
from agentgym.testing import EchoEnv
from agentgym_servers.env_server.app import create_app
from agentgym_servers.web.run import serve_in_thread
from agentgym_trainers.build import build
from agentgym_trainers.config.sections import Config
from agentgym_trainers.monitoring.guards import failure_reason
from agentgym_trainers.monitoring.metrics import MetricsLog
from agentgym_trainers.nn import tiny

LIVENESS_S = 60.0


class Odd(EchoEnv):
    """Answers its second step otherwise than the contract says."""

    env_spec = EchoEnv.env_spec.model_copy(update={"id": "odd", "actions": ("apple", "brook"), "max_turns": 4})
    change: Any = {}

    def step(self, action: Any) -> Any:
        turn = self._turns
        names = ("observation", "reward", "terminated", "truncated", "info")
        answer = dict(zip(names, super().step(action), strict=True))
        if turn == 1:
            info = {**answer["info"], **self.change.get("info", {})} if self.change.get("info") != [] else []
            answer |= {**self.change, "info": info}
        return tuple(answer.values())


def odd(**change: Any) -> type[Odd]:
    return type("Odd", (Odd,), {"change": change})


REWARDS = [float("nan"), float("inf"), -float("inf"), 1e308, -1e300, 1e10, 10**400, "1", None, [1.0], np.float64(1e308)]
INFO: list[tuple[str, Any, str]] = [
    ("success", "no", "str"),
    ("success", "True", "str"),
    ("success", 1, "int"),
    ("success", 0.0, "float"),
    ("success", None, "NoneType"),
    ("success", [], "list"),
    ("success", np.True_, "numpy.bool"),
    ("valid_action", "yes", "str"),
    ("valid_action", 0, "int"),
    ("valid_action", np.False_, "numpy.bool"),
    ("progress", float("nan"), "float"),
    ("progress", float("inf"), "float"),
    ("progress", -0.1, "float"),
    ("progress", 37, "int"),
    ("progress", "0.5", "str"),
    ("progress", True, "bool"),
    ("progress", np.float32(0.5), "numpy.float32"),
    ("progress", None, "NoneType"),
    ("state_key", 5, "int"),
    ("state_key", None, "NoneType"),
    ("state_key", ["a"], "list"),
    ("available_actions", "apple", "str"),
    ("available_actions", ["apple", 5], "list"),
    ("available_actions", {"apple": 1}, "dict"),
    ("milestone", -1, "int"),
    ("milestone", 1.5, "float"),
    ("milestone", True, "bool"),
    ("milestone", [], "list"),
    ("role", 2, "int"),
    ("role", True, "bool"),
    ("role", "0", "str"),
    ("rewards", [1.0], "list"),
    ("rewards", [1.0, float("nan")], "list"),
    ("rewards", [1.0, 1e308], "list"),
    ("rewards", ["1", 2], "list"),
    ("rewards", 5, "int"),
    ("other_left", "no", "str"),
]


async def play(session: Any) -> Trajectory:
    episode = EpisodeSpec("odd", "train", 0)
    actor = RandomPolicy().actor(episode)
    return await rollout(session, actor, PromptFormat(), episode, Limits())


@pytest.mark.parametrize("reward", REWARDS, ids=lambda value: f"{value!r:.20}")
def test_a_reward_beyond_measure_is_a_failure_of_its_turn(reward):
    trajectory = asyncio.run(play(LocalSession(odd(reward=reward)())))
    assert trajectory.stop is StopReason.ENVIRONMENT_FAILED
    assert len(trajectory.turns) == 1
    assert "odd" in trajectory.error
    assert "reward should be" in trajectory.error


def test_the_turn_and_the_environment_are_named():
    trajectory = asyncio.run(play(LocalSession(odd(reward=1e308)())))
    assert "odd broke its contract in turn 1: the reward should be at most 1e+09 either way" in trajectory.error


@pytest.mark.parametrize(("key", "value", "kind"), INFO, ids=lambda value: f"{value!r:.20}")
def test_an_info_key_of_another_type_is_a_failure_that_names_it(key, value, kind):
    broken = odd(info={key: value})
    trajectory = asyncio.run(play(LocalSession(broken())))
    assert trajectory.stop is StopReason.ENVIRONMENT_FAILED
    assert f"info[{key!r}] is " in trajectory.error
    assert f"it is a {kind}" in trajectory.error
    assert not trajectory.success or "success" not in trajectory.turns[-1].info


@pytest.mark.parametrize("key", sorted({key for key, _, _ in INFO}))
def test_the_conformance_suite_refuses_it_too(key):
    broken = odd(info={key: next(value for name, value, _ in INFO if name == key)})
    failed = {finding.rule: finding.message for finding in check_env(broken, tasks=1) if not finding.ok}
    assert "of turn 1 is " in failed["info_is_as_promised"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"terminated": "no"}, "should be bools"),
        ({"truncated": 1}, "should be bools"),
        ({"terminated": None}, "should be bools"),
        ({"info": []}, "info should be a dict"),
        ({"observation": 5}, "observed a int"),
    ],
)
def test_other_parts_of_a_step_are_checked_too(change, sentence):
    trajectory = asyncio.run(play(LocalSession(odd(**change)())))
    assert trajectory.stop is StopReason.ENVIRONMENT_FAILED
    assert sentence in trajectory.error


def test_a_server_says_the_same():
    rows = [{"info": {key: value}} for key, value, _ in INFO] + [{"reward": reward} for reward in REWARDS]
    envs = {f"odd-{number}": odd(**row) for number, row in enumerate(rows)}

    async def main(url: str) -> None:
        for name in envs:
            async with EnvClient(f"{url}/envs/{name}", wire="http") as client:
                session = client.session()
                await session.reset(options={"task": 0})
                await session.step("x")
                with pytest.raises(EnvironmentCrashed, match=f"{name} broke its contract in step"):
                    await session.step("x")

    with serve_in_thread(create_app(envs)) as url:
        asyncio.run(main(url))


def trainer_of(env: type[EchoEnv], folder: Path, **rollout: Any) -> Any:
    config = Config.model_validate(
        {
            "name": "test",
            "run": {"steps": 2},
            "env": {"name": "agentgym.testing:EchoEnv", "serve": False},
            "rollout": {
                "groups": 2, "group_size": 2, "max_new_tokens": 4, "max_length": 256, "concurrency": 4, **rollout,
            },
            "credit": {"assigner": "rloo"},
        }
    )  # fmt: skip

    async def open_session() -> LocalSession:
        return LocalSession(env())

    tokenizer = tiny.make_tokenizer([env.env_spec.instructions, "user\nSay: apple", "assistant\n"] * 3, 320, 256)
    model = tiny.make_model(tiny.TinyModel(hidden_size=16, layers=1), tokenizer, 0)
    return build(config, folder, env.env_spec, open_session, model, model, tokenizer)


def train(trainer: Any, folder: Path) -> None:
    log = MetricsLog(folder)
    try:
        asyncio.run(trainer.run(log))
    finally:
        log.close()
        trainer.engine.shutdown()


@pytest.mark.parametrize("rollout", [{}, {"staleness": 1}], ids=["synchronous", "asynchronous"])
def test_training_stops_at_rewards_beyond_measure(tmp_path, rollout):
    with pytest.raises(PolicyFailure, match=r"odd broke its contract in turn 1: the reward should be.*envs check"):
        train(trainer_of(odd(reward=1e308), tmp_path, **rollout), tmp_path)


class Long(EchoEnv):
    env_spec = EchoEnv.env_spec.model_copy(update={"id": "long"})
    size = 10_000_000

    def reset(self, **call: Any) -> Any:
        _, info = super().reset(**call)
        return "word " * (self.size // 5), info


@pytest.mark.parametrize("rollout", [{}, {"staleness": 1}], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("size", [5_000, 10_000_000])
def test_an_observation_beyond_the_context_stops_at_once(tmp_path, rollout, size):
    env, started = type("Long", (Long,), {"size": size}), time.monotonic()
    with pytest.raises((PolicyFailure, GuardTripped), match=r"rollout\.max_length"):
        train(trainer_of(env, tmp_path, **rollout), tmp_path)
    assert time.monotonic() - started < LIVENESS_S


def failed(stop: StopReason, error: str = "") -> Trajectory:
    return Trajectory("odd", "train", 0, 0, 0, (), stop, "x" * 5000, error)


def test_the_most_frequent_reason_is_reported():
    crash = failed(StopReason.ENVIRONMENT_FAILED, "ENVIRONMENT_CRASHED: odd raised ValueError: 1")
    other = failed(StopReason.ENVIRONMENT_FAILED, "ENVIRONMENT_CRASHED: odd raised ValueError: 2")
    late = failed(StopReason.DEADLINE, "the episode took longer than 1 s")
    full = failed(StopReason.CONTEXT_FULL)
    assert "odd raised ValueError: 1 (2 of 3 episodes)" in failure_reason([late, crash, other])
    assert "agentgym envs check" in failure_reason([late, crash, other])
    assert "env.episode_s" in failure_reason([late])
    reason = failure_reason([full, full, crash])
    assert "context_full before the first turn: an observation of 5000 characters" in reason
    assert "rollout.max_length" in reason
