"""Plain text of what a Gymnasium environment shows."""

from __future__ import annotations

import re
from typing import Any

ESCAPE = re.compile(r"\x1b\[([\d;]*)m")
LAST_ACTION = re.compile(r"^\s*\(\w+\)\s*$")


def plain(ansi: str, mark: str = "@") -> str:
    """A rendering without escape codes: what had a background colour is where the agent is, and becomes `mark`.

    The line that names the last action is left out: it is not part of the state.
    """
    text, here, shown = [], False, 0
    for match in ESCAPE.finditer(ansi):
        text.append(_cells(ansi[shown : match.start()], here, mark))
        shown = match.end()
        codes = [int(code) for code in match[1].split(";") if code]
        here = any(40 <= code <= 47 for code in codes) or (here and codes not in ([], [0]))
    text.append(_cells(ansi[shown:], here, mark))
    lines = "".join(text).split("\n")
    return "\n".join(line.rstrip() for line in lines if line.strip() and not LAST_ACTION.match(line))


def _cells(text: str, here: bool, mark: str) -> str:
    return mark * len(text) if here else text


def values(observation: Any, decode: Any = None) -> list[Any]:
    """The numbers of a discrete or tuple observation; `decode` (Taxi has one) takes a number apart."""
    if not isinstance(observation, tuple):
        observation = decode(int(observation)) if decode else (observation,)
    return [int(value) for value in observation]


def state_key(inner: Any, observation: Any, maps: bool) -> str:
    """The whole state of a toy-text environment in words; of any other, its observation.

    inner: the unwrapped environment. Tabular ones keep their state in `s`, Blackjack its hands. maps: tasks differ in
    their map, `desc`.
    """
    if hasattr(inner, "player") and hasattr(inner, "dealer"):
        return f"player {_hand(inner.player)} dealer {_hand(inner.dealer)}"
    if hasattr(inner, "s") and hasattr(inner, "P"):
        drawn = "/".join(b"".join(row).decode() for row in inner.desc) if maps else ""
        return f"{drawn} state {int(inner.s)}".strip()
    return repr(values(observation))


def _hand(cards: Any) -> str:
    return ",".join(str(int(card)) for card in cards)
