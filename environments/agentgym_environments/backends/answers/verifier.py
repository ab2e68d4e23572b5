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


def _delimited(text: str) -> str:
    r"""Return mathematics between dollars. `\$18` has none yet: its dollar is a price's."""
    return text if re.search(r"(?<!\\)\$", text) or r"\boxed" in text else f"${text}$"


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
