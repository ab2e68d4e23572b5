"""The twin critic: its losses, fixed points and targets; what the actor is given; the signal in a real run."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from agentgym.errors import ConfigError
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits, Runner
from agentgym_credit.batch import Batch
from agentgym_trainers.config.sections import LossOptions, OptimOptions
from agentgym_trainers.credit import ASSIGNERS
from agentgym_trainers.data.sequences import Row, collate
from agentgym_trainers.engines.base import Completion, Sampling
from agentgym_trainers.engines.inprocess import InProcessEngine
from agentgym_trainers.learner.learner import Learner
from agentgym_trainers.recipe import resolve
from agentgym_trainers.rollout.player import PolicyPlayer
from agentgym_trainers.signals.archer.critic import (
    CriticExamples,
    CriticOptions,
    Heads,
    TwinCritic,
    action_read,
    correlation,
    polyak,
    q_loss,
    q_targets,
    v_loss,
)
from agentgym_trainers.signals.archer.encoder import Encoder, features, reading_rows
from agentgym_trainers.signals.archer.signal import TwinOptions, TwinSignal, fresh, turns_batch
from agentgym_trainers.signals.archer.transitions import Transition, transitions_of
from agentgym_trainers.signals.base import SignalContext
from agentgym_trainers.testing import (
    ORACLE_ADVANTAGE,
    ORACLE_GRADIENT,
    ORACLE_VALUE,
    S0,
    SA,
    SB,
    SC,
    ScriptedEngine,
    oracle_batch,
    oracle_gradient_M,
    oracle_population,
    oracle_trajectories,
    toy_batch,
)

Q_MINUS_V = ASSIGNERS["q_minus_v"].function
LEFT = 5
"""Toy tokens: 0 .. 4 are states, 5 and 6 the first and the second action."""


class Table(nn.Module):
    """One-hot features of toy tokens: of the state read, or of state and action."""

    width = 64

    def __init__(self) -> None:
        super().__init__()
        self.kind = nn.Parameter(torch.zeros(0, dtype=torch.float64))

    def forward(self, rows: list[Row]) -> torch.Tensor:
        pairs = [row.ids[[at - 2, at - 1]] for row in rows for at in row.action_at.tolist()]
        codes = [int(last if last < LEFT else 8 * state + last) for state, last in pairs]
        return torch.eye(self.width, dtype=torch.float64)[codes]


def toy_rows(states: list[tuple[int, ...]], actions: list[tuple[int, ...]]) -> list[Row]:
    """Every trajectory as state, action, state, action ..."""
    rows, tokens = [], 0
    for m, (state, action) in enumerate(zip(states, actions, strict=True)):
        ids = np.column_stack([state, np.array(action) + LEFT]).reshape(-1)
        at = np.arange(1, len(ids), 2)
        rows.append(Row(ids, at, tokens + np.arange(len(at)), m, False))
        tokens += len(at)
    return rows


def read_of(turn: Transition, action: int) -> tuple[np.ndarray, int]:
    """The read of another action at a turn's state."""
    return np.append(turn.state, LEFT + action), turn.start


def tabular(gamma: float, tau: float = 0.3, **options: Any) -> TwinCritic:
    chosen = CriticOptions(hidden=(), gamma=gamma, tau=tau, max_grad_norm=1e9, **options)
    return TwinCritic(Table(), chosen, 10**6, lambda parameters: torch.optim.SGD(parameters, lr=0.3, momentum=0.65))


def converge(critic: TwinCritic, examples: CriticExamples, steps: int = 300) -> None:
    state_features = critic.see(examples)
    for _ in range(steps):
        critic.update(examples, state_features)


def oracle(p_first: np.ndarray | None = None) -> tuple[Batch, list[Transition]]:
    """Turns as a policy visits them, each as often as in 16 (or 256) episodes."""
    trajectories = oracle_population() if p_first is None else [
        t for t in oracle_trajectories(p_first) for _ in range(round(256 * t.probability))
    ]  # fmt: skip
    batch = oracle_batch(trajectories)
    rows = toy_rows([t.states for t in trajectories], [t.actions for t in trajectories])
    return batch, transitions_of(batch, rows, 1.0)


def both_actions(turns: list[Transition]) -> CriticExamples:
    """Every turn twice, V regressed on each action once: the mean over a uniform policy's fresh actions."""
    return CriticExamples([*turns, *turns], [read_of(t, action) for action in (0, 1) for t in turns])


def expected_advantage(batch: Batch) -> np.ndarray:
    return ORACLE_ADVANTAGE[batch.anchor_N] * np.where(batch.x["action_N"] == 0, 1, -1)


def test_the_fixed_point_is_the_oracle() -> None:
    """ArCHer (a): Q − V is the advantage of the uniform policy, and its mean gradient the exact one."""
    batch, turns = oracle()
    critic = tabular(gamma=1.0)
    converge(critic, both_actions(turns))
    q_N, v_N = critic.values(turns)
    np.testing.assert_allclose(v_N, ORACLE_VALUE[batch.anchor_N], atol=1e-6)
    np.testing.assert_allclose(q_N - v_N, expected_advantage(batch), atol=1e-6)
    credit = Q_MINUS_V(batch.with_columns(q_N=q_N, v_N=v_N))
    np.testing.assert_allclose(oracle_gradient_M(batch, credit).mean(axis=0), ORACLE_GRADIENT, atol=1e-6)


def test_v_is_of_the_present_policy_not_of_the_buffer() -> None:
    """The buffer was filled by a policy that takes the first action 3 times in 4; the present one is uniform. V
    regressed on the buffer's actions is the old policy's value, and the advantages are wrong."""
    batch, turns = oracle(np.full(5, 0.75))
    critic = tabular(gamma=1.0)
    converge(critic, both_actions(turns))
    q_N, v_N = critic.values(turns)
    np.testing.assert_allclose(q_N - v_N, expected_advantage(batch), atol=1e-6)

    wrong = tabular(gamma=1.0)
    converge(wrong, CriticExamples(turns, [action_read(t) for t in turns]))
    q_N, v_N = wrong.values(turns)
    value = dict(zip(batch.anchor_N.tolist(), v_N.tolist(), strict=True))
    # Of the old policy: 3/4 at sC; 9/16 at sA; 3/4 · 1/2 · 3/4 at sB; 3/4 · 9/16 + 1/4 · 9/32 at s0.
    assert value == pytest.approx({SC: 3 / 4, SA: 9 / 16, SB: 9 / 32, S0: 63 / 128, 4: 0.0}, abs=1e-6)
    assert np.abs(q_N - v_N - expected_advantage(batch)).max() > 0.1


def test_a_chain_without_choices_has_no_advantage() -> None:
    """ArCHer (b): r = (0, 0, 1), γ = .95 gives V = (.9025, .95, 1)."""
    batch = toy_batch([[0, 0, 1]])
    turns = transitions_of(batch, toy_rows([(0, 1, 2)], [(0, 0, 0)]), 0.95)
    critic = tabular(gamma=0.95)
    converge(critic, CriticExamples(turns, [read_of(t, 0) for t in turns]))
    q_N, v_N = critic.values(turns)
    np.testing.assert_allclose(v_N, (0.9025, 0.95, 1), atol=1e-6)
    np.testing.assert_allclose(q_N - v_N, 0, atol=1e-6)
    assert [t.to_go for t in turns] == pytest.approx([0.9025, 0.95, 1])


def test_a_cut_bootstraps_and_an_end_does_not() -> None:
    """The same turn, once ended by the environment and once by a limit, in front of a state that is worth 1."""
    batch = toy_batch([[0, 1], [0], [0]], truncated=[False, True, False])
    rows = toy_rows([(3, 1), (0,), (2,)], [(0, 0), (0,), (0,)])
    rows[1] = replace(rows[1], ids=np.append(rows[1].ids, 1), bootstrap=True)  # cut before state 1
    turns = transitions_of(batch, rows, 0.9)
    critic = tabular(gamma=0.9)
    converge(critic, CriticExamples(turns, [read_of(t, 0) for t in turns]))
    q_N, _ = critic.values(turns)
    np.testing.assert_allclose(q_N, (0.9, 1, 0.9, 0), atol=1e-6)

    # The released code calls a cut an end.
    wrong = tabular(gamma=0.9)
    ended = [replace(t, done=t.done or t.truncated) for t in turns]
    converge(wrong, CriticExamples(ended, [read_of(t, 0) for t in ended]))
    assert wrong.values(turns)[0] == pytest.approx((0.9, 1, 0, 0), abs=1e-6)


def test_polyak() -> None:
    """ArCHer (d): from θ̄ = 0 and θ = 1, τ = .1 gives .1; then .19."""
    slow, online = nn.Linear(2, 2), nn.Linear(2, 2)
    for module, value in ((slow, 0.0), (online, 1.0)):
        for parameter in module.parameters():
            nn.init.constant_(parameter, value)
    for expected in (0.1, 0.19):
        polyak(slow, online, 0.1)
        assert all(torch.allclose(p, torch.tensor(expected)) for p in slow.parameters())


def test_targets_move_once_a_step_and_no_gradient_reaches_them() -> None:
    _, turns = oracle()
    critic = tabular(gamma=1.0, tau=0.1)
    before = copy.deepcopy(critic.slow_heads)
    critic.update(both_actions(turns))
    for old, slow, new in zip(
        before.parameters(), critic.slow_heads.parameters(), critic.heads.parameters(), strict=True
    ):
        torch.testing.assert_close(slow, 0.9 * old + 0.1 * new)
        assert slow.grad is None
    assert not torch.equal(critic.heads.q_heads[0][0].weight, before.q_heads[0][0].weight)


def test_losses_by_hand() -> None:
    """Every head has its own target."""
    next_v = torch.tensor([[0.5, float("nan")], [0.7, float("inf")]])
    target = q_targets(torch.tensor([0.1, 1.0]), torch.tensor([False, True]), next_v, 0.9)
    torch.testing.assert_close(target, torch.tensor([[0.55, 1.0], [0.73, 1.0]]))  # after the end nothing is read
    q = torch.tensor([[0.5, 0.0], [0.5, 2.0]], requires_grad=True)
    loss = q_loss(q, target)
    torch.testing.assert_close(loss, torch.tensor([0.05**2 + 0.23**2, 2.0]))
    v = torch.tensor([[0.2], [0.6]], requires_grad=True)
    slow_q = torch.tensor([[0.5], [0.5]], requires_grad=True)
    torch.testing.assert_close(v_loss(v, slow_q), torch.tensor([0.3**2 + 0.1**2]))
    v_loss(v, slow_q).sum().backward()
    torch.testing.assert_close(v.grad, torch.tensor([[-2 * 0.3], [2 * 0.1]]))
    assert slow_q.grad is None


def test_the_difference_of_minima() -> None:
    """min Q_i − min V_i, not min (Q_i − V_i)."""
    critic = tabular(gamma=1.0)
    for head, bias in zip([*critic.heads.q_heads, *critic.heads.v_heads], (0.9, 0.5, 0.8, 0.3), strict=True):
        nn.init.constant_(head[-1].bias, bias)
    _, turns = oracle()
    q_N, v_N = critic.values(turns)
    np.testing.assert_allclose(q_N - v_N, 0.5 - 0.3)
    assert min(0.9 - 0.8, 0.5 - 0.3) != pytest.approx(0.5 - 0.3)
    q_N, v_N = critic.values(turns, "max")
    np.testing.assert_allclose(q_N - v_N, 0.9 - 0.8)


def test_values_are_zero_before_the_first_fit() -> None:
    heads = Heads(8, (16, 16))
    state, action = torch.randn(2, 5, 8)
    assert heads.q(state, action).abs().max() == heads.v(state).abs().max() == 0
    critic = tabular(gamma=1.0)
    metrics = critic.update(both_actions(oracle()[1]))
    assert metrics["grad_norm"] > 0


def test_correlation() -> None:
    nan = float("nan")
    assert correlation(np.array([1.0, 2.0, 3.0, 9.0]), np.array([2.0, 4.0, 6.0, nan])) == pytest.approx(1)
    assert correlation(np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])) == pytest.approx(-1)
    assert correlation(np.ones(3), np.arange(3.0)) == correlation(np.ones(1), np.ones(1)) == 0


@pytest.fixture(scope="module")
def played(kit, chatty, tokenizer) -> tuple[Any, list[Transition]]:
    """(a policy, turns that it played, some of them rewarded by the toss of a coin)."""
    model = chatty()
    batch, _ = rows_of_play = collate(kit.in_pairs(kit.play(model, tokenizer, max_turns=3)))[:2]
    coin = np.random.default_rng(0).random(len(batch.traj_N)) < 0.5
    return model, transitions_of(replace(batch, reward_N=coin * 1.0), rows_of_play[1], 0.9)


def real_critic(model: Any, kind: str, *, budget: int = 10**6, sgd: float | None = None, **options: Any) -> TwinCritic:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        chosen = CriticOptions(encoder=kind, hidden=(16,), gamma=0.9, **options)
        make = None if sgd is None else lambda parameters: torch.optim.SGD(parameters, lr=sgd)
        return TwinCritic(Encoder(copy.deepcopy(model.base_model)), chosen, budget, make)


def with_themselves(turns: list[Transition]) -> CriticExamples:
    return CriticExamples(turns, [action_read(t) for t in turns])


def test_features_are_hidden_states(kit, played) -> None:
    """Of the sequence forwarded alone; a state's are untouched by the action, an action's by what follows."""
    model, turns = played
    encoder = Encoder(copy.deepcopy(model.base_model))
    plain = copy.deepcopy(model.base_model)
    plain.set_attn_implementation("sdpa")
    reads = [(t.ids, at) for t in turns[:4] for at in (t.start - 1, t.stop - 1)]
    found = features(encoder, reads, 10**6)
    for feature, (ids, at) in zip(found, reads, strict=True):
        with torch.inference_mode():
            alone = plain(input_ids=torch.from_numpy(ids[: at + 1])[None]).last_hidden_state[0, -1]
        torch.testing.assert_close(feature, alone, atol=1e-4, rtol=1e-4)
    for budget in (1, 300):
        torch.testing.assert_close(features(encoder, reads, budget), found, atol=1e-4, rtol=1e-4)


def test_a_sequence_is_forwarded_once() -> None:
    """Whatever begins another sequence is read there, however it came about."""
    a, b, c = np.array([1, 2, 3, 4]), np.array([1, 2, 3]), np.array([1, 2, 9])
    rows = reading_rows([(a, 1), (b, 2), (c, 2), (a.copy(), 3), (c, 0)])
    assert sorted(row.ids.tolist() for row in rows) == [[1, 2, 3, 4], [1, 2, 9]]
    places = {
        i: (row.ids[at - 1], at - 1) for row in rows for i, at in zip(row.action_index, row.action_at, strict=True)
    }
    assert places == {0: (2, 1), 1: (3, 2), 2: (9, 2), 3: (4, 3), 4: (1, 0)}
    assert [row.ids.tolist() for row in reading_rows([(np.array([256, 1]), 1), (np.array([256]), 0)])] == [[256, 1]]


@pytest.mark.parametrize("kind", ["frozen", "trained"])
def test_every_update_moves_what_it_should_and_the_loss_falls(played, kind) -> None:
    model, turns = played
    before = copy.deepcopy(model.state_dict())
    critic = real_critic(model, kind, lr=3e-3, tau=1e-3)  # V has something to learn, and it hardly moves
    for head in [*critic.slow_heads.q_heads, *critic.slow_heads.v_heads]:
        nn.init.normal_(head[-1].weight, std=0.3)
    parts = {"heads": critic.heads, "slow_heads": critic.slow_heads, "encoder": critic.encoder}
    if kind == "trained":
        parts["slow_encoder"] = critic.slow_encoder
    examples = with_themselves(turns)
    for _ in range(3):  # the last layers begin at 0, so Q's move first, then V's, then what lies below them
        critic.update(examples)
    steps = []
    for _ in range(25):
        was = {name: copy.deepcopy(part) for name, part in parts.items()}
        steps.append(critic.update(examples))
        assert steps[-1]["grad_norm"] > 0
        assert steps[-1]["skipped"] == 0
        for name, part in parts.items():
            moved = [not torch.equal(p, q) for p, q in zip(part.parameters(), was[name].parameters(), strict=True)]
            assert any(moved) == (name != "encoder" or kind == "trained"), name
            if "encoder" not in name:
                assert all(moved), name  # every layer of every head
        for slow, online in [("slow_heads", "heads"), ("slow_encoder", "encoder")][: len(parts) - 2]:
            three = (was[slow].parameters(), parts[slow].parameters(), parts[online].parameters())
            for old, now, new in zip(*three, strict=True):
                torch.testing.assert_close(now, old + 1e-3 * (new - old))
    for loss in ("q_loss", "v_loss"):
        assert steps[-1][loss] < 0.7 * steps[0][loss]
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])  # a copy of the policy's trunk learns, not the policy's


@pytest.mark.parametrize("kind", ["frozen", "trained"])
def test_shards_add_up(played, kind) -> None:
    """A row a forward, or all at once: the same step. A loss that is a mean of its shard's own is caught."""
    model, turns = played
    examples = with_themselves(turns)
    full, rowwise = (real_critic(model, kind, budget=budget, sgd=0.1) for budget in (10**6, 1))
    for critic in (full, rowwise):
        for _ in range(3):
            critic.update(examples)
    start = real_critic(model, kind).parameters
    moved = [(p - q).abs().max().item() for p, q in zip(full.parameters, start, strict=True)]
    assert max(moved) > 1e-3
    for ours, theirs in zip(full.parameters, rowwise.parameters, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)
    part = real_critic(model, kind, sgd=0.1)
    for _ in range(3):
        part.update(CriticExamples(turns[:3], examples.acted[:3]))  # as if each shard were divided by its own size
    assert any(not torch.allclose(p, q, atol=1e-4) for p, q in zip(full.parameters, part.parameters, strict=True))


def test_a_warmed_up_encoder_learns_until_the_warm_up_is_over(played) -> None:
    model, turns = played
    made = [real_critic(model, kind, lr=1e-2, updates=5, batch=8) for kind in ("trained", "warmed_up", "warmed_up")]
    examples, rng = with_themselves(turns), np.random.default_rng
    for critic in made[:2]:
        critic.learn(examples, rng(0))
    trained, critic, resumed = made
    weights = copy.deepcopy(trained.encoder.state_dict())
    torch.testing.assert_close(critic.encoder.state_dict(), weights, rtol=0, atol=0)
    assert any(not torch.equal(p, q) for p, q in zip(weights.values(), model.base_model.state_dict().values()))
    critic.learn(examples, rng(1), warm=True)
    resumed.load_state_dict(copy.deepcopy(critic.state_dict()))
    critic.learn(examples, rng(2), warm=True)
    resumed.learn(examples, rng(2), warm=True)
    torch.testing.assert_close(critic.state_dict(), resumed.state_dict(), rtol=0, atol=0)
    for name, tensor in critic.encoder.state_dict().items():
        assert torch.equal(tensor, weights[name])
    trained.learn(examples, rng(1), warm=True)
    assert any(not torch.equal(p, q) for p, q in zip(weights.values(), trained.encoder.state_dict().values()))


def test_a_gradient_that_is_not_finite_steps_nothing(played) -> None:
    model, turns = played
    critic = real_critic(model, "frozen")
    critic.update(with_themselves(turns))
    before = copy.deepcopy(critic.state_dict())
    broken = [replace(turns[0], reward=float("inf")), *turns[1:]]
    assert critic.update(with_themselves(broken))["skipped"] == 1
    torch.testing.assert_close(critic.state_dict(), before, rtol=0, atol=0)


def context_of(batch: Batch, rows: list[Row], step: int = 9, seed: int = 0) -> SignalContext:
    return SignalContext(batch, rows, (), step, np.random.default_rng(seed))


def player_of(engine: Any, sampling: Sampling, wave: int) -> PolicyPlayer:
    """A player of replies, `wave` at once."""
    absent: Any = None
    return PolicyPlayer(engine, absent, sampling, Runner(absent, PromptFormat(), Limits(), wave))


def scripted(replies: Any, **options: Any) -> tuple[TwinSignal, ScriptedEngine]:
    """A signal on toy tokens, whose policy says what it is told; 7 ends a reply."""
    engine = ScriptedEngine(replies)
    sampling = Sampling(1.0, 4, frozenset({7}))
    chosen = TwinOptions(**{"pool": 6, "updates": 4, "batch": 8, "actor_states": 5, "warmup": 0, **options})
    critic = TwinCritic(Table(), chosen.model_copy(update={"hidden": ()}), 10**6)
    return TwinSignal(chosen, critic, player_of(engine, sampling, 4)), engine


def toy_context(step: int = 9) -> SignalContext:
    batch = toy_batch([[0.5, 0.2, 1], [0.3, -0.4, 0.6]])
    return context_of(batch, toy_rows([(S0, SA, SC), (S0, SB, 4)], [(0, 0, 0), (1, 1, 0)]), step)


def test_the_actor_learns_from_fresh_actions_with_stop_token() -> None:
    """At states of the buffer; q_N is read behind the stop token, as the critic is trained."""
    signal, engine = scripted([[5, 7]])
    context = toy_context()
    asyncio.run(signal.fit(context))
    engine.calls.clear()
    batch, rows = asyncio.run(signal.training_batch(context))
    known = {tuple(t.state.tolist()) for t in transitions_of(context.batch, context.rows, 0.95)}
    assert len(rows) == len(batch.group_M) == len(batch.traj_N) == 5
    for m, (row, (_, prompt, completion)) in enumerate(zip(rows, engine.calls, strict=True)):
        assert tuple(prompt) in known
        assert row.ids.tolist() == [*prompt, *completion.ids]
        assert row.ids[-1] == 7
        assert row.action_at.tolist() == list(range(len(prompt), len(row.ids)))  # the stop token is trained too
        mine = batch.turn_A == m
        assert row.action_index.tolist() == np.flatnonzero(mine).tolist()
        np.testing.assert_allclose(batch.logprob_A[mine], completion.logprobs)
        assert set(batch.x["version_A"][mine]) == {completion.version}
    turns = transitions_of(batch, rows, 0.95)
    np.testing.assert_array_equal(np.stack([batch.x["q_N"], batch.x["v_N"]]), signal.critic.values(turns))
    unstopped = [replace(t, stop=t.stop - 1) for t in turns]
    assert np.abs(signal.critic.values(unstopped)[0] - batch.x["q_N"]).max() > 1e-6


def test_the_critic_is_taught_fresh_actions() -> None:
    signal, engine = scripted([[5, 7]])
    metrics = asyncio.run(signal.fit(toy_context()))
    assert engine.opened == engine.closed == len(engine.calls) == 6
    assert metrics["replay"] == 6
    assert {"loss", "grad_norm", "q_loss", "v_loss", "td_error", "calibration"} <= metrics.keys()
    assert metrics["grad_norm"] > 0


def test_unseen_is_of_turns_that_were_not_learned_from() -> None:
    """0 before anything was learned; then what Q - V says of other turns, by hand."""
    signal, _ = scripted([[5, 7]])
    assert asyncio.run(signal.fit(toy_context()))["unseen"] == 0
    other = context_of(toy_batch([[0.1, 0.9], [0.7, 0.2]]), toy_rows([(S0, SB), (S0, SA)], [(0, 0), (1, 1)]), 9)
    turns = transitions_of(other.batch, other.rows, signal.options.gamma)
    q_N, v_N = signal.critic.values(turns)
    gamma = signal.options.gamma
    to_go_N = np.array([0.1 + gamma * 0.9, 0.9, 0.7 + gamma * 0.2, 0.2])
    expected = np.corrcoef(q_N - v_N, to_go_N - v_N)[0, 1]
    assert asyncio.run(signal.fit(other))["unseen"] == pytest.approx(expected)


def test_until_the_critic_is_warm_the_actor_has_no_advantage() -> None:
    signal, engine = scripted([[5, 7]], warmup=3)
    for step, warm in ((0, False), (2, False), (3, True)):
        context = toy_context(step)
        asyncio.run(signal.fit(context))
        count = len(engine.calls)
        resampled = asyncio.run(signal.training_batch(context))
        columns = asyncio.run(signal.annotate(context))
        assert (np.abs(columns["q_N"]).max() > 0) == warm
        assert (resampled is not None) == warm == (step >= signal.warmup)
        assert resampled is None or np.abs(Q_MINUS_V(resampled[0]).advantage_A).max() > 0
        assert (len(engine.calls) > count) == warm
    signal, engine = scripted([[5, 7]], actor="rollout")
    context = toy_context()
    asyncio.run(signal.fit(context))
    assert asyncio.run(signal.training_batch(context)) is None  # the policy learns from the step's own turns


def test_only_resampled_actions_move_the_actor(kit, played) -> None:
    """ArCHer (c): whatever actions the buffer holds, and however likely they were, the actor's step is the same. One
    on the buffer's own actions is caught."""
    model, turns = played
    others = [replace(t, ids=np.concatenate([t.state, (t.action + 3) % 300]), logprobs=t.logprobs - 1) for t in turns]
    critic = real_critic(model, "frozen", lr=1e-2)
    critic.learn(with_themselves(turns), np.random.default_rng(0))
    fresh_steps, wrong_steps = [], []
    for buffer in (turns, others):
        actor = copy.deepcopy(model)
        engine = InProcessEngine(actor, max_sequences=8, max_length=640)
        signal = TwinSignal(TwinOptions(warmup=0, actor_states=12), critic, player_of(engine, Sampling(1.0, 4), 8))
        signal.replay.add(buffer)
        batch, rows = asyncio.run(signal.training_batch(context_of(toy_batch([[0]]), [])))
        engine.shutdown()
        fresh_steps.append(step_of(copy.deepcopy(model), batch, rows))
        drawn = signal.replay.sample(12, np.random.default_rng(0))
        own, own_rows = turns_batch(drawn)
        q_N, v_N = critic.values(drawn)
        wrong_steps.append(step_of(copy.deepcopy(model), own.with_columns(q_N=q_N, v_N=v_N), own_rows))
    assert torch.equal(*fresh_steps)
    assert not torch.allclose(*wrong_steps, atol=1e-5)
    assert not torch.equal(fresh_steps[0], model.lm_head.weight)


def step_of(model: Any, batch: Batch, rows: list[Row]) -> torch.Tensor:
    learner = Learner(model, OptimOptions(lr=1e-2))
    learner.update(batch, rows, Q_MINUS_V(batch), LossOptions(objective="policy_gradient", reducer="trajectory_sum"))
    return model.lm_head.weight.detach()


def test_fresh_replies_come_in_waves_and_by_seed(kit, played, tokenizer) -> None:
    """No more conversations at once than the engine holds; equal generators give equal replies."""
    model, turns = played
    engine = InProcessEngine(copy.deepcopy(model), max_sequences=3, max_length=640)
    signal = TwinSignal(TwinOptions(), real_critic(model, "frozen"), player_of(engine, Sampling(1.0, 4), 3))

    async def ask(seed: int) -> list[list[list[int]]]:
        replies = await signal.reply(turns[:7], 2, np.random.default_rng(seed))
        return [[completion.ids for completion in samples] for samples in replies]

    once, again, other = (asyncio.run(ask(seed)) for seed in (1, 1, 2))
    engine.shutdown()
    assert once == again != other
    assert [len(samples) for samples in once] == [2] * 7
    assert any(first != second for first, second in once)


def test_a_fresh_action_has_no_return(played) -> None:
    _, turns = played
    batch, rows = turns_batch(turns)
    assert [row.ids.tolist() for row in rows] == [t.ids[: t.stop].tolist() for t in turns]
    assert batch.reward_N.tolist() == [0.0] * len(turns)
    again = transitions_of(batch, rows, 1.0)
    assert [t.action.tolist() for t in again] == [t.action.tolist() for t in turns]
    assert [t.logprobs.tolist() for t in again] == [t.logprobs.tolist() for t in turns]
    new = fresh(turns[0], Completion([1, 2], [-0.5, -1.0], "length", [7, 7]))
    assert (new.version, new.stop - new.start, np.isnan(new.to_go)) == (7, 2, True)
    assert new.state.tolist() == turns[0].state.tolist()


@pytest.mark.parametrize(
    ("recipe", "changes", "named"),
    [
        ("archer", ["shaping.potential.weight=1.0"], r"\[shaping.potential\]"),
        ("archer", ["credit.terms.outcome.assigner=rloo"], "credit.terms.outcome.assigner = 'rloo'"),
        (
            "archer",
            ["credit.terms.outcome.assigner=turn_gae", "value.lr=1e-3"],
            "credit.terms.outcome.assigner = 'turn_gae'",
        ),
        ("archer", ["replay.size=10"], r"\[replay\]"),
        ("digiq", ["replay.size=10"], r"\[replay\]"),
    ],
)
def test_what_reads_episodes_is_refused_beside_fresh_replies(recipe, changes, named) -> None:
    """Fresh replies at replayed states have no rewards: beside them such a part would be silently 0, or fail late."""
    if any("terms" in change for change in changes):
        changes = [
            "credit.assigner=", "credit.normalize=", "credit.terms.critic.assigner=q_minus_v", *changes,
        ]  # fmt: skip
    with pytest.raises(ConfigError, match=f"no rewards and no episodes, and {named} reads these: remove it"):
        resolve(recipe, changes)
    if recipe == "archer" and "replay.size=10" in changes:
        resolve(recipe, [*changes, "signals.twin.actor=rollout"])
