"""Writes the environment's own questions to `data/`: word problems of two or three steps, drawn from a seed.

    python -m agentgym_environments.benchmarks.qa.make_tasks
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

SIZES = {"train": 200, "validation": 40, "test": 60}
NAMES = ("Ada", "Bo", "Chidi", "Dana", "Emil", "Fay", "Goran", "Hana", "Ines", "Jun", "Kofi", "Lena", "Mira", "Nils")
THINGS = ("pears", "stamps", "marbles", "pencils", "shells", "candles", "buttons", "plums", "tickets", "cards")

Problem = tuple[str, int]


def _shared(draw: random.Random, name: str, other: str, thing: str) -> Problem:
    boxes, each, given = draw.randint(3, 19), draw.randint(12, 48), draw.randint(5, 30)
    return f"{name} has {boxes} boxes of {each} {thing} and gives {given} of them to {other}. How many {thing} has {name} left?", boxes * each - given


def _halves(draw: random.Random, name: str, other: str, thing: str) -> Problem:
    half, more = draw.randint(20, 400), draw.randint(15, 200)
    return f"{name} had {2 * half} {thing}, sold half of them and then found {more}. How many does {name} have now?", half + more


def _times(draw: random.Random, name: str, other: str, thing: str) -> Problem:
    few, times = draw.randint(11, 70), draw.randint(3, 9)
    return f"{name} has {few} {thing}. {other} has {times} times as many. How many {thing} do they have together?", few * (times + 1)


def _price(draw: random.Random, name: str, other: str, thing: str) -> Problem:
    count, price, paid = draw.randint(4, 25), draw.randint(3, 19), 500
    return f"One of the {thing} costs {price} euros. {name} buys {count} and pays with a note of {paid} euros. How many euros does {name} get back?", paid - count * price


def _rate(draw: random.Random, name: str, other: str, thing: str) -> Problem:
    first, second, hours = draw.randint(8, 40), draw.randint(8, 40), draw.randint(3, 12)
    return f"{name} packs {first} {thing} an hour and {other} packs {second}. How many {thing} do the two of them pack in {hours} hours?", (first + second) * hours


def _ages(draw: random.Random, name: str, other: str, thing: str) -> Problem:
    young, gap, years = draw.randint(6, 30), draw.randint(4, 28), draw.randint(3, 20)
    return f"{name} is {gap} years older than {other}, who is {young}. How old will the two be together in {years} years?", 2 * young + gap + 2 * years


def _rows(draw: random.Random, name: str, other: str, thing: str) -> Problem:
    rows, each, missing = draw.randint(6, 30), draw.randint(7, 30), draw.randint(2, 40)
    return f"{name} lays {thing} in {rows} rows of {each}, but {missing} places stay empty. How many {thing} were there?", rows * each - missing


def _bags(draw: random.Random, name: str, other: str, thing: str) -> Problem:
    each, bags, over = draw.randint(6, 24), draw.randint(5, 40), draw.randint(1, 5)
    return f"{name} fills bags with {each} {thing} each. From {each * bags + over} {thing}, how many full bags come, and so how many {thing} are in full bags?", each * bags


KINDS: tuple[Callable[[random.Random, str, str, str], Problem], ...] = (
    _shared,
    _halves,
    _times,
    _price,
    _rate,
    _ages,
    _rows,
    _bags,
)


def problems() -> dict[str, list[dict[str, str]]]:
    """Return the records of every split. No question is in two splits."""
    draw, seen, made = random.Random("qa"), set[str](), dict[str, list[dict[str, str]]]()
    for split, size in SIZES.items():
        records: list[dict[str, str]] = []
        while len(records) < size:
            name, other = draw.sample(NAMES, 2)
            question, answer = draw.choice(KINDS)(draw, name, other, draw.choice(THINGS))
            if question not in seen:
                seen.add(question)
                records.append({"question": question, "answer": f"#### {answer}"})
        made[split] = records
    return made


def main() -> None:
    folder = Path(__file__).with_name("data")
    folder.mkdir(exist_ok=True)
    for split, records in problems().items():
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))


if __name__ == "__main__":
    main()
