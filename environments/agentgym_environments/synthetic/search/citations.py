"""Parts of ReSeek's rewards: was a judgement of what was found right, and does an answer cite what it rests on?

Pure functions over an environment's `info`. The environment pays none of this itself: a judgement of rubbish found on
purpose is easily right, so that an agent could live on it. A trainer that wants it adds `judge_reward` to the turn that
judged.

The target uses the documents that the answer rests on, which only training may know.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentgym_environments.synthetic.search.grader import normalise

MATCH, ACCEPTED_USELESS, REJECTED_USEFUL = 0.3, -0.6, -0.3

JUDGEMENT = re.compile(r"<judge>\s*(yes|no)\s*</judge>|^\s*judge\s+(yes|no)\s*$", re.IGNORECASE | re.MULTILINE)
CITATION = re.compile(r"\[([^\s\[\]]+)\]")


def parse_judgement(text: str) -> bool | None:
    """True for `judge yes` (a line of its own) or `<judge>yes</judge>`; the last one counts; None without any."""
    found = JUDGEMENT.findall(text)
    return "".join(found[-1]).lower() == "yes" if found else None


def useful(shown: Iterable[str], gold: Collection[str]) -> bool:
    """Return whether any document shown is one that the answer rests on."""
    return any(name in gold for name in shown)


def tells(passages: Iterable[str], answers: Sequence[str]) -> bool:
    """Return whether any passage contains an answer, both normalised: a target where no gold documents are known."""
    texts = [f" {normalise(passage)} " for passage in passages]
    return any(f" {normalise(answer)} " in text for answer in answers if normalise(answer) for text in texts)


def judge_reward(verdict: bool | None, target: bool) -> float:
    """0.3 for a right judgement, -0.6 for accepting what is useless, -0.3 for rejecting what is useful, 0 for none."""
    if verdict is None:
        return 0.0
    if verdict == target:
        return MATCH
    return ACCEPTED_USELESS if verdict else REJECTED_USEFUL


def judge_rewards(infos: Sequence[Mapping[str, Any]]) -> list[float]:
    """A reward for each turn of an environment made with `judge=true`; not 0 on turns that judged, and there alone.

    Their sum is within 0.3 and -0.6 times the number of judgements.
    """
    judged = (info.get("judgement") if info["valid_action"] else None for info in infos)
    return [judge_reward(one["said"], one["target"]) if one else 0.0 for one in judged]


@dataclass(frozen=True)
class Citations:
    cited: tuple[str, ...]
    """Citations in order, without repeats."""
    unseen: tuple[str, ...]
    """Cited though never shown: made up, or guessed."""
    precision: float
    """Share of what is cited that the answer rests on; 0 when nothing is."""
    recall: float
    """Share of what the answer rests on that is cited."""


def split_citations(text: str) -> tuple[str, tuple[str, ...]]:
    """`lisbon [city-1] [country-pt]` as ("lisbon", ("city-1", "country-pt"))."""
    return CITATION.sub(" ", text).strip(), tuple(dict.fromkeys(CITATION.findall(text)))


def check_citations(cited: Sequence[str], shown: Collection[str], gold: Collection[str]) -> Citations:
    """Return what was cited, against what was shown and what the answer rests on. What was not shown supports
    nothing."""
    cited = tuple(dict.fromkeys(cited))
    right = sum(name in gold and name in shown for name in cited)
    return Citations(
        cited=cited,
        unseen=tuple(name for name in cited if name not in shown),
        precision=right / len(cited) if cited else 0.0,
        recall=right / len(gold) if gold else 0.0,
    )
