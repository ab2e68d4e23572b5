"""Graders of answers: of text, numbers, choices and mathematics. Each returns a score from 0 to 1; 1 is right."""

from __future__ import annotations

import re
import string
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from agentgym.errors import ConfigError, EnvironmentCrashed
from agentgym_environments.backends.shared_process import SharedProcess
from agentgym_environments.base.engine_env import package

LONGEST = 4000
"""Characters of an answer that are read; no right answer is longer."""
VERIFY_S = 10.0
"""Seconds in which the verifier of mathematics must be done with an answer. One that keeps it busy is wrong."""

EMPHASIS = re.compile(r"\A\s*(\*\*|__|`)(.+)\1\s*\Z", re.DOTALL)

THOUSANDS = r"\d{1,3}(?P<separator>[,'’_ \u00a0\u2009\u202f]|\{,\}|\\,)\d{3}(?:(?P=separator)\d{3})*(?!\d)"
"""A number whose groups of three digits are separated, all of them by the same: 1,234 or 1 234 or 1{,}234."""
NUMBER = re.compile(rf"[-+]?(?:{THOUSANDS}|\d+)?(?:\.\d+)?(?:[eE][-+]?\d+)?")


def normalize(text: str) -> str:
    """Return text as SQuAD's metric compares it: no case, punctuation, articles or double spaces."""
    text = unicodedata.normalize("NFKC", text).lower()
    text = "".join(" " if one in string.punctuation and one in "-/" else one for one in text)
    text = "".join(one for one in text if one not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def text_score(answer: str, grader: dict[str, Any]) -> float:
    """Best overlap (F1 of words) with any of the right answers; 1 only where it is one of them (exact match)."""
    return max(_f1(normalize(answer), normalize(right)) for right in grader["answers"])


def _f1(answer: str, right: str) -> float:
    if answer == right:
        return 1.0
    words, expected = answer.split(), right.split()
    common = sum((Counter(words) & Counter(expected)).values())
    if not common or {"yes", "no"} & {answer, right}:
        return 0.0
    precision, recall = common / len(words), common / len(expected)
    return min(0.99, 2 * precision * recall / (precision + recall))


def number_score(answer: str, grader: dict[str, Any]) -> float:
    """Return 1 where the last number of the answer is the right one, whatever its thousands are separated by."""
    number = last_number(answer)
    return float(number is not None and any(number == last_number(right) for right in grader["answers"]))


def last_number(text: str) -> Decimal | None:
    found = [match[0] for match in NUMBER.finditer(text.replace("−", "-"))]
    numbers = [one for one in found if any(map(str.isdigit, one))]
    try:
        return Decimal(re.sub(r"[^\d.eE+-]", "", numbers[-1])) if numbers else None
    except InvalidOperation:
        return None


def choice_score(answer: str, grader: dict[str, Any]) -> float:
    """Return 1 for the letter of the right choice, alone or before its text, or for the text itself.

    A letter by itself names a choice, even where it is another choice's text.
    """
    answer = answer.strip()
    found = re.fullmatch(r"\(?([A-Za-z])(?:[).:]\s*.*)?", answer, re.DOTALL)
    letter = found[1].upper() if found else ""
    if letter in grader["answers"]:
        return 1.0
    names_another = answer.upper() in tuple(string.ascii_uppercase[: grader["choices"]])
    return float(not names_another and _is_text(answer, grader["text"]))


def _is_text(answer: str, text: str) -> bool:
    """Compare words without case and punctuation, but formulas and short symbols ("-1.5", "Aa") as they are."""
    if re.search(r"[^\W\d_]{4}", text) and not re.search(r"\d", text):
        return normalize(answer) == normalize(text)
    one, other = (" ".join(unicodedata.normalize("NFKC", some).split()).removesuffix(".") for some in (answer, text))
    return one == other


MATHEMATICS = SharedProcess(
    [sys.executable, "-m", "agentgym_environments.backends.answers.verifier"],
    name="the verifier of mathematics",
    greeting={"answer": "1", "right": ["1"]},
)
"""math-verify in a process of its own: an answer may keep it busy, or break it."""


def math_score(answer: str, grader: dict[str, Any]) -> float:
    """Return 1 where the answer is mathematically one of the right ones."""
    package("math_verify", "math")
    try:
        return float(MATHEMATICS.ask({"answer": answer, "right": grader["answers"]}, timeout_s=VERIFY_S))
    except EnvironmentCrashed:
        return 0.0


GRADERS: dict[str, Callable[[str, dict[str, Any]], float]] = {
    "text": text_score,
    "number": number_score,
    "choice": choice_score,
    "math": math_score,
}


def require_graders(kinds: Sequence[str]) -> None:
    """Raises ConfigError for a kind of grader that does not exist."""
    for kind in kinds:
        if kind not in GRADERS:
            raise ConfigError(f"there is no grader {kind!r}; there are {', '.join(GRADERS)}")


def score(answer: str, grader: dict[str, Any]) -> float:
    """Score of an answer by a task's grader. Emphasis of Markdown around all of it is no part of it."""
    answer = EMPHASIS.sub(r"\2", answer[:LONGEST])
    return GRADERS[grader["kind"]](answer, grader)
