"""A run's configuration: one TOML file (a recipe) and `key=value` overrides. Unknown keys are refused.

`resolve` reads it, checks that the parts fit together and says, as a sentence, which do not.
"""

from __future__ import annotations

import difflib
import inspect
import json
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from agentgym.errors import ConfigError
from agentgym.harness import Harness
from agentgym_trainers.credit import ASSIGNERS
from agentgym_trainers.losses.reduce import Reducer
from agentgym_trainers.signals.value import ValueOptions
from agentgym_trainers.tiny import TinyModel


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RunOptions(Part):
    """Length and bookkeeping of the run."""

    seed: int = Field(default=0, ge=0)
    steps: int = Field(default=100, ge=0)
    """RL iterations: collect, credit, update."""
    checkpoint_every: int = Field(default=25, gt=0)
    keep_checkpoints: int = Field(default=2, gt=0)
    """Older ones are deleted; the last of the run always stays."""
    trajectories_every: int = Field(default=10, gt=0)
    """Steps between those whose trajectories are kept for the report."""
    threads: int | None = Field(default=None, gt=0)
    """Torch's threads; None leaves them alone. 1 is fastest for tiny models beside a busy server."""


class ModelOptions(Part):
    """Where the policy comes from."""

    path: str | None = None
    """A Hugging Face checkpoint (a folder or a hub id); None makes the tiny model from the run's seed."""
    tiny: TinyModel = TinyModel()


class WorldOptions(Part):
    """What is trained on."""

    name: str
    """An id, "package.module:Class", or the URL of a running server."""
    split: str = "train"
    serve: bool = True
    """Start a server for the world and speak HTTP to it; False runs the world inside the trainer. A URL is used as it
    is."""
    max_turns: int | None = Field(default=None, gt=0)
    """Turns before an episode is cut; None leaves it to the world."""
    episode_s: float = Field(default=600.0, gt=0)


class RolloutOptions(Part):
    """How a step's episodes are collected."""

    groups: int = Field(default=16, gt=0)
    """Tasks a step."""
    group_size: int = Field(default=8, gt=0)
    """Attempts at each."""
    temperature: float = Field(default=1.0, gt=0)
    max_new_tokens: int = Field(default=64, gt=0)
    """Of one reply."""
    max_length: int = Field(default=1024, gt=1)
    """Tokens of a whole episode; longer ones are cut."""
    concurrency: int = Field(default=128, gt=0)
    lockstep: bool = False
    """Wait for every open episode before each forward: the run is then reproducible to the bit, and as slow as the
    slowest world."""


class CreditOptions(Part):
    """Which turn deserves the credit. Further keys are the assigner's own options."""

    model_config = ConfigDict(frozen=True, extra="allow")

    assigner: str
    normalise: Literal["none", "token", "turn", "trajectory"] = "none"
    """Centre and scale the finished advantages over these rows of the batch."""

    @model_validator(mode="after")
    def _options_fit(self) -> CreditOptions:
        if self.assigner not in ASSIGNERS:
            raise ValueError(f"there is no assigner {self.assigner!r}; there are {', '.join(sorted(ASSIGNERS))}")
        parameters = inspect.signature(ASSIGNERS[self.assigner].function, eval_str=True).parameters.values()
        fields: dict[str, Any] = {p.name: (p.annotation, p.default) for p in parameters if p.kind is p.KEYWORD_ONLY}
        model = create_model(f"options of {self.assigner}", __config__=ConfigDict(extra="forbid"), **fields)
        try:
            checked = model.model_validate(self.model_extra or {})
        except ValidationError as error:
            known = ["assigner", "normalise", *fields]
            raise ValueError("; ".join(_sentence(detail, known) for detail in error.errors())) from error
        object.__setattr__(self, "__pydantic_extra__", checked.model_dump())
        return self

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class LossOptions(Part):
    """What each token's advantage becomes."""

    objective: Literal["policy_gradient", "ppo_clip"] = "ppo_clip"
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    clip_high: float = Field(default=0.28, gt=0)
    dual_clip: float | None = Field(default=None, gt=1)
    reducer: Reducer = "token_mean"
    reducer_length: int | None = Field(default=None, gt=0)
    """The constant of the reducer "constant"."""
    entropy: float = Field(default=0.0, ge=0)
    """Coefficient of the entropy bonus."""
    kl: float = Field(default=0.0, ge=0)
    """Coefficient of KL(policy ‖ the policy as RL began)."""
    kl_estimator: Literal["k1", "k2", "k3", "k3+"] = "k3+"

    @model_validator(mode="after")
    def _length_fits(self) -> LossOptions:
        if (self.reducer == "constant") != (self.reducer_length is not None):
            raise ValueError('reducer = "constant" and reducer_length go together')
        return self


class OptimOptions(Part):
    """AdamW, and how a step's episodes become optimiser batches."""

    lr: float = Field(default=1e-5, gt=0)
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.99)
    weight_decay: float = Field(default=0.0, ge=0)
    max_grad_norm: float = Field(default=1.0, gt=0)
    epochs: int = Field(default=1, gt=0)
    minibatches: int = Field(default=2, gt=0)
    """Optimiser batches an epoch, cut between trajectories."""
    tokens_per_micro_batch: int = Field(default=16384, gt=0)


class SFTOptions(Part):
    """Supervised warm-up on the world's scripted expert."""

    demonstrations: int = Field(default=1000, gt=0)
    noise: float = Field(default=0.0, ge=0, lt=1)
    """Probability that a demonstrated action is random: an expert made imperfect on purpose."""
    lr: float = Field(default=2e-3, gt=0)
    batch: int = Field(default=32, gt=0)
    """Demonstrations a step."""
    max_steps: int = Field(default=300, gt=0)
    stop_at_success: float | None = Field(default=None, gt=0, le=1)
    """Stop once sampled success on the training split reaches this; checked every `check_every` steps."""
    check_every: int = Field(default=25, gt=0)


class EvalOptions(Part):
    """Held-out evaluation before and after RL."""

    split: str = "test"
    tasks: int = Field(default=100, ge=0)
    """0 skips it."""
    attempts: int = Field(default=4, gt=0)


class Config(Part):
    """Everything that decides a run."""

    name: str
    description: str = ""
    paper: str = ""
    run: RunOptions = RunOptions()
    model: ModelOptions = ModelOptions()
    world: WorldOptions
    harness: Harness = Harness()
    rollout: RolloutOptions = RolloutOptions()
    credit: CreditOptions
    value: ValueOptions | None = None
    """The critic; needed by assigners that read values."""
    loss: LossOptions = LossOptions()
    optim: OptimOptions = OptimOptions()
    sft: SFTOptions | None = None
    eval: EvalOptions = EvalOptions()

    @model_validator(mode="after")
    def _parts_fit(self) -> Config:
        needs = ASSIGNERS[self.credit.assigner].needs
        reads_values = any(need.startswith("value_") for need in needs)
        if reads_values and self.value is None:
            raise ValueError(
                f"credit.assigner = {self.credit.assigner!r} reads a critic's values: add a [value] table "
                "(value.trunk=own adds one)"
            )
        if self.value is not None and not reads_values:
            raise ValueError(
                f"credit.assigner = {self.credit.assigner!r} reads no values, so nothing would use [value]: remove it "
                "(value= removes it)"
            )
        if "groups" in needs and self.rollout.group_size < 2:
            raise ValueError(
                f"credit.assigner = {self.credit.assigner!r} compares attempts at one task: rollout.group_size must be "
                f"at least 2, not {self.rollout.group_size}"
            )
        episodes = self.rollout.groups * self.rollout.group_size
        if self.rollout.lockstep and self.rollout.concurrency < episodes:
            raise ValueError(
                "rollout.lockstep repeats a step exactly only when all its episodes run at once: rollout.concurrency "
                f"must be at least {episodes} (rollout.groups x rollout.group_size), not {self.rollout.concurrency}"
            )
        if self.model.path is None and self.rollout.max_length > self.model.tiny.max_length:
            raise ValueError(
                f"rollout.max_length is {self.rollout.max_length}, and the tiny model reads no further than "
                f"{self.model.tiny.max_length} tokens: raise model.tiny.max_length, or lower it"
            )
        if self.optim.minibatches > self.rollout.groups * self.rollout.group_size:
            raise ValueError("optim.minibatches is more than the step's episodes (rollout.groups x rollout.group_size)")
        return self


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    folder = resources.files("agentgym_trainers") / "recipes"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def resolve(recipe: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The Config of a shipped recipe's name or a TOML file, with `section.key=value` overrides.

    Values are TOML (`1e-4`, `true`, `"text"`, `[1, 2]`); what is not TOML is text; `section.key=` and `section=` remove
    what the recipe says there. Raises ConfigError.
    """
    tree = _read(recipe)
    for override in overrides:
        _apply(tree, override)
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(f"{recipe}: " + "; ".join(_sentence(detail) for detail in error.errors())) from error


def to_toml(config: Config) -> str:
    """The resolved configuration as TOML that `resolve` reads back to the same Config."""
    tree = config.model_dump(exclude_none=True)
    lines: list[str] = []
    _emit(tree, (), lines)
    return "\n".join(lines).strip() + "\n"


def wiring(config: Config) -> list[tuple[str, str, str]]:
    """(part of the trainer, option, value) for every option: who reads what."""
    readers = {
        "run": "train.py",
        "model": "checkpoint.py",
        "world": "train.py",
        "harness": "agentgym/harness.py",
        "rollout": "agentgym/rollout.py, engines/",
        "credit": f"credit/ ({config.credit.assigner})",
        "value": "signals/value.py",
        "loss": f"losses/ ({config.loss.objective})",
        "optim": "learner.py",
        "sft": "sft.py",
        "eval": "agentgym/evaluate.py",
    }
    table = []
    for section, reader in readers.items():
        options = getattr(config, section)
        for key, value in (options.model_dump() if options is not None else {}).items():
            table.append((reader, f"{section}.{key}", json.dumps(value, ensure_ascii=False)))
    return table


def _read(recipe: str | Path) -> dict[str, Any]:
    path = Path(recipe)
    if path.suffix == ".toml":
        if not path.is_file():
            raise ConfigError(f"there is no file {path}")
        text = path.read_text(encoding="utf-8")
    else:
        if str(recipe) not in recipe_names():
            close = difflib.get_close_matches(str(recipe), recipe_names(), n=1)
            guess = f" Did you mean {close[0]!r}?" if close else ""
            raise ConfigError(
                f"there is no recipe {str(recipe)!r}.{guess} The recipes are {', '.join(recipe_names())}; a file of "
                "your own ends in .toml"
            )
        text = (resources.files("agentgym_trainers") / "recipes" / f"{recipe}.toml").read_text(encoding="utf-8")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{recipe} is not TOML: {error}") from error


def _apply(tree: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise ConfigError(f"{override!r} is not an override; write section.key=value")
    try:
        value = tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        value = text
    *sections, last = key.split(".")
    for section in sections:
        tree = tree.setdefault(section, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{override!r}: {section!r} is not a table")
    if text:
        tree[last] = value
    else:
        tree.pop(last, None)


def _sentence(detail: Any, known: Sequence[str] | None = None) -> str:
    """What pydantic found wrong, in words. `known`: the options that there are; by default the Config's own."""
    where, kind = ".".join(str(part) for part in detail["loc"]), detail["type"]
    if kind == "extra_forbidden":
        known = _fields_at(detail["loc"][:-1]) if known is None else known
        close = difflib.get_close_matches(str(detail["loc"][-1]), known, n=1)
        guess = f" (did you mean {close[0]!r}?)" if close else f"; known: {', '.join(known)}"
        return f"unknown option {where!r}{guess}"
    if kind == "missing":
        return f"{where!r} is missing"
    if kind == "model_type":
        return f"{where!r} is a table; set its options, as in {where}.key=value, not {detail['input']!r}"
    if kind == "value_error":
        message = detail["msg"].removeprefix("Value error, ")
        return f"{where}: {message}" if where else message
    return f"{where}: {detail['msg']}, not {detail['input']!r}".replace(": Input should", " should")


def _fields_at(location: tuple[Any, ...]) -> list[str]:
    model: Any = Config
    for part in location:
        annotation = model.model_fields[part].annotation
        arguments = [kind for kind in getattr(annotation, "__args__", ()) if isinstance(kind, type)]
        model = next(
            kind for kind in [annotation, *arguments] if isinstance(kind, type) and issubclass(kind, BaseModel)
        )
    return list(model.model_fields)


def _emit(tree: dict[str, Any], at: tuple[str, ...], lines: list[str]) -> None:
    if at:
        lines.append(f"\n[{'.'.join(at)}]")
    lines += [f"{key} = {_value(value)}" for key, value in tree.items() if not isinstance(value, dict)]
    for key, value in tree.items():
        if isinstance(value, dict):
            _emit(value, (*at, key), lines)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)
