"""Digi-Q: the best of N actions by a Q function over frozen features, imitated where it clears a threshold."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from agentgym import registry
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits, Runner
from agentgym_trainers.config.sections import LossOptions, OptimOptions
from agentgym_trainers.credit import ASSIGNERS
from agentgym_trainers.data.sequences import Row
from agentgym_trainers.engines.base import Sampling
from agentgym_trainers.learner.learner import Learner
from agentgym_trainers.rollout.player import PolicyPlayer
from agentgym_trainers.rollout.tokens import ChatTemplate
from agentgym_trainers.signals.archer.critic import TwinCritic
from agentgym_trainers.signals.archer.digiq import DigiQOptions, DigiQSignal, validity
from agentgym_trainers.signals.archer.transitions import Transition, transitions_of
from agentgym_trainers.signals.base import SignalContext
from agentgym_trainers.testing import (
    ORACLE_ADVANTAGE,
    ORACLE_VALUE,
    SA,
    SB,
    SC,
    SD,
    ScriptedEngine,
    oracle_batch,
    oracle_population,
    toy_batch,
)

DIGIQ = ASSIGNERS["digiq"].function
FIRST, SECOND, STOP = 5, 6, 7
"""Toy tokens: 0 .. 4 are states, 5 and 6 the two actions, which end by themselves; 7 is neither."""


class Table(nn.Module):
    """One-hot features of a toy state, or of state and action."""

    width = 64

    def __init__(self) -> None:
        super().__init__()
        self.kind = nn.Parameter(torch.zeros(0, dtype=torch.float64))

    def forward(self, rows: list[Row]) -> torch.Tensor:
        pairs = [row.ids[[at - 2, at - 1]] for row in rows for at in row.action_at.tolist()]
        return torch.eye(self.width, dtype=torch.float64)[
            [int(last if last < FIRST else 8 * (state + 1) + last - FIRST) for state, last in pairs]
        ]


def exact_critic(options: DigiQOptions, second_head: float = 0.0) -> TwinCritic:
    """Q and V of the oracle under the uniform policy; the second Q head is off by `second_head`."""
    critic = TwinCritic(Table(), options, 10**6)
    for extra, q_head, v_head in zip((0.0, second_head), critic.heads.q_heads, critic.heads.v_heads, strict=True):
        with torch.no_grad():
            v_head[0].weight[0, :5] = torch.from_numpy(ORACLE_VALUE)
            q_head[0].bias[:] = extra
            for state in range(5):
                for action, sign in ((0, 1), (1, -1)):
                    exact = ORACLE_VALUE[state] + sign * ORACLE_ADVANTAGE[state]
                    q_head[0].weight[0, 64 + 8 * (state + 1) + action] = exact
    return critic


def signal_of(
    replies: Any, *, valid: Callable[..., bool] = lambda turn, action: True, second_head: float = 0.0, **options: Any
) -> tuple[DigiQSignal, ScriptedEngine]:
    engine = ScriptedEngine(replies)
    chosen = DigiQOptions(hidden=(), **{"warmup": 0, "actor_states": 40, **options})
    sampling = Sampling(1.0, 4, frozenset({FIRST, SECOND, STOP}))
    absent: Any = None
    player = PolicyPlayer(engine, absent, sampling, Runner(absent, PromptFormat(), Limits(), 8))
    return DigiQSignal(chosen, exact_critic(chosen, second_head), player, valid), engine


def oracle_context(step: int = 5) -> SignalContext:
    """Every trajectory of the uniform policy, as often as in 16."""
    trajectories = oracle_population()
    batch = oracle_batch(trajectories)
    rows = []
    for m, t in enumerate(trajectories):
        ids = np.column_stack([t.states, np.array(t.actions) + FIRST]).reshape(-1)
        rows.append(Row(ids, np.array([1, 3, 5]), 3 * m + np.arange(3), m, False))
    return SignalContext(batch, rows, (), step, np.random.default_rng(0))


def remember(signal: DigiQSignal, context: SignalContext) -> None:
    signal.replay.add(transitions_of(context.batch, context.rows, 1.0))


def test_the_chosen_action_is_the_greedy_one() -> None:
    """By exact Q: the first action wherever an action matters, whether the buffer's or a sampled one."""
    coin = np.random.default_rng(1)
    signal, _ = signal_of(lambda call, prompt: [int(coin.integers(FIRST, STOP))], candidates=8)
    context = oracle_context()
    remember(signal, context)
    batch, rows = asyncio.run(signal.training_batch(context))
    state_N = np.array([row.ids[row.action_at[0] - 1] for row in rows])
    action_N = np.array([row.ids[-1] for row in rows])
    assert {SA, SB, SC} <= set(state_N.tolist())
    assert (action_N[state_N != SD] == FIRST).all()
    np.testing.assert_allclose(batch.x["q_N"] - batch.x["v_N"], ORACLE_ADVANTAGE[state_N], atol=1e-12)
    imitated = DIGIQ(batch, threshold=0.1).advantage_A
    np.testing.assert_array_equal(imitated, np.isin(state_N, [SA, SB, SC]))  # .0625 at s0 is below, sD is 0


def test_one_candidate_is_filtered_imitation_of_the_buffer() -> None:
    """N = 1: the buffer's own actions, each if its advantage clears the threshold. Nobody is asked."""
    signal, engine = signal_of([[SECOND]], candidates=1)
    context = oracle_context()
    remember(signal, context)
    batch, rows = asyncio.run(signal.training_batch(context))
    drawn = signal.replay.sample(40, np.random.default_rng(0))
    assert [row.ids.tolist() for row in rows] == [[*t.state, *t.action] for t in drawn]
    assert engine.calls == []
    exact = [ORACLE_ADVANTAGE[t.state[-1]] * (1 if t.action[0] == FIRST else -1) for t in drawn]
    np.testing.assert_array_equal(DIGIQ(batch, threshold=0.05).advantage_A, np.array(exact) > 0.05)
    np.testing.assert_allclose(batch.logprob_A, np.concatenate([t.logprobs for t in drawn]))


def test_nothing_above_the_threshold_is_no_loss(kit) -> None:
    signal, _ = signal_of([[SECOND]] * 3, candidates=4)
    context = oracle_context()
    remember(signal, context)
    batch, rows = asyncio.run(signal.training_batch(context))
    credit = DIGIQ(batch, threshold=0.6)
    assert not credit.advantage_A.any()
    model = kit.build()
    before = model.lm_head.weight.detach().clone()
    options = LossOptions(objective="policy_gradient", reducer="trajectory_sum")
    metrics = Learner(model, OptimOptions(lr=0.1)).update(batch, rows, credit, options)
    assert metrics["loss/policy"] == metrics["optim/grad_norm"] == 0
    assert torch.equal(model.lm_head.weight, before)


def test_heads_answer_by_their_maximum_or_minimum() -> None:
    """A = max_i Q_i − max_i V_i as released, or by minima: a head that is .3 too high is believed, or is not."""
    for heads, gap in (("max", 0.3), ("min", 0.0)):
        signal, _ = signal_of([], candidates=1, heads=heads, second_head=0.3)
        turns = transitions_of(oracle_context().batch, oracle_context().rows, 1.0)
        q, v = signal.judge(turns)
        exact = np.array([ORACLE_ADVANTAGE[t.state[-1]] * (1 if t.action[0] == FIRST else -1) for t in turns])
        np.testing.assert_allclose(q - v, exact + gap, atol=1e-12)


def test_what_is_no_action_is_never_imitated() -> None:
    """Its advantage is 0, however good the critic thinks it; the buffer's own too, if the environment refused it."""
    state = np.array([SC, FIRST])
    row = Row(state, np.array([1]), np.array([0]), 0, False)
    for refused in (True, False):
        batch = toy_batch([[1.0]]).with_columns(valid_N=np.array([0.0 if refused else 1.0]))
        context = SignalContext(batch, [row], (), 5, np.random.default_rng(0))
        signal, _ = signal_of([[SECOND], [STOP]], candidates=3, valid=lambda turn, action: action[-1] != STOP)
        with torch.no_grad():
            signal.critic.heads.q_heads[0][0].weight[0, 64 + 8 * (SC + 1) + 2] = 9.0  # what STOP is worth at sC
        remember(signal, context)
        found, rows = asyncio.run(signal.training_batch(context))
        assert (rows[0].ids[-1] == FIRST) == (rows[0].ids.tolist() == [SC, FIRST])
        imitated = DIGIQ(found, threshold=0.05).advantage_A
        assert imitated.any() == (not refused)
        if not refused:
            assert {int(r.ids[-1]) for r in rows} == {FIRST}


def test_what_was_refused_in_a_state_is_not_imitated_there() -> None:
    """The policy says it again at the same state of another episode, whose own action was executed."""
    for refused in (True, False):
        rows = [
            Row(np.array([SC, action]), np.array([1]), np.array([m]), m, False)
            for m, action in ((0, FIRST), (1, SECOND))
        ]
        batch = toy_batch([[0.0], [0.0]]).with_columns(valid_N=np.array([0.0 if refused else 1.0, 1.0]))
        signal, _ = signal_of([[FIRST]], candidates=2)
        remember(signal, SignalContext(batch, rows, (), 5, np.random.default_rng(0)))
        context = SignalContext(batch, rows, (), 5, np.random.default_rng(1))
        found, _ = asyncio.run(signal.training_batch(context))
        assert DIGIQ(found, threshold=0.05).advantage_A.any() == (not refused)


def test_equal_candidates_are_judged_once_and_buffer_wins_ties() -> None:
    signal, _ = signal_of([[SECOND], [SECOND], [FIRST], [SECOND]], candidates=5)
    sizes: list[int] = []
    hook = signal.critic.encoder.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    row = Row(np.array([SD, SECOND]), np.array([1]), np.array([0]), 0, False)
    context = SignalContext(toy_batch([[0.0]]), [row], (), 5, np.random.default_rng(0))
    remember(signal, context)
    best = asyncio.run(signal.choose(signal.replay.sample(1, context.rng), context.rng))
    hook.remove()
    assert best[0] is signal.replay.sample(1, context.rng)[0]  # at sD nothing matters
    assert sizes == [2]  # two sequences: sD first, sD second


def test_until_the_critic_is_warm_nothing_is_imitated() -> None:
    signal, engine = signal_of([[FIRST]], warmup=6)
    context = oracle_context(step=5)
    remember(signal, context)
    assert asyncio.run(signal.training_batch(context)) is None
    columns = asyncio.run(signal.annotate(context))
    assert not DIGIQ(context.batch.with_columns(**columns)).advantage_A.any()
    assert signal.warmup == 6
    assert engine.calls == []


def test_td_on_frozen_features_finds_the_true_values() -> None:
    """Fitted by the signal itself, from a buffer of every trajectory: Q − V goes to the uniform policy's advantage, as
    near as sampled fresh actions let it."""
    coin = np.random.default_rng(3)
    signal, _ = signal_of(
        lambda call, prompt: [int(coin.integers(FIRST, STOP))],
        gamma=1.0, lr=0.003, pool=2000, updates=600, batch=256, tau=0.1,
    )  # fmt: skip
    for head in [*signal.critic.heads.q_heads, *signal.critic.heads.v_heads]:
        nn.init.zeros_(head[0].weight)
    signal.critic.slow_heads.load_state_dict(signal.critic.heads.state_dict())
    context = oracle_context()
    asyncio.run(signal.fit(context))
    columns = asyncio.run(signal.annotate(context))
    exact = ORACLE_ADVANTAGE[context.batch.anchor_N] * np.where(context.batch.x["action_N"] == 0, 1, -1)
    assert np.abs(columns["q_N"] - columns["v_N"] - exact).max() < 0.05


def test_features_must_be_frozen_while_the_policy_learns() -> None:
    with pytest.raises(ValidationError):
        DigiQOptions(encoder="trained")


def turn_of(state: list[int], offered: tuple[str, ...]) -> Transition:
    ids, none = np.array(state), np.zeros(0, np.float32)
    return Transition(ids, len(ids), len(ids), none, 0, 0.0, ids, 0, True, False, True, 0.0, offered)


def test_valid_replies_are_those_the_env_could_execute(tokenizer) -> None:
    template, spec = ChatTemplate(tokenizer), registry.get_spec("keydoor")
    valid = validity(template, PromptFormat(), spec)
    end = [*template.stop_ids()][:1]
    state = list(template.encode("<|im_start|>assistant\n"))
    first, second = spec.actions[:2]
    anywhere, here = turn_of(state, ()), turn_of(state, (second,))
    for text, expected in ((first, True), (f"well\n{second}", True), ("", False), ("fly", False)):
        ids = [*template.encode(text, state[-1])]
        assert valid(anywhere, [*ids, *end]) is expected
        assert valid(here, [*ids, *end]) is (expected and text != first)
        if ids:
            assert valid(anywhere, ids) is expected  # cut by length: no stop token
