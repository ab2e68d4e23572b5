"""Find the code in an answer: in fenced blocks, bare, as the rest of a function, or in the middle of prose.

Nothing is parsed here. `readings` returns texts in the order in which the submission's own sandbox is to try them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

LONGEST = 30_000
"""Characters of an answer that are read; a longer one has no code."""
FENCE = re.compile(
    r"^[ \t]*(```+|~~~+)[ \t]*([\w+#.-]*)[^\n`]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.DOTALL | re.MULTILINE
)
THOUGHT = re.compile(r"^.*</think(?:ing)?>", re.DOTALL)
PYTHON = ("", "py", "python", "python3", "py3")
INDENT = "    "


class Reading(NamedTuple):
    """One way to read an answer."""

    before: str
    """Code that runs first: imports and functions of the prompt."""
    source: str
    prose: bool = False
    """True where the code may be only a part of the source."""


def readings(answer: str, prompt: str) -> list[Reading]:
    """Return the ways to read an answer, the likeliest first; none for an answer that cannot be read.

    prompt: a function whose body the answer may be, "" where there is none.
    """
    text = THOUGHT.sub("", answer).replace("\r\n", "\n")
    if len(text) > LONGEST or not text.strip() or "\0" in text or not _encodable(text):
        return []
    blocks = [dedented(body) for _, language, body in FENCE.findall(text) if language.lower() in PYTHON]
    modules = ["\n".join(blocks), *reversed(blocks)] if len(blocks) > 1 else blocks
    found = [Reading(prompt, module) for module in modules]
    if not blocks:
        found += [Reading(prompt, text), Reading(prompt, dedented(text)), Reading(prompt, text, prose=True)]
    found += [Reading(prompt, block, prose=True) for block in reversed(blocks)]
    if prompt:
        found += [Reading("", f"{prompt}{body}") for text in (*reversed(blocks), text) for body in bodies(text)]
    return list(dict.fromkeys(found))


def bodies(text: str) -> list[str]:
    """Return the ways in which a text may go on with a function that ends with its docstring."""
    text = text.strip("\n") + "\n"
    first, _, rest = text.partition("\n")
    shifted = "".join(f"{INDENT}{line}" if line.strip() else line for line in text.splitlines(keepends=True))
    bodies = [text] if first[:1].isspace() else [f"{INDENT}{first.strip()}\n{rest}", shifted]
    return [one for body in bodies for one in (body, indented_part(body))]


def indented_part(body: str) -> str:
    """Return the lines before the first that is not indented."""
    lines = body.splitlines(keepends=True)
    end = next((place for place, line in enumerate(lines) if line.strip() and not line[0].isspace()), len(lines))
    return "".join(lines[:end])


def dedented(text: str) -> str:
    """Return a text without the indentation of its first line, where all lines have that."""
    lines = text.strip("\n").split("\n")
    margin = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    if not margin or not all(line.startswith(margin) or not line.strip() for line in lines):
        return text
    return "\n".join(line.removeprefix(margin) for line in lines) + "\n"


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half a character
        return False
    return True
