"""Chains of facts: from a thing that a question names, over things that it does not name, to a value.

    Kiunga Airport  --city-->  Kiunga  --country-->  Papua New Guinea  --population-->  8,606,316

Every step is a fact that one document states. A chain has as many hops as documents have to be read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from agentgym_environments.backends.retrieval.document import Document
from agentgym_environments.synthetic.search.atlas import Airport, Atlas, AtlasCity, Country, Entity, fold


@dataclass(frozen=True)
class Relation:
    """A step to another thing."""

    key: str
    """Key of the fact, in the document that states it."""
    phrase: str
    """Words of a question for the thing that it leads to."""
    to: Callable[[Any], str]
    """Id of the one thing that it leads to; empty when there is none."""
    stated_there: bool = False
    """The fact stands in the document of the thing that it leads to, and has to be found from that side."""


RELATIONS: dict[type, tuple[Relation, ...]] = {
    Airport: (Relation("city", "the city served by {}", lambda airport: airport.city),),
    AtlasCity: (
        Relation("country", "the country of {}", lambda city: f"country-{city.country.lower()}"),
        Relation("city", "the only airport serving {}", lambda city: city.airport, stated_there=True),
    ),
    Country: (
        Relation("capital", "the capital of {}", lambda country: country.capital),
        Relation("second", "the second most populous place of {}", lambda country: country.second),
        Relation(
            "neighbours",
            "the only country bordering {}",
            lambda country: country.neighbours[0] if len(country.neighbours) == 1 else "",
        ),
    ),
}

VALUES: dict[type, dict[str, tuple[str, Callable[[Any], str]]]] = {
    AtlasCity: {
        "population": ("What is the population of {}?", lambda city: f"{city.population:,}" if city.population else ""),
    },
    Airport: {
        "iata": ("What is the IATA code of {}?", lambda airport: airport.iata),
        "icao": ("What is the ICAO code of {}?", lambda airport: airport.icao),
        "elevation": ("What is the elevation, in feet, of {}?", lambda airport: str(airport.elevation)),
    },
    Country: {
        "population": ("What is the population of {}?", lambda one: f"{one.population:,}" if one.population else ""),
        "area": ("What is the area, in square kilometres, of {}?", lambda one: f"{one.area:,}" if one.area else ""),
    },
}

"""Attributes that a question asks for at the end. Time zones, currencies and calling codes stand in the documents
too, but are not asked for: they can be guessed from the
question, as a population cannot."""

NAMED = ("city", "second")
"""Relations that may end a chain: then the name of the thing is the answer (of `city`, the airport's)."""


@dataclass(frozen=True)
class Chain:
    question: str
    named: str
    """The thing that the question names."""
    answers: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    """(document, key of the fact), in the order in which they have to be read."""
    queries: tuple[str, ...]
    """Queries for each of the facts by a solver that has read the ones before."""
    countries: frozenset[str]
    """ISO codes of every thing in the chain."""

    @property
    def gold(self) -> tuple[str, ...]:
        """The documents that have to be read, in order."""
        return tuple(dict.fromkeys(document for document, _ in self.facts))


class Chains:
    """Makes chains over an atlas and its documents, and refuses those that are ambiguous or can be cut short."""

    def __init__(self, atlas: Atlas, documents: dict[str, Document]) -> None:
        self.atlas, self.documents = atlas, documents

    @cached_property
    def titles(self) -> Counter[str]:
        """Return how many documents have each title."""
        return Counter(fold(document.title) for document in self.documents.values())

    @cached_property
    def city_names(self) -> Counter[str]:
        return Counter(fold(city.name) for city in self.atlas.cities.values())

    def steps(self, here: Entity, path: tuple[str, ...]) -> list[tuple[Relation, Entity]]:
        """Return where a chain may go on to from `here`, having been at `path`."""
        found = []
        for relation in RELATIONS[type(here)]:
            there = relation.to(here)
            if there and there not in path and self._is_stated(here, relation, there):
                found.append((relation, self.atlas.get(there)))
        return found

    def _is_stated(self, here: Entity, relation: Relation, there: str) -> bool:
        """The fact is written where it should be, and who has read it knows which thing is meant."""
        stated = there if relation.stated_there else here.id
        if relation.key not in self.documents[stated].facts:
            return False
        if isinstance(here, Airport):  # its document names no country: the city's name alone must do
            return self.city_names[fold(here.city_name)] == 1
        return True

    def chain(self, start: Entity, way: list[tuple[Relation, Entity]], value: str) -> Chain | None:
        """The chain along `way` that ends with the fact `value` of the last thing, or "" for its name.

        None when the question names a bridge or the answer, or when an earlier document already tells the answer.
        """
        things = [start, *(thing for _, thing in way)]
        if self.titles[fold(start.name)] != 1 or (not value and (not way or way[-1][0].key not in NAMED)):
            return None
        if not value and isinstance(things[-2], Airport):
            return None  # the name of a city that an airport serves is mostly the airport's
        words, facts, queries = start.name, [], []
        for before, here, (relation, there) in zip([None, *things], things, way):
            words = relation.phrase.format(words)
            facts.append((there.id if relation.stated_there else here.id, relation.key))
            queries.append(f"airport serving {here.name}" if relation.stated_there else _query(here, before))
        if value:
            template, read = VALUES[type(things[-1])][value]
            question, answer = template.format(words), read(things[-1])
            facts.append((things[-1].id, value))
            queries.append(_query(things[-1], things[-2] if way else None))
            if value not in self.documents[things[-1].id].facts:
                return None
        else:
            question, answer = f"What is the name of {words}?", things[-1].name
        if not answer or not fold(answer):
            return None
        countries = frozenset(thing.country for thing in things)
        made = Chain(question, start.name, (answer,), tuple(facts), tuple(queries), countries)
        return made if self._needs_every_document(made, things) else None

    def _needs_every_document(self, chain: Chain, things: list[Entity]) -> bool:
        question = fold(chain.question)
        bridges = [fold(thing.name) for thing in things[1:]]
        if any(within(name, question) for name in [*bridges, fold(chain.answers[0])]):
            return False
        for here, there in pairwise(things):  # a country's document names its capital, and so tells the country too
            upward = isinstance(here, AtlasCity) and isinstance(there, Country)
            if upward and within(fold(here.name), fold(self.documents[there.id].contents)):
                return False
        earlier = " | ".join(fold(self.documents[one].contents) for one in chain.gold[:-1])
        return not within(fold(chain.answers[0]), earlier)


def _query(thing: Entity, before: Entity | None) -> str:
    """The name, and the country's where who has come this way has read it."""
    return f"{thing.name} {before.name}" if isinstance(before, Country) and isinstance(thing, AtlasCity) else thing.name


def within(words: str, text: str) -> bool:
    """Return whether `words` stand in `text` one after another as whole words; both are folded."""
    return f" {words} " in f" {text} "
