"""Verify: recorded actions played again give the recorded rewards, and what was changed since is found."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from agentgym.errors import CheckpointError
from agentgym.evaluation.evaluate import evaluate
from agentgym.evaluation.suite import Suite
from agentgym.evaluation.verify import Verification, verify
from agentgym.rollouts.policy import ContextFull, ModelResponse, RandomPolicy, TextActor
from agentgym.testing import EchoEnv

SUITE = Suite.model_validate(
    {
        "name": "s",
        "attempts": 2,
        "env": [
            {"name": "agentgym.testing:EchoEnv", "tasks": 2, "max_turns": 5},
            {"name": "frozenlake", "tasks": 3},
            {"name": "keydoor", "split": "validation", "tasks": 2},
        ],
    }
)


class Mixed:
    """Replies of every kind: nothing, a wrong word, the right one, and a prompt that is too long."""

    def actor(self, episode):
        return _Mixed(episode)


class _Mixed(TextActor):
    def __init__(self, episode):
        self.episode, self.rng = episode, episode.rng()

    async def act(self, ask):
        if self.episode.attempt and ask.turn == 3:
            raise ContextFull("too long")
        if self.rng.random() < 0.3:
            return ModelResponse("")
        return ModelResponse(f"well\n{await ask.session.solver()}")


def play(out: Path, suite=SUITE, policy=None) -> Path:
    asyncio.run(evaluate(suite, policy or Mixed(), out, identity="x"))
    return out


def check(out: Path) -> Verification:
    return asyncio.run(verify(out, concurrency=4))


def change(path: Path, number: int, **fields) -> None:
    lines = path.read_text().splitlines()
    lines[number] = json.dumps({**json.loads(lines[number]), **fields})
    path.write_text("\n".join(lines) + "\n")


def test_recorded_actions_give_the_recorded_rewards(tmp_path):
    envs = [SUITE.envs[0], SUITE.envs[2]]
    suite = SUITE.model_copy(update={"envs": tuple(envs)})
    found = check(play(tmp_path, suite))
    assert (found.same, found.differences, found.left_out) == (8, [], {})
    stops = {json.loads(line)["stop"] for line in (tmp_path / "attempts.jsonl").read_text().splitlines()}
    assert "context_full" in stops


def test_random_attempts_of_a_suite_are_verified(tmp_path):
    found = check(play(tmp_path, policy=RandomPolicy(), suite=SUITE.model_copy(update={"envs": SUITE.envs[1:]})))
    assert (found.same, found.differences, found.left_out) == (10, [], {})


def test_changed_attempts_and_rewards_are_found(tmp_path):
    play(tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "attempts.jsonl").read_text().splitlines()]
    lost = next(i for i, row in enumerate(rows) if not row["success"])
    change(tmp_path / "attempts.jsonl", lost, success=True, score=1.0)
    found = check(tmp_path)
    name = "{env} {split} task {task} seed {seed} attempt {attempt}".format(**rows[lost])
    assert found.differences == [f"{name}: success is True in attempts.jsonl, and now False"]
    assert found.same == 13
    change(tmp_path / "attempts.jsonl", lost, success=False, score=0.5)
    assert "the score is 0.5 in attempts.jsonl, and now 0" in check(tmp_path).differences[0]
    change(tmp_path / "attempts.jsonl", lost, score=0.0)
    record = json.loads((tmp_path / "trajectories.jsonl").read_text().splitlines()[2])
    first, *others = record["turns"]
    change(tmp_path / "trajectories.jsonl", 2, turns=[{**first, "reward": 0.25}, *others])
    (problem,) = check(tmp_path).differences
    assert "turn 0 was rewarded 0.25, and now 0" in problem
    change(tmp_path / "trajectories.jsonl", 2, turns=[first])
    (problem,) = check(tmp_path).differences
    assert problem.endswith("the episode goes on after its last recorded turn")


class Chance(EchoEnv):
    env_spec = EchoEnv.env_spec.model_copy(update={"deterministic": False, "notes": "a clock"})


class Changing(EchoEnv):
    """Environment whose version is a variable of this process."""

    def __init__(self) -> None:
        super().__init__()
        self.env_spec = self.env_spec.model_copy(update={"version": os.environ.get("ECHO_VERSION", "1.0.0")})


def test_envs_that_cannot_be_played_again_are_named(tmp_path, monkeypatch):
    envs = [{"name": f"{__name__}:{name}", "tasks": 1} for name in ("Chance", "Changing")]
    play(tmp_path, Suite.model_validate({"name": "c", "env": envs}))
    found = check(tmp_path)
    assert found.same == 1
    assert found.left_out == {f"{__name__}:Chance test": "it has chance beyond its seed (a clock)"}
    monkeypatch.setenv("ECHO_VERSION", "2.0.0")
    found = check(tmp_path)
    assert found.same == 0
    changed = "it plays other tasks now (echo 1.0.0 there, echo 2.0.0 now)"
    assert found.left_out[f"{__name__}:Changing test"] == changed
    lines = (tmp_path / "trajectories.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "trajectories.jsonl").write_text(next(line for line in lines if "Chance" in line))
    assert check(tmp_path).left_out[f"{__name__}:Changing test task 0 seed 0 attempt 0"] == "it has no trajectory"
    (tmp_path / "trajectories.jsonl").unlink()
    with pytest.raises(CheckpointError, match="holds no trajectories"):
        check(tmp_path)
