"""Writes the environment's own questions to `data/`: word problems of two or three steps, drawn from a seed.

python -m agentgym_environments.benchmarks.qa.make_tasks
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

SIZES = {"train": 200, "validation": 40, "test": 60}
NAMES = ("Ada", "Bo", "Chidi", "Dana", "Emil", "Fay", "Goran", "Hana", "Ines", "Jun", "Kofi", "Lena", "Mira", "Nils")
THINGS = ("pears", "stamps", "marbles", "pencils", "shells", "candles", "buttons", "plums", "tickets", "cards")


class ProblemKind(NamedTuple):
    """A kind of problem: its text, its numbers with the range of each, and the answer that they have."""

    text: str
    ranges: dict[str, tuple[int, int]]
    answer: Callable[..., int]


KINDS = (
    ProblemKind(
        "{name} has {boxes} boxes of {each} {thing} and gives {gift} of them to {other}. "
        "How many {thing} has {name} left?",
        {"boxes": (3, 19), "each": (12, 48), "gift": (5, 30)},
        lambda boxes, each, gift: boxes * each - gift,
    ),
    ProblemKind(
        "{name} sold half of {double} {thing} and then bought {more}. How many does {name} have now?",
        {"double": (20, 800), "more": (15, 200)},
        lambda double, more: double // 2 + more,
    ),
    ProblemKind(
        "{name} has {few} {thing}. {other} has {times} times as many. How many {thing} do they have together?",
        {"few": (11, 70), "times": (3, 9)},
        lambda few, times: few * (times + 1),
    ),
    ProblemKind(
        "One of the {thing} costs {price} euros. {name} buys {count} and pays with a note of 500 euros. "
        "How many euros does {name} get back?",
        {"count": (4, 25), "price": (3, 19)},
        lambda count, price: 500 - count * price,
    ),
    ProblemKind(
        "{name} packs {first} {thing} an hour and {other} packs {second}. "
        "How many {thing} do the two of them pack in {hours} hours?",
        {"first": (8, 40), "second": (8, 40), "hours": (3, 12)},
        lambda first, second, hours: (first + second) * hours,
    ),
    ProblemKind(
        "{name} is {gap} years older than {other}, who is {age}. How old will the two be together in {years} years?",
        {"age": (6, 30), "gap": (4, 28), "years": (3, 20)},
        lambda age, gap, years: 2 * age + gap + 2 * years,
    ),
    ProblemKind(
        "{name} lays {thing} in {rows} rows of {each}, but {missing} places stay empty. How many {thing} were there?",
        {"rows": (6, 30), "each": (7, 30), "missing": (2, 40)},
        lambda rows, each, missing: rows * each - missing,
    ),
    ProblemKind(
        "{name} fills bags with {each} {thing} each and gets {bags} full ones; {over} {thing} are left over, and "
        "{other} brings {more}. How many {thing} are there now?",
        {"each": (6, 24), "bags": (5, 40), "over": (1, 5), "more": (10, 99)},
        lambda each, bags, over, more: each * bags + over + more,
    ),
)


def _problem(draw: random.Random) -> tuple[str, int]:
    kind = draw.choice(KINDS)
    numbers = {name: draw.randint(*bounds) for name, bounds in kind.ranges.items()}
    if "double" in numbers:
        numbers["double"] -= numbers["double"] % 2
    name, other = draw.sample(NAMES, 2)
    text = kind.text.format(name=name, other=other, thing=draw.choice(THINGS), **numbers)
    return text, kind.answer(**numbers)


def problems() -> dict[str, list[dict[str, str]]]:
    """Return the records of every split. No question is in two splits."""
    draw, known, splits = random.Random("qa"), set[str](), dict[str, list[dict[str, str]]]()
    for split, size in SIZES.items():
        records: list[dict[str, str]] = []
        while len(records) < size:
            question, answer = _problem(draw)
            if question not in known:
                known.add(question)
                records.append({"question": question, "answer": f"#### {answer}"})
        splits[split] = records
    return splits


def main() -> None:
    folder = Path(__file__).with_name("data")
    folder.mkdir(exist_ok=True)
    for split, records in problems().items():
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))


if __name__ == "__main__":
    main()
