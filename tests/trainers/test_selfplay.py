"""Self-play: two trajectories a game, one a role; training on them, and what a trained policy can be beaten by."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentgym import registry
from agentgym.errors import ConfigError
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.trajectory import Group
from agentgym.session import LocalSession
from agentgym_environments.games.exploitability import exploitability, kuhn_poker, views
from agentgym_trainers.build import build
from agentgym_trainers.config.sections import Config, OptimOptions
from agentgym_trainers.data.sequences import collate
from agentgym_trainers.learner.learner import Learner
from agentgym_trainers.nn import checkpoint
from agentgym_trainers.recipe import resolve
from agentgym_trainers.rollout.environment import check_environment
from agentgym_trainers.rollout.queries import action_probabilities, normalized
from agentgym_trainers.rollout.tokens import ChatTemplate
from agentgym_trainers.run import run
from agentgym_trainers.train import Trainer

ENV = "kuhn-poker-self:hands=1"
SMALL = (
    "run.threads=1", "rollout.groups=12", "rollout.group_size=2", "rollout.concurrency=24", "eval.tasks=0",
    "env.serve=false", "model.tiny.hidden_size=32", "model.tiny.layers=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def warm(tmp_path_factory) -> Path:
    """A policy that knows the words of Kuhn poker and little of the game."""
    folder = tmp_path_factory.mktemp("kuhn") / "run"
    options = ["run.steps=0", "sft.demonstrations=200", "sft.max_steps=40", "sft.lr=5e-3", "sft.check_every=40"]
    asyncio.run(run(resolve("spiral", [*SMALL, *options]), folder))
    return folder / "checkpoints" / "step-000000"


def trainer_of(warm: Path, folder: Path, *options: str) -> Trainer:
    config = resolve("spiral", [*SMALL, f"model.path={warm}", "sft=", *options])
    model, tokenizer = checkpoint.load_model(warm)

    async def opened() -> LocalSession:
        return LocalSession(registry.make(ENV))

    return build(config, folder, registry.get_spec(ENV), opened, model, model, tokenizer)


def collect(trainer: Trainer) -> list[Group]:
    return asyncio.run(trainer.collect())


def record(groups: list[Group]) -> list[Any]:
    """What must be the same where the same is played."""
    every = [t for group in groups for t in group.trajectories]
    return [[t.task, t.seed, t.attempt, t.score, [turn.reply for turn in t.turns]] for t in every]


def test_a_game_gives_each_role_its_trajectory(warm, tmp_path) -> None:
    trainer = trainer_of(warm, tmp_path)
    groups = collect(trainer)
    assert len(groups) == 12
    for first, second in zip(groups[::2], groups[1::2], strict=True):
        assert [t.attempt for t in (*first.trajectories, *second.trajectories)] == [0, 1, 2, 3]
        for one, two in zip(first.trajectories, second.trajectories, strict=True):
            assert (one.task, one.seed) == (two.task, two.seed)
            assert {turn.role for turn in one.turns} == {0}
            assert {turn.role for turn in two.turns} <= {1}
            assert one.score == -two.score != 0
    batch, rows, trajectories = collate(groups)
    assert set(batch.x["role_N"].tolist()) == {0, 1}
    assert trainer.learner.logprobs(batch, rows) == pytest.approx(batch.logprob_A, abs=1e-4)
    assert max(len(t.turns) for t in trajectories) >= 2
    assert trainer.engine._open == 0
    trainer.engine.shutdown()


def test_in_lockstep_the_same_is_played_twice(warm, tmp_path) -> None:
    records = []
    for folder in ("a", "b"):
        trainer = trainer_of(warm, tmp_path / folder, "rollout.lockstep=true")
        records.append(record(collect(trainer)))
        trainer.engine.shutdown()
    assert records[0] == records[1]


@pytest.mark.parametrize("opponent", ["past", "random", "solver"])
def test_against_another_only_the_policys_side_is_learned_from(warm, tmp_path, opponent) -> None:
    trainer = trainer_of(warm, tmp_path, f"source.opponent={opponent}", "rollout.concurrency=5")
    batch, _, trajectories = collate(collect(trainer))
    roles = [{turn.role for turn in t.turns} for t in trajectories]
    assert roles.count({0}) >= 8
    assert roles.count({1}) >= 8
    assert all(turn.span is not None for t in trajectories for turn in t.turns)
    assert len(batch.turn_A) > 24
    assert trainer.engine._open == 0
    trainer.engine.shutdown()


def test_the_past_self_stays_until_due_and_in_checkpoints(warm, tmp_path) -> None:
    trainer = trainer_of(warm, tmp_path, "source.opponent=past", "source.refresh_every=2")
    name, weight = next(iter(trainer.learner.model.named_parameters()))

    def past() -> Any:
        collect(trainer)
        return trainer.source.state_dict()["past"][name].clone()

    first = past()
    weight.data += 1
    trainer.step = 1
    assert (past() == first).all()
    state = trainer.source.state_dict()
    trainer.source.load_state_dict({"round": -1, "past": {}})
    trainer.source.load_state_dict(state)
    assert (past() == first).all()
    trainer.step = 2
    assert (past() == first + 1).all()
    trainer.engine.shutdown()


@pytest.mark.parametrize("opponent", ["self", "past"])
def test_spiral_trains_and_its_exploitability_is_known(warm, tmp_path, opponent) -> None:
    options = [*SMALL, f"model.path={warm}", "sft=", "run.steps=3", f"source.opponent={opponent}"]
    asyncio.run(run(resolve("spiral", options), tmp_path / "run"))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert line["optim/skipped"] == 0
        assert line["policy/engine_gap"] < 1e-4
        if opponent == "self":
            assert line["rollout/score"] == 0  # what one wins, the other loses
            assert line["role/baseline_0"] != line["role/baseline_1"]
    tree, spec = kuhn_poker(), registry.get_spec(ENV)
    found = []
    for path in (warm, tmp_path / "run" / "checkpoints" / "step-000003"):
        model, tokenizer = checkpoint.load_model(path)
        learner = Learner(model, OptimOptions(), temperature=1.0)
        policy = action_probabilities(learner, ChatTemplate(tokenizer), spec, PromptFormat(), views(tree).values())
        assert set(policy) == set(views(tree))
        assert all(0 < sum(chances.values()) <= 1 for chances in policy.values())
        found.append(exploitability(tree, normalized(policy)))
    assert all(0 < x < 2 for x in found)
    assert found[0] != found[1]


def test_action_probabilities_are_those_of_sampled_games(warm, tmp_path) -> None:
    """The exact probabilities against the share of replies in games."""
    trainer = trainer_of(warm, tmp_path, "rollout.group_size=25", "rollout.concurrency=150")
    every = [t for group in collect(trainer) for t in group.trajectories]
    policy = action_probabilities(
        trainer.learner, ChatTemplate(trainer.tokenizer), trainer.spec, trainer.config.prompt_format,
        views(kuhn_poker()).values(),
    )  # fmt: skip
    for card in "JQK":
        replies = [
            t.turns[0].reply
            for t in every
            if t.turns and t.turns[0].observation.endswith(f"0 card {card} so far nothing")
        ]
        assert len(replies) >= 25
        for action, chance in policy[f"{card}:"].items():
            error = np.sqrt(chance * (1 - chance) / len(replies))
            assert abs(np.mean([reply == action for reply in replies]) - chance) < 4 * error + 1e-3
    trainer.engine.shutdown()


def test_parts_that_do_not_fit_are_refused() -> None:
    for options, words in (
        (["rollout.groups=3"], "rollout.groups must be even"),
        (["source.opponent=past", "rollout.lockstep=true"], "must be false"),
        (["source.opponent=nobody"], "opponent"),
    ):
        with pytest.raises(ConfigError, match=words):
            resolve("spiral", [*SMALL, *options])

    def env(name: str) -> Any:
        return type("Env", (), {"spec": registry.get_spec(name)})()

    one = resolve("spiral", [*SMALL, "env.name=keydoor"])
    with pytest.raises(ConfigError, match="needs an environment with 'two_player'"):
        check_environment(one, env("keydoor"))
    plain: Config = resolve("reinforce", [f"env.name={ENV}", "eval.split=train", "eval.tasks=1"])
    with pytest.raises(ConfigError, match=r'has two players.*set source.kind = "selfplay"'):
        check_environment(plain, env(ENV))
