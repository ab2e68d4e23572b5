"""Recipes: TOML files, and `key=value` overrides, that become a Config. What is wrong is told as a sentence."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from agentgym.errors import ConfigError
from agentgym_trainers.config.option_errors import sentence
from agentgym_trainers.config.sections import Config, CreditOptions, LossOptions, SelectOptions
from agentgym_trainers.validate import validate_config


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
        config = Config.model_validate(tree)
        validate_config(config)
    except ValidationError as error:
        raise ConfigError(f"{recipe}: {'; '.join(map(_told, error.errors()))}") from error
    except ConfigError as error:
        raise ConfigError(f"{recipe}: {error}") from error
    return config


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
        "model": "checkpoint.py, models.py",
        "world": "train.py",
        "harness": "agentgym/rollouts/prompt_format.py",
        "rollout": "agentgym/rollouts/runner.py",
        "engine": f"engines/ ({config.engine.kind})",
        "source": f"sources/ ({config.source.kind})",
        "select": "curricula/select.py",
        "signals": "signals/",
        "shaping": "shaping.py",
        "credit": f"credit/ ({config.credit.assigner})",
        "value": "signals/value.py",
        "correct": "losses/correct.py",
        "loss": f"losses/ ({config.loss.objective})",
        "replay": "replay.py",
        "schedules": "schedules.py",
        "optim": "learner.py",
        "sft": "sft.py",
        "eval": "agentgym/evaluation/evaluate.py",
        "guards": "guards.py",
        "scale": "scale/",
    }
    table = []
    tree = config.model_dump()
    for section, reader in readers.items():
        for key, value in (tree[section] or {}).items():
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


CHOICES: dict[str, type[BaseModel]] = {
    "credit.assigner": CreditOptions,
    "loss.objective": LossOptions,
    "select.kind": SelectOptions,
    "source.kind": BaseModel,
    "engine.kind": BaseModel,
}
"""Overrides that choose another part, and what of its table is not the part's own."""


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
    if text and CHOICES.get(key) is not None and tree.get(last) != value:
        for own in tree.keys() - CHOICES[key].model_fields.keys() - {last}:  # the other part's options, not this one's
            del tree[own]
    if text:
        tree[last] = value
    else:
        tree.pop(last, None)


def _told(detail: Any) -> str:
    """What pydantic found wrong, in words. Where a table is one of several kinds, its place does not name the kind."""
    models: list[type[BaseModel]] = [Config]
    place, known = [], list(Config.model_fields)
    for part in detail["loc"]:
        tagged = [m for m in models if "kind" in m.model_fields and m.model_fields["kind"].default == part]
        inner = [found for m in models if part in m.model_fields for found in _models(m.model_fields[part].annotation)]
        if not tagged:
            place.append(part)
        known = [field for m in models for field in m.model_fields]
        models = tagged or inner or models  # neither: the name of a table of options, as of a schedule
    return sentence({**detail, "loc": tuple(place)}, list(dict.fromkeys(known)))


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The models that an annotation allows."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inside in getattr(annotation, "__args__", ()) for model in _models(inside)]


def _emit(tree: dict[str, Any], at: tuple[str, ...], lines: list[str]) -> None:
    if at:
        lines.append(f"\n[{'.'.join(json.dumps(key) if '.' in key else key for key in at)}]")
    lines += [f"{key} = {_value(value)}" for key, value in tree.items() if not isinstance(value, dict)]
    for key, value in tree.items():
        if isinstance(value, dict):
            _emit(value, (*at, key), lines)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)
