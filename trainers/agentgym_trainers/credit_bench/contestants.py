"""Contestants of the bench: every assigner with its own defaults, and every shipped recipe that adds up terms or shapes
rewards by a signal.

An assigner takes the signals of the shipped recipe that uses it, else the first kind of signal that gives what it
needs. One that reads a critic's values is measured a second time on measured values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import BaseModel, ValidationError

from agentgym.errors import ConfigError
from agentgym_credit.batch import Batch, Credit
from agentgym_trainers.config.option_errors import sentence
from agentgym_trainers.config.sections import Config, CreditOptions
from agentgym_trainers.credit import ASSIGNERS
from agentgym_trainers.credit.assign import assign_credit
from agentgym_trainers.data.reward_shaping import SHAPERS
from agentgym_trainers.recipe import recipe_names, resolve
from agentgym_trainers.signals import SIGNALS
from agentgym_trainers.validate import ALWAYS, VALUES

MEASURED = frozenset({"mc_value_N", "mc_after_N", "mc_se_N"})
"""Columns that branching gives."""
RECIPE = " (recipe)"
"""End of the name of a recipe's row where an assigner has the same."""
FAVORITES = {"q_minus_v": "twin"}
"""The kind of signal, where several would do and none has the assigner's name."""


@dataclass(frozen=True)
class Contestant:
    """An assigner, and what it is given."""

    name: str
    credit_options: CreditOptions
    signals: Mapping[str, BaseModel] = field(default_factory=dict)
    """Options by kind."""
    shaping: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    measured: bool = False
    """V of states is branched and not learned."""
    missing: str = ""
    """Reason why it cannot be measured anywhere."""

    @property
    def needs(self) -> frozenset[str]:
        terms = (ASSIGNERS[term.assigner].needs for term in self.credit_options.parts.values())
        return frozenset().union(*terms, *(SHAPERS[name].needs for name in self.shaping))

    @property
    def assigner(self) -> str:
        return " + ".join(term.assigner for term in self.credit_options.parts.values())

    @property
    def reads_values(self) -> bool:
        return bool(self.needs & VALUES)

    def shaped(self, batch: Batch) -> Batch:
        """The batch with its rewards."""
        for name, options in self.shaping.items():
            batch = replace(batch, reward_N=SHAPERS[name].function(batch, **options))
        return batch

    def credit(self, batch: Batch) -> Credit:
        """Its credit on a batch that has every column it needs."""
        return assign_credit(self.shaped(batch), self.credit_options)[0]


def contestants(only: Sequence[str] = ()) -> list[Contestant]:
    """All of them, or those of the assigners and recipes named, one's own among them ("package.module:function").

    Raises ConfigError for a name that is none.
    """
    shipped = {name: resolve(name) for name in recipe_names()}
    shaped = {name: config for name, config in shipped.items() if _learned(config)}
    for name in only:
        try:
            _ = name in shaped or ASSIGNERS[name]
        except ValueError as error:
            known = f"Recipes that add up terms or shape rewards by a signal are measured too: {', '.join(shaped)}"
            raise ConfigError(f"{error}. {known}") from error
    found = []
    for name in dict.fromkeys([*ASSIGNERS, *(name for name in only if ":" in name)]):
        given, missing = _signals_of(name, shipped)
        plain = Contestant(name, CreditOptions(assigner=name), signals=given, missing=missing)
        found.append(plain)
        if plain.reads_values and not missing:
            found.append(replace(plain, name=f"{name}, measured V", measured=True))
    for name, config in shaped.items():
        row = name + RECIPE * (name in ASSIGNERS)
        found.append(Contestant(row, config.credit, config.signals, config.shaping))
    return [c for c in found if not only or c.name.removesuffix(", measured V").removesuffix(RECIPE) in only]


def _learned(config: Config) -> bool:
    """True where no assigner alone says what the recipe's credit is."""
    return bool(config.credit.terms) or any(SHAPERS[name].needs - ALWAYS for name in config.shaping)


def unfit(contestant: Contestant, batch: Batch) -> str:
    """Reason why it cannot be measured on these episodes; "" where it can."""
    if contestant.missing:
        return contestant.missing
    needs = contestant.needs
    if "groups" in needs and len(batch.group_M) == batch.group_M.max() + 1:
        return "it compares attempts at one task, and there is one attempt at each"
    if "anchors" in needs and (batch.anchor_N < 0).all():
        return "it compares equal states, and the environment names none"
    if "milestone_N" in needs and not batch.x["reached_N"].any():
        return "it compares turns after the same milestone, and none was reached"
    if "role_N" in needs and (batch.x["role_N"] == batch.x["role_N"][0]).all():
        return "it compares roles, and the environment has one player"
    if "branched_N" in needs and not batch.x["branched_N"].any():
        return "it compares branched pairs, and these episodes are whole ones"
    return ""


def _signals_of(name: str, shipped: Mapping[str, Config]) -> tuple[dict[str, BaseModel], str]:
    """(options by kind of signal, why there are none) for what the assigner needs."""
    wanted = ASSIGNERS[name].needs - ALWAYS - VALUES - MEASURED - {"groups", "anchors", "snapshots"}
    uses = [
        config
        for config in shipped.values()
        if name in {term.assigner for term in config.credit.parts.values()} and not config.shaping
    ]
    found: dict[str, BaseModel] = {}
    for need in sorted(wanted):
        givers = [kind for kind, signal in SIGNALS.items() if need in signal.provides]
        settings = next((c.signals[kind] for c in uses for kind in givers if kind in c.signals), None)
        if settings is not None:
            kind = next(kind for c in uses for kind in givers if c.signals.get(kind) is settings)
        elif givers:
            kind = next((k for k in givers if k in (name, FAVORITES.get(name))), givers[0])
            try:
                settings = SIGNALS[kind].options()
            except ValidationError as error:
                what = "; ".join(sentence(detail, []) for detail in error.errors())
                return {}, f"[signals.{kind}] must be told more ({what}): no shipped recipe does"
        else:
            return {}, f"nothing provides {need}"
        found[kind] = settings
    return found, ""
