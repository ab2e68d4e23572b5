"""Every objective through the learner: its gradient in any layout, that it learns, and that corrections are applied."""

from __future__ import annotations

import asyncio
import copy
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from agentgym import registry
from agentgym.errors import ConfigError
from agentgym.session import LocalSession
from agentgym_credit.batch import Batch, Credit
from agentgym_trainers.build import build
from agentgym_trainers.config.sections import Config, LossOptions, OptimOptions
from agentgym_trainers.data.sequences import Row
from agentgym_trainers.learner.learner import Learner
from agentgym_trainers.losses import OBJECTIVES, token_weights
from agentgym_trainers.losses.entropy_band import EntropyBandOptions, entropy_band
from agentgym_trainers.losses.importance import correct
from agentgym_trainers.monitoring.metrics import MetricsLog
from agentgym_trainers.nn import checkpoint
from agentgym_trainers.nn.attention import use_packed_attention
from agentgym_trainers.nn.forward import pack, token_logprobs
from agentgym_trainers.recipe import resolve, to_toml
from agentgym_trainers.train import Trainer
from agentgym_trainers.validate import validate_config

NAMES = list(OBJECTIVES)


class Gradients(Learner):
    """Keeps the gradient of a step instead of taking it."""

    def _step(self, finite: bool = True) -> dict[str, float]:
        self.gradient = {name: p.grad.clone() for name, p in self.model.named_parameters() if p.grad is not None}
        self.optimizer.zero_grad(set_to_none=True)
        return {}


def episodes(kit, model: Any) -> tuple[Batch, list[Row]]:
    """Two groups of three, with every column; the old policy and the reference are near this one."""
    batch, rows = kit.episodes(trajectories=6)
    rng = np.random.default_rng(2)
    now_A = Learner(model, OptimOptions()).logprobs(batch, rows)
    old_A, ref_A = now_A + rng.normal(0, 0.1, (2, len(now_A)))
    first_N = np.append(True, np.diff(batch.traj_N) != 0)
    batch = replace(batch, group_M=np.arange(6) // 3, logprob_A=old_A.astype(np.float32)).with_columns(
        ref_logprob_A=ref_A,
        value_N=rng.normal(size=len(first_N)),
        bootstrap_M=rng.normal(size=6),
        branched_N=first_N.astype(float),
        success_M=np.array([1.0, 0, 0, 1, 1, 0]),
    )
    return batch, rows


def one_pass(model: Any, rows: list[Row], batch: Batch, advantage_A: np.ndarray, name: str) -> dict[str, Tensor]:
    """Autograd through all rows at once, the objective's own function on it."""
    model = copy.deepcopy(model)
    use_packed_attention(model)
    packed = pack(rows, model)
    found = token_logprobs(model, packed).logprob
    logprob = torch.zeros_like(found).index_copy(0, torch.from_numpy(packed.index), found)
    old, advantage, weights = (
        torch.from_numpy(np.asarray(x, np.float64))
        for x in (batch.logprob_A, advantage_A, token_weights(batch, "turn_mean"))
    )
    objective = OBJECTIVES[name]
    if objective.unit == "token":
        loss = (weights * objective.function(logprob, old, advantage)[0]).sum()
    else:
        loss = objective.function(logprob, old, batch, advantage, weights)[0]
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", NAMES)
def test_the_learners_gradient_equals_autograd_in_one_pass(kit, name) -> None:
    model = kit.build("qwen2-gqa").double()
    batch, rows = episodes(kit, model)
    credit = kit.credit_of(batch)
    expected = one_pass(model, rows, batch, credit.advantage_A, name)
    assert max(g.abs().max().item() for g in expected.values()) > 1e-4
    for budget, order in ((10**6, rows), (40, rows[::-1]), (1, rows)):
        learner = Gradients(model, OptimOptions(tokens_per_micro_batch=budget))
        metrics = learner.update(batch, order, credit, LossOptions(objective=name, reducer="turn_mean"))
        assert np.isfinite(list(metrics.values())).all()
        for parameter, g in expected.items():
            torch.testing.assert_close(learner.gradient[parameter], g, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_every_objective_learns_in_every_step(kit, name) -> None:
    """The loss falls; where weights that rise with the ratio are constants of it, good tokens become likelier."""
    model = kit.build()
    batch, rows = episodes(kit, model)
    credit = kit.credit_of(batch)
    learner = Learner(model, OptimOptions(lr=2e-4))
    options = {"gspo": {"clip_low": 0.2, "clip_high": 0.2}}.get(name, {})
    losses, good = [], np.maximum(credit.advantage_A, 0.0)
    for _ in range(4):
        before = good @ learner.logprobs(batch, rows)
        metrics = learner.update(batch, rows, credit, LossOptions(objective=name, **options))
        assert metrics["optim/grad_norm"] > 1e-4
        assert metrics["optim/skipped"] == 0
        losses.append(-before if name in ("cispo", "a_lol") else metrics["loss/policy"])
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > losses[-1]


@pytest.mark.parametrize("name", ["ppo_clip", "cispo", "ratio_clip", "gspo", "a_lol", "clip_cov", "oreo"])
def test_a_corrector_s_weight_reaches_the_gradient(kit, name) -> None:
    """AReaL's released default leaves it out. Weights of 2 double the gradient, of 0 remove a trajectory's."""
    model = kit.build("qwen2-gqa").double()
    batch, rows = episodes(kit, model)
    credit = kit.credit_of(batch)
    found = {}
    for what, weight_A in (
        ("none", None),
        ("twice", np.full(len(batch.turn_A), 2.0)),
        ("first out", np.where(batch.traj_A == 0, 0.0, 1.0)),
    ):
        learner = Gradients(model, OptimOptions())
        learner.update(batch, rows, replace(credit, weight_A=weight_A), LossOptions(objective=name))
        found[what] = learner.gradient["lm_head.weight"]
    torch.testing.assert_close(found["twice"], 2 * found["none"], atol=1e-6, rtol=1e-5)
    assert not torch.allclose(found["first out"], found["none"], rtol=1e-2)
    without = replace(credit, advantage_A=np.where(batch.traj_A == 0, 0.0, credit.advantage_A))
    if name not in ("clip_cov", "oreo"):  # the former's covariances are of all tokens, the latter has no advantages
        learner = Gradients(model, OptimOptions())
        learner.update(batch, rows, without, LossOptions(objective=name))
        torch.testing.assert_close(found["first out"], learner.gradient["lm_head.weight"], atol=1e-6, rtol=1e-5)


def test_decoupled_ppo_is_reinforce_with_behavior_ratio(kit) -> None:
    """At the old weights the gradient is Σ w · π_prox / π_behavior · −A ∇ℓ."""
    model = kit.build("qwen2-gqa").double()
    batch, rows = episodes(kit, model)
    credit = kit.credit_of(batch)
    behavior = batch.logprob_A.astype(np.float64)
    learner = Gradients(model, OptimOptions())
    batch = learner.annotate(batch, rows, prox=True)
    prox = batch.x["prox_logprob_A"]
    weight_A, _ = correct(prox, behavior, batch, kind="tis", cap=100.0)
    metrics = learner.update(batch, rows, replace(credit, weight_A=weight_A, corrected=True), LossOptions())
    plain = Gradients(model, OptimOptions())
    advantage_A = credit.advantage_A * np.exp(prox - behavior)
    plain.update(batch, rows, Credit(advantage_A), LossOptions(objective="policy_gradient"))
    assert abs(weight_A - 1).max() > 0.1
    for name, g in plain.gradient.items():
        torch.testing.assert_close(learner.gradient[name], g, atol=1e-6, rtol=1e-5)
    # How far engine and learner are apart is of what the engine said, corrected or not.
    assert metrics["policy/logprob_gap"] == pytest.approx(abs(prox - behavior).max(), rel=1e-5)


def test_a_masked_token_is_no_correction_of_the_others(kit) -> None:
    """Without [correct] the ratio is to what sampled, though the present policy's log-probabilities are there too."""
    model = kit.build("qwen2-gqa").double()
    batch, rows = episodes(kit, model)
    credit, learner = kit.credit_of(batch), Gradients(model, OptimOptions())
    found = []
    for more in ({}, {"weight_A": np.ones(len(batch.turn_A))}):
        far = batch.with_columns(prox_logprob_A=batch.logprob_A - 1.0)
        learner.update(far, rows, replace(credit, **more), LossOptions())
        found.append(learner.gradient)
    for name, g in found[0].items():
        torch.testing.assert_close(found[1][name], g)


def test_the_entropy_band_in_the_learner(kit) -> None:
    """With a history far below, entropy falls; without one only the bonus acts; micro-batches add up."""
    model = kit.build("qwen2-gqa").double()
    batch, rows = episodes(kit, model)
    nothing = Credit(np.zeros(len(batch.turn_A)))
    band = EntropyBandOptions(coefficient=1.0)
    gradients = {}
    for history, budget in ((None, 10**6), (0.3, 10**6), (0.3, 1)):
        learner = Gradients(model, OptimOptions(tokens_per_micro_batch=budget))
        if history is not None:
            learner.end_step(LossOptions(band=band), {"policy/entropy_trajectory": history})
        metrics = learner.update(batch, rows, nothing, LossOptions(band=band))
        gradients[history, budget] = learner.gradient["lm_head.weight"]
    packed = pack(rows, model)
    spread = token_logprobs(model, packed).entropy.detach()
    ordered = torch.zeros_like(spread).index_copy(0, torch.from_numpy(packed.index), spread)
    weights = torch.from_numpy(token_weights(batch, "token_mean"))
    assert metrics["loss/band"] == pytest.approx((weights * entropy_band(ordered, 0.3, band)).sum().item(), abs=1e-6)
    per_trajectory = torch.from_numpy(token_weights(batch, "trajectory_mean"))
    assert metrics["policy/entropy_trajectory"] == pytest.approx((per_trajectory * ordered).sum().item(), abs=1e-6)
    torch.testing.assert_close(gradients[0.3, 1], gradients[0.3, 10**6], atol=1e-6, rtol=1e-5)
    assert (ordered > 0.36).all()  # every token is above: −H + 2 (H − 1.2 · .3) has minus the bonus's gradient
    torch.testing.assert_close(gradients[0.3, 1], -gradients[None, 10**6], atol=1e-6, rtol=1e-5)


# ---- from a recipe ------------------------------------------------------------------------------------------------

TABLES: dict[str, Any] = {
    "run": {"steps": 3, "checkpoint_every": 1, "trajectories_every": 3},
    "env": {"name": "oracle", "serve": False, "max_turns": 3},
    "rollout": {"groups": 2, "group_size": 2, "max_new_tokens": 4, "max_length": 640, "concurrency": 4,
                "lockstep": True},
    "credit": {"assigner": "rloo"},
    "optim": {"lr": 1e-3, "minibatches": 2},
    "correct": {"kind": "mis", "level": "turn"},
    "loss": {"objective": "ratio_clip", "band": {"coefficient": 0.01}},
    "schedules": {
        "env.max_turns": {"kind": "stages", "values": [1, 2, 3], "every": 1},
        "loss.clip_high": {"kind": "cosine", "start": 0.1, "end": 0.3, "steps": 2},
        "loss.band.weight": {"kind": "epo", "steps": 3},
        "loss.kl": {"kind": "linear", "start": 0, "end": 0.1, "steps": 2},
        "optim.lr": {"kind": "cosine", "start": 1e-3, "end": 2e-4, "steps": 2},
    },
}  # fmt: skip


def config(**tables: Any) -> Config:
    return Config.model_validate({"name": "test", **TABLES, **tables})


def trainer_of(chosen: Config, model: Any, tokenizer: Any, folder: Any, reference: Any = None) -> Trainer:
    async def local() -> LocalSession:
        return LocalSession(registry.make(chosen.env.name))

    return build(chosen, folder, registry.get_spec(chosen.env.name), local, model, reference or model, tokenizer)


def lines_of(log: MetricsLog) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in lines]


def test_correction_band_and_schedules_in_a_run_that_is_resumed(chatty, tokenizer, tmp_path) -> None:
    chosen, model = config(), chatty()
    reference = copy.deepcopy(model)
    trainer, log = trainer_of(chosen, model, tokenizer, tmp_path), MetricsLog(tmp_path)
    asyncio.run(trainer.run(log))
    log.close()
    lines = lines_of(log)
    assert [line["rollout/turns"] for line in lines] == [1, 2, 3]  # the oracle takes three
    for line in lines:
        assert line["correct/weight_mean"] == pytest.approx(1, abs=1e-3)  # the engine is the trainer
        assert line["loss/band"] != 0
    assert lines[0].get("loss/kl", 0.0) == 0
    assert lines[2]["loss/kl"] > 0
    final = trainer.config
    assert (final.loss.options["clip_high"], final.loss.kl, final.env.max_turns) == (pytest.approx(0.3), 0.1, 3)
    assert trainer.learner.optimizer.param_groups[0]["lr"] == pytest.approx(2e-4)
    assert trainer.learner.state_dict()["regularizers"]["band"]["steps"] == 3
    newest = checkpoint.latest(tmp_path)
    first = newest.parent / "step-000002"
    again = trainer_of(chosen, checkpoint.load_model(first)[0], tokenizer, tmp_path / "again", reference)
    state = checkpoint.load_state(first)
    again.load(state)
    (tmp_path / "again").mkdir()
    resumed = MetricsLog(tmp_path / "again")
    asyncio.run(again.run(resumed))
    resumed.close()
    assert lines_of(resumed) == lines[2:]


def test_a_recipe_with_all_of_it_survives_toml(tmp_path) -> None:
    chosen = config()
    path = tmp_path / "all.toml"
    path.write_text(to_toml(chosen), encoding="utf-8")
    assert resolve(path) == chosen
    assert chosen.at(0).env.max_turns == 1
    assert chosen.at(7).schedules == chosen.schedules
    assert chosen.at(7).at(0) == chosen.at(0)


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ({"schedules": {"loss.clip": {"kind": "epo"}}}, "there is no option 'loss.clip'"),
        ({"schedules": {"env.split": {"kind": "epo"}}}, "'env.split' is read only when a run begins"),
        ({"schedules": {"rollout.temperature": {"kind": "epo"}}}, "'rollout.temperature' is read only when"),
        ({"schedules": {"loss.objective": {"kind": "epo"}}}, "'loss.objective' is 'ratio_clip', and that is no number"),
        ({"schedules": {"optim.epochs": {"kind": "linear", "start": 1, "end": 2, "steps": 3}}}, "optim.epochs"),
        ({"schedules": {"optim.lr": {"kind": "stages", "values": [1, -1], "every": 2}}}, "optim.lr"),
        ({"loss": {"objective": "dpo"}}, "[correct] weighs losses of tokens, and loss.objective = 'dpo' has none"),
        ({"loss": {"objective": "refuel"}, "correct": None}, 'set source.kind = "branched"'),
        ({"loss": {"objective": "oreo"}}, "loss.objective = 'oreo' reads a critic's values: add a [value] table"),
        ({"loss": {"objective": "pacs"}, "rollout": {**TABLES["rollout"], "group_size": 1}}, "compares attempts"),
        ({"loss": {"objective": "gspo", "clip_high": -1.0}}, "clip_high should be greater than 0"),
        ({"loss": {"objective": "cispo", "clip_high": 0.28}}, "clip_high"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(tables, sentence) -> None:
    with pytest.raises((ValidationError, ConfigError)) as refused:
        validate_config(config(**{"schedules": {}, **tables}))
    assert sentence in str(refused.value)
