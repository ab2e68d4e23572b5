"""The loop: every counted trajectory once an epoch, failures never, and what a step leaves behind."""

from __future__ import annotations

import asyncio
import copy
import json
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from agentgym import registry
from agentgym.errors import PolicyFailure
from agentgym.rollouts.trajectory import Group, StopReason
from agentgym.session import LocalSession
from agentgym.testing import EchoEnv
from agentgym_credit.batch import Batch, Credit
from agentgym_trainers.build import build
from agentgym_trainers.config.sections import Config
from agentgym_trainers.credit.assign import assign_credit
from agentgym_trainers.data.sequences import collate
from agentgym_trainers.learner.train_step import TrainStep
from agentgym_trainers.load import checkpoint_engine
from agentgym_trainers.monitoring.metrics import MetricsLog, success_rate
from agentgym_trainers.monitoring.tracking.trackers import Trackers
from agentgym_trainers.nn import checkpoint
from agentgym_trainers.rollout.environment import open_env
from agentgym_trainers.rollout.sources.offline import with_tokens
from agentgym_trainers.run import bars, start_training, write_config
from agentgym_trainers.train import Trainer


def config(**sections: dict[str, Any]) -> Config:
    base = {
        "run": {"steps": 2, "checkpoint_every": 1, "trajectories_every": 1},
        "env": {"name": "oracle", "serve": False},
        "rollout": {"groups": 4, "group_size": 2, "max_new_tokens": 4, "max_length": 640, "concurrency": 8},
        "credit": {"assigner": "rloo"},
        "optim": {"lr": 1e-3, "epochs": 2, "minibatches": 3},
    }
    merged = {name: {**base.get(name, {}), **sections.get(name, {})} for name in base | sections}
    return Config.model_validate({"name": "test", **merged})


def trainer_of(chosen: Config, model: Any, tokenizer: Any, folder: Any, open_session: Any = None) -> Trainer:
    async def local() -> LocalSession:
        return LocalSession(registry.make(chosen.env.name))

    spec = registry.get_spec(chosen.env.name)
    return build(chosen, folder, spec, open_session or local, model, model, tokenizer)


@dataclass
class Spy(TrainStep):
    """A learner that writes down its optimizer batches."""

    batches: list[tuple[Batch, list, Credit]] = field(default_factory=list)

    def update(self, batch: Batch, rows: list, credit: Credit, options: Any) -> dict[str, float]:
        self.batches.append((batch, rows, credit))
        n = float(len(self.batches))
        return {"a/mean": n, "a/ratio_max": n, "policy/logprob_gap": 10 + n}

    def end_step(self, options: Any, metrics: Any) -> None:
        pass


@pytest.mark.parametrize(("epochs", "minibatches", "sizes"), [(1, 1, [8]), (2, 3, [3, 3, 2]), (1, 8, [1] * 8)])
def test_an_epoch_covers_each_trajectory_once(kit, chatty, tokenizer, tmp_path, epochs, minibatches, sizes) -> None:
    model = chatty()
    trainer = trainer_of(config(optim={"epochs": epochs, "minibatches": minibatches}), model, tokenizer, tmp_path)
    groups = asyncio.run(trainer.collect())
    batch, rows, _ = collate(groups)
    # Rewards and advantages that tell which turn and which token an entry was.
    batch = replace(batch, reward_N=np.arange(len(batch.traj_N)) + 0.5)
    credit = Credit(np.arange(len(batch.turn_A)) + 0.25)
    text = {float(credit.advantage_A[i]): int(row.ids[at]) for row in rows
            for at, i in zip(row.action_at, row.action_index, strict=True)}  # fmt: skip
    trainer.learner = spy = Spy()
    metrics = trainer.update(batch, rows, credit)
    assert [len(part.group_M) for part, _, _ in spy.batches] == sizes * epochs
    for epoch in range(epochs):
        parts = spy.batches[epoch * len(sizes) : (epoch + 1) * len(sizes)]
        rewards_N = np.concatenate([part.reward_N for part, _, _ in parts])
        advantages_A = np.concatenate([chosen.advantage_A for _, _, chosen in parts])
        assert sorted(rewards_N) == batch.reward_N.tolist()
        assert sorted(advantages_A) == credit.advantage_A.tolist()
        for part, part_rows, chosen in parts:
            found = {float(chosen.advantage_A[i]): int(row.ids[at]) for row in part_rows
                     for at, i in zip(row.action_at, row.action_index, strict=True)}  # fmt: skip
            assert len(found) == len(part.turn_A)
            assert found.items() <= text.items()
            assert {row.trajectory for row in part_rows} == set(range(len(part.group_M)))
    n = len(spy.batches)
    assert metrics == {
        "a/mean": (n + 1) / 2, "a/ratio_max": n, "policy/logprob_gap": 10 + (n + 1) / 2, "policy/engine_gap": 11,
    }  # fmt: skip
    if epochs > 1 and minibatches > 1:
        first, second = spy.batches[0][0].reward_N, spy.batches[len(sizes)][0].reward_N
        assert first.tolist() != second.tolist()  # another order each epoch


def test_failures_are_not_trained_on(kit, chatty, tokenizer, tmp_path) -> None:
    """An environment that crashes at its second step, in every other session."""
    opened = 0

    async def open_session() -> LocalSession:
        nonlocal opened
        opened += 1
        return LocalSession(EchoEnv(crash_at=1 if opened % 2 else None))

    chosen = config(env={"name": "agentgym.testing:EchoEnv"})
    trainer = trainer_of(chosen, chatty(), tokenizer, tmp_path, open_session)
    trainer.runner = replace(trainer.runner, retries=0)
    groups = asyncio.run(trainer.collect())
    everyone = [t for group in groups for t in group.trajectories]
    failed = [t for t in everyone if t.stop is StopReason.ENVIRONMENT_FAILED]
    assert 0 < len(failed) < len(everyone)
    assert any(t.turns for t in failed)
    batch, rows, counted = collate(groups)
    assert counted == [t for t in everyone if not t.stop.is_failure]
    assert {row.trajectory for row in rows} == set(range(len(counted)))
    assert success_rate(everyone) == success_rate(counted)
    metrics = trainer.update(batch, rows, assign_credit(batch, chosen.credit)[0])
    assert metrics["policy/engine_gap"] < 1e-4
    trainer.engine.shutdown()


def test_a_step_of_nothing_but_failures_stops_the_run(kit, chatty, tokenizer, tmp_path) -> None:
    async def open_session() -> LocalSession:
        return LocalSession(EchoEnv(crash_at=0))

    chosen = config(env={"name": "agentgym.testing:EchoEnv"})
    trainer = trainer_of(chosen, chatty(), tokenizer, tmp_path, open_session)
    log = MetricsLog(tmp_path)
    with pytest.raises(PolicyFailure, match="every episode of step 1 failed: ENVIRONMENT_CRASHED"):
        asyncio.run(trainer.run(log))
    log.close()


def test_what_a_run_leaves_behind(kit, chatty, tokenizer, tmp_path) -> None:
    chosen = config(credit={"assigner": "turn_gae"}, value={}, loss={"kl": 0.1, "entropy": 0.1})
    trainer = trainer_of(chosen, chatty(), tokenizer, tmp_path)
    log, steps = MetricsLog(tmp_path), []
    asyncio.run(trainer.run(log, lambda step, metrics: steps.append(step)))
    log.close()
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert [(line["phase"], line["step"]) for line in lines] == [("rl", 1), ("rl", 2)]
    assert steps == [1, 2]
    for line in lines:
        assert line["policy/engine_gap"] < 1e-4
        assert line["optim/skipped"] == 0
        assert {"rollout/success", "credit/std", "value/mean", "loss/kl", "time/rollout_s"} <= line.keys()
    assert lines[1]["loss/kl"] > 0  # the reference is the policy as RL began
    assert trainer.engine.version == 2
    newest = checkpoint.latest(tmp_path)
    assert checkpoint.step_of(newest) == 2
    again = trainer_of(chosen, checkpoint.load_model(newest)[0], tokenizer, tmp_path)
    again.load(checkpoint.load_state(newest))
    assert again.step == 2
    assert again.curriculum.position == trainer.curriculum.position == 8
    for ours, theirs in zip(again.learner.value.parameters(), trainer.learner.value.parameters(), strict=True):
        assert ours.equal(theirs)
    assert len(list((tmp_path / "trajectories").iterdir())) == 2


def test_variables_of_the_chat_template_are_the_runs(chatty, tokenizer, tmp_path) -> None:
    """In its episodes, in those of a recorded set, and where its checkpoint is read."""
    moody = copy.deepcopy(tokenizer)
    moody.chat_template = "{{ mood }}" + tokenizer.chat_template
    chosen = config(model={"template": {"mood": "gold"}}, source={"kind": "offline", "groups": 4}, run={"steps": 1})
    write_config(chosen, tmp_path)
    trainer = trainer_of(chosen, chatty(), moody, tmp_path)
    log = MetricsLog(tmp_path)
    asyncio.run(trainer.run(log))
    log.close()
    played = [t for group in asyncio.run(trainer.collect()) for t in group.trajectories]
    again = [with_tokens(trainer, replace(t, branches=())) for t in played]
    shown = [moody.decode(t.branches[0].ids) for t in [*played, *again]]
    assert shown
    assert all(text.startswith("gold") for text in shown)
    _, template, _ = checkpoint_engine(checkpoint.latest(tmp_path), max_sequences=1)
    assert template.render([{"role": "user", "content": "left"}]).startswith("gold")


def test_a_run_may_start_from_the_warm_up_of_another(kit, tokenizer, tmp_path) -> None:
    other, own = tmp_path / "other", tmp_path / "own"
    other.mkdir()
    own.mkdir()
    log = MetricsLog(other)
    log.write("sft", 1, {"loss/cross_entropy": 1.0})
    log.close()
    start = checkpoint.save(
        other / "checkpoints" / "step-000000",
        kit.build("qwen3", len(tokenizer)),
        tokenizer,
        {"step": 0, **log.state_dict()},
    )
    chosen = config(eval={"split": "train", "tasks": 0})

    async def first_step() -> int:
        with bars() as progress:
            async with open_env(chosen, progress) as (connection, _):
                trainer, log = await start_training(chosen, own, connection, start)
                await trainer.engine.aclose()
                log.close()
                return trainer.step

    assert asyncio.run(first_step()) == 0
    assert (own / "metrics.jsonl").read_text() == ""


@pytest.mark.parametrize("assigner", ["loop", "hgpo", "rewardflow", "rtg_loo", "mt_grpo", "filtered", "digirl", "oreo"])
def test_shaped_rewards_and_standard_columns_reach_credit(chatty, tokenizer, tmp_path, assigner) -> None:
    critic = {"value": {}} if assigner in ("digirl", "oreo") else {}
    gamma = 0.95 if assigner in ("hgpo", "rewardflow") else 1.0
    shaping = {"potential": {"gamma": gamma}, "overlong": {"max_length": 8, "buffer": 4}, "tool_bonus": {"scale": 0.5}}
    chosen = config(credit={"assigner": assigner}, shaping=shaping, run={"steps": 1}, **critic)
    trainer = trainer_of(chosen, chatty(), tokenizer, tmp_path)
    log, steps = MetricsLog(tmp_path), []
    asyncio.run(trainer.run(log, lambda step, metrics: steps.append(metrics)))
    log.close()
    assert len(steps) == 1
    assert np.isfinite(steps[0]["loss/policy"])


@pytest.mark.parametrize("loss", [{"kl": 0.5}, {"entropy": 0.5}])
def test_a_warmup_step_moves_the_critic_alone(kit, chatty, tokenizer, tmp_path, loss) -> None:
    """A KL to the policy itself has a gradient of rounding, of which Adam makes a step of full size."""
    value = {"lr": 1e-2, "warmup": 1, "extra_epochs": 1}
    chosen = config(credit={"assigner": "turn_gae"}, value=value, loss=loss, optim={"lr": 1e-2})
    trainer = trainer_of(chosen, chatty(), tokenizer, tmp_path)
    before = [p.detach().clone() for p in trainer.learner.model.parameters()]
    critic = [p.detach().clone() for p in trainer.learner.value.parameters()]
    played = [t for group in asyncio.run(trainer.collect()) for t in group.trajectories]
    paid = [replace(t, turns=(*t.turns[:-1], replace(t.turns[-1], reward=float(i % 2)))) for i, t in enumerate(played)]
    groups = [Group(tuple(paid[i : i + 2])) for i in range(0, len(paid), 2)]
    metrics = asyncio.run(trainer.train_step(groups)).metrics
    assert all(torch.equal(p, old) for p, old in zip(trainer.learner.model.parameters(), before, strict=True))
    assert not [p for p in trainer.learner.model.parameters() if p in trainer.learner.optimizer.state]
    assert not all(torch.equal(p, old) for p, old in zip(trainer.learner.value.parameters(), critic, strict=True))
    assert "loss/value" in metrics
    trainer.step = 1
    asyncio.run(trainer.train_step(groups))
    assert not all(torch.equal(p, old) for p, old in zip(trainer.learner.model.parameters(), before, strict=True))
    trainer.engine.shutdown()


class EpisodeCounter:
    """Tracker that keeps metrics and tables."""

    id = "kept"

    def __init__(self) -> None:
        self.metrics, self.tables = [], []

    def log(self, phase, step, metrics) -> None:
        self.metrics.append(metrics)

    def log_episodes(self, step, columns, rows) -> None:
        self.tables.append((step, len(rows)))

    def close(self, finished) -> None:
        pass


def test_a_training_sends_metrics_and_episodes(kit, chatty, tokenizer, tmp_path) -> None:
    tracker = EpisodeCounter()
    trainer = trainer_of(config(), chatty(), tokenizer, tmp_path)
    log = MetricsLog(tmp_path, trackers=Trackers({"counter": tracker}, episodes=2))
    asyncio.run(trainer.run(log))
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert [line["rollout/score"] for line in lines] == [metrics["rollout/score"] for metrics in tracker.metrics]
    assert tracker.tables == [(1, 2), (2, 2)]
