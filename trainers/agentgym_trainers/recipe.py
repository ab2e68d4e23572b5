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
from agentgym_trainers.config import Config
from agentgym_trainers.options import sentence


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
        told = [sentence(detail, _fields_at(detail["loc"][:-1])) for detail in error.errors()]
        raise ConfigError(f"{recipe}: {'; '.join(told)}") from error


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
        "source": f"sources/ ({config.source.kind})",
        "select": "curricula/select.py",
        "signals": "signals/",
        "shaping": "shaping.py",
        "credit": f"credit/ ({config.credit.assigner})",
        "value": "signals/value.py",
        "correct": "losses/correct.py",
        "loss": f"losses/ ({config.loss.objective})",
        "schedules": "schedules.py",
        "optim": "learner.py",
        "sft": "sft.py",
        "eval": "agentgym/evaluate.py",
        "guards": "guards.py",
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
        lines.append(f"\n[{'.'.join(json.dumps(key) if '.' in key else key for key in at)}]")
    lines += [f"{key} = {_value(value)}" for key, value in tree.items() if not isinstance(value, dict)]
    for key, value in tree.items():
        if isinstance(value, dict):
            _emit(value, (*at, key), lines)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)
