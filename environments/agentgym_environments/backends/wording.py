"""Wording of actions: marks of prose and Markdown, a game's prompt, the label of ReAct."""

from __future__ import annotations

import re

MARKS = " .!*_`>"
"""Characters around an action that end a sentence or mark it, in prose and in Markdown, and the prompt of a game."""

AROUND = MARKS + "\"'“”‘’"
"""The same and quotes, which an action of a browser has itself."""

LABEL = re.compile(r"^\W*(?:thought\b.*)?\baction(?: \d+)?:", re.IGNORECASE | re.DOTALL)
"""ReAct writes this before an action: its label, and a thought before that."""

PAIR = re.compile(r"""\A(\*\*|__|[*_`"'])(.+)\1\Z|\A“(.+)”\Z""", re.DOTALL)
"""Emphasis or quotes around all of a text."""


def unlabelled(text: str) -> str:
    """Return what follows "Action:", or the text itself, without marks around it; quotes stay."""
    return LABEL.sub("", text).strip(MARKS)


def bare(text: str) -> str:
    """Return the action in a text: no label, no pair of marks around it, no marks before it; its end stays as it is."""
    text = _unpaired(text)
    if label := LABEL.match(text):
        text = _unpaired(text[label.end() :].lstrip("*_`").strip())
    return text.lstrip(MARKS)


def _unpaired(text: str) -> str:
    pair = PAIR.match(text)
    return (pair[2] or pair[3]).strip() if pair else text
