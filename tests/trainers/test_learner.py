"""The learner: its gradient is that of the loss, however rows are cut, ordered, packed and laid out."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from agentgym_credit.batch import Batch, Credit
from agentgym_trainers.config.sections import LossOptions, OptimOptions
from agentgym_trainers.data.sequences import Row
from agentgym_trainers.learner.critic import Critic, ValueOptions
from agentgym_trainers.learner.learner import Learner
from agentgym_trainers.losses import kl, ppo_clip, token_weights

TEMPERATURE = 1.3
LOSS = LossOptions(entropy=0.03, kl=0.2, reducer="turn_mean", dual_clip=3.0)
CRITIC = pytest.mark.parametrize("critic", [False, True], ids=["", "critic"])


def a_turn_a_row(batch: Batch, rows: list[Row]) -> list[Row]:
    """The same tokens, every turn a row of its own with what was before it as unsampled context."""
    cut = []
    for row in rows:
        turns = batch.turn_A[row.action_index]
        for turn in np.unique(turns):
            mine = turns == turn
            stop = int(row.action_at[mine][-1]) + 1
            cut.append(Row(row.ids[:stop], row.action_at[mine], row.action_index[mine], row.trajectory, False))
        if row.bootstrap:
            cut.append(Row(row.ids, row.action_at[:0], row.action_index[:0], row.trajectory, True))
    return cut


def alike(rows: list[Row]) -> list[Row]:
    """The same rows, now beginning alike as far as chance has it: over a prompt and a reply, mostly."""
    longest = max(rows, key=lambda row: len(row.ids)).ids
    shared = np.random.default_rng(4).integers(0, max(len(row.ids) for row in rows), len(rows))
    return [
        replace(row, ids=np.concatenate([longest[:n], row.ids[n:]])) if n < len(row.ids) else row
        for row, n in zip(rows, shared.tolist(), strict=True)
    ]


def value_head(model: Any, critic: bool, seed: int = 3) -> Critic | None:
    if not critic:
        return None
    head = Critic(model, ValueOptions()).to(model.dtype)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        torch.nn.init.normal_(head.head.weight)
    return head


class Gradients(Learner):
    """Keeps the gradient of a step instead of taking it."""

    def _step(self, finite: bool = True) -> dict[str, float]:
        parts = [self.model, *([self.value] if self.value is not None else [])]
        named = {f"{i}.{name}": p for i, part in enumerate(parts) for name, p in part.named_parameters()}
        self.gradient = {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in named.items()}
        self.optimizer.zero_grad(set_to_none=True)
        return {}


def gradient(
    model: Any, rows: list[Row], batch: Batch, credit: Credit, *, critic: bool = False, tokens: int = 10**6,
    loss: LossOptions = LOSS,
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:  # fmt: skip
    optim = OptimOptions(tokens_per_micro_batch=tokens)
    learner = Gradients(model, optim, temperature=TEMPERATURE, value=value_head(model, critic))
    metrics = learner.update(batch, rows, credit, loss)
    return learner.gradient, metrics


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], tolerance: float) -> None:
    assert ours.keys() == theirs.keys()
    assert max(g.abs().max().item() for g in theirs.values()) > 1e-4
    for name, g in theirs.items():
        torch.testing.assert_close(ours[name], g, atol=tolerance, rtol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


@CRITIC
@pytest.mark.parametrize("column", ["value_A", "value_N"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-8), (torch.float32, 1e-4)], ids=["f64", "f32"])
def test_gradient_does_not_depend_on_the_layout(kit, critic, column, dtype, tolerance) -> None:
    """Micro-batches, order of rows, one row a turn instead of one a trajectory; packed as one by one."""
    model = kit.build("qwen2-gqa")
    model = kit.exact(model) if dtype == torch.float64 else model
    batch, rows = kit.episodes()
    rows = alike(rows)
    credit = kit.credit_of(batch, column)
    reference, metrics = gradient(model, rows, batch, credit, critic=critic)
    turns = a_turn_a_row(batch, rows)
    layouts = {
        "two micro-batches": (rows, 60),
        "one row each": (rows, 1),
        "reversed": (rows[::-1], 40),
        "a turn a row": (turns, 10**6),
        "a turn a row, shuffled": ([turns[i] for i in np.random.default_rng(0).permutation(len(turns))], 50),
    }
    for layout, tokens in layouts.values():
        ours, other = gradient(model, layout, batch, credit, critic=critic, tokens=tokens)
        assert_same(ours, reference, tolerance)
        assert other == pytest.approx(metrics, abs=tolerance)


def test_gradient_is_that_of_the_loss_written_out(kit) -> None:
    """With transformers' own forward, a sequence at a time: PPO clip, entropy bonus and KL."""
    model = kit.build("llama-gqa").double()
    batch, rows = kit.episodes()
    credit = kit.credit_of(batch)
    ours, metrics = gradient(model, rows, batch, credit)
    plain = copy.deepcopy(model)
    plain.set_attn_implementation("sdpa")
    weights = torch.from_numpy(token_weights(batch, "turn_mean"))
    total = 0.0
    sums = {"entropy": 0.0, "kl": 0.0, "policy": 0.0}
    for row in rows:
        logits = plain(input_ids=torch.from_numpy(row.ids)[None], use_cache=False).logits[0]
        distribution = torch.log_softmax(logits / TEMPERATURE, dim=-1)[row.action_at - 1]
        logprob = distribution[torch.arange(len(row.action_at)), row.ids[row.action_at]]
        spread = -(distribution.exp() * distribution).sum(dim=-1)
        index = torch.from_numpy(row.action_index)
        old = torch.from_numpy(batch.logprob_A).double()[index]
        advantage = torch.from_numpy(credit.advantage_A)[index]
        policy, _ = ppo_clip(logprob, old, advantage, clip_low=0.2, clip_high=0.28, dual_clip=3.0)
        penalty = kl(logprob, torch.from_numpy(batch.x["ref_logprob_A"])[index], "k3+")
        total = total + (weights[index] * (policy - 0.03 * spread + 0.2 * penalty)).sum()
        sums["entropy"] += spread.sum().item() / len(batch.turn_A)
        sums["kl"] += (weights[index] * penalty).sum().item()
        sums["policy"] += (weights[index] * policy).sum().item()
    total.backward()
    assert_same(ours, {f"0.{name}": p.grad for name, p in plain.named_parameters()}, 1e-8)
    assert metrics["policy/entropy"] == pytest.approx(sums["entropy"])
    assert metrics["loss/kl"] == pytest.approx(sums["kl"])
    assert metrics["loss/policy"] == pytest.approx(sums["policy"])


def test_gradient_is_zero_where_nothing_was_sampled(kit) -> None:
    """Tokens after a position are only its target: what follows the last sampled token changes nothing, and the
    output layer is read at positions before sampled tokens alone."""
    model = kit.build().double()
    batch, rows = kit.episodes()
    credit = kit.credit_of(batch)
    reference, _ = gradient(model, rows, batch, credit)
    changed = []
    for row in rows:
        ids, last = row.ids.copy(), int(row.action_at[-1])
        ids[last + 1 :] = (ids[last + 1 :] + 7) % 64
        changed.append(replace(row, ids=ids))
    for name, g in gradient(model, changed, batch, credit)[0].items():
        if "embed" not in name:  # of other tokens, but all zero too
            torch.testing.assert_close(g, reference[name], atol=1e-12, rtol=0)

    outputs: list[torch.Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda module, inputs, out: outputs.append(out))
    learner = Gradients(model, OptimOptions(), temperature=TEMPERATURE)
    learner.update(batch, rows, credit, LOSS)
    hook.remove()
    assert sum(out.shape[1] for out in outputs) == len(batch.turn_A)


def test_an_observation_that_nobody_will_use_has_no_gradient(kit) -> None:
    model = kit.build().double()
    batch, rows = kit.episodes()
    rows = [replace(row, ids=np.append(row.ids, 63)) for row in rows]
    rows = [replace(row, ids=np.where(np.arange(len(row.ids)) < len(row.ids) - 1, row.ids % 63, 63)) for row in rows]
    found, _ = gradient(model, rows, batch, kit.credit_of(batch))
    assert found["0.model.embed_tokens.weight"][63].abs().max() == 0
    assert found["0.model.embed_tokens.weight"][:63].abs().max() > 0


@pytest.mark.parametrize("poison", ["advantage", "weights", "value target"])
def test_a_gradient_that_is_not_finite_steps_nothing(kit, poison) -> None:
    model = kit.build()
    batch, rows = kit.episodes()
    credit = kit.credit_of(batch)
    learner = Learner(model, OptimOptions(lr=0.1), value=value_head(model, "own"))
    learner.update(batch, rows, credit, LOSS)  # so that the optimizer has a state
    before = copy.deepcopy([learner.model.state_dict(), learner.value.state_dict(), learner.optimizer.state_dict()])
    good = copy.deepcopy(model.lm_head.weight.detach())
    if poison == "advantage":
        credit.advantage_A[3] = np.nan
    elif poison == "value target":
        credit.targets["value_A"][3] = np.inf
    else:
        with torch.no_grad():
            model.lm_head.weight[0, 0] = float("nan")
    metrics = learner.update(batch, rows, credit, LOSS)
    assert metrics["optim/skipped"] == 1
    with torch.no_grad():
        model.lm_head.weight.copy_(good)
    after = [learner.model.state_dict(), learner.value.state_dict(), learner.optimizer.state_dict()]
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    credit = kit.credit_of(batch)
    assert learner.update(batch, rows, credit, LOSS)["optim/skipped"] == 0
    assert not torch.equal(model.lm_head.weight, before[0]["lm_head.weight"])


class StepsAnyway(Learner):
    """What the usual loop does: the optimizer is stepped whatever the gradient."""

    def _step(self, finite: bool = True) -> dict[str, float]:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return {}


@pytest.mark.parametrize(("kind", "moves"), [(Learner, False), (StepsAnyway, True)])
def test_a_batch_that_says_nothing_moves_nothing(kit, kind, moves) -> None:
    """Every attempt failed, all advantages are 0: the momentum of batches gone by must not go on."""
    model = kit.build()
    batch, rows = kit.episodes()
    learner = kind(model, OptimOptions(lr=1e-3))
    learner.update(batch, rows, Credit(np.ones(len(batch.turn_A))), LossOptions())
    before = copy.deepcopy([model.state_dict(), learner.optimizer.state_dict()])
    learner.update(batch, rows, Credit(np.zeros(len(batch.turn_A))), LossOptions())
    assert torch.equal(model.lm_head.weight, before[0]["lm_head.weight"]) is not moves
    if not moves:
        torch.testing.assert_close(model.state_dict(), before[0], rtol=0, atol=0)
        torch.testing.assert_close(learner.optimizer.state_dict(), before[1], rtol=0, atol=0)


def test_the_rate_rises_over_the_policys_own_steps(kit) -> None:
    """Those of a critic that learns alone do not count, and a resumed run goes on with the count."""
    model = kit.build()
    batch, rows = kit.episodes()
    credit = kit.credit_of(batch)
    rates: list[float] = []

    def made() -> Learner:
        learner = Learner(model, OptimOptions(lr=0.4, warmup=4), value=value_head(model, "own"))
        learner.optimizer.register_step_pre_hook(lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"]))
        return learner

    first = made()
    first.fit_value(batch, rows, credit)
    del rates[:]
    for _ in range(2):
        first.update(batch, rows, credit, LOSS)
    again = made()
    again.load_state_dict(copy.deepcopy(first.state_dict()))
    for _ in range(3):
        again.update(batch, rows, credit, LOSS)
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
    assert again.optimizer.param_groups[0]["lr"] == 0.4


def test_gradients_are_clipped_each_by_itself(kit) -> None:
    model = kit.build()
    batch, rows = kit.episodes()
    credit = kit.credit_of(batch)
    credit.targets["value_A"][:] = 1e4
    learner = Learner(model, OptimOptions(max_grad_norm=1e-3), value=value_head(model, "own"))
    norms = {}
    learner.optimizer.register_step_pre_hook(
        lambda optimizer, args, kwargs: norms.update(
            {i: torch.nn.utils.get_total_norm([p.grad for p in g["params"] if p.grad is not None]).item()
             for i, g in enumerate(optimizer.param_groups)}
        )
    )  # fmt: skip
    metrics = learner.update(batch, rows, credit, LOSS)
    assert metrics["optim/value_grad_norm"] > 1e3
    assert norms == {0: pytest.approx(1e-3, rel=1e-3), 1: pytest.approx(1e-3, rel=1e-3)}


def test_annotate_reads_reference_and_logprobs_at_temperature(kit) -> None:
    model, reference = kit.build(), kit.build(seed=1)
    batch, rows = kit.episodes()
    learner = Learner(model, OptimOptions(tokens_per_micro_batch=40), temperature=TEMPERATURE, reference=reference)
    annotated = learner.annotate(replace(batch, x={}), a_turn_a_row(batch, rows))
    for row in rows:
        for which, found in ((reference, annotated.x["ref_logprob_A"]), (model, learner.logprobs(batch, rows))):
            plain = kit.plain_logprobs(which, row.ids.tolist(), TEMPERATURE)
            expected = plain[torch.from_numpy(row.action_at - 1), torch.from_numpy(row.ids[row.action_at])]
            np.testing.assert_allclose(found[row.action_index], expected.numpy(), atol=1e-4)
    assert all(p.grad is None for p in reference.parameters())


def test_imitation_is_the_weighted_cross_entropy(kit) -> None:
    model = kit.build().double()
    batch, rows = kit.episodes()
    weights = token_weights(batch, "token_mean")
    learner = Gradients(model, OptimOptions(tokens_per_micro_batch=50))
    loss = learner.imitate(rows, weights)["loss/cross_entropy"]
    expected = -(weights * learner.logprobs(batch, rows)).sum()
    assert loss == pytest.approx(expected)
    other = Gradients(model, OptimOptions())
    other.imitate(rows[::-1], weights)
    assert_same(learner.gradient, other.gradient, 1e-8)


def test_updates_make_advantaged_tokens_likelier(kit) -> None:
    model = kit.build()
    batch, rows = kit.episodes()
    learner = Learner(model, OptimOptions(lr=1e-3))
    batch = replace(batch, logprob_A=learner.logprobs(batch, rows).astype(np.float32))
    up = np.where(np.random.default_rng(0).random(len(batch.turn_A)) < 0.5, 1.0, -1.0)
    metrics = learner.update(batch, rows, Credit(up), LossOptions())
    assert metrics["policy/logprob_gap"] < 1e-4
    change = learner.logprobs(batch, rows) - batch.logprob_A
    assert change[up > 0].mean() > 0.01
    assert change[up < 0].mean() < -0.01
