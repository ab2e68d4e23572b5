"""Every shipped recipe is read, dry-run, and trained for two steps on a served environment; it leaves a whole run
folder."""

import asyncio
import json

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentgym.cli.main import main
from agentgym.clients.server_process import server_process
from agentgym_trainers.recipe import recipe_names, resolve, to_toml
from agentgym_trainers.run import run

SMALL = [
    "run.steps=2",
    "run.trajectories_every=1",
    "rollout.groups=4",
    "rollout.concurrency=16",
    "eval.split=train",
    "eval.tasks=1",
    "eval.attempts=4",
]

WARM = [
    "run.steps=0",
    "eval.tasks=0",
    "sft.demonstrations=64",
    "sft.batch=16",
    "sft.max_steps=150",
    "sft.stop_at_success=0.1",
    "sft.check_every=25",
    "model.tiny.hidden_size=32",
    "model.tiny.layers=2",
]

TWIN = [f"signals.twin.{option}" for option in ("warmup=1", "updates=5", "pool=32", "actor_states=16")]
SMALLER = {
    "dapo": ["select.tries=2"],
    "scaling-inter": ['schedules={"env.max_turns" = {kind = "stages", values = [3, 2], every = 1}}'],
    "spear": [
        "replay.size=2",
        "replay.trigger=0",
        'schedules={"shaping.tool_bonus.scale" = {kind = "cosine", start = 1, end = 0, steps = 200}}',
    ],
    "refuel": ["rollout.groups=8", "rollout.group_size=2"],
    "oreo": ["source.groups=4", "source.refresh_every=1"],
    "a-lol": ["source.groups=6"],
    "beacon": ["rollout.max_length=1024"],
    "spiral": ["rollout.max_length=1024"],  # letter by letter to a tokenizer that knows the oracle's words
    "eto": ["source.groups=4", "source.refresh_every=1"],
    "archer": TWIN,
    "archer-as-published": TWIN,
    "digiq": [
        "source.groups=4",
        *(
            f"signals.digiq.{option}"
            for option in ("warmup=1", "updates=5", "pool=32", "actor_states=16", "candidates=3")
        ),
    ],
}
"""What else must shrink, or nothing of the recipe's own would happen in two steps."""

TWO_CRITICS = {"archer", "archer-as-published", "digiq"}
OFFLINE = {"oreo", "a-lol", "eto", "digiq"}


def small(recipe: str) -> list[str]:
    size = [] if "rollout.group_size=2" in SMALLER.get(recipe, []) else ["rollout.group_size=4"]
    value = resolve(recipe).value
    warmup = ["value.warmup=1"] if value is not None and value.warmup else []
    return [*SMALL, *size, *warmup, *SMALLER.get(recipe, [])]


ENVS = {"spiral": "kuhn-poker-self", "beacon": "keydoor"}
"""Where a recipe needs another environment than the oracle. The warm policy speaks none of its words, and loses by
that."""


@pytest.fixture(scope="module")
def server():
    with server_process(["oracle", *ENVS.values()]) as url:
        yield f"{url}/envs"


@pytest.fixture(scope="module")
def served(server):
    return f"{server}/oracle"


@pytest.fixture(scope="module")
def warm(served, tmp_path_factory):
    """A policy that knows the words and wins now and then: what every recipe is given to begin with."""
    folder = tmp_path_factory.mktemp("warm") / "run"
    asyncio.run(run(resolve("quickstart", [*WARM, f"env.name={served}", "eval.split=train"]), folder))
    return folder / "checkpoints" / "step-000000"


@pytest.mark.parametrize("recipe", recipe_names())
def test_a_recipe_trains_on_a_served_env(recipe, server, warm, tmp_path):
    env = f"{server}/{ENVS.get(recipe, 'oracle')}"
    config = resolve(recipe, [*small(recipe), f"env.name={env}", f"model.path={warm}", "sft="])
    outcome = asyncio.run(run(config, tmp_path / "run"))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["phase"] == "rl"]
    assert [line["step"] for line in steps] == [1, 2]
    for line in steps:
        assert line["rollout/failed"] == 0
        if line.get("select/discarded") == 1:  # nothing to learn from is no reason to step
            assert "loss/policy" not in line
            continue
        if line is steps[0] and warms_up(config):
            assert "loss/policy" not in line
            assert "loss/value" in line or recipe in TWO_CRITICS
            continue
        assert line["optim/skipped"] == 0
        assert line["loss/policy"] is not None
        if recipe not in OFFLINE:
            assert line["policy/engine_gap"] < 1e-4
    what_is_its_own(recipe, steps)
    assert outcome.after is not None
    assert outcome.after.summary.overall.turns > 2  # the horizon of evaluation is the environment's, whatever the stage
    assert outcome.after.summary.overall.attempts == 4
    checkpoint = tmp_path / "run" / "checkpoints" / "step-000002"
    assert AutoModelForCausalLM.from_pretrained(checkpoint).num_parameters() > 0
    assert AutoTokenizer.from_pretrained(checkpoint).chat_template
    learned = sum(line.get("select/discarded") != 1 for line in steps)
    assert len(list((tmp_path / "run").glob("trajectories/*.jsonl"))) == learned
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000


def warms_up(config) -> bool:
    """Whether a critic learns alone in the first step."""
    signals = [getattr(options, "warmup", 0) for options in config.signals.values()]
    return bool(config.value and config.value.warmup) or any(signals)


def what_is_its_own(recipe: str, steps: list[dict]) -> None:
    """That the parts which make the recipe what it is had something to do."""
    if recipe in ("dapo", "filtered-bc", "spear"):
        assert all(0 <= line["select/discarded"] <= 1 for line in steps)
    if recipe == "dapo":
        assert all(line["select/tries"] in (1, 2) for line in steps)
    if recipe == "spear":
        assert all("replay/kept" in line for line in steps)
        assert any(line.get("replay/drawn", 0) > 0 for line in steps)
    if recipe == "scaling-inter":
        assert steps[0]["rollout/turns"] > 2
        assert steps[1]["rollout/turns"] <= 2
    if recipe == "spiral":
        assert all(line["role/baseline_0"] != 0 for line in steps)
    if recipe in ("eto", "refuel"):
        assert all(line["policy/pairs"] > 0 for line in steps)
    if recipe in TWO_CRITICS:
        name = "digiq" if recipe == "digiq" else "twin"
        assert all(line[f"{name}/grad_norm"] > 0 for line in steps)
        assert steps[1][f"{name}/replay"] > steps[0][f"{name}/replay"] > 0


@pytest.mark.parametrize("recipe", recipe_names())
def test_a_recipe_is_read_and_dry_run(recipe, tmp_path, capsys):
    main(["train", recipe, "--dry-run"])
    again = tmp_path / "again.toml"
    again.write_text(capsys.readouterr().out)
    assert resolve(again) == resolve(recipe)
    assert to_toml(resolve(again)) == to_toml(resolve(recipe))


@pytest.mark.parametrize("recipe", recipe_names())
def test_a_recipe_says_how_it_works_and_whose_it_is(recipe):
    config = resolve(recipe)
    assert config.name == recipe
    assert config.paper
    assert config.description.endswith(".")
    assert "\n" not in config.description
