"""LoRA: only adapters learn, the model without them is the reference, and what leaves the trainer is merged."""

from __future__ import annotations

import asyncio
import copy
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from agentgym.errors import CheckpointError, ConfigError
from agentgym_trainers.config.sections import LossOptions, OptimOptions
from agentgym_trainers.learner.critic import Critic, ValueOptions
from agentgym_trainers.learner.learner import Learner
from agentgym_trainers.nn import checkpoint, lora
from agentgym_trainers.nn.gradient_checkpointing import use_recompute
from agentgym_trainers.nn.lora import LoraOptions
from agentgym_trainers.recipe import resolve
from agentgym_trainers.run import run

pytest.importorskip("peft", reason="peft is not installed: pip install 'turngym[train]'")
LOSS = LossOptions(entropy=0.03, kl=0.2, reducer="turn_mean")
SMALL = LoraOptions(rank=4, alpha=8.0)


def adapted(kit: Any, name: str = "qwen2-gqa", options: LoraOptions = SMALL, **changes: Any) -> tuple[Any, Any]:
    """(a model with adapters, the same without)"""
    model = kit.build(name, **changes)
    plain = copy.deepcopy(model)
    lora.add_lora(model, options, seed=0)
    return model, plain


def taught(kit: Any, model: Any, steps: int = 3, **parts: Any) -> Learner:
    batch, rows = kit.episodes()
    learner = Learner(model, OptimOptions(lr=1e-2, tokens_per_micro_batch=40), **parts)
    for _ in range(steps):
        learner.update(batch, rows, kit.credit_of(batch), LOSS)
    return learner


@pytest.mark.parametrize("name", ["qwen3", "qwen2-gqa", "llama-gqa"])
@pytest.mark.parametrize("tied", [False, True], ids=["", "tied"])
def test_only_adapters_learn_and_merged_they_say_the_same(kit, name, tied) -> None:
    model, plain = adapted(kit, name, tie_word_embeddings=tied)
    batch, rows = kit.episodes()
    before = copy.deepcopy(model.state_dict())
    learner = taught(kit, model)
    after = model.state_dict()
    assert {n for n in after if not torch.equal(after[n], before[n])} == set(lora.state_of(after))
    assert set(lora.layers(model)) == {
        f"model.layers.{i}.{part}_proj"
        for i in range(2)
        for part in ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down")
    }
    weights = learner.weights()
    assert weights.keys() == plain.state_dict().keys()
    logprob_A = learner.logprobs(batch, rows)
    assert np.abs(logprob_A - learner.logprobs(batch, rows, taught(kit, plain, steps=0).model)).max() > 0.1
    plain.load_state_dict(weights)
    np.testing.assert_allclose(learner.logprobs(batch, rows, plain), logprob_A, atol=1e-5, rtol=0)


def test_the_model_without_its_adapters_is_the_reference(kit) -> None:
    model, plain = adapted(kit)
    batch, rows = kit.episodes()
    base = Learner(plain, OptimOptions(tokens_per_micro_batch=40)).logprobs(batch, rows)
    learner = taught(kit, model, steps=0, reference=model)
    assert learner.logprobs(batch, rows).tolist() == base.tolist()  # at first they change nothing
    for _ in range(2):
        assert learner.annotate(batch, rows).x["ref_logprob_A"].tolist() == base.tolist()
        learner.update(batch, rows, kit.credit_of(batch), LOSS)
    assert np.abs(learner.logprobs(batch, rows) - base).max() > 0.01  # and they are on again


@pytest.mark.parametrize("critic", [False, True], ids=["", "critic"])
def test_the_gradient_does_not_depend_on_micro_batches(kit, critic) -> None:
    """With adapters and layers computed again, in float64: the weights after three steps."""
    found = []
    for tokens in (10**6, 60, 1):
        model = kit.build("qwen3").double()
        value = Critic(model, ValueOptions()).double() if critic else None
        lora.add_lora(model, SMALL, seed=0)
        use_recompute(model)
        batch, rows = kit.episodes()
        learner = Learner(model, OptimOptions(lr=1e-2, tokens_per_micro_batch=tokens), value=value)
        for _ in range(3):
            learner.update(batch, rows, kit.credit_of(batch), LOSS)
        found.append(model.state_dict())
    assert found[0]["model.layers.0.mlp.up_proj.lora_B.default.weight"].abs().max() > 1e-3
    for other in found[1:]:
        for name, tensor in found[0].items():
            torch.testing.assert_close(other[name], tensor, atol=1e-6, rtol=1e-6)


def test_only_layers_that_are_named_have_adapters(kit) -> None:
    model, _ = adapted(kit, options=LoraOptions(rank=2, targets=("q_proj", "v_proj")))
    assert {name.rpartition(".")[2] for name in lora.layers(model)} == {"q_proj", "v_proj"}


@pytest.mark.parametrize(("target", "says"), [("nowhere", "not found"), ("embed_tokens", "is no linear layer")])
def test_what_cannot_have_an_adapter_is_refused(kit, target, says) -> None:
    with pytest.raises(ConfigError, match=f"model.lora.targets: .*{says}"):
        lora.add_lora(kit.build(), LoraOptions(targets=(target,)), seed=0)


def test_an_adapter_on_tied_embeddings_is_refused(kit) -> None:
    """Merged, it would change the embeddings too, in the engine and in checkpoints."""
    options = LoraOptions(targets=("q_proj", "lm_head"))
    with pytest.raises(ConfigError, match=r"has the weights of its embeddings, .*; leave it out"):
        lora.add_lora(kit.build(tie_word_embeddings=True), options, seed=0)
    model, _ = adapted(kit, options=options, tie_word_embeddings=False)
    assert "lm_head" in lora.layers(model)


def test_adapters_of_another_rank_are_refused(kit) -> None:
    model, _ = adapted(kit)
    other, _ = adapted(kit, options=LoraOptions(rank=2))
    with pytest.raises(CheckpointError, match="are not those of"):
        lora.load(model, lora.state_of(other.state_dict()))


def logits_of(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=torch.arange(12)[None], use_cache=False).logits


def test_an_adapter_is_what_peft_reads_and_is_applied_alone(kit, tmp_path) -> None:
    """To a model without adapters: from its files by peft, and in memory."""
    from peft import PeftModel

    model, plain = adapted(kit)
    weights = taught(kit, model).weights()
    adapter, expected = lora.adapter_of(weights), copy.deepcopy(plain)
    assert adapter is not None
    expected.load_state_dict(weights)
    checkpoint.save_adapter(tmp_path / "adapter", adapter)
    files = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert files == {"adapter_config.json", "adapter_model.safetensors"}
    before = logits_of(plain)
    with lora.applied(plain, adapter):
        torch.testing.assert_close(logits_of(plain), logits_of(expected), atol=1e-5, rtol=0)
    assert torch.equal(logits_of(plain), before)
    read = PeftModel.from_pretrained(plain, str(tmp_path / "adapter"))
    torch.testing.assert_close(logits_of(read), logits_of(expected), atol=1e-5, rtol=0)
    assert (logits_of(expected) - before).abs().max() > 0.1


def test_a_strong_adapter_changes_every_layer_as_much(kit) -> None:
    model, _ = adapted(kit)
    weights = lora.merge_lora(model.state_dict(), model)
    assert isinstance(weights, lora.MergedWeights)
    strong = lora.strong(weights, share=0.5)
    for name in lora.layers(model):
        change = strong[f"{name}.weight"] - weights.base[f"{name}.weight"]
        assert change.norm() / weights.base[f"{name}.weight"].norm() == pytest.approx(0.5, rel=1e-4)


def lines(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: x for name, x in line.items() if not name.startswith("time/")} for line in found]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_run_with_adapters_goes_on_to_the_bit(kit, warm_oracle, tmp_path, dtype) -> None:
    """Warm-up, two checkpoints, the second one lost. Each is a whole model that transformers loads."""
    env, model = warm_oracle
    folder = tmp_path / "run"
    config = resolve("ppo-turn", [
        *kit.small, f"model.path={model}", f"env.name={env}", "run.steps=4", "run.checkpoint_every=2",
        "value.warmup=0", "optim.minibatches=1", "rollout.lockstep=true",
        "model.lora.rank=4", f"model.dtype={dtype}", "loss.kl=0.1", "optim.lr=1e-2",
        "sft.demonstrations=16", "sft.max_steps=3", "sft.stop_at_success=", "sft.lr=1e-2",
    ])  # fmt: skip
    asyncio.run(run(config, folder))
    rows, last = lines(folder), folder / "checkpoints" / "step-000004"
    rl = [line for line in rows if line["phase"] == "rl"]
    assert [line["step"] for line in rl] == [1, 2, 3, 4]
    assert rl[0]["loss/kl"] < rl[3]["loss/kl"]
    assert all(line["policy/engine_gap"] < (1e-4 if dtype == "float32" else 0.3) for line in rl)
    weights = checkpoint.load_model(last)[0].state_dict()
    begun = checkpoint.load_model(folder / "checkpoints" / "step-000000")[0].state_dict()
    given = checkpoint.load_model(model)[0].state_dict()
    assert weights.keys() == begun.keys() == given.keys()
    some = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(weights[some], begun[some])
    assert not torch.equal(begun[some], given[some])  # the warm-up's adapters are in it
    plain = AutoModelForCausalLM.from_pretrained(last, dtype=torch.float32)
    assert torch.equal(plain.state_dict()[some], weights[some])
    digest = checkpoint.weights_digest(last)
    state = checkpoint.load_state(last)
    shutil.rmtree(last)
    asyncio.run(run(config, folder, resume=True))
    assert lines(folder) == rows
    assert checkpoint.weights_digest(last) == digest
    torch.testing.assert_close(checkpoint.load_state(last)["adapters"], state["adapters"], rtol=0, atol=0)
    torch.testing.assert_close(checkpoint.load_state(last)["optimizer"], state["optimizer"], rtol=0, atol=0)
