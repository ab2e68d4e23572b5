"""A recipe's parts along the axes: what it is made of, each part with the sentence that describes it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from agentgym_trainers.config.sections import Config
from agentgym_trainers.credit import ASSIGNERS
from agentgym_trainers.data.filters import SELECTORS
from agentgym_trainers.data.reward_shaping import SHAPERS
from agentgym_trainers.losses import OBJECTIVES
from agentgym_trainers.losses.reduce import Reducer
from agentgym_trainers.rollout.sources import SOURCES
from agentgym_trainers.signals import SIGNALS

AXES = (
    "source", "select", "signals", "shaping", "credit", "correct", "objective", "regularizers", "reducer", "replay",
    "schedules", "guards",
)  # fmt: skip
"""Parts in the order in which a step uses them; docs/credit.md."""

REDUCERS: dict[Reducer, str] = {
    "token_mean": "All tokens of the batch weigh alike.",
    "turn_mean": "All turns weigh alike, and the tokens within one.",
    "trajectory_mean": "All trajectories weigh alike, and the tokens within one.",
    "trajectory_sum": "Tokens are summed, trajectories averaged: the policy gradient itself.",
    "constant": "Tokens are summed and divided by a constant length, trajectories averaged.",
}


@dataclass(frozen=True)
class RecipeComponent:
    """One part of a recipe."""

    axis: str
    name: str
    description: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def options_text(self) -> str:
        """name=value, as an override would set them."""
        values = {name: value for name, value in self.options.items() if value is not None}
        return " ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in values.items())


def pieces(config: Config) -> list[RecipeComponent]:
    """The recipe's parts, axis by axis. An axis that it leaves alone has none."""
    return [*_before_credit(config), *_from_credit(config)]


def _before_credit(config: Config) -> Iterator[RecipeComponent]:
    source, select = config.source, config.select
    yield RecipeComponent("source", source.kind, SOURCES[source.kind].description, _own(source, "kind"))
    if select is not None:
        yield RecipeComponent("select", select.kind, SELECTORS[select.kind].description, select.options)
    if config.value is not None:
        yield RecipeComponent("signals", "value", _first_line(config.value), _own(config.value))
    for name, options in config.signals.items():
        yield RecipeComponent("signals", name, SIGNALS[name].description, _own(options))
    for name, options in config.shaping.items():
        yield RecipeComponent("shaping", name, SHAPERS[name].description, options)


def _from_credit(config: Config) -> Iterator[RecipeComponent]:
    loss = config.loss
    for term in config.credit.parts.values():
        weighed = {"weight": term.weight, "gate": term.gate} if config.credit.terms else {}
        yield RecipeComponent(
            "credit", term.assigner, ASSIGNERS[term.assigner].description, {**weighed, **term.options}
        )
        if term.normalize != "none":
            rows = "trajectories" if term.normalize == "trajectory" else f"{term.normalize}s"
            yield RecipeComponent(
                "credit", f"normalize {term.normalize}", f"Advantages centered and scaled over the batch's {rows}."
            )
    if (correct := config.correct) is not None:
        yield RecipeComponent("correct", correct.kind, _first_line(correct), _own(correct, "kind"))
    yield RecipeComponent("objective", loss.objective, OBJECTIVES[loss.objective].description, loss.options)
    if loss.entropy:
        yield RecipeComponent("regularizers", "entropy", "A bonus for a spread policy.", {"entropy": loss.entropy})
    if loss.kl:
        kl_options = {"kl": loss.kl, "kl_estimator": loss.kl_estimator}
        yield RecipeComponent("regularizers", "kl", "Keeps the policy near the one with which RL began.", kl_options)
    if (band := loss.band) is not None:
        yield RecipeComponent("regularizers", "entropy_band", _first_line(band), _own(band))
    length = {} if loss.reducer_length is None else {"reducer_length": loss.reducer_length}
    yield RecipeComponent("reducer", loss.reducer, REDUCERS[loss.reducer], length)
    if config.replay is not None:
        again = config.replay.loss.objective
        yield RecipeComponent(
            "replay", again, _first_line(config.replay), _own(config.replay, "loss") | config.replay.loss.options
        )
    for path, schedule in config.schedules.items():
        yield RecipeComponent("schedules", path, _first_line(schedule), _own(schedule))
    yield from _guards(config)


def _guards(config: Config) -> Iterator[RecipeComponent]:
    guards = config.guards
    if "judge" in config.signals:
        yield RecipeComponent("guards", "probes", "A judge that calls answers without content good stops the run.", {})
    if config.signals:
        yield RecipeComponent(
            "guards", "zero_gradient", "A signal's loss that reaches none of its parameters stops the run.", {}
        )
    if guards.max_kl is not None:
        options = {"max_kl": guards.max_kl}
        yield RecipeComponent("guards", "max_kl", "Ends a step's epochs once the policy has moved too far.", options)


def _own(options: BaseModel, *without: str) -> dict[str, Any]:
    """Options of a table that differ from their defaults."""
    return options.model_dump(exclude=set(without), exclude_defaults=True)


def _first_line(options: BaseModel) -> str:
    return (inspect.getdoc(options) or "").partition("\n")[0]
