"""Recipes and setups: TOML files that become a Config. A recipe is a method; a setup says where it runs.

The setup is read first, the recipe over it, and `key=value` overrides over both; but a recipe's learning rate is for
the model of its own setup. What is wrong is told as a sentence.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import tomllib
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym_trainers.config.option_errors import sentence
from agentgym_trainers.config.sections import Config, CreditOptions, EvalOptions, LossOptions, SelectOptions
from agentgym_trainers.rollout.environment import lists_actions
from agentgym_trainers.validate import validate_config

SETUP_TABLES = ("run", "model", "env", "prompt_format", "rollout", "engine", "optim", "sft", "eval", "scale")
"""Tables that a setup may have; the other tables are the method's."""

OF_THE_ENVIRONMENT = ("env", "prompt_format", "rollout.max_new_tokens", "rollout.max_length", "eval.split")
"""Tables and options of a setup that hold for its own environment, and for no other."""


class NamedEnv(NamedTuple):
    """The environment to train on, in place of the setup's."""

    name: str
    """The value of `env.name`."""
    spec: EnvSpec


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return _shipped("recipe")


def setup_names() -> list[str]:
    """The setups that come with the package."""
    return _shipped("setup")


def resolve(
    recipe: str | Path,
    overrides: Sequence[str] = (),
    *,
    setup: str | Path | None = None,
    env: NamedEnv | None = None,
    on_note: Callable[[str], None] = lambda note: None,
) -> Config:
    """The Config of a shipped recipe's name or a TOML file, with `section.key=value` overrides.

    `setup` (a shipped name or a TOML file) takes the place of the recipe's own. `env` takes the place of the setup's
    environment: what the setup says for that one alone is left out, and `on_note` gets one line that says so. Values
    are TOML (`1e-4`, `true`, `"text"`, `[1, 2]`); what is not TOML is text; `section.key=` and `section=` remove what
    setup and recipe say there. Raises ConfigError.
    """
    method = _read("recipe", recipe)
    own = method.pop("setup", None)
    if own is not None:
        own = Path(recipe).parent / own if str(own).endswith(".toml") else own
    setup = own if setup is None else setup
    place = {} if setup is None else _read_setup(setup)
    notes = [] if own is None or str(own) == str(setup) else _keep_rate(place, method, setup)
    notes += [] if env is None else _move(place, method, setup, env)
    tree = _merged(place, method)
    for override in overrides:
        _apply(tree, override)
    try:
        _refuse_not_finite(tree)
        config = Config.model_validate(tree)
        validate_config(config)
    except ValidationError as error:
        raise ConfigError(f"{recipe}: {'; '.join(map(_error_text, error.errors()))}") from error
    except ConfigError as error:
        raise ConfigError(f"{recipe}: {error}") from error
    if notes:
        on_note("; ".join(notes))
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
        "model": "nn/checkpoint.py, learner/build.py",
        "env": "rollout/environment.py",
        "prompt_format": "agentgym/rollouts/prompt_format.py",
        "rollout": "agentgym/rollouts/runner.py",
        "engine": f"engines/ ({config.engine.kind})",
        "source": f"rollout/sources/ ({config.source.kind})",
        "select": "data/filters.py",
        "signals": "signals/",
        "shaping": "data/reward_shaping.py",
        "credit": f"credit/ ({', '.join(term.assigner for term in config.credit.parts.values())})",
        "value": "learner/critic.py",
        "correct": "losses/importance.py",
        "loss": f"losses/ ({config.loss.objective})",
        "replay": "data/replay_buffer.py",
        "schedules": "config/schedules.py",
        "optim": "learner/learner.py",
        "sft": "learner/sft.py",
        "eval": "agentgym/evaluation/evaluate.py",
        "guards": "monitoring/guards.py",
        "tracking": "monitoring/tracking/",
        "scale": "distributed/",
    }
    table = []
    tree = config.model_dump()
    for section, reader in readers.items():
        for key, value in (tree[section] or {}).items():
            table.append((reader, f"{section}.{key}", json.dumps(value, ensure_ascii=False)))
    return table


def _shipped(kind: str) -> list[str]:
    folder = resources.files("agentgym_trainers") / f"{kind}s"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def _read(kind: str, name: str | Path) -> dict[str, Any]:
    """The tables of a "recipe" or a "setup"."""
    path = Path(name)
    if path.suffix == ".toml":
        if not path.is_file():
            raise ConfigError(f"there is no file {path}")
        content = path.read_bytes()
    else:
        shipped = _shipped(kind)
        if str(name) not in shipped:
            close = difflib.get_close_matches(str(name), shipped, n=1)
            guess = f" Did you mean {close[0]!r}?" if close else ""
            raise ConfigError(
                f"there is no {kind} {str(name)!r}.{guess} The {kind}s are {', '.join(shipped)}; a file of "
                "your own ends in .toml"
            )
        content = (resources.files("agentgym_trainers") / f"{kind}s" / f"{name}.toml").read_bytes()
    try:
        return tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not text in UTF-8 ({error}); save it as such") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{name} is not TOML: {error}") from error


def _read_setup(name: str | Path) -> dict[str, Any]:
    tables = _read("setup", name)
    tables.pop("description", None)
    for key, value in tables.items():
        if key not in SETUP_TABLES:
            raise ConfigError(
                f"setup {name}: {key!r} belongs in a recipe; a setup has a description and the tables "
                f"{', '.join(SETUP_TABLES)}"
            )
        if not isinstance(value, dict):
            raise ConfigError(f"setup {name}: {key!r} is a table: write [{key}]")
    return tables


def _merged(under: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Both trees; where they differ, `over`."""
    tree = dict(under)
    for key, value in over.items():
        both = isinstance(value, dict) and isinstance(tree.get(key), dict)
        tree[key] = _merged(tree[key], value) if both else value
    return tree


def _keep_rate(place: dict[str, Any], method: dict[str, Any], setup: str | Path | None) -> list[str]:
    """Leave out a recipe's learning rate where a setup that is not its own has one: the model is another."""
    if "lr" not in place.get("optim", {}) or "lr" not in method.get("optim", {}):
        return []
    rate = method["optim"].pop("lr")
    return [f"optim.lr={place['optim']['lr']} of setup {setup}: the recipe's {rate} is for the model of its own setup"]


def _move(place: dict[str, Any], method: dict[str, Any], setup: str | Path | None, env: NamedEnv) -> list[str]:
    """Change a setup's and a recipe's tables to another environment; what that took, in sentences."""
    spec, notes = env.spec, []
    made_for = place.get("env", {}).get("name")
    if made_for not in (None, env.name, spec.id):
        dropped = ", ".join(f"{key}={json.dumps(value)}" for key, value in _drop(place, OF_THE_ENVIRONMENT))
        if dropped:
            notes.append(f"setup {setup} is made for {made_for}, so this is left out for {spec.id}: {dropped}")
    method["env"] = {**method.get("env", {}), "name": env.name}
    notes += _fit_warm_up(place, method, spec)
    notes += _fit_evaluation(place, method, spec)
    return notes


def _drop(tables: dict[str, Any], paths: Sequence[str]) -> list[tuple[str, Any]]:
    """Remove options and whole tables by their dotted names; what they were, but for the environment's name."""
    dropped = []
    for path in paths:
        section, _, wanted = path.partition(".")
        for key in list(tables.get(section, {})):
            if wanted in ("", key):
                dropped.append((f"{section}.{key}", tables[section].pop(key)))
    return [option for option in dropped if option[0] != "env.name"]


def _fit_warm_up(place: dict[str, Any], method: dict[str, Any], spec: EnvSpec) -> list[str]:
    """Leave out the warm-up that the environment cannot give."""
    tables = [tree["sft"] for tree in (place, method) if "sft" in tree]
    if tables and "solver" not in spec.capabilities:
        for tree in (place, method):
            tree.pop("sft", None)
        return [
            f"no warm-up, as {spec.id} has no scripted solver to imitate (sft.path=FILE imitates a file's episodes)"
        ]
    if any(table.get("noise") for table in tables) and not lists_actions(spec):
        for table in tables:
            table.pop("noise", None)
        return [f"a warm-up without noise, as {spec.id} lists no actions to draw from"]
    return []


def _fit_evaluation(place: dict[str, Any], method: dict[str, Any], spec: EnvSpec) -> list[str]:
    """Evaluate on a split that the environment has, and on no more tasks than are there."""
    wanted = {**EvalOptions().model_dump(), **_merged(place, method).get("eval", {})}
    split, tasks, notes, changed = wanted["split"], wanted["tasks"], [], {}
    if split not in spec.splits:
        changed["split"] = next(iter(spec.splits), split)
        notes.append(f"evaluation on {changed['split']!r}, as {spec.id} has no split {split!r}")
    available = spec.splits.get(changed.get("split", split), 0)
    if isinstance(tasks, int) and tasks > available > 0:
        changed["tasks"] = available
        notes.append(f"evaluation on {available} tasks, which is all there are")
    if changed:
        method["eval"] = {**method.get("eval", {}), **changed}
    return notes


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
    path = [quoted or bare for quoted, bare in re.findall(r'"([^"]*)"|([^."]+)', key)]
    if not equals or not path:
        raise ConfigError(f"{override!r} is not an override; write section.key=value")
    try:
        value = tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        value = text
    *sections, last = path
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


def _refuse_not_finite(value: Any, *at: str) -> None:
    """Raises ConfigError for nan and inf, which TOML knows and no option means."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{'.'.join(at)}: {value} is not a finite number")
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inside in items:
        _refuse_not_finite(inside, *at, str(key))


def _error_text(detail: Any) -> str:
    """One sentence for an error of pydantic. Where a table is one of several kinds, its place does not name the
    kind."""
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
        lines.append(f"\n[{'.'.join(map(_key, at))}]")
    lines += [f"{_key(key)} = {_value(value)}" for key, value in tree.items() if not isinstance(value, dict)]
    for key, value in tree.items():
        if isinstance(value, dict):
            _emit(value, (*at, key), lines)


def _key(key: str) -> str:
    """Bare where TOML allows it; a part of one's own is "package.module:function"."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else json.dumps(key, ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)
