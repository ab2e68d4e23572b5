"""Turns as transitions, and the buffer that keeps them."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
import torch

from agentgym import registry
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym_trainers.data.sequences import Row, collate
from agentgym_trainers.signals.archer.transitions import Replay, Transition, transitions_of
from agentgym_trainers.testing import toy_batch


def two_trajectories() -> tuple:
    """Trajectory 0 ends at its second turn; trajectory 1 forks after its first turn and is cut after its second.

    ids are 10 x row + position; two tokens a turn.
    """
    batch = toy_batch([[0.5, 1.0], [0.0, 0.25]], tokens=2, truncated=[False, True]).with_columns(
        version_A=np.array([4, 4, 4, 4, 5, 5, 6, 6]), valid_N=np.array([1.0, 0.0, 1.0, 1.0])
    )
    rows = [
        Row(np.arange(0, 9), np.array([3, 4, 6, 7]), np.array([0, 1, 2, 3]), 0, False),
        Row(np.arange(10, 15), np.array([2, 3]), np.array([4, 5]), 1, False),
        Row(np.arange(20, 28), np.array([4, 5]), np.array([6, 7]), 1, True),
    ]
    return batch, rows


def test_a_turn_is_observation_response_and_outcome() -> None:
    batch, rows = two_trajectories()
    first, last, forked, cut = transitions_of(batch, rows, 0.5)
    assert first.state.tolist() == [0, 1, 2]
    assert first.action.tolist() == [3, 4]
    assert first.next_ids[: first.next_stop].tolist() == [0, 1, 2, 3, 4, 5]  # up to the next turn's first token
    assert (first.done, first.truncated, last.done, last.truncated) == (False, False, True, False)
    assert last.next_stop == 0
    assert forked.next_ids[: forked.next_stop].tolist() == [20, 21, 22, 23]  # the next prompt, in its own branch
    assert (cut.done, cut.truncated) == (False, True)  # a cut is no end: its final observation follows
    assert cut.next_ids[: cut.next_stop].tolist() == list(range(20, 28))
    assert [t.reward for t in (first, last, forked, cut)] == [0.5, 1.0, 0.0, 0.25]
    assert [t.to_go for t in (first, last)] == [1.0, 1.0]
    assert np.isnan([forked.to_go, cut.to_go]).all()
    assert [t.version for t in (first, last, forked, cut)] == [4, 4, 5, 6]
    assert [t.valid for t in (first, last, forked, cut)] == [True, False, True, True]
    assert cut.logprobs.tolist() == batch.logprob_A[6:].tolist()
    assert first.ids is last.ids


@pytest.mark.parametrize("window", [None, 1])
def test_the_transitions_of_real_episodes(kit, chatty, tokenizer, window) -> None:
    """Every state is a prompt that the policy was asked; with a window, an episode's turns lie in several branches."""
    trajectories = kit.play(chatty(), tokenizer, max_turns=3, prompt_format=PromptFormat(window=window))
    batch, rows, counted = collate(kit.in_pairs(trajectories))
    found = iter(transitions_of(batch, rows, 0.9))
    for trajectory in counted:
        for turn in trajectory.turns:
            t, span, branch = next(found), turn.span, trajectory.branches[turn.span.branch]
            assert t.state.tolist() == branch.ids[: span.start].tolist()
            assert t.action.tolist() == branch.ids[span.start : span.stop].tolist()
            assert t.reward == turn.reward
            if turn is trajectory.turns[-1]:
                assert (t.done, t.truncated) == (not trajectory.stop.is_truncated, trajectory.stop.is_truncated)
                assert t.next_stop == (len(trajectory.branches[-1].ids) if t.truncated else 0)
            else:
                then = trajectory.turns[turn.index + 1].span
                assert t.next_stop == then.start
                assert t.next_ids[: t.next_stop].tolist() == trajectory.branches[then.branch].ids[: then.start].tolist()
    assert next(found, None) is None
    assert any(t.truncated for t in transitions_of(batch, rows, 0.9))


def numbered(count: int) -> list[Transition]:
    ids = np.arange(4)
    return [
        Transition(ids, 1, 2, np.zeros(1, np.float32), 0, float(i), ids, 3, False, False, True, 0.0)
        for i in range(count)
    ]


def test_the_buffer_forgets_the_oldest() -> None:
    replay = Replay(5)
    replay.add(numbered(3))
    assert len(replay) == 3
    replay.add(numbered(9)[3:])
    assert len(replay) == 5
    assert {t.reward for t in replay.sample(200, np.random.default_rng(0))} == {4, 5, 6, 7, 8}


def test_draws_are_seeded_uniform_and_with_replacement() -> None:
    replay = Replay(100)
    replay.add(numbered(10))
    once, again = ([t.reward for t in replay.sample(2000, np.random.default_rng(7))] for _ in range(2))
    assert once == again
    assert [t.reward for t in replay.sample(2000, np.random.default_rng(8))] != once
    counts = np.bincount(np.array(once, np.int64), minlength=10)
    assert counts.min() > 150  # expected 200, standard deviation 13
    assert counts.max() < 250
    assert len(replay.sample(50, np.random.default_rng(0))) == 50  # more than there are


def test_a_turn_has_the_actions_that_its_state_offers(kit, chatty, tokenizer) -> None:
    context = kit.signal_context(tokenizer, env="oracle", groups=2, size=3, noise=0.5)
    offered = iter(
        t.offered for t in transitions_of(context.batch, context.rows, 0.5, trajectories=context.trajectories)
    )
    begun = registry.make("oracle").reset()[1]["available_actions"]
    for trajectory in context.trajectories:
        assert next(offered) == tuple(begun) != ()
        for before in trajectory.turns[:-1]:
            assert next(offered) == tuple(before.info["available_actions"]) != ()
    assert next(offered, None) is None


def test_the_buffer_survives_a_checkpoint() -> None:
    batch, rows = two_trajectories()
    replay = Replay(3)
    replay.add([replace(t, offered=("go", "wait")[: i % 3]) for i, t in enumerate(transitions_of(batch, rows, 0.5))])
    file = io.BytesIO()
    torch.save(replay.state_dict(), file)
    file.seek(0)
    again = Replay(3)
    again.load_state_dict(torch.load(file, weights_only=True))
    ours, theirs = (buffer.sample(64, np.random.default_rng(3)) for buffer in (replay, again))
    for t, u in zip(ours, theirs, strict=True):
        for name in ("start", "stop", "version", "reward", "next_stop", "done", "truncated", "valid", "offered"):
            assert getattr(t, name) == getattr(u, name)
        for name in ("state", "action", "logprobs"):
            assert getattr(t, name).tolist() == getattr(u, name).tolist()
        assert t.next_ids.tolist() == u.next_ids.tolist()
        assert t.to_go == pytest.approx(u.to_go, nan_ok=True)
    # Turns of one branch share its ids before and after: a forward for all of them.
    assert len({id(t.ids) for t in theirs}) == len({id(t.ids) for t in ours}) == 3
    assert sum(len(ids) for ids in {id(t.ids): t.ids for t in theirs}.values()) == len(replay.state_dict()["ids"])
    empty = Replay(3)
    empty.load_state_dict(Replay(3).state_dict())
    assert len(empty) == 0
