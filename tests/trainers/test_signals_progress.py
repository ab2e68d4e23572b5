"""The progress head: sums that are fitted to outcomes, and what they leave open."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from agentgym import registry
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym_environments.diagnostics.oracle.env import ADVANTAGE
from agentgym_trainers.data.token_segments import segment_sum
from agentgym_trainers.nn import checkpoint, tiny
from agentgym_trainers.signals.base import SignalContext
from agentgym_trainers.signals.fitting import SignalOptimizer, outcomes
from agentgym_trainers.signals.progress import ProgressHead, ProgressOptions, progress_loss
from agentgym_trainers.testing import ORACLE_VALUE, oracle_batch, oracle_trajectories, toy_batch

DIVIDE = pytest.mark.parametrize("divide", [False, True])
TRUNKS = pytest.mark.parametrize("trunk", ["own", "frozen"])


class Keeps(SignalOptimizer):
    """Keeps the gradient of a step instead of taking it."""

    def step(self) -> float:
        self.gradient = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self.parameters]
        self.adamw.zero_grad(set_to_none=True)
        return 1.0


def fit(signal: Any, context: SignalContext) -> dict[str, float]:
    return asyncio.run(signal.fit(context))


def contributions_N(signal: Any, context: SignalContext) -> np.ndarray:
    return asyncio.run(signal.annotate(context))["progress_c_N"]


@pytest.fixture(scope="module")
def context(kit, tokenizer) -> SignalContext:
    """Attempts of unequal lengths; some succeed."""
    context = kit.signal_context(tokenizer, env="keydoor", groups=4, size=2, noise=0.4)
    assert len(set(np.bincount(context.batch.traj_N))) > 1
    assert 0 < outcomes(context.trajectories, "success").sum() < 8
    return context


def spread(head: ProgressHead) -> ProgressHead:
    """With a weight that tells states apart."""
    with torch.no_grad():
        head.head.weight.copy_(torch.linspace(-0.2, 0.2, head.head.weight.numel())[None])
    return head


def test_every_turn_of_an_attempt_has_the_same_gradient() -> None:
    """2 (Σ c − R), the last and decisive turn's as much as any: the released weights T − t − 1 give that one 0."""
    batch = toy_batch([[0, 0, 1]])
    c = torch.tensor([0.3, 0.2, 0.7], dtype=torch.float64, requires_grad=True)
    total = segment_sum(c, batch.traj_N, 1)
    assert total.item() == pytest.approx(1.2)
    progress_loss(total, torch.ones(1)).backward()
    assert c.grad.tolist() == pytest.approx([0.4, 0.4, 0.4])
    released = torch.tensor([0.3, 0.2, 0.5]) * torch.tensor([2, 1, 0])
    assert released.tolist() == pytest.approx([0.6, 0.2, 0.0])

    several = toy_batch([[1], [0, 0], [0, 1]])
    c = torch.tensor([0.5, 0.25, 0.5, 0.25, 0.5], dtype=torch.float64, requires_grad=True)
    progress_loss(segment_sum(c, several.traj_N, 3), torch.tensor([1.0, 0.0, 1.0])).backward()
    assert c.grad.tolist() == pytest.approx([-1 / 3, 0.5, 0.5, -1 / 6, -1 / 6])


def test_differences_of_values_sum_to_the_outcome() -> None:
    """c_t = V(s_{t+1}) − V(s_t), at the end R − V: they telescope to R − V(s_1), so with V(s_1) added at the first turn
    their loss is 0."""
    batch = oracle_batch(oracle_trajectories())
    value_N = ORACLE_VALUE[batch.anchor_N]
    after_N = np.where(batch.last_N, batch.return_M[batch.traj_N], np.roll(value_N, -1))
    c_N = torch.from_numpy(after_N - value_N)
    total_M = segment_sum(c_N, batch.traj_N, 10)
    assert total_M.tolist() == pytest.approx((batch.return_M - 0.1875).tolist())
    assert progress_loss(total_M + 0.1875, torch.from_numpy(batch.return_M)).item() == pytest.approx(0, abs=1e-12)


def test_the_loss_does_not_see_how_a_sum_is_spread() -> None:
    batch = toy_batch([[0, 0, 1], [0, 0]])
    c = torch.tensor([0.3, 0.2, 0.7, 0.1, -0.1])
    other = c + torch.tensor([0.5, -0.7, 0.2, 3.0, -3.0])
    outcome = torch.tensor([1.0, 0.0])
    first, second = (progress_loss(segment_sum(x, batch.traj_N, 2), outcome).item() for x in (c, other))
    assert first == pytest.approx(second)


@TRUNKS
@DIVIDE
def test_contributions_are_read_at_the_last_token_of_each_turn(kit, chatty, context, trunk, divide) -> None:
    model = chatty()
    head = ProgressHead(ProgressOptions(trunk=trunk, divide=divide), kit.parts(model, tokens=700))
    start = contributions_N(head, context)
    bias = head.head.bias.item()
    found = contributions_N(spread(head), context)
    n = 0
    for trajectory in context.trajectories[:3]:
        turns = len(trajectory.turns)
        hidden = kit.plain_hidden(model, trajectory.branches[0].ids.tolist())
        for turn in trajectory.turns:
            assert turn.span.branch == 0
            expected = (hidden[turn.span.stop - 1] @ head.head.weight[0].detach()).item() + bias
            assert found[n] == pytest.approx(expected / (turns if divide else 1), abs=1e-4)
            n += 1
    assert np.std(start) == 0 or divide


@DIVIDE
@pytest.mark.parametrize("target", ["return", "success"])
def test_untrained_progress_sums_to_the_mean_outcome(kit, chatty, context, divide, target) -> None:
    head = ProgressHead(ProgressOptions(divide=divide, target=target), kit.parts(chatty()))
    total_M = np.bincount(context.batch.traj_N, contributions_N(head, context))
    mean = outcomes(context.trajectories, target).mean()
    assert total_M.mean() == pytest.approx(mean, abs=1e-6)
    if divide:
        assert total_M == pytest.approx([mean] * 8, abs=1e-6)
    bias = head.head.bias.item()
    contributions_N(head, replace(context, trajectories=context.trajectories[:1] * 8))
    assert head.head.bias.item() == bias  # set once


@TRUNKS
@DIVIDE
def test_every_fit_moves_the_head_and_the_loss_falls(kit, chatty, context, trunk, divide) -> None:
    model = chatty()
    before = copy.deepcopy(model.state_dict())
    options = ProgressOptions(trunk=trunk, divide=divide, lr=3e-4 if trunk == "own" else 1e-3)
    head = ProgressHead(options, kit.parts(model, tokens=900))
    history = []
    for step in range(6):
        start = copy.deepcopy([head.head.state_dict(), head.trunk.state_dict()])
        history.append(fit(head, context))
        assert all(not torch.equal(p, start[0][name]) for name, p in head.head.named_parameters())
        trunk_moved = [not torch.equal(p, start[1][name]) for name, p in head.trunk.named_parameters()]
        # The head's weight is 0 at first, so nothing reaches the trunk before the second step.
        assert all(trunk_moved) if trunk == "own" and step else not any(trunk_moved)
    assert all(metrics["grad_norm"] > 0 for metrics in history)
    losses = [metrics["loss"] for metrics in history]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.97 * losses[0]
    first, last = history[0]["correlation"], history[-1]["correlation"]
    assert np.isnan(first) if divide else last > first  # of a constant
    assert history[-1]["error"] == pytest.approx(losses[-1], rel=1e-4)
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())


def test_skill_is_what_was_explained_before_it_was_learned_from(kit, chatty, context) -> None:
    """Of the batches so far, the newest counts most; and the next batch's credit is weighted by it, not this one's."""
    head = ProgressHead(ProgressOptions(lr=1e-2, epochs=30, target="success"), kit.parts(chatty()))
    won_M = outcomes(context.trajectories, "success")
    assert 0 < won_M.mean() < 1
    assert fit(head, context)["skill"] == 0  # of a constant that is these attempts' mean
    missed, varied = 0.0, 0.0
    for _ in range(2):
        total_M = np.bincount(context.batch.traj_N, contributions_N(head, context))
        missed, varied = 0.9 * missed + ((total_M - won_M) ** 2).sum(), 0.9 * varied + won_M.var(ddof=1) * 8
        assert asyncio.run(head.annotate(context))["progress_skill_M"].tolist() == [head.skill] * 8
        skill = fit(head, context)["skill"]
        assert skill == pytest.approx(1 - missed / varied, abs=1e-4)
        assert skill > 0.2
    assert asyncio.run(head.annotate(context))["progress_skill_M"].tolist() == [skill] * 8


@DIVIDE
def test_two_passes_over_any_shards_are_one_backward(kit, chatty, context, divide) -> None:
    model, options = chatty(), ProgressOptions(divide=divide)
    outcome_M = torch.from_numpy(outcomes(context.trajectories, "return")).float()

    def head_of(tokens: int) -> ProgressHead:
        head = spread(ProgressHead(options, kit.parts(model, tokens=tokens)))
        head.started = True
        return head

    full = head_of(10**6)
    index, c = full.contributions(list(context.rows), context.batch)
    loss = progress_loss(segment_sum(c, context.batch.traj_N[index], 8), outcome_M)
    loss.backward()
    one_pass = [p.grad for p in full.optimizer.parameters]
    assert max(g.abs().max() for g in one_pass) > 1e-3
    shuffled = [context.rows[i] for i in np.random.default_rng(0).permutation(len(context.rows))]
    for rows, tokens in ((context.rows, 10**6), (context.rows, 1), (shuffled, 900)):
        head = head_of(tokens)
        head.optimizer = Keeps(head.optimizer.parameters, options)
        metrics = fit(head, replace(context, rows=rows))
        assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-5)
        torch.testing.assert_close(head.optimizer.gradient, one_pass, atol=1e-5, rtol=1e-4)


def test_an_attempt_over_several_rows_is_one_sum(kit, chatty, context) -> None:
    """A row a turn, as with a history window, each with its own end."""
    cut = []
    for row in context.rows:
        turns = context.batch.turn_A[row.action_index]
        for turn in np.unique(turns):
            mine = turns == turn
            stop = int(row.action_at[mine][-1]) + 1
            cut.append(
                replace(row, ids=row.ids[:stop], action_at=row.action_at[mine], action_index=row.action_index[mine])
            )
    head = spread(ProgressHead(ProgressOptions(), kit.parts(chatty())))
    a_turn_a_row = replace(context, rows=cut)
    np.testing.assert_allclose(contributions_N(head, a_turn_a_row), contributions_N(head, context), atol=1e-5)
    assert fit(copy.deepcopy(head), a_turn_a_row) == pytest.approx(fit(head, context), abs=1e-4)


def test_state_goes_on_where_it_was(kit, chatty, context) -> None:
    model, options = chatty(), ProgressOptions(lr=1e-3, epochs=2)
    head, again = (ProgressHead(options, kit.parts(model)) for _ in range(2))
    fit(head, context)
    again.load_state_dict(copy.deepcopy(head.state_dict()))
    other = replace(context, trajectories=context.trajectories[::-1])
    assert fit(again, other) == fit(head, other)
    np.testing.assert_array_equal(contributions_N(head, context), contributions_N(again, context))
    nothing = replace(context, batch=context.batch.select(np.zeros(0, int))[0], rows=[], trajectories=[])
    assert fit(head, nothing) == {}


def test_it_trains_with_its_recipe(kit, warm_oracle, tmp_path) -> None:
    steps = kit.trained("spa-rl", warm_oracle, tmp_path)
    assert len(steps) == 3
    for step in steps:
        assert step["optim/skipped"] == 0
        assert step["progress/grad_norm"] > 0
        assert step["progress/loss"] == pytest.approx(step["progress/error"], rel=1e-3)
    assert np.isfinite(steps[2]["progress/correlation"])
    assert abs(steps[0]["progress/bias"]) < 0.1  # the mean attempt sums to the mean outcome from the start
    assert checkpoint.load_state(tmp_path / "checkpoints" / "step-000003")["signals"]["progress"]["started"]


@pytest.mark.learning
def test_contributions_find_the_decisions_of_the_oracle(kit) -> None:
    """From the outcomes of forty attempts: in attempts it never saw, what a turn contributes goes with its advantage.
    The released data script writes one number to all turns of an attempt, which tells none of them apart."""
    spec = registry.get_spec("oracle")
    words = [f"you are in the {room} room: gold or blue" for room in ("amber", "birch", "cedar", "dark")]
    corpus = [PromptFormat().instructions(spec), "you are at the fork: left or right", *words, *spec.actions] * 3
    tokenizer = tiny.make_tokenizer([*corpus, "user\n", "assistant\n"], 400, 1024)
    training, fresh = (kit.signal_context(tokenizer, groups=10, size=size) for size in (4, 6))
    head = ProgressHead(
        ProgressOptions(lr=3e-3, epochs=30), kit.parts(kit.build(vocabulary=len(tokenizer), initializer_range=0.1))
    )
    fit(head, training)
    c_N, traj_N = contributions_N(head, fresh), fresh.batch.traj_N
    decisions = [(t.state_key, t.action) for trajectory in fresh.trajectories for t in trajectory.turns]
    truth_N = np.array([ADVANTAGE[room] * (1 if action in ("left", "gold") else -1) for room, action in decisions])

    def mean(room: str, action: str) -> float:
        return c_N[[decision == (room, action) for decision in decisions]].mean()

    assert mean("amber", "gold") > mean("amber", "blue") + 0.1
    assert mean("cedar", "gold") > mean("cedar", "blue") + 0.1
    assert abs(mean("dark", "gold")) + abs(mean("dark", "blue")) < mean("cedar", "gold")

    def within(column_N: np.ndarray) -> np.ndarray:
        return column_N - (np.bincount(traj_N, column_N) / np.bincount(traj_N))[traj_N]

    assert np.corrcoef(within(c_N), within(truth_N))[0, 1] > 0.6
    constant_N = outcomes(fresh.trajectories, "return")[traj_N]
    assert np.abs(within(constant_N)).max() == 0


def test_it_stays_as_it_is_after_the_steps_it_learns_in(kit, chatty, context) -> None:
    head = ProgressHead(ProgressOptions(lr=0.01, fit_steps=2), kit.parts(chatty()))
    assert fit(head, replace(context, step=1))["grad_norm"] > 0
    before = contributions_N(head, context)
    assert fit(head, replace(context, step=2)) == {}
    assert np.array_equal(contributions_N(head, context), before)
