"""The implicit process reward model: both of its losses, their exact gradient over rows, and what must move."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agentgym_trainers.nn import checkpoint
from agentgym_trainers.nn.attention import use_packed_attention
from agentgym_trainers.nn.forward import micro_batches, pack, token_logprobs
from agentgym_trainers.signals.base import SignalContext
from agentgym_trainers.signals.fitting import SignalOptimizer
from agentgym_trainers.signals.implicit_prm import (
    ImplicitPRM,
    PRMOptions,
    outcome_loss,
    pair_loss,
    success_gain,
    success_pairs,
)
from agentgym_trainers.testing import t4, toy_batch

KINDS = pytest.mark.parametrize("loss", ["outcome", "pair"])
AGGREGATES = pytest.mark.parametrize("aggregate", ["sum", "mean"])
TEMPERATURE = 1.3


class Keeps(SignalOptimizer):
    """Keeps the gradient of a step instead of taking it."""

    def step(self) -> float:
        self.gradient = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self.parameters]
        self.adamw.zero_grad(set_to_none=True)
        return 1.0


def fit(signal: Any, context: SignalContext) -> dict[str, float]:
    return asyncio.run(signal.fit(context))


def annotate(signal: Any, context: SignalContext) -> SignalContext:
    return replace(context, batch=context.batch.with_columns(**asyncio.run(signal.annotate(context))))


def with_outcomes(context: SignalContext, success_M: Any) -> SignalContext:
    """The same episodes, had they come out like this."""
    changed = []
    for trajectory, success in zip(context.trajectories, success_M, strict=True):
        last = replace(trajectory.turns[-1], info={"success": bool(success)}, reward=float(success))
        changed.append(replace(trajectory, turns=(*trajectory.turns[:-1], last)))
    reward_N = np.where(context.batch.last_N, np.asarray(success_M, float)[context.batch.traj_N], 0.0)
    return replace(context, trajectories=changed, batch=replace(context.batch, reward_N=reward_N))


def success_of(context: SignalContext) -> np.ndarray:
    return np.array([float(t.success) for t in context.trajectories])


def sums_M(context: SignalContext) -> np.ndarray:
    return np.bincount(context.batch.traj_A, context.batch.x["prm_A"])


@pytest.fixture(scope="module")
def context(kit, chatty, tokenizer) -> SignalContext:
    """Three groups of three with both outcomes in two of them."""
    context = kit.signal_context(tokenizer, groups=3, size=3, model=chatty())
    return with_outcomes(context, [1, 0, 0, 1, 1, 0, 0, 0, 0])


def test_prime_toy() -> None:
    batch = toy_batch([[1], [0]], tokens=2)
    q = torch.tensor([0.2, 0.4, -0.1, -0.3], dtype=torch.float64)
    loss, metrics = outcome_loss(q, batch, np.array([1.0, 0.0]), beta=0.05)
    assert loss.item() == pytest.approx((np.log1p(np.exp(-0.03)) + np.log1p(np.exp(-0.02))) / 2)
    assert metrics["accuracy"] == 1
    assert metrics["gap"] == pytest.approx(0.05)
    mean, _ = outcome_loss(q, batch, np.array([1.0, 0.0]), beta=0.05, aggregate="mean")
    assert mean.item() == pytest.approx((np.log1p(np.exp(-0.015)) + np.log1p(np.exp(-0.01))) / 2)
    wrong, metrics = outcome_loss(q, batch, np.array([0.0, 1.0]), beta=0.05)
    assert metrics["accuracy"] == 0
    assert wrong > loss


@AGGREGATES
def test_a_model_that_is_its_reference_says_one_half(aggregate) -> None:
    batch, zero = t4(), torch.zeros(11, dtype=torch.float64)
    success_M = np.array([1.0, 0, 1, 0])
    loss, metrics = outcome_loss(zero, batch, success_M, beta=0.05, aggregate=aggregate)
    assert loss.item() == pytest.approx(0.693147, abs=1e-6)
    assert (metrics["accuracy"], metrics["brier"], metrics["gap"]) == (0.5, 0.25, 0.0)
    loss, metrics = pair_loss(zero, batch, success_M, beta=0.05, aggregate=aggregate)
    assert loss.item() == pytest.approx(0.693147, abs=1e-6)
    assert metrics == {"pairs": 4.0, "accuracy": 0.5, "gap": 0.0}


def test_pair_toys() -> None:
    """One pair with log-ratios 1 and -2; then a tie and a wrong order."""
    batch = toy_batch([[0, 1], [0]], tokens=[1, 2, 1])
    q = torch.tensor([0.5, 0.25, 0.25, -2.0], dtype=torch.float64)
    loss, _ = pair_loss(q, batch, np.array([1.0, 0.0]), beta=0.1)
    assert loss.item() == pytest.approx(0.554355, abs=1e-6)
    mean, _ = pair_loss(q, batch, np.array([1.0, 0.0]), beta=0.1, aggregate="mean")
    assert mean.item() == pytest.approx(np.log1p(np.exp(-0.1 * (0.5 + 2.0))))
    three = toy_batch([[1], [0], [0]])
    _, metrics = pair_loss(torch.tensor([0.3, 0.3, 0.5]), three, np.array([1.0, 0, 0]), beta=1.0)
    assert (metrics["pairs"], metrics["accuracy"]) == (2.0, 0.25)
    assert metrics["gap"] == pytest.approx(-0.1)


def test_pairs_are_of_one_group_and_of_both_outcomes() -> None:
    better, worse = success_pairs(np.array([0, 0, 0, 1, 1, 2]), np.array([1, 0, 0, 1, 1, 0.0]))
    assert list(zip(better.tolist(), worse.tolist(), strict=True)) == [(0, 1), (0, 2)]


def test_istar_released_detaches_its_scores() -> None:
    """The toy on which the released loss was run: a reward model with one parameter, a scale of log-ratios whose means
    over steps differ by .3 between the two trajectories."""
    batch = toy_batch([[0, 1], [0, 0]])
    ratio = torch.tensor([0.5, 0.2, 0.1, 0.0], dtype=torch.float64)
    success_M = np.array([1.0, 0.0])

    def backward(detach: bool) -> tuple[float, Tensor | None]:
        scale = torch.ones((), dtype=torch.float64, requires_grad=True)
        q = scale * ratio
        q = q.detach().requires_grad_(True) if detach else q
        loss, _ = pair_loss(q, batch, success_M, beta=0.05, aggregate="mean")
        loss.backward()
        return loss.item(), scale.grad

    assert backward(detach=True) == (pytest.approx(0.685675, abs=1e-6), None)
    loss, grad = backward(detach=False)
    assert loss == pytest.approx(0.685675, abs=1e-6)
    assert grad == pytest.approx(-0.007444, abs=1e-6)


@KINDS
def test_every_fit_moves_the_model_and_the_loss_falls(kit, chatty, context, loss) -> None:
    model = chatty()
    prm = ImplicitPRM(PRMOptions(loss=loss, lr=3e-4), kit.parts(model, tokens=700))
    before = copy.deepcopy(model.state_dict())
    history = []
    for _ in range(6):
        start = copy.deepcopy(prm.model.state_dict())
        history.append(fit(prm, context))
        still = [name for name, p in prm.model.named_parameters() if torch.equal(p, start[name])]
        assert not still
    assert all(np.isfinite(metrics["grad_norm"]) and metrics["grad_norm"] > 0 for metrics in history)
    losses = [metrics["loss"] for metrics in history]
    assert losses[0] == pytest.approx(np.log(2), abs=1e-4)
    assert losses == sorted(losses, reverse=True)
    assert history[-1]["accuracy"] > history[0]["accuracy"] == 0.5
    assert history[-1]["gap"] > 0.01
    assert all(torch.equal(p, before[name]) for name, p in model.state_dict().items())  # a model of its own
    if loss == "outcome":
        assert all(torch.equal(p, before[name]) for name, p in prm.reference.state_dict().items())


def test_the_released_istar_update_moves_nothing(kit, chatty, context) -> None:
    """The same rows, with the scores of each micro-batch detached and made a leaf before the loss."""
    prm = ImplicitPRM(PRMOptions(loss="pair"), kit.parts(chatty(), tokens=700))
    q_A = torch.zeros(len(context.batch.turn_A))
    for part in micro_batches(context.rows, 700):
        index, logprob = prm._forward(part)
        q_A[torch.from_numpy(index)] = logprob.detach() - torch.from_numpy(context.batch.logprob_A)[index]
    loss, _ = pair_loss(q_A.requires_grad_(True), context.batch, success_of(context), beta=0.05)
    loss.backward()
    assert q_A.grad.abs().max() > 0
    assert all(p.grad is None for p in prm.model.parameters())


@KINDS
@AGGREGATES
def test_two_passes_over_any_shards_are_one_backward(kit, chatty, context, loss, aggregate) -> None:
    model = chatty()
    options = PRMOptions(loss=loss, aggregate=aggregate, beta=0.5)
    success_M, beta = success_of(context), options.beta
    loss_of = outcome_loss if loss == "outcome" else pair_loss

    def sharded(rows: list, tokens: int) -> tuple[list[Tensor], float]:
        prm = ImplicitPRM(options, kit.parts(model, tokens=tokens, temperature=TEMPERATURE))
        perturb(prm.model)
        prm.optimizer = Keeps(prm.model.parameters(), options)
        metrics = fit(prm, replace(context, rows=rows))
        return prm.optimizer.gradient, metrics["loss"]

    plain = copy.deepcopy(model)
    use_packed_attention(plain)
    packed = pack(context.rows, plain)
    with torch.no_grad():
        reference = token_logprobs(plain, packed, TEMPERATURE).logprob
    if loss == "pair":
        reference = torch.from_numpy(context.batch.logprob_A)[packed.index]
    perturb(plain)
    q_A = torch.zeros(len(packed.index)).index_add(
        0, torch.from_numpy(packed.index), token_logprobs(plain, packed, TEMPERATURE).logprob - reference
    )
    expected, _ = loss_of(q_A, context.batch, success_M, beta=beta, aggregate=aggregate)
    expected.backward()
    one_pass = [p.grad for p in plain.parameters()]
    assert max(g.abs().max() for g in one_pass) > 1e-3
    shuffled = [context.rows[i] for i in np.random.default_rng(0).permutation(len(context.rows))]
    for rows, tokens in ((context.rows, 10**6), (context.rows, 1), (shuffled, 500)):
        gradient, loss_value = sharded(rows, tokens)
        assert loss_value == pytest.approx(expected.item(), abs=1e-5)
        torch.testing.assert_close(gradient, one_pass, atol=1e-5, rtol=1e-4)


def perturb(model: Any) -> None:
    """So that it is not its reference."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.02 * torch.randn(p.shape, generator=generator)


def test_pairs_within_shards_are_not_all_pairs(kit, chatty, context) -> None:
    """Released iStar forms pairs inside each shard: its gradient depends on how rows are dealt out."""
    prm = ImplicitPRM(PRMOptions(loss="pair"), kit.parts(chatty()))

    def gradient(shards: list[list[int]]) -> Tensor:
        prm.optimizer.adamw.zero_grad()
        for kept in shards:
            batch, _, kept_A = context.batch.select(np.array(kept))
            index, logprob = prm._forward([context.rows[m] for m in kept])
            q_A = torch.zeros(len(batch.turn_A)).index_add(0, torch.from_numpy(np.searchsorted(kept_A, index)), logprob)
            loss, _ = pair_loss(
                q_A - torch.from_numpy(context.batch.logprob_A[kept_A]), batch, success_of(context)[kept], beta=0.05
            )
            if loss.requires_grad:
                loss.backward()
        return torch.cat([p.grad.flatten() for p in prm.model.parameters() if p.grad is not None])

    full = gradient([list(range(9))])
    assert torch.allclose(gradient([list(range(9))]), full)
    assert (gradient([[0, 1, 3, 5], [2, 4, 6, 7, 8]]) - full).norm() > 0.1 * full.norm()


@KINDS
def test_rewards_telescope(kit, chatty, context, loss) -> None:
    """Σ_j q_j of a trajectory is the log-ratio of its whole text under φ and the reference."""
    model = chatty()
    prm = ImplicitPRM(PRMOptions(loss=loss), kit.parts(model, temperature=TEMPERATURE))
    if loss == "outcome":
        assert np.abs(annotate(prm, context).batch.x["prm_A"]).max() == 0
    perturb(prm.model)
    found = sums_M(annotate(prm, context))
    for row in context.rows:
        at = (torch.from_numpy(row.action_at - 1), torch.from_numpy(row.ids[row.action_at]))
        total = kit.plain_logprobs(prm.model, row.ids.tolist(), TEMPERATURE)[at].sum().item()
        reference = kit.plain_logprobs(model, row.ids.tolist(), TEMPERATURE)[at].sum().item()
        if loss == "pair":
            reference = context.batch.logprob_A[row.action_index].sum()
        assert found[row.trajectory] == pytest.approx(total - reference, abs=1e-3)


def test_a_difference_is_of_probabilities(kit, chatty, context) -> None:
    """p_φ − p_ref of every token; the logit of success stays that of the log-ratios."""
    model = chatty()
    ratios, differences = (
        ImplicitPRM(PRMOptions(reward=reward), kit.parts(model, temperature=TEMPERATURE))
        for reward in ("log_ratio", "difference")
    )
    for prm in (ratios, differences):
        perturb(prm.model)
    found, by_ratio = (annotate(prm, context).batch.x for prm in (differences, ratios))
    np.testing.assert_allclose(found["prm_logit_M"], by_ratio["prm_logit_M"])
    for row in context.rows:
        at = (torch.from_numpy(row.action_at - 1), torch.from_numpy(row.ids[row.action_at]))
        ours, reference = (
            kit.plain_logprobs(one, row.ids.tolist(), TEMPERATURE)[at].exp() for one in (differences.model, model)
        )
        np.testing.assert_allclose(found["prm_A"][row.action_index], (ours - reference).detach(), atol=1e-5)
    assert np.ptp(found["prm_A"]) > 1e-2


def test_the_rolling_reference_is_the_policy_before_the_update(kit, chatty, context) -> None:
    prm = ImplicitPRM(PRMOptions(loss="pair"), kit.parts(chatty()))
    assert np.abs(annotate(prm, context).batch.x["prm_A"]).max() < 1e-4  # φ is still the policy that acted
    prox = context.batch.logprob_A.astype(float) - 0.25
    corrected = replace(context, batch=context.batch.with_columns(prox_logprob_A=prox))
    np.testing.assert_allclose(annotate(prm, corrected).batch.x["prm_A"], 0.25, atol=1e-4)


@pytest.mark.parametrize("success", [1.0, 0.0])
def test_one_step_of_cross_entropy_raises_the_score_of_a_success(kit, chatty, context, success) -> None:
    alone = replace(context, rows=context.rows[:1], trajectories=context.trajectories[:1])
    alone = with_outcomes(replace(alone, batch=context.batch.select(np.array([0]))[0]), [success])
    prm = ImplicitPRM(PRMOptions(lr=1e-4), kit.parts(chatty()))
    fit(prm, alone)
    (score,) = sums_M(annotate(prm, alone))
    assert score > 0.01 if success else score < -0.01


@KINDS
def test_rewards_are_of_the_model_before_it_saw_the_outcomes(kit, chatty, context, loss) -> None:
    prm = ImplicitPRM(PRMOptions(loss=loss, lr=1e-3), kit.parts(chatty()))
    first = annotate(prm, context)
    metrics = fit(prm, first)
    assert np.abs(first.batch.x["prm_A"]).max() < 1e-4
    bare = ImplicitPRM(PRMOptions(loss=loss, lr=1e-3), kit.parts(chatty()))
    assert fit(bare, context) == pytest.approx(metrics, nan_ok=True)  # the kept reference is the reference
    second = annotate(prm, first)
    won = success_of(context) > 0.5
    assert sums_M(second)[won].mean() > sums_M(second)[~won].mean() + 0.1


def test_a_batch_without_a_pair_changes_nothing(kit, chatty, context) -> None:
    prm = ImplicitPRM(PRMOptions(loss="pair", lr=0.1, anchor=1.0), kit.parts(chatty()))
    before = copy.deepcopy(prm.model.state_dict())
    for outcome in (0, 1):
        metrics = fit(prm, with_outcomes(context, [outcome] * 9))
        assert (metrics["pairs"], metrics["grad_norm"]) == (0, 0)
        assert np.isnan(metrics["loss"])
    assert all(torch.equal(p, before[name]) for name, p in prm.model.state_dict().items())
    nothing = replace(context, batch=context.batch.select(np.zeros(0, int))[0], rows=[], trajectories=[])
    assert fit(prm, nothing) == {}


@KINDS
def test_state_goes_on_where_it_was(kit, chatty, context, loss) -> None:
    model, options = chatty(), PRMOptions(loss=loss, lr=1e-3)
    prm, again = (ImplicitPRM(options, kit.parts(model)) for _ in range(2))
    fit(prm, context)
    again.load_state_dict(copy.deepcopy(prm.state_dict()))
    assert fit(again, context) == fit(prm, context)
    ours, theirs = (annotate(signal, context).batch.x["prm_A"] for signal in (prm, again))
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("loss", ["outcome", "pair"])
def test_an_anchor_keeps_what_succeeded_likely(kit, chatty, context, loss) -> None:
    """One success among nine: without the anchor all that was sampled becomes unlikely."""
    context = with_outcomes(context, [0, 0, 0, 1, 0, 0, 0, 0, 0])

    def after(anchor: float) -> dict[str, float]:
        prm = ImplicitPRM(PRMOptions(loss=loss, lr=1e-3, anchor=anchor), kit.parts(chatty()))
        return [fit(prm, context) for _ in range(8)][-1]

    without, with_it = after(0.0), after(1.0)
    assert with_it["success_gain"] > max(without["success_gain"], 0) + 0.01
    assert with_it["gap"] > 0


def test_the_anchor_is_a_mean_over_tokens_of_successes() -> None:
    batch, q = toy_batch([[1], [0], [0, 1]], tokens=[2, 1, 1, 3]), torch.arange(7, dtype=torch.float64)
    assert success_gain(q, batch, np.array([1.0, 0, 1])).item() == pytest.approx((0 + 1 + 3 + 4 + 5 + 6) / 6)
    assert success_gain(q, batch, np.zeros(3)).item() == 0


@pytest.mark.parametrize("recipe", ["prime", "istar"])
def test_it_trains_with_its_recipe(kit, warm_oracle, tmp_path, recipe) -> None:
    """The model that rewards moves in every step, away from the policy too; its state is in the checkpoint."""
    steps = kit.trained(recipe, warm_oracle, tmp_path)
    assert len(steps) == 3
    for step in steps:
        assert step["optim/skipped"] == 0
        assert step["prm/grad_norm"] > 0
        assert step["prm/loss"] is not None
        assert 0 <= step["prm/accuracy"] <= 1
    assert steps[0]["prm/loss"] == pytest.approx(np.log(2), abs=1e-4)
    assert steps[0]["prm/accuracy"] <= 0.5  # ties, of a model that is its reference
    assert steps[2]["prm/gap"] != 0
    state = checkpoint.load_state(tmp_path / "checkpoints" / "step-000003")["signals"]["prm"]["model"]
    first, _ = checkpoint.load_model(tmp_path / "checkpoints" / "step-000000")
    policy, _ = checkpoint.load_model(tmp_path / "checkpoints" / "step-000003")
    for other in (first, policy):
        assert not any(torch.equal(p, state[name]) for name, p in other.named_parameters())
