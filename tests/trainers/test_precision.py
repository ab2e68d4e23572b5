"""bfloat16: what is computed is rounded, what is kept is not."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from agentgym_trainers.config.sections import LossOptions, OptimOptions
from agentgym_trainers.learner.critic import Critic, ValueOptions
from agentgym_trainers.learner.learner import Learner
from agentgym_trainers.nn import checkpoint
from agentgym_trainers.nn import lora as adapters
from agentgym_trainers.nn.gradient_checkpointing import use_recompute
from agentgym_trainers.nn.lora import LoraOptions
from agentgym_trainers.nn.precision import cast

NO_PEFT = "peft is not installed: pip install 'turngym[train]'"
LOSS = LossOptions(entropy=0.03, kl=0.2, reducer="turn_mean")


class Gradients(Learner):
    """Keeps the gradient of a step instead of taking it."""

    def _step(self, finite: bool = True) -> dict[str, float]:
        groups = self.optimizer.param_groups
        self.gradient = [[p.grad for p in group["params"] if p.grad is not None] for group in groups]
        return {}


def model_of(kit: Any, *, lora: bool) -> Any:
    """Weights as small as trained ones: of `build`'s wide ones, bfloat16 rounds away what matters."""
    model = kit.build("qwen3", initializer_range=0.05)
    if lora:
        pytest.importorskip("peft", reason=NO_PEFT)
        adapters.add_lora(model, LoraOptions(rank=4), seed=0)
        torch.manual_seed(0)
        for name, parameter in model.named_parameters():
            if ".lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.05)
    return model


def direction(gradients: list[torch.Tensor]) -> torch.Tensor:
    assert {g.dtype for g in gradients} == {torch.float32}
    flat = torch.cat([g.flatten() for g in gradients])
    return flat / flat.norm()


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("recompute", [False, True], ids=["", "recompute"])
def test_the_gradient_points_where_that_of_float32_does(kit, lora, recompute) -> None:
    batch, rows = kit.episodes(trajectories=12)
    found: dict[tuple[Any, int], Any] = {}
    dtype: Any
    for dtype, tokens in (("float32", 10**6), ("bfloat16", 10**6), ("bfloat16", 60)):
        value = Critic(kit.build("qwen3", initializer_range=0.05), ValueOptions())
        torch.manual_seed(0)
        torch.nn.init.normal_(value.head.weight, std=0.1)
        model = model_of(kit, lora=lora)
        for part in (model, value.trunk) if recompute else ():
            use_recompute(part)
        learner = Gradients(model, OptimOptions(tokens_per_micro_batch=tokens), value=value, dtype=dtype)
        metrics = learner.update(batch, rows, kit.credit_of(batch), LOSS)
        found[dtype, tokens] = [direction(group) for group in learner.gradient], metrics
    exact, reference = found.pop(("float32", 10**6))
    for rounded, metrics in found.values():
        assert metrics == pytest.approx(reference, rel=0.05, abs=0.02)
        assert metrics != reference
        for ours, theirs in zip(rounded, exact, strict=True):
            assert ours @ theirs > 0.99


def test_what_is_kept_is_float32(kit) -> None:
    model, batch_rows = kit.build("qwen3"), kit.episodes()
    value = Critic(model, ValueOptions())
    learner = Learner(model, OptimOptions(lr=1e-4), value=value, reference=copy.deepcopy(model), dtype="bfloat16")
    batch = learner.annotate(*batch_rows, prox=True)
    # What the two say differs by nothing, though both are rounded.
    assert batch.x["ref_logprob_A"].tolist() == batch.x["prox_logprob_A"].tolist()
    before = copy.deepcopy(model.state_dict())
    for _ in range(3):
        assert learner.update(batch, batch_rows[1], kit.credit_of(batch), LOSS)["optim/skipped"] == 0
    kept = [t for state in learner.optimizer.state.values() for t in state.values() if t.dim()]
    assert {t.dtype for t in (*learner.weights().values(), *kept)} == {torch.float32}
    change = (model.lm_head.weight - before["lm_head.weight"]).abs()
    assert 0 < change.max() < 1e-3  # steps that bfloat16 weights of this size could not take


def test_only_parameters_are_cast(kit) -> None:
    model = cast(kit.build(), "bfloat16")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32


def test_adapters_of_a_rounded_model_are_not(kit) -> None:
    """The weights beneath are kept in bfloat16; what is learned, and what leaves, is float32."""
    pytest.importorskip("peft", reason=NO_PEFT)
    model = cast(kit.build(), "bfloat16")
    adapters.add_lora(model, LoraOptions(rank=4), seed=0)
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    batch, rows = kit.episodes()
    learner = Learner(model, OptimOptions(lr=1e-2), dtype="bfloat16")
    for _ in range(2):
        learner.update(batch, rows, kit.credit_of(batch), LossOptions())
    weights = learner.weights()
    merged = kit.build()
    merged.load_state_dict(weights)
    assert weights["model.layers.0.mlp.up_proj.weight"].dtype == torch.float32
    exact = Learner(merged, OptimOptions()).logprobs(batch, rows)
    assert np.abs(exact - learner.logprobs(batch, rows)).mean() < 0.1
    cold = Learner(cast(kit.build(), "float32"), OptimOptions()).logprobs(batch, rows)
    assert np.abs(exact - cold).mean() > 0.5


def test_a_run_in_bfloat16(kit, warm_oracle, tmp_path: Path) -> None:
    options = [
        "value.warmup=0",
        "model.dtype=bfloat16",
        "model.gradient_checkpointing=true",
        "loss.kl=0.1",
        "optim.lr=1e-3",
    ]
    lines = kit.trained("ppo-turn", warm_oracle, tmp_path / "run", *options)
    for line in lines:
        assert 0 < line["policy/engine_gap"] < 0.3
        assert line["optim/skipped"] == 0
    assert lines[0]["loss/kl"] < 0.01 < lines[2]["loss/kl"]
    last = checkpoint.latest(tmp_path / "run")
    assert last is not None
    assert {t.dtype for t in load_file(last / "model.safetensors").values()} == {torch.float32}
    assert '"dtype": "float32"' in (last / "config.json").read_text()
