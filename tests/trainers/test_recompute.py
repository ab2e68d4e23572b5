"""Activation checkpointing: the same gradient, from layers that ran twice."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from agentgym.errors import CheckpointError
from agentgym_trainers.config.sections import LossOptions, OptimOptions
from agentgym_trainers.engines.inprocess import InProcessEngine
from agentgym_trainers.learner.critic import Critic, ValueOptions
from agentgym_trainers.learner.learner import Learner
from agentgym_trainers.nn.gradient_checkpointing import use_recompute

LOSS = LossOptions(entropy=0.03, kl=0.2, reducer="turn_mean")


class Gradients(Learner):
    """Keeps the gradient of a step instead of taking it."""

    def _step(self, finite: bool = True) -> dict[str, float]:
        groups = self.optimizer.param_groups
        self.gradient = [p.grad.clone() for group in groups for p in group["params"] if p.grad is not None]
        self.optimizer.zero_grad(set_to_none=True)
        return {}


def forwards_of(layer: Any) -> list[int]:
    """A list that grows with every forward of `layer` that begins: the second one stops when it has what it needs."""
    calls: list[int] = []
    layer.register_forward_pre_hook(lambda *ignored: calls.append(1))
    return calls


def learned(
    kit: Any, model: Any, *, critic: bool = False, tokens: int = 10**6
) -> tuple[list[torch.Tensor], dict[str, float]]:
    batch, rows = kit.episodes()
    value = Critic(model, ValueOptions()).double() if critic else None
    learner = Gradients(model, OptimOptions(tokens_per_micro_batch=tokens), value=value)
    metrics = learner.update(batch, rows, kit.credit_of(batch), LOSS)
    return learner.gradient, metrics


@pytest.mark.parametrize("name", ["qwen3", "qwen2-gqa", "llama-gqa"])
@pytest.mark.parametrize("critic", [False, True], ids=["", "critic"])
@pytest.mark.parametrize("tokens", [10**6, 40], ids=["one micro-batch", "several"])
def test_the_gradient_is_the_same(kit, name, critic, tokens) -> None:
    model = kit.build(name, attention_dropout=0.5).double()  # dropout that must stay off
    plain, expected = learned(kit, copy.deepcopy(model), critic=critic, tokens=tokens)
    use_recompute(model)
    ran = forwards_of(model.model.layers[1])
    again, metrics = learned(kit, model, critic=critic, tokens=tokens)
    assert metrics == expected
    assert len(ran) % 2 == 0  # each forward once more, in the backward pass
    assert len(again) == len(plain)
    assert max(g.abs().max().item() for g in plain) > 1e-4
    for ours, theirs in zip(again, plain, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=1e-10)


def test_layers_run_twice_only_where_there_is_a_gradient(kit) -> None:
    model = kit.build()
    use_recompute(model)
    ran = forwards_of(model.model.layers[0])
    batch, rows = kit.episodes()
    learner = Learner(model, OptimOptions())
    learner.logprobs(batch, rows)
    assert len(ran) == 1
    learner.update(batch, rows, kit.credit_of(batch), LOSS)
    assert len(ran) == 3


def test_the_engine_samples_the_same(kit, chatty, tokenizer) -> None:
    model = chatty()
    before = kit.play(model, tokenizer, lockstep=True)
    use_recompute(model)
    engine = InProcessEngine(model, max_sequences=6, max_length=640, lockstep=True)
    after = kit.play(model, tokenizer, engine=engine)
    engine.shutdown()
    assert [t.branches[0].ids.tolist() for t in after] == [t.branches[0].ids.tolist() for t in before]


def test_a_model_without_such_layers_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"set model\.gradient_checkpointing = false"):
        use_recompute(torch.nn.Linear(2, 2))
