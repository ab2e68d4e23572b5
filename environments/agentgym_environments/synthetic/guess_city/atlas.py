"""Facts about cities. `cities.txt` is our own compilation of common knowledge, rounded; README.md says how."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from agentgym_environments.base.guessing_env import AnswerTable
from agentgym_environments.base.text_env import task_random


class City(NamedTuple):
    name: str
    country: str
    continent: str
    language: str
    latitude: float
    """Degrees, north positive."""
    longitude: float
    """Degrees, east positive."""
    people: float
    """Millions, with the surroundings."""
    marks: frozenset[str]
    """"capital", "sea"."""


ALIASES = {
    "kiev": "kyiv", "odessa": "odesa", "st petersburg": "saint petersburg", "petersburg": "saint petersburg",
    "marrakech": "marrakesh", "cracow": "krakow", "gothenborg": "gothenburg", "goteborg": "gothenburg",
    "new york city": "new york", "nyc": "new york", "washington dc": "washington", "new delhi": "delhi",
    "bombay": "mumbai", "calcutta": "kolkata", "madras": "chennai", "hongkong": "hong kong", "peking": "beijing",
    "tel aviv yafo": "tel aviv", "ciudad de mexico": "mexico city",
    "usa": "united states", "us": "united states", "united states of america": "united states",
    "america": "united states", "uk": "united kingdom", "great britain": "united kingdom", "britain": "united kingdom",
    "uae": "united arab emirates", "emirates": "united arab emirates", "czech republic": "czechia",
    "turkiye": "turkey", "holland": "netherlands", "korea": "south korea",
    "democratic republic of congo": "congo", "dr congo": "congo", "mandarin": "chinese", "farsi": "persian",
    "tagalog": "filipino",
}  # fmt: skip
"""Other names of cities, countries and languages -> the name."""

WHICH = ("which continent is it on", "which language do they speak")


@lru_cache
def cities(few: bool) -> tuple[City, ...]:
    """few: only those that are marked with a star."""
    found = []
    for line in (Path(__file__).parent / "cities.txt").read_text(encoding="utf-8").splitlines():
        name, country, continent, language, latitude, longitude, people, marks = (
            part.strip() for part in line.split("|")
        )
        if name.startswith("*") or not few:
            where = float(latitude), float(longitude), float(people)
            found.append(City(name.lstrip("*"), country, continent, language, *where, frozenset(marks.split())))
    return tuple(found)


@lru_cache
def table(few: bool, which: bool) -> AnswerTable:
    """Return which: also questions that are answered by more than yes or no. Questions with one answer for all are not
    offered, nor comparisons with cities that are not in the mini game: they would be too many to send."""
    known = cities(few)

    def yes(truths: list[bool]) -> tuple[str, ...]:
        return tuple("yes" if true else "no" for true in truths)

    answers: dict[str, tuple[str, ...]] = {}
    if which:
        answers[WHICH[0]] = tuple(city.continent for city in known)
        answers[WHICH[1]] = tuple(city.language for city in known)
    answers["is it capital"] = yes(["capital" in city.marks for city in known])
    answers["is it on sea"] = yes(["sea" in city.marks for city in known])
    for land in sorted({city.continent for city in known}) + sorted({city.country for city in known}):
        answers[f"is it in {land}"] = yes([land in (city.continent, city.country) for city in known])
    for language in sorted({city.language for city in known}):
        answers[f"do they speak {language}"] = yes([city.language == language for city in known])
    for other in known:
        answers[f"is it bigger than {other.name}"] = yes([city.people > other.people for city in known])
        answers[f"is it north of {other.name}"] = yes([city.latitude > other.latitude for city in known])
        answers[f"is it east of {other.name}"] = yes([city.longitude > other.longitude for city in known])
        if which:
            answers[f"how far is it from {other.name}"] = tuple(far(city, other) for city in known)
    small = {city.name for city in known} - {city.name for city in cities(few=True)}
    ends = tuple(f" {word} {name}" for word in ("than", "of", "from") for name in small)
    offered = [question for question, row in answers.items() if len(set(row)) > 1 and not question.endswith(ends)]
    return AnswerTable([city.name for city in known], answers, offered, ALIASES)


def far(one: City, other: City) -> str:
    """The distance along the ground, in words: thousands of kilometres, rounded down."""
    a, b = math.radians(one.latitude), math.radians(other.latitude)
    east = math.radians(one.longitude - other.longitude)
    cosine = math.sin(a) * math.sin(b) + math.cos(a) * math.cos(b) * math.cos(east)
    thousands = int(6371 * math.acos(max(-1.0, min(1.0, cosine))) // 1000)
    return f"{thousands} to {thousands + 1} thousand km"


@lru_cache
def shuffled(few: bool) -> tuple[str, ...]:
    names = sorted(city.name for city in cities(few))
    return tuple(task_random("guess-city", few).sample(names, len(names)))
