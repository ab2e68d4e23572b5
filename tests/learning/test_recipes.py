"""Every shipped recipe trains for a few steps on a served world, and leaves a whole run folder."""

import asyncio
import json

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentgym.launch import server_process
from agentgym_trainers.recipe import recipe_names, resolve
from agentgym_trainers.run import run

SMALL = [
    "run.steps=2",
    "run.trajectories_every=1",
    "rollout.groups=4",
    "rollout.group_size=4",
    "rollout.concurrency=16",
    "sft.demonstrations=48",
    "sft.max_steps=6",
    "sft.stop_at_success=1.0",
    "eval.tasks=4",
    "eval.attempts=2",
    "model.tiny.hidden_size=32",
    "model.tiny.layers=2",
]


@pytest.fixture(scope="module")
def served():
    with server_process(["keydoor"]) as url:
        yield f"{url}/envs/keydoor"


@pytest.mark.parametrize("recipe", recipe_names())
def test_a_recipe_trains_on_a_served_world(recipe, served, tmp_path):
    config = resolve(recipe, [*SMALL, f"world.name={served}"])
    outcome = asyncio.run(run(config, tmp_path / "run"))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["phase"] == "rl"]
    assert [line["step"] for line in steps] == [1, 2]
    for line in steps:
        assert line["rollout/failed"] == 0
        assert line["policy/engine_gap"] < 1e-4
        assert line["optim/skipped"] == 0
    assert outcome.after is not None
    assert outcome.after.summary.overall.attempts == 8
    checkpoint = tmp_path / "run" / "checkpoints" / "step-000002"
    assert AutoModelForCausalLM.from_pretrained(checkpoint).num_parameters() > 0
    assert AutoTokenizer.from_pretrained(checkpoint).chat_template
    assert len(list((tmp_path / "run" / "trajectories").glob("*.jsonl"))) == 2
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
