"""Reinforcement learning from pixels: a picture's color is the right action, and the text says nothing."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
import torch

from agentgym.errors import MissingDependency
from agentgym.rollouts.trajectory import read_jsonl
from agentgym_environments.backends.browser import browser
from agentgym_environments.backends.desktop import desktop
from agentgym_environments.backends.desktop.setup import COMMANDS
from agentgym_environments.benchmarks.miniwob import site
from agentgym_trainers.recipe import resolve
from agentgym_trainers.run import run

SMALL = (
    "run.threads=1", "env.name=colors:Colors", "env.serve=false", "env.max_turns=1", "eval.tasks=0",
    "rollout.groups=16", "rollout.group_size=8", "rollout.max_new_tokens=3", "rollout.max_length=128",
    "rollout.concurrency=64", "sft.demonstrations=64", "sft.noise=0.5", "sft.lr=5e-3", "sft.batch=16",
    "sft.stop_at_success=", "model.tiny.hidden_size=32", "model.tiny.heads=1", "model.tiny.layers=2",
    "model.tiny.max_length=128", "model.tiny.vision.hidden_size=32", "model.tiny.vision.layers=1", "optim.lr=2e-3",
    "optim.minibatches=2",
)  # fmt: skip


def trained(recipe: str, folder: Path, *options: str) -> list[dict[str, float]]:
    """Metrics of each step of RL."""
    asyncio.run(run(resolve(recipe, [*SMALL, *options]), folder))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["phase"] == "rl"]


@pytest.mark.learning
@pytest.mark.parametrize("seed", [0, 1])
def test_a_policy_learns_from_pixels(seed, tmp_path) -> None:
    """A right answer is worth .5 in this first turn; whoever does not look at the picture has .25 at most."""
    torch.set_num_threads(1)
    steps = trained("grpo", tmp_path, f"run.seed={seed}", "run.steps=16", "sft.max_steps=40")
    scores = [step["rollout/score"] for step in steps]
    assert scores[0] < 0.33
    assert sum(scores[-4:]) / 4 > 0.38
    assert max(step["policy/engine_gap"] for step in steps) < 1e-5


def test_critic_reference_and_adapters_read_images(tmp_path) -> None:
    """Two turns an episode; a run that goes on from a checkpoint does what it did without the interruption."""
    torch.set_num_threads(1)
    options = [
        "run.steps=2", "run.checkpoint_every=1", "run.trajectories_every=1", "sft.max_steps=2", "env.max_turns=2",
        "rollout.groups=2", "rollout.group_size=4", "rollout.lockstep=true", "value.warmup=0", "loss.kl=0.1",
        "model.lora.rank=2", "model.gradient_checkpointing=true", "optim.minibatches=1", "optim.epochs=1",
    ]  # fmt: skip
    steps = trained("ppo-turn", tmp_path, *options)
    assert max(step["policy/engine_gap"] for step in steps) < 1e-5
    assert all(step["optim/value_grad_norm"] > 0 for step in steps)
    assert steps[0]["loss/kl"] == pytest.approx(0, abs=1e-5)
    episode = next(read_jsonl(tmp_path / "trajectories" / "step-000002.jsonl"))
    assert len(episode.branches[0].images) == 2
    shutil.rmtree(tmp_path / "checkpoints" / "step-000002")
    asyncio.run(run(resolve("ppo-turn", [*SMALL, *options]), tmp_path, resume=True))
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    same = {name: value for name, value in steps[1].items() if not name.startswith("time/")}
    assert {name: lines[-1][name] for name in same} == same


def browser_is_there() -> None:
    """Raises MissingDependency, as `desktop_is_there`: the test is then skipped."""
    browser.require()
    site.folder()
    if not browser.find_program():
        raise MissingDependency("no Chromium is installed: apt-get install chromium-headless-shell")


def desktop_is_there() -> None:
    desktop.require(tuple(COMMANDS.values()))
    desktop.package("Xlib", "python-xlib")
    desktop.package("mss", "mss")


@pytest.mark.parametrize(
    ("env", "check"),
    [
        pytest.param("miniwob:page=click-test,observation=screenshot", browser_is_there, marks=pytest.mark.browser),
        ("gui-editor:observation=image", desktop_is_there),
    ],
    ids=["miniwob", "gui"],
)
def test_screenshots_are_trained_on(env, check, tmp_path) -> None:
    check()
    torch.set_num_threads(1)
    options = [
        "run.steps=1", "run.trajectories_every=1", f'env.name="{env}"', "env.max_turns=2", "sft=",
        "prompt_format.system=Act.", "rollout.groups=1", "rollout.group_size=2", "rollout.concurrency=2",
        "rollout.max_length=2048", "model.tiny.max_length=2048", "model.tiny.vision.max_tokens=16",
        "optim.minibatches=1",
    ]  # fmt: skip
    (step,) = trained("grpo", tmp_path, *options)
    assert step["policy/engine_gap"] < 1e-5
    for episode in read_jsonl(tmp_path / "trajectories" / "step-000001.jsonl"):
        assert len(episode.branches[0].images) >= 2
