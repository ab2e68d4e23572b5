"""Recipes: every shipped one resolves, what does not fit together is refused in words, and nothing is lost in TOML."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

import agentgym_trainers
from agentgym.errors import ConfigError
from agentgym_trainers.config.sections import Config, CreditOptions
from agentgym_trainers.credit import ASSIGNERS
from agentgym_trainers.recipe import recipe_names, resolve, to_toml, wiring

SHIPPED = recipe_names()
MINE = """
name = "mine"
[env]
name = "wordle"
[credit]
assigner = "reinforce"
"""


@pytest.fixture
def mine(tmp_path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(MINE, encoding="utf-8")
    return path


def leaves(part: BaseModel, at: str = "") -> list[str]:
    """section.option of everything that can be set."""
    found = []
    for name, value in part:
        if isinstance(value, dict) and not at:  # tables by name
            found += [f"{name}.{key}" for key in value]
            continue
        nested = isinstance(value, BaseModel) and not at
        found += leaves(value, f"{name}.") if nested else [at + name]
    return found


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_recipe_resolves_and_survives_toml(name, tmp_path):
    config = resolve(name)
    assert config.name == name
    assert config.description.endswith(".")
    again = tmp_path / "again.toml"
    again.write_text(to_toml(config), encoding="utf-8")
    assert resolve(again) == config
    assert to_toml(resolve(again)) == to_toml(config)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_wiring_names_every_option_once(name):
    config = resolve(name)
    names = [option for _, option, _ in wiring(config)]
    options = set(leaves(config)) - {"name", "description", "paper"}
    assert sorted(names) == sorted(option for option in options if "." in option)
    absent = {"value", "sft", "select", "replay", "signals", "shaping", "correct", "scale", "schedules", "tracking"}
    assert {option for option in options if "." not in option} <= absent


def test_the_wiring_names_files_that_exist():
    package = Path(agentgym_trainers.__file__).parent
    for reader, option, _ in wiring(resolve("gigpo")):
        for name in reader.partition(" (")[0].split(", "):
            assert (package / name).exists() or (package.parents[1] / name).exists(), f"{option}: {name}"


def test_choosing_another_part_drops_the_first_ones_options():
    config = resolve(
        "gigpo", ["credit.assigner=hgpo", "credit.gamma=0.5", "loss.objective=gspo", "loss.reducer=turn_mean"]
    )
    assert (config.credit.options["gamma"], config.credit.options["history"]) == (0.5, 2)
    assert config.loss.options.keys() == {"unit", "clip_low", "clip_high"}
    assert config.loss.options["clip_low"] == 3e-4
    assert resolve("gigpo", ["credit.assigner=gigpo"]) == resolve("gigpo")  # no other part
    with pytest.raises(ConfigError, match="unknown option 'omega'"):
        resolve("gigpo", ["credit.assigner=hgpo", "credit.omega=1.0"])


def test_overrides_are_toml_or_else_text(mine):
    config = resolve(
        mine,
        [
            "optim.lr=1e-4",
            "run.seed=7",
            "env.serve=false",
            'prompt_format.system="say: \\"hi\\""',
            "env.name=keydoor-5x5",
            "env.split=train",
            "model.tiny.layers=2",
            "sft.noise=0.25",
        ],
    )
    assert (config.optim.lr, config.run.seed, config.env.serve) == (1e-4, 7, False)
    assert (config.prompt_format.system, config.env.name) == ('say: "hi"', "keydoor-5x5")
    assert config.model.tiny.layers == 2
    assert config.sft is not None
    assert config.sft.noise == 0.25


def test_an_empty_override_removes_an_option_or_a_table():
    config = resolve("quickstart", ["sft=", "run.threads=", "eval="])
    assert config.sft is None
    assert config.run.threads is None
    assert config.eval == Config.model_fields["eval"].default


def test_text_of_any_kind_survives_toml(mine):
    text = 'quote " backslash \\ newline \n tab \t café 鍵 # no comment ' + "'"
    config = resolve(mine, ["prompt_format.window=0"]).model_copy(update={"description": text})
    path = mine.with_name("odd.toml")
    path.write_text(to_toml(config), encoding="utf-8")
    assert resolve(path) == config


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["credit.assigner=turn_gae"], "reads a critic's values: add a [value] table (value.lr=1e-3 adds one)"),
        (["value.lr=1e-3"], "reads no values, so nothing would use [value]: remove it (value= removes it)"),
        (
            ["value.lr=1e-3", "loss.objective=oreo"],
            "a critic's values, and the critic learns from the assigner: credit.",
        ),
        (["credit.assigner=grpo", "rollout.group_size=1"], "rollout.group_size must be at least 2, not 1"),
        (["loss.reducer=constant"], 'reducer = "constant" and reducer_length go together'),
        (["loss.reducer_length=8"], 'reducer = "constant" and reducer_length go together'),
        (["optim.minibatches=129"], "optim.minibatches is more than the step's episodes"),
        (["credit.assigner=grppo"], "there is no assigner 'grppo' (did you mean 'grpo'?); there are "),
        (["env=wordle"], "'env' is a table; set its options, as in env.key=value, not 'wordle'"),
        (["env.name="], "'env.name' is missing"),
        (["env="], "'env' is missing"),
        (["rollout.groups=0"], "rollout.groups should be greater than 0, not 0"),
        (["optim.lr=fast"], "optim.lr should be a valid number, unable to parse string as a number, not 'fast'"),
        (["loss.objective=magic"], "loss: there is no objective 'magic'; there are "),
        (["name.first=x"], "'name' is not a table"),
        (["shaping.overlong.buffer=0"], "buffer should be greater than 0, not 0"),
        (["select.kind=top_return", "select.quantile=2"], "quantile should be less than or equal to 1, not 2"),
        (["select.kind=top_std", "select.fraction=0"], "fraction should be greater than 0, not 0"),
        (["loss.dual_clip=0.5"], "dual_clip should be greater than 1, not 0.5"),
        (["credit.assigner=critical", "credit.share=2"], "share should be less than or equal to 1, not 2"),
        (["credit.assigner=filtered", "credit.quantile=2"], "quantile should be less than or equal to 1, not 2"),
        (["credit.assigner=rtg_loo", "credit.gamma=-1"], "gamma should be greater than or equal to 0, not -1"),
        (["credit.assigner=hgpo", "credit.history=-1"], "history should be greater than or equal to 0, not -1"),
        (["credit.assigner=hcapo", "credit.clip=0.5"], "clip should be greater than or equal to 1, not 0.5"),
        (["replay.loss.objective=dpo"], "compares attempts at one task, and [replay] draws single ones"),
        (["loss.clip_low=-0.2"], "clip_low should be greater than or equal to 0, not -0.2"),
        (["nothing"], "'nothing' is not an override; write section.key=value"),
        (["..=3"], "'..=3' is not an override; write section.key=value"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(mine, overrides, sentence):
    with pytest.raises(ConfigError) as refused:
        resolve(mine, overrides)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("evn.name=x", "unknown option 'evn' (did you mean 'env'?)"),
        ("optim.learning_rate=1", "unknown option 'optim.learning_rate'; known: lr, betas"),
        ("optim.epoch=1", "unknown option 'optim.epoch' (did you mean 'epochs'?)"),
        ("model.tiny.hiden_size=3", "unknown option 'model.tiny.hiden_size' (did you mean 'hidden_size'?)"),
        ("prompt_format.gramar=x", "unknown option 'prompt_format.gramar' (did you mean 'grammar'?)"),
        ("sft.nois=1", "unknown option 'sft.nois' (did you mean 'noise'?)"),
        ("value.heads=scalar", "unknown option 'value.heads' (did you mean 'head'?)"),
        ("credit.reward_togo=true", "credit: unknown option 'reward_togo' (did you mean 'reward_to_go'?)"),
        ("credit.xyz=true", "credit: unknown option 'xyz'; known: assigner, normalize, terms, reward_to_go"),
    ],
)
def test_unknown_options_are_refused_with_a_suggestion(mine, override, sentence):
    with pytest.raises(ConfigError) as refused:
        resolve(mine, [override])
    assert sentence in str(refused.value)


def test_all_mistakes_are_in_one_error(mine):
    with pytest.raises(ConfigError) as refused:
        resolve(mine, ["optim.lr=-1", "run.sead=1", "rollout.groups=0"])
    assert [word in str(refused.value) for word in ("optim.lr", "run.sead", "rollout.groups")] == [True] * 3


@pytest.mark.parametrize("assigner", ASSIGNERS)
def test_credit_options_are_the_assigners_own(assigner):
    def options(**given: Any) -> dict[str, Any]:
        return CreditOptions.model_validate({"assigner": assigner, **given}).options

    defaults: dict[str, Any] = {
        p.name: p.default
        for p in inspect.signature(ASSIGNERS[assigner].function).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }
    assert options() == defaults
    for name, default in defaults.items():
        with pytest.raises(ValidationError, match=name):
            options(**{name: "nonsense"})
        if isinstance(default, float):
            other = 0.5 if default <= 1 else 1.5
            assert options(**{name: other}) == {**defaults, name: other}


def test_a_recipe_that_is_not_there():
    with pytest.raises(ConfigError, match=r"no recipe 'quickstrat'. Did you mean 'quickstart'\? The recipes are"):
        resolve("quickstrat")
    with pytest.raises(ConfigError, match=r"there is no file nowhere\.toml"):
        resolve("nowhere.toml")


def test_a_file_that_is_not_toml(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text("[env\nname =", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"bad.toml is not TOML: .* line 1"):
        resolve(path)


def test_the_configuration_keeps_to_its_budget():
    """A plain run of one's own model has at most 45 fields, options of its parts aside: the design's budget."""
    config = resolve("grpo", ["model.path=mine", "sft="])
    parts = ("credit.eps", "loss.clip_low", "loss.clip_high")
    fields = [line.split(" = ")[0] for line in to_toml(config).splitlines() if " = " in line]
    named = {"name", "description", "paper", *(part.split(".")[1] for part in parts)}
    assert len([field for field in fields if field not in named]) <= 45, fields


def test_an_override_names_a_quoted_key() -> None:
    """A schedule's key has a dot; the recipe's own schedules stay."""
    config = resolve("epo", ['schedules."optim.lr"={kind="linear",start=1e-3,end=1e-4,steps=10}'])
    assert set(config.schedules) == {"loss.band.weight", "optim.lr"}
    assert config.at(5).optim.lr == pytest.approx(5.5e-4)
    assert set(resolve("epo", ['schedules."loss.band.weight"=']).schedules) == set()
