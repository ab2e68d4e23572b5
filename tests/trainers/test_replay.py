"""SPEAR's self-imitation: what is kept, when it is replayed, what it is worth by then; and it survives a restart."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest
import torch

from agentgym.rollouts.trajectory import Group, StopReason, Trajectory, Turn
from agentgym.session import LocalSession
from agentgym.testing import EchoEnv
from agentgym_credit.batch import Credit
from agentgym_trainers.build import build
from agentgym_trainers.config.sections import Config
from agentgym_trainers.data.replay_buffer import BufferOptions, ReplayBuffer, total_return
from agentgym_trainers.data.sequences import collate
from agentgym_trainers.monitoring.metrics import MetricsLog
from agentgym_trainers.nn import checkpoint
from agentgym_trainers.testing import toy_batch
from agentgym_trainers.train import Trainer


def attempt(reward: float, task: int = 0, *, failed: bool = False, solver: bool = False, penalty: float = 0.0) -> Any:
    info = {"solver": True} if solver else {}
    turn = Turn(0, "seen", "said", "said", reward, penalty=penalty, info=info)
    stop = StopReason.ENVIRONMENT_FAILED if failed else StopReason.TERMINATED
    return Trajectory("env", "train", task, 0, 0, (turn,), stop)


def fill(buffer: ReplayBuffer, rewards: list[float], step: int = 0, advantages: list[float] | None = None) -> None:
    batch = toy_batch([[reward] for reward in rewards], groups=range(len(rewards)))
    credit = Credit(np.array(advantages if advantages is not None else np.ones(len(rewards)), np.float64))
    buffer.add(batch, credit, [attempt(reward, task) for task, reward in enumerate(rewards)], step)


def with_means(means: list[float], **options: Any) -> ReplayBuffer:
    buffer = ReplayBuffer(BufferOptions(**options))
    buffer.remember([Group((attempt(mean),)) for mean in means])
    return buffer


def test_the_median_of_group_means_is_the_baseline() -> None:
    """Means .2, .5, .8: a return of 1 is worth .5, one of .4 is dropped."""
    buffer = with_means([0.2, 0.5, 0.8], size=1, trigger=0.5)
    assert buffer.median == 0.5
    fill(buffer, [1, 0.4])
    drawn = buffer.draw(np.random.default_rng(0))
    assert [total_return(t) for t in drawn] == [1]
    assert total_return(drawn[0]) - buffer.median == 0.5


def test_groups_count_once_at_any_size_and_failures_never() -> None:
    buffer = ReplayBuffer(BufferOptions())
    buffer.remember([
        Group((attempt(1), attempt(0), attempt(5, failed=True))),
        Group((attempt(3),)),
        Group((attempt(7, failed=True),)),
        Group((attempt(0), attempt(1), attempt(9, solver=True))),
        Group(()),
    ])  # fmt: skip
    assert list(buffer.means) == [0.5, 3, 0.5]


def test_a_shaped_bonus_is_no_part_of_the_return() -> None:
    """The batch's rewards have a bonus that fades: a median that had it would lag behind, and drop what is good."""
    buffer = with_means([0.0], size=1, trigger=0.0)
    shaped = toy_batch([[1.9]])
    buffer.add(shaped, Credit(np.ones(1)), [attempt(1)], 0)
    assert [item.total for item in buffer.kept] == [1]
    assert shaped.return_M.tolist() != [item.total for item in buffer.kept]  # the defective variant
    assert total_return(attempt(1, penalty=0.25)) == 0.75  # the prompt format's penalty is no bonus


def test_only_attempts_of_positive_advantage_are_kept() -> None:
    buffer = ReplayBuffer(BufferOptions())
    fill(buffer, [1, 2, 3], advantages=[0.5, -0.5, 0.0])
    assert [item.total for item in buffer.kept] == [1]
    # One trajectory, credit by turn: what counts is the mean over its tokens.
    batch = toy_batch([[0, 0], [0, 0]], tokens=[1, 3, 3, 1], groups=[0, 0])
    credit = Credit(np.array([4, -1, -1, -1, 1, 1, 1, -4.0]))
    buffer = ReplayBuffer(BufferOptions())
    buffer.add(batch, credit, [attempt(5), attempt(6)], 0)
    assert [item.total for item in buffer.kept] == [5]
    buffer.add(toy_batch([[1]]), Credit(np.ones(1)), [attempt(9, solver=True)], 0)
    assert [item.total for item in buffer.kept] == [5]


def test_what_is_too_old_is_forgotten() -> None:
    buffer = ReplayBuffer(BufferOptions(max_age=5))
    fill(buffer, [1], step=0)
    fill(buffer, [2], step=5)
    assert [item.total for item in buffer.kept] == [1, 2]
    fill(buffer, [3], step=6)
    assert [item.total for item in buffer.kept] == [2, 3]


def test_an_update_comes_when_enough_are_better_than_the_median() -> None:
    buffer = with_means([0.5], size=4, trigger=1.5)
    rng = np.random.default_rng(0)
    fill(buffer, [1] * 6 + [0.5] * 20)  # equal to the median is not better
    assert buffer.draw(rng) == []
    assert len(buffer.kept) == 26
    fill(buffer, [1])
    assert len(buffer.draw(rng)) == 4
    assert buffer.kept == []  # cleared, what was not drawn too
    assert buffer.draw(rng) == []


@pytest.mark.parametrize(("usable", "size", "count"), [(7, 4, 4), (3, 32, 2), (5, 6, 4), (40, 33, 32), (1, 9, 1)])
def test_a_power_of_two_is_drawn_without_repetition(usable: int, size: int, count: int) -> None:
    buffer = with_means([0.0], size=size, trigger=0.0)
    fill(buffer, list(range(1, usable + 1)))
    drawn = [total_return(t) for t in buffer.draw(np.random.default_rng(1))]
    assert len(drawn) == len(set(drawn)) == count


def test_the_draw_is_even_and_by_the_generator_alone() -> None:
    counts = np.zeros(8)
    for seed in range(400):
        drawn = []
        for _ in range(2):
            buffer = with_means([0.0], size=4, trigger=0.0)
            fill(buffer, list(range(1, 9)))
            drawn.append([int(total_return(t)) for t in buffer.draw(np.random.default_rng(seed))])
        assert drawn[0] == drawn[1]
        counts[np.array(drawn[0]) - 1] += 1
    assert counts.min() > 200 - 4 * 10
    assert counts.max() < 200 + 4 * 10


def test_nothing_is_drawn_without_weight_history_or_attempts() -> None:
    rng = np.random.default_rng(0)
    full = with_means([0.0], size=1, trigger=0.0)
    fill(full, [1, 1])
    assert full.draw(rng, BufferOptions(size=1, trigger=0.0, weight=0.0)) == []
    assert len(full.kept) == 2
    forgetful = ReplayBuffer(BufferOptions(size=1, trigger=0.0))
    fill(forgetful, [1, 1])
    assert forgetful.draw(rng) == []
    assert with_means([0.0], size=1, trigger=0.0).draw(rng) == []


def test_history_is_bounded() -> None:
    buffer = with_means([9.0, 1.0, 2.0, 3.0], history=3)
    assert list(buffer.means) == [1, 2, 3]


def test_state_goes_through_a_checkpoint(chatty, tokenizer, tmp_path, kit) -> None:
    played = kit.play(chatty(), tokenizer, episodes=4)
    batch, _, trajectories = collate(kit.in_pairs(played))
    buffer = ReplayBuffer(BufferOptions(size=1, trigger=0.0, history=7))
    buffer.remember(kit.in_pairs(played))
    buffer.add(batch, Credit(np.ones(len(batch.turn_A))), trajectories, 3)
    torch.save(buffer.state_dict(), tmp_path / "state.pt")
    again = ReplayBuffer(buffer.options)
    again.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert again.means == buffer.means
    assert again.means.maxlen == 7
    for ours, theirs in zip(again.kept, buffer.kept, strict=True):
        assert (ours.total, ours.step) == (theirs.total, theirs.step)
        assert ours.trajectory.turns == theirs.trajectory.turns
        for a, b in zip(ours.trajectory.branches, theirs.trajectory.branches, strict=True):
            assert a.logprobs.tobytes() == b.logprobs.tobytes()  # the behavior's, to the bit
            assert np.array_equal(a.ids, b.ids)


# In the loop


class Vowels(EchoEnv):
    """An environment that pays for vowels, so that an untrained model's attempts differ."""

    def step(self, action: Any) -> Any:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, sum(letter in "aeiou" for letter in str(action)) / 4, terminated, truncated, info


BASE = {
    "name": "test",
    "run": {"steps": 3, "checkpoint_every": 1, "keep_checkpoints": 5, "trajectories_every": 9},
    "env": {"name": "agentgym.testing:EchoEnv", "serve": False, "max_turns": 2},
    "rollout": {"groups": 4, "group_size": 4, "max_new_tokens": 8, "max_length": 640, "concurrency": 16,
                "lockstep": True},
    "credit": {"assigner": "rloo"},
    "optim": {"lr": 1e-3},
    "replay": {"size": 2, "trigger": 0.5, "max_age": 2},
}  # fmt: skip


def trainer_of(model: Any, tokenizer: Any, folder: Any, **sections: Any) -> Trainer:
    async def local() -> LocalSession:
        return LocalSession(Vowels())

    folder.mkdir(exist_ok=True)
    config = Config.model_validate({**BASE, **sections})
    return build(config, folder, EchoEnv.env_spec, local, model, model, tokenizer)


def trained(trainer: Trainer, position: int = 0) -> list[dict]:
    log = MetricsLog(trainer.folder, position)
    asyncio.run(trainer.run(log))
    log.close()
    trainer.engine.shutdown()
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    return [{name: x for name, x in line.items() if not name.startswith("time/")} for line in lines]


def weights(trainer: Trainer) -> list[bytes]:
    return [p.detach().numpy().tobytes() for p in trainer.learner.model.parameters()]


def mixed(model: Any, tokenizer: Any, tmp_path: Any, **sections: Any) -> tuple[Trainer, list[dict]]:
    trainer = trainer_of(model, tokenizer, tmp_path, **sections)
    return trainer, trained(trainer)


def test_an_update_of_its_own(chatty, tokenizer, tmp_path) -> None:
    """Weight 0 is the run without a buffer, bit for bit; weight 1 is another."""
    plain, _ = mixed(chatty(), tokenizer, tmp_path / "plain", replay=None)
    silent, lines = mixed(chatty(), tokenizer, tmp_path / "silent", replay={**BASE["replay"], "weight": 0.0})
    assert all("replay/drawn" not in line for line in lines)
    assert all(line["replay/kept"] > 0 for line in lines)
    assert weights(silent) == weights(plain)
    heard, lines = mixed(chatty(), tokenizer, tmp_path / "heard")
    drawn = [line for line in lines if "replay/drawn" in line]
    assert drawn
    assert all(line["replay/drawn"] == 2 for line in drawn)
    assert all(line["replay/optim/skipped"] == 0 for line in drawn)
    assert weights(heard) != weights(plain)


def test_replayed_tokens_have_the_ratio_to_their_sampler(chatty, tokenizer, tmp_path) -> None:
    """Behavior log-probabilities are stored, so what was sampled by older weights has another ratio than 1."""
    slow = {"size": 8, "trigger": 2.0, "max_age": 9}
    _, lines = mixed(chatty(), tokenizer, tmp_path, replay=slow, optim={"lr": 1e-2}, run={**BASE["run"], "steps": 4})
    gaps = [line["replay/policy/logprob_gap"] for line in lines if "replay/drawn" in line]
    assert gaps
    assert max(gaps) > 1e-2
    assert all(line["policy/engine_gap"] < 1e-4 for line in lines)


def test_a_scheduled_age_is_the_age_of_its_step(chatty, tokenizer, tmp_path) -> None:
    """From the second step on an attempt is forgotten in the step after its own."""
    never = {"size": 99, "trigger": 9.0, "max_age": 9}
    ages = {"replay.max_age": {"kind": "stages", "values": [9, 0], "every": 1}}
    trainer, _ = mixed(chatty(), tokenizer, tmp_path, replay=never, schedules=ages)
    assert trainer.buffer is not None
    assert {entry.step for entry in trainer.buffer.kept} == {2}


def test_a_replay_kl_that_only_a_schedule_sets(chatty, tokenizer, tmp_path) -> None:
    """The reference is there from the first step on, although the recipe's own coefficient is 0."""
    rising = {"replay.loss.kl": {"kind": "linear", "start": 0.0, "end": 0.1, "steps": 1}}
    _, lines = mixed(chatty(), tokenizer, tmp_path, schedules=rising)
    assert any("replay/loss/kl" in line for line in lines)


def test_a_resumed_run_replays_what_an_undisturbed_one_does(chatty, tokenizer, tmp_path) -> None:
    sections = {"replay": {"size": 4, "trigger": 2.0, "max_age": 3}, "run": {**BASE["run"], "steps": 4}}
    start = checkpoint.save(tmp_path / "start", chatty(), tokenizer, {})
    reference, expected = mixed(checkpoint.load_model(start)[0], tokenizer, tmp_path / "whole", **sections)
    assert ["replay/drawn" in line for line in expected].index(True) > 0
    short = {**sections, "run": {**BASE["run"], "steps": 1}}
    mixed(checkpoint.load_model(start)[0], tokenizer, tmp_path / "cut", **short)
    newest = checkpoint.latest(tmp_path / "cut")
    again = trainer_of(checkpoint.load_model(newest)[0], tokenizer, tmp_path / "cut", **sections)
    state = checkpoint.load_state(newest)
    again.load(state)
    assert again.buffer.kept
    assert trained(again, state["metrics_bytes"]) == expected
    assert weights(again) == weights(reference)
