"""The facts as prose: one document for every city, country and airport, in sentences that each tell one thing.

Wording and order vary from document to document, by its id, so that a fact has to be read and not cut out by position.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from agentgym_environments.backends.retrieval.document import Document
from agentgym_environments.synthetic.search.atlas import Airport, Atlas, AtlasCity, Country

CITY = {
    "country": ("{name} is a city in {country}.", "{name} is a place in {country}.", "In {country} lies {name}."),
    "population": (
        "Its population is {population:,}.",
        "It has a population of {population:,}.",
        "The population was last given as {population:,}.",
    ),
    "zone": ("Its time zone is {zone}.", "Clocks keep the time zone {zone}."),
    "place": ("It lies at {place}.", "Its coordinates are {place}."),
    "others": ("Other names are {others}.", "It is also known as {others}."),
}

COUNTRY = {
    "continent": ("{name} is a country in {continent}.", "{name} belongs to {continent}."),
    "capital": ("The capital is {capital_name}.", "Its capital is {capital_name}."),
    "second": (
        "After {first}, the second most populous place is {second}.",
        "Its second most populous place is {second}, after {first}.",
    ),
    "population": ("The population is {population:,}.", "Its population was last given as {population:,}."),
    "area": ("Its area is {area:,} square kilometres.", "It covers an area of {area:,} square kilometres."),
    "currency": (
        "The currency is the {currency_name}, of currency code {currency}.",
        "Its currency code is {currency} ({currency_name}).",
    ),
    "calling": ("The telephone calling code is {calling}.", "From abroad the calling code is {calling}."),
    "domain": ("Its internet domain is {domain}.", "Web addresses there end in {domain}."),
    "neighbours": ("It borders {neighbours}.", "By land it borders {neighbours}."),
}

AIRPORT = {
    "kind": ("{name} is an airport.", "{name} is an airfield with regular codes."),
    "city": (
        "It serves {city_name}.",
        "The airport serves the city of {city_name}.",
        "It serves travellers to {city_name}.",
    ),
    "region": ("It lies in the region {region}.", "The region is {region}."),
    "iata": ("Its IATA code is {iata}.", "Tickets bear the IATA code {iata}."),
    "icao": ("Its ICAO code is {icao}.", "Pilots know it by the ICAO code {icao}."),
    "elevation": (
        "Its elevation is {elevation} feet above the sea.",
        "The elevation of the field is {elevation} feet.",
    ),
    "place": ("It lies at {place}.", "Its coordinates are {place}."),
}

KEYWORDS = {
    **{key: key for key in ("population", "capital", "area", "elevation", "region")},
    "zone": "time zone",
    "second": "second most populous",
    "currency": "currency code",
    "calling": "calling code",
    "neighbours": "borders",
    "city": "serves",
    "iata": "iata code",
    "icao": "icao code",
}
"""Words that every wording of a fact contains: what to `find` it by, where the first sentence does not tell it."""


def documents(atlas: Atlas) -> Iterator[Document]:
    """Every document of the atlas, always in the same order."""
    firsts = _most_populous(atlas)
    for country in atlas.countries.values():
        yield _country(country, atlas, firsts.get(country.country))
    for airport in atlas.airports.values():
        yield _airport(airport)
    for city in atlas.cities.values():
        yield _city(city, atlas)


def _most_populous(atlas: Atlas) -> dict[str, AtlasCity]:
    first: dict[str, AtlasCity] = {}
    for city in atlas.cities.values():
        if city.country not in first or city.population > first[city.country].population:
            first[city.country] = city
    return first


def _city(city: AtlasCity, atlas: Atlas) -> Document:
    values = {
        **vars(city),
        "country": atlas.countries[f"country-{city.country.lower()}"].name,
        "place": _place(city.place),
        "others": ", ".join(city.others),
    }
    absent = {"others"} if not city.others else set()
    absent |= {"population"} if city.population <= 0 else set()
    return _write(city.id, city.name, CITY, values, absent)


def _country(country: Country, atlas: Atlas, first: AtlasCity | None) -> Document:
    near = [atlas.countries[one].name for one in country.neighbours]
    second = atlas.cities[country.second].name if country.second else ""
    values = {
        **vars(country),
        "neighbours": _list(near),
        "second": second,
        "first": first.name if first else "",
    }
    absent = {key for key in ("neighbours", "second", "currency", "calling", "domain", "area") if not values[key]}
    absent |= {"population"} if country.population <= 0 else set()
    return _write(country.id, country.name, COUNTRY, values, absent)


def _airport(airport: Airport) -> Document:
    values = {**vars(airport), "place": _place(airport.place)}
    absent = {key for key in ("city_name", "region", "icao") if not values[key]}
    return _write(airport.id, airport.name, AIRPORT, values, {"city" if key == "city_name" else key for key in absent})


def _list(names: list[str]) -> str:
    if len(names) < 2:
        return "".join(f"only {name}" for name in names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _write(
    name: str, title: str, wordings: dict[str, tuple[str, ...]], values: dict[str, object], absent: set[str]
) -> Document:
    """The first fact introduces; the others follow in an order of the document's own."""
    keys = [key for key in wordings if key not in absent]
    order = keys[:1] + sorted(keys[1:], key=lambda key: _chance(name, key, "order"))
    texts = tuple(wordings[key][_chance(name, key, "wording") % len(wordings[key])].format_map(values) for key in order)
    return Document(name, title, texts, tuple(order))


def _chance(*parts: str) -> int:
    return zlib.crc32("/".join(parts).encode())


def _place(place: tuple[float, float]) -> str:
    north, east = place
    return f"{abs(north):.2f}° {'N' if north >= 0 else 'S'}, {abs(east):.2f}° {'E' if east >= 0 else 'W'}"
