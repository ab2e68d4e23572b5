"""The program of the process that compares mathematics: a line of JSON in, a line out.

`{"answer": "\\frac{1}{2}", "right": ["0.5"]}` is answered with `{"result": 1.0}`.
"""

from __future__ import annotations

import json
import logging
import re
import sys

from math_verify import parse, verify


def is_right(answer: str, right: list[str]) -> bool:
    """Return whether the answer is mathematically one of the right ones. What cannot be read is not."""
    parsed = parse(_delimited(answer))
    return any(verify(parse(_delimited(one)), parsed) for one in right)


DELIMITER = re.compile(r"(?<!\\)(?:\$|\\\[|\\\()|\\boxed")
"""Beginning of mathematics. `\\$18` has none: its dollar is a price's."""
LAYOUT = re.compile(r"\\(begin|end)\{(?:(aligned|gathered|split)|(?:align|equation|gather|multline)\*?)\}")
r"""Environments that lay out lines, within mathematics (group 2) or by themselves. math-verify knows none of them."""


def _delimited(text: str) -> str:
    """Return mathematics between delimiters that math-verify knows: its own, else dollars."""
    text = LAYOUT.sub(lambda mark: "" if mark[2] else r"\[" if mark[1] == "begin" else r"\]", text)
    text = re.sub(r"(?:\\\\\s*)?&\s*=", "=", text)  # lines that are aligned at "=" are one chain of equations
    return text if DELIMITER.search(text) else f"${text}$"


def main() -> None:
    logging.disable()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            result = float(is_right(request["answer"], request["right"]))
        except Exception:  # noqa: BLE001  (sympy raises whatever its input leads to)
            result = 0.0
        print(json.dumps({"result": result}), flush=True)


if __name__ == "__main__":
    main()
