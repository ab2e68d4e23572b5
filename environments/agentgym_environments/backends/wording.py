"""Wording of actions: marks of prose and Markdown, a game's prompt, the label of ReAct."""

from __future__ import annotations

import re

MARKS = " .!*_`>"
"""Characters around an action that end a sentence or mark it, in prose and in Markdown, and the prompt of a game."""

AROUND = MARKS + "\"'“”‘’"
"""The same and quotes, which an action of a browser has itself."""

LABEL = re.compile(r"^\W*(?:thought\b.*)?\baction(?: \d+)?:", re.IGNORECASE | re.DOTALL)
"""ReAct writes this before an action: its label, and a thought before that."""


def unlabelled(text: str) -> str:
    """Return what follows "Action:", or the text itself, without marks around it; quotes stay."""
    return LABEL.sub("", text).strip(MARKS)
