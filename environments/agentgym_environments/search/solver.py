"""The expert: it searches by names that it has read, opens what the answer rests on, and looks for the fact."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentgym_environments.search.passages import KEYWORDS

if TYPE_CHECKING:
    from agentgym_environments.search.env import Search

ABOUT = {
    "country": "its country",
    "city": "the city that it serves",
    "second": "the second most populous place",
    "neighbours": "its neighbours",
    "iata": "the IATA code",
    "icao": "the ICAO code",
}

COMMON = {
    "airport": "iata icao elevation feet coordinates",
    "city": "population time zone coordinates",
    "country": "capital currency calling code area",
}
"""Words that all or most documents of a kind have, whatever their wording."""


def next_action(world: Search) -> str:
    """The facts of the chain in order; nothing is used before the document that tells it was shown.

    It knows which of the documents found is the right one: that is its only privilege.
    """
    chain = world.chain
    for fact, query in zip(chain.facts, chain.queries):
        name, key = fact
        if world.has_read(fact):
            continue
        if world.view[0] in ("page", "found") and world.view[1] == name:
            return f"find {KEYWORDS[key]}"
        if name in world.known:
            return f"open {name}"
        return f"search {_other(query, name, world)}"
    cited = " ".join(f"[{name}]" for name in chain.gold)
    return f"answer {chain.answers[0]} {cited}"


def _other(query: str, name: str, world: Search) -> str:
    """The query; where its results are in view and did not help, with words that documents of the right kind have."""
    wordings = [" ".join(one.lower().split()) for one in (query, f"{query} {COMMON[name.partition('-')[0]]}")]
    helpless = world.view[0] == "results" and world.view[1] == wordings[0]
    return wordings[helpless]


def hint(world: Search) -> str:
    """What to look for next and by which words; never a fact that has not been read."""
    for fact, query in zip(world.chain.facts, world.chain.queries):
        if not world.has_read(fact):
            return f'Search for "{query}" and read about {ABOUT.get(fact[1], f"the {fact[1]}")}.'
    return "All that is needed has been shown: answer what the question asks for."
