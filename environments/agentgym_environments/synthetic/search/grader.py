"""Comparison of answers as in SQuAD: lower case, no punctuation, no articles, single spaces.

Three things beyond SQuAD: accents are folded, since the corpus spells names as their countries do; a point or comma
inside a number goes without leaving a space, as all punctuation does ("1,234" is "1234"); and a negative number keeps
its sign.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

ARTICLES = re.compile(r"\b(a|an|the)\b")
SIGN = re.compile(r"(?<!\w)(?:[-−]|minus )(?=\d)")
"""Sign of a number, which is no punctuation: an airfield may lie below the sea."""
PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    plain = "".join(char for char in unicodedata.normalize("NFKD", text.lower()) if not unicodedata.combining(char))
    plain = SIGN.sub("minus", plain)
    return " ".join(ARTICLES.sub(" ", plain.translate(PUNCTUATION)).split())


def exact_match(answer_text: str, answers: Sequence[str]) -> bool:
    """Return whether `answer_text` is one of `answers` once both are normalised; an empty answer never is."""
    return bool(normalise(answer_text)) and normalise(answer_text) in map(normalise, answers)


def f1(answer_text: str, answers: Sequence[str]) -> float:
    """Best harmonic mean of precision and recall over words, of `answer_text` against each of `answers`; in [0, 1]."""
    return max((_f1(normalise(answer_text).split(), normalise(answer).split()) for answer in answers), default=0.0)


def _f1(answer_text: list[str], answer: list[str]) -> float:
    shared = sum((Counter(answer_text) & Counter(answer)).values())
    return 2 * shared / (len(answer_text) + len(answer)) if shared else 0.0
