"""`agentgym train --plan`: its arithmetic against bytes that were really allocated, its verdicts, and the setups."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import colors
import numpy as np
import pytest
import torch
from torch import nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentgym import registry
from agentgym.cli.main import main
from agentgym_credit.batch import Batch, Credit
from agentgym_trainers.config.sections import Config, LossOptions
from agentgym_trainers.data.sequences import Row
from agentgym_trainers.learner.build import build_learner
from agentgym_trainers.learner.optimizer import hidden_matrices
from agentgym_trainers.nn.precision import autocast
from agentgym_trainers.planning import plan as plan_module
from agentgym_trainers.planning.memory import build_on_meta, kept_bytes, modules_of, update_bytes
from agentgym_trainers.planning.plan import GB, plan_run
from agentgym_trainers.planning.shapes import SHAPES, shape_of
from agentgym_trainers.recipe import NamedEnv, recipe_names, resolve, setup_names

ROOT = Path(__file__).resolve().parents[2]
LARGE = [name for name in setup_names() if name.endswith("gpu")]
SMALL = Qwen3Config(
    vocab_size=500, hidden_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
    intermediate_size=160, tie_word_embeddings=True, bos_token_id=None, eos_token_id=0, pad_token_id=0,
)  # fmt: skip
WORDLE = registry.get_spec("wordle")


def on_wordle(recipe: str, setup: str, *overrides: str) -> Config:
    return resolve(recipe, overrides, setup=setup, env=NamedEnv("wordle", WORDLE))


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    """Status, output and errors of `agentgym train gigpo --env wordle --plan ...`."""
    status = 0
    try:
        main(["train", "gigpo", "--env", "wordle", "--plan", *arguments])
    except SystemExit as end:
        status = int(end.code or 0)
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def size_of(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in {id(t): t for t in tensors}.values())


def test_plan_of_4b_with_adapters_fits_80_gb(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    built = []

    def build(*arguments: Any) -> Any:
        built.append(build_on_meta(*arguments))
        return built[-1]

    monkeypatch.setattr(plan_module, "build_on_meta", build)
    status, out, err = run(capsys, "--setup", "qwen3-4b-lora-1gpu", "--gpu-memory", "80")
    assert (status, err) == (0, "")
    assert "4.02 billion" in out
    assert "of 80 GB: fits" in out
    assert not list(tmp_path.iterdir())
    (modules,) = built
    for model in (modules.learner.model, modules.engine):
        assert {str(tensor.device) for tensor in model.parameters()} == {"meta"}
    learned = [p.numel() for p in modules.learner.model.parameters() if p.requires_grad]
    assert sum(learned) == 33_030_144  # rank x (in + out) of seven matrices in 36 layers
    assert modules.engine is not modules.learner.model


@pytest.mark.parametrize("name", recipe_names())
def test_modules_of_every_recipe_are_built_on_meta(name):
    config = resolve(name)
    modules = build_on_meta(config, SMALL, registry.get_spec(config.env.name))
    held = [part for signal in modules.signals.values() for part in modules_of(signal, [modules.learner.model])]
    parts = [modules.learner.model, modules.learner.value, modules.learner.reference, *held]
    devices = {str(p.device) for part in parts if part is not None for p in part.parameters()}
    assert devices == {"meta"}
    if "prm" in config.signals or "twin" in config.signals or "progress" in config.signals:
        assert kept_bytes(p for part in held for p in part.parameters()).moments


def test_a_plan_that_does_not_fit_names_one_setting(capsys):
    checkpointed = "model.gradient_checkpointing=true"
    options = ["--setup", "qwen3-1.7b-1gpu", "--gpu-memory", "80", "model.gradient_checkpointing=false"]
    status, out, err = run(capsys, *options)
    assert status == 1
    assert "does not fit" in out
    assert f"GB; set {checkpointed}\n" in err


def test_no_room_for_an_episode_is_a_problem(tmp_path):
    SMALL.save_pretrained(tmp_path)
    overrides = [f"model.path={tmp_path}", "engine.gpu_memory_utilization=0.01"]
    config = on_wordle("gigpo", "qwen3-0.6b-1gpu", *overrides)
    plan = plan_run(config, WORDLE, 80 * GB)
    assert plan.problems == ("vLLM has room for 0 tokens, and an episode may have 4,096",)
    assert plan.change == "set engine.gpu_memory_utilization=0.95"


def test_the_plan_of_a_folder_needs_its_config_alone(tmp_path):
    SMALL.save_pretrained(tmp_path)
    plan = plan_run(resolve("ppo-turn", [f"model.path={tmp_path}"]), registry.get_spec("keydoor"), 2 * GB)
    names = [part.name for part in plan.gpus[0].parts]
    assert names == ["weights", "gradients", "AdamW", "critic", "keys and values", "activations", "logits", "reserve"]
    assert plan.parameters == sum(p.numel() for p in Qwen3ForCausalLM(SMALL).parameters())


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
def test_a_vision_tower_is_kept_like_the_rest(tmp_path, name):
    model, _ = colors.build(name)
    model.config.save_pretrained(tmp_path)
    config = resolve("gigpo", [f"model.path={tmp_path}", "model.lora.rank=4"])
    plan = plan_run(config, registry.get_spec("keydoor"), 2 * GB)
    learner = build_learner(config, model, model)
    planned = {part.name: part.amount for part in plan.gpus[0].parts}
    assert planned["weights"] == size_of(model.parameters())
    assert planned["gradients"] == size_of(trained(learner))
    assert any("images" in note for note in plan.notes)


def test_a_tiny_model_has_no_plan(capsys):
    status, _, err = run(capsys)
    assert status == 2
    assert "this run makes a tiny one: name one with --setup or model.path=FOLDER" in err


@pytest.mark.parametrize("option", ["optim.kind=adamw", "optim.kind=muon", "model.lora.rank=4"])
def test_kept_bytes_are_those_after_one_step(option):
    overrides = ["model.dtype=bfloat16", "loss.kl=0.1", "optim.minibatches=1", option]
    config = resolve("gigpo" if "lora" in option else "ppo-turn", overrides)
    model = Qwen3ForCausalLM(SMALL).eval()
    learner = build_learner(config, model, model)
    gradients = []
    step = learner._step

    def measured(finite: bool = True) -> dict[str, float]:
        gradients.append(size_of(p.grad for p in trained(learner) if p.grad is not None))
        return step(finite)

    learner._step = measured
    learner.update(*an_update(), LossOptions())
    moments = size_of(t for state in learner.optimizer.state.values() for t in state.values())
    real = (size_of(p for m in models(learner) for p in m.parameters()), gradients[0], moments)
    planned = build_on_meta(config, SMALL, registry.get_spec("keydoor")).learner
    muon = hidden_matrices(planned.model) if "muon" in option else []
    kept = kept_bytes((p for m in models(planned) for p in m.parameters()), muon)
    for ours, theirs in zip((kept.weights, kept.gradients, kept.moments), real, strict=True):
        assert math.isclose(ours, theirs, rel_tol=0.05), (ours, theirs)


def models(learner: Any) -> list[nn.Module]:
    return [m for m in (learner.model, learner.value, learner.reference) if m is not None]


def trained(learner: Any) -> list[nn.Parameter]:
    return [p for group in learner.optimizer.param_groups for p in group["params"]]


def an_update(count: int = 4, length: int = 64, printed: int = 16) -> tuple[Batch, list[Row], Credit]:
    rng, a = np.random.default_rng(0), count * printed
    at, index = np.arange(length - printed, length), np.arange(a).reshape(count, printed)
    rows = [Row(rng.integers(1, 500, length), at, index[m], m, False) for m in range(count)]
    batch = Batch(
        group_M=np.zeros(count, int), traj_N=np.arange(count), reward_N=np.zeros(count),
        turn_A=np.repeat(np.arange(count), printed), truncated_M=np.zeros(count, bool), anchor_N=np.full(count, -1),
        logprob_A=np.full(a, -6.0, np.float32),
    )  # fmt: skip
    target = {"value_N": np.ones(count)}
    return batch, rows, Credit(rng.normal(size=a), target)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [False, True])
def test_activations_are_what_a_real_forward_saves(dtype, lora):
    config = resolve("gigpo", [f"model.dtype={dtype}", *(["model.lora.rank=4"] if lora else [])])
    model = Qwen3ForCausalLM(SMALL).eval()
    learner = build_learner(config, model, model)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    inputs = {"input_ids": torch.ones(1, 512, dtype=torch.int64), "position_ids": torch.arange(512)[None]}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), autocast(model, dtype):
        hidden = learner.model.base_model(**inputs, use_cache=False).last_hidden_state
    real = sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
    assert hidden.requires_grad
    head = 2 * 500 * 96 if dtype == "bfloat16" and not lora else 0  # of the output layer, which did not run
    assert math.isclose(update_bytes(config, SMALL, 512).activations - head, real, rel_tol=0.05)


def test_an_update_s_bytes_are_those_an_h200_allocated():
    rows = json.loads((ROOT / "benchmarks/results/gpu/learner.json").read_text())["rows"]
    measured = {row["what"]: row["value"] for row in rows}
    config = resolve("gigpo", ["model.dtype=bfloat16"])
    for size in ("0.6B", "1.7B", "4B"):
        shape = shape_of(f"Qwen/Qwen3-{size}")
        kept = kept_bytes(build_on_meta(config, shape, WORDLE).learner.model.parameters()).total
        update = update_bytes(config, shape, 8192)
        planned = kept + update.activations + update.logits / 4  # a quarter of the tokens was sampled
        assert math.isclose(planned / 1e9, measured[f"learner, {size}: GB at most"], rel_tol=0.02)


def is_meant_for_large_models(recipe: str) -> bool:
    """Methods that learn no model beside the policy, from their own episodes of environments for one player."""
    config = resolve(recipe)
    learned = config.value is not None or config.signals.keys() - {"uncertainty"}
    repeatable = config.rollout.lockstep  # to the bit, as no vLLM is
    return not learned and config.source.kind == "online" and not repeatable


@pytest.mark.parametrize("setup", LARGE)
def test_every_setup_resolves_with_methods_without_a_critic(setup):
    recipes = [name for name in recipe_names() if is_meant_for_large_models(name)]
    assert {"gigpo", "grpo", "hgpo", "rloo", "dapo", "gspo"} <= {*recipes}
    for recipe in recipes:
        config = on_wordle(recipe, setup)
        assert config.model.path in SHAPES
        assert config.optim.tokens_per_micro_batch >= config.rollout.max_length


@pytest.mark.parametrize("setup", ["qwen3-0.6b-1gpu", "qwen3-1.7b-1gpu", "qwen3-8b-8gpu"])
def test_setups_of_all_weights_fit_80_gb(setup):
    plan = plan_run(on_wordle("gigpo", setup), WORDLE, 80 * GB)
    assert plan.problems == ()
    assert all(gpu.total > 0.8 * gpu.size for gpu in plan.gpus)  # and leaves little idle
