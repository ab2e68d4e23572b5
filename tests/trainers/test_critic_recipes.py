"""ArCHer, Digi-Q and DigiRL as their recipes say, in a trainer on a real environment; and resumed."""

from __future__ import annotations

import asyncio
import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentgym.session import LocalSession
from agentgym.testing import EchoEnv
from agentgym_trainers.build import build
from agentgym_trainers.config.sections import Config
from agentgym_trainers.monitoring.metrics import MetricsLog
from agentgym_trainers.nn import checkpoint
from agentgym_trainers.recipe import resolve
from agentgym_trainers.train import Trainer

SMALL = [
    "env.serve=false", "env.max_turns=3", "sft=", "run.steps=3", "run.checkpoint_every=2", "rollout.groups=4",
    "rollout.group_size=2", "rollout.concurrency=8", "rollout.max_new_tokens=4", "rollout.max_length=640",
    "rollout.lockstep=true",
]  # fmt: skip
CRITIC = ["warmup=1", "pool=24", "updates=3", "batch=16", "actor_states=10", "hidden=[16]"]
RECIPES = {
    "archer": [f"signals.twin.{option}" for option in CRITIC],
    "digiq": [f"signals.digiq.{option}" for option in [*CRITIC, "candidates=4"]] + ["source.groups=4"],
    "digirl": ["value.warmup=1"],
}


class OddReplies(EchoEnv):
    """Pays for every reply of an odd number of characters: an environment that an untrained policy finds its way in."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, 0.3 * (len(action) % 2), terminated, truncated, info


def small(recipe: str, *overrides: str) -> Config:
    return resolve(recipe, [*SMALL, *RECIPES[recipe], *overrides])


def trainer_of(config: Config, folder: Path, model: Any, reference: Any, tokenizer: Any) -> Trainer:
    async def open_session() -> LocalSession:
        return LocalSession(OddReplies())

    return build(config, folder, OddReplies.env_spec, open_session, model, reference, tokenizer)


def run(trainer: Trainer, position: int = 0) -> list[dict[str, float]]:
    """The metrics of the steps it has left to do."""
    log = MetricsLog(trainer.folder, position)
    asyncio.run(trainer.run(log))
    log.close()
    trainer.engine.shutdown()
    return [json.loads(line) for line in log.path.read_text().splitlines()]


@pytest.mark.parametrize("recipe", list(RECIPES))
def test_a_recipe_learns_in_a_trainer(recipe, chatty, tokenizer, tmp_path) -> None:
    """The policy takes no step in the critic's warm-up, and then it does."""
    model = chatty()
    start = copy.deepcopy(model)
    trainer = trainer_of(small(recipe), tmp_path, model, start, tokenizer)
    weights: list[torch.Tensor] = [start.lm_head.weight.detach().clone()]
    update = trainer.learner.update

    def watched(*arguments: Any) -> dict[str, float]:
        metrics = update(*arguments)
        weights.append(model.lm_head.weight.detach().clone())
        return metrics

    trainer.learner.update = watched  # type: ignore[method-assign]
    lines = run(trainer)
    assert [line["step"] for line in lines] == [1, 2, 3]
    written = (tmp_path / "trajectories" / "step-000003.jsonl").read_text().splitlines()
    assert len(written) == 8  # the episodes that were played, whatever the policy learned from
    assert len(weights) > 1
    assert "optim/grad_norm" not in lines[0] or lines[0]["optim/grad_norm"] == 0
    assert not torch.equal(weights[0], weights[-1])
    for line in lines[1:]:
        assert line["optim/skipped"] == 0
        numbers = {key: value for key, value in line.items() if key.startswith(("twin", "digiq", "loss", "credit"))}
        assert np.isfinite(list(numbers.values())).all(), numbers
    if recipe != "digirl":
        name = {"archer": "twin", "digiq": "digiq"}[recipe]
        for line in lines:
            assert line[f"{name}/grad_norm"] > 0
            assert line[f"{name}/skipped"] == 0
            assert -1 <= line[f"{name}/calibration"] <= 1
            assert line[f"{name}/replay"] == pytest.approx(lines[0][f"{name}/replay"] * line["step"], rel=0.5)
    else:
        assert all(line["instruction/grad_norm"] >= 0 for line in lines)
        assert all(line["optim/value_grad_norm"] > 0 for line in lines)
    if recipe == "archer":  # fresh actions: the engine's log-probabilities are the learner's
        assert all(line["policy/engine_gap"] < 1e-4 for line in lines[1:])
        assert lines[-1]["loss/kl"] > 0


@pytest.mark.parametrize(
    ("recipe", "overrides"),
    [("archer", ()), ("archer", ("signals.twin.encoder=trained",)), ("digiq", ())],
    ids=["archer frozen", "archer trained", "digiq"],
)
def test_a_resumed_run_goes_on_to_the_bit(recipe, overrides, chatty, tokenizer, tmp_path) -> None:
    """Buffer, heads, slow targets and the critic's optimizer are in the checkpoint."""
    config, start = small(recipe, *overrides), chatty()
    # Both models are read from files: how weights lie in memory decides the last bits of a sum.
    checkpoint.save(tmp_path / "start", start, tokenizer, {})
    undisturbed = trainer_of(config, tmp_path, checkpoint.load_model(tmp_path / "start")[0], start, tokenizer)
    lines = run(undisturbed)
    second = tmp_path / "checkpoints" / "step-000002"
    state = checkpoint.load_state(second)
    resumed = trainer_of(config, tmp_path, checkpoint.load_model(second)[0], start, tokenizer)
    fresh = resumed.signals[next(iter(resumed.signals))].state_dict()
    resumed.load(state)
    (signal,), (theirs,) = resumed.signals.values(), undisturbed.signals.values()
    saved = next(iter(state["signals"].values()))
    same(signal.state_dict(), saved)
    with pytest.raises(AssertionError):
        same(fresh, saved)
    again = run(resumed, state["metrics_bytes"])
    same(signal.state_dict(), theirs.state_dict())
    for ours, others in zip(resumed.learner.model.parameters(), undisturbed.learner.model.parameters(), strict=True):
        assert torch.equal(ours, others)
    without_times = [{k: v for k, v in line.items() if not k.startswith("time")} for line in (lines[-1], again[-1])]
    assert without_times[0] == without_times[1]


def same(ours: Any, theirs: Any) -> None:
    """Nested dicts and lists with equal tensors, to the bit."""
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key in ours:
            same(ours[key], theirs[key])
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            same(one, other)
    elif isinstance(ours, torch.Tensor):
        assert ours.shape == theirs.shape
        assert torch.equal(ours.nan_to_num(7.0), theirs.nan_to_num(7.0))
    else:
        assert ours == theirs
