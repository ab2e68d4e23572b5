"""The solver: it searches by names that it has read, opens what the answer rests on, and looks for the fact."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from agentgym_environments.synthetic.search.chains import Chain
from agentgym_environments.synthetic.search.passages import KEYWORDS

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


def next_action(chain: Chain, step: int, view: Sequence[Any], known: Collection[str]) -> str:
    """The facts of the chain in order; nothing is used before the document that tells it was shown.

    step: the first of the chain's facts that was not read. view: what the agent looks at. known: documents that
    searches listed. It knows which of the documents found is the right one: that is its only privilege.
    """
    if step == len(chain.facts):
        cited = " ".join(f"[{name}]" for name in chain.gold)
        return f"answer {chain.answers[0]} {cited}"
    name, key = chain.facts[step]
    if view[0] in ("page", "found") and view[1] == name:
        return f"find {KEYWORDS[key]}"
    if name in known:
        return f"open {name}"
    return f"search {_other(chain.queries[step], name, view)}"


def _other(query: str, name: str, view: Sequence[Any]) -> str:
    """The query; where its results are in view and did not help, with words that documents of the right kind have."""
    wordings = [" ".join(one.lower().split()) for one in (query, f"{query} {COMMON[name.partition('-')[0]]}")]
    helpless = view[0] == "results" and view[1] == wordings[0]
    return wordings[helpless]


def hint(chain: Chain, step: int) -> str:
    """Return what to look for next and by which words; never a fact that has not been read."""
    if step == len(chain.facts):
        return "All that is needed has been shown: answer what the question asks for."
    key = chain.facts[step][1]
    return f'Search for "{chain.queries[step]}" and read about {ABOUT.get(key, f"the {key}")}.'
