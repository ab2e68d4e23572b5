"""Tasks: small data sets with something in them to be found, and the two solutions between which a score is placed."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from agentgym_environments.base.text_env import split_of, task_random
from agentgym_environments.synthetic.research.programs import (
    stock_baseline,
    stock_reference,
    stock_score,
    table_baseline,
    table_reference,
    table_score,
)

PROGRAMS = Path(__file__).with_name("programs")
SIZES = {"train": 40, "validation": 10, "test": 10}
KINDS = ("table", "stock")
ROWS = 300
"""Rows of train.csv; as many are held out."""
GAP = 0.6
"""A task is one only when the reference's score is at most this part of the baseline's."""
WORDS = ("area", "batch", "count", "depth", "dose", "flow", "force", "grade", "light", "load", "rate", "shift", "speed")
NAMES = [f"{word}_{number}" for word in WORDS for number in range(1, 21)]
"""So many that the columns of two tasks are rarely named alike: what solved one does not run in the other."""
MEANINGS = {
    "plain": "y is linear in {name}.",
    "log": "y goes with the logarithm of {name}.",
    "cycle": "{name} goes round: {more} is 0 again.",
    "code": "{name} is a code: each of its values has an effect of its own.",
    "bend": "y goes down and up (or up and down) with {name}, and turns at {more}.",
    "missing": "{more} in {name} means that nothing is known.",
    "ratio": "y goes with {name} divided by {more}.",
    "product": "y goes with {name} times {more}.",
}

Columns = dict[str, list[float]]
SOLVE: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., float]]] = {
    "table": (table_baseline.solve, table_reference.solve, table_score.score),
    "stock": (stock_baseline.solve, stock_reference.solve, stock_score.score),
}


@dataclass(frozen=True)
class ResearchTask:
    kind: str
    train: Columns
    inputs: Columns
    held_out: list[float]
    """y of the held-out rows, which no sandbox ever has."""
    terms: dict[str, int]
    clues: list[Any]
    """Facts to be found, as the reference takes them."""
    spoilt: bool
    """True where some y of train.csv are wrong."""
    baseline: float
    reference: float
    """Held-out scores; less is better."""

    def files(self) -> dict[str, bytes]:
        """Return what the agent begins with."""
        made = {"train.csv": csv(self.train), "terms.json": json.dumps(self.terms).encode(), "run.py": program("run")}
        return {**made, "score.py": program(f"{self.kind}_score"), "solve.py": program(f"{self.kind}_baseline")}

    def reference_program(self) -> str:
        return program(f"{self.kind}_reference").decode().replace("CLUES = []", f"CLUES = {self.clues!r}")

    def hints(self) -> list[str]:
        """More and more of what is to be found."""
        if self.kind == "stock":
            period, name, delay = self.clues
            later = f", {delay} days later" if delay else ""
            return [
                "Demand comes back after some days, and one of the columns raises it: compare means of log y.",
                f"The cycle has {period} days.",
                f"{name} raises demand{later}. The level is what is asked for in lead + 1 days, at the quantile "
                "short / (short + hold) of what actual demand is of the expected.",
            ]
        spoilt = " Leave out rows whose residual is far larger than the others'."
        return [
            "Look at each column's range and at how y goes with it: not all are straight lines." + spoilt * self.spoilt,
            *(MEANINGS[kind].format(name=name, more=more) for kind, name, more in self.clues),
        ]

    def share(self, score: float) -> float:
        """Return how much of the way from the baseline to the reference a score is, in [0, 1]."""
        return round(min(1.0, max(0.0, (self.baseline - score) / (self.baseline - self.reference))), 4)

    def needed(self, share: float) -> float:
        """The score at that share of the way."""
        return self.baseline - share * (self.baseline - self.reference)


def program(name: str) -> bytes:
    return (PROGRAMS / f"{name}.py").read_bytes()


def csv(columns: Columns) -> bytes:
    rows = [",".join(columns), *(",".join(f"{x:.6g}" for x in row) for row in zip(*columns.values()))]
    return ("\n".join(rows) + "\n").encode()


@lru_cache(maxsize=128)
def task(hard: bool, split: str, number: int) -> ResearchTask:
    """Every second task is of the same kind. The first draw that belongs to the split and has a gap wide enough."""
    kind = KINDS[number % len(KINDS)]
    for attempt in range(1000):
        chance = task_random("research", "hard" if hard else "easy", split, number, attempt)
        clues, terms, columns = (table if kind == "table" else stock)(chance, hard)
        if split_of(json.dumps([clues, terms])) == split:
            made = _task(kind, clues, terms, columns)
            if made.reference <= GAP * made.baseline:
                return made
    raise AssertionError(f"no {kind} task of {split} can be drawn")


def _task(kind: str, clues: list[Any], terms: dict[str, int], columns: Columns) -> ResearchTask:
    train = {name: column[:ROWS] for name, column in columns.items() if name != "true"}
    inputs = {name: column[ROWS:] for name, column in columns.items() if name not in ("y", "true")}
    held_out = columns["true"][ROWS:]
    baseline, reference, score = SOLVE[kind]
    given = [{name: np.array(column) for name, column in part.items()} for part in (train, inputs)]
    truth = np.array(held_out)
    first = score(baseline(*given, terms), truth, terms)
    best = score(reference(*given, terms, clues), truth, terms)
    return ResearchTask(kind, train, inputs, held_out, terms, clues, columns["y"] != columns["true"], first, best)


# The kinds. Each draws clues, terms and columns: `y` as it is told in train.csv, `true` as it is judged by.


def table(chance: random.Random, hard: bool) -> tuple[list[Any], dict[str, int], Columns]:
    """y is a sum of functions of columns, most of them not linear. Hard: more of them, and some y are spoilt."""
    names = chance.sample(NAMES, len(NAMES))
    kinds = chance.sample(["log", "cycle", "code", "bend", "missing", "ratio", "product"], 4 if hard else 2)
    clues, columns = [], {}
    true = [0.0] * (2 * ROWS)
    for kind in [*kinds, *["plain"] * (1 if hard else 2)]:
        name = names.pop()
        other = names.pop() if kind in ("ratio", "product") else ""
        columns[name], more, function = _column(kind, chance)
        if other:
            columns[other] = _column(kind, chance)[0]
            effect = [function(a, b) for a, b in zip(columns[name], columns[other])]
        else:
            effect = [function(x, 0.0) for x in columns[name]]
        clues.append((kind, name, other or more))
        mean, spread = np.mean(effect), np.std(effect)
        weight = chance.choice((-1, 1)) * chance.uniform(1, 2) * (0.5 if kind == "plain" else 1)
        true = [t + weight * float((e - mean) / spread) for t, e in zip(true, effect)]
    true = [_short(t + chance.gauss(0, 0.2)) for t in true]
    spoilt = [hard and chance.random() < 0.04 for _ in true]
    y = [_short(t + chance.choice((-1, 1)) * chance.uniform(8, 20)) if bad else t for t, bad in zip(true, spoilt)]
    order = sorted(columns)
    return clues, {}, {**{name: columns[name] for name in order}, "y": y, "true": true}


def _column(kind: str, chance: random.Random) -> tuple[list[float], float, Callable[[float, float], float]]:
    """Values, what the reference must know beside the kind, and the effect of a value (and of the other column's)."""

    def drawn(draw: Callable[[], float]) -> list[float]:
        return [_short(draw()) for _ in range(2 * ROWS)]

    if kind == "log":
        return drawn(lambda: 10 ** chance.uniform(-2, 2)), 0, lambda x, _: math.log(x)
    if kind == "cycle":
        period, phase = chance.choice((7, 12, 24, 60, 360)), chance.uniform(0.2, 1.2)
        return drawn(lambda: chance.uniform(0, period)), period, lambda x, _: math.cos(2 * math.pi * x / period + phase)
    if kind == "code":
        effects = [chance.gauss(0, 1) for _ in range(chance.randint(6, 9))]
        return drawn(lambda: chance.randint(1, len(effects))), len(effects), lambda x, _: effects[int(x) - 1]
    if kind == "bend":
        at = chance.randint(4, 6)
        return drawn(lambda: chance.uniform(0, 10)), at, lambda x, _: abs(x - at)
    if kind == "missing":
        mark = chance.choice((-999, -1000, 9999))
        values = drawn(lambda: mark if chance.random() < 0.2 else chance.uniform(0, 10))
        return values, mark, lambda x, _: 5.0 if x == mark else x
    if kind == "ratio":
        return drawn(lambda: chance.uniform(0.5, 5)), 0, lambda x, other: x / other
    if kind == "product":
        return drawn(lambda: chance.uniform(-3, 3)), 0, lambda x, other: x * other
    return drawn(lambda: chance.uniform(-3, 3)), 0, lambda x, _: x


def stock(chance: random.Random, hard: bool) -> tuple[list[Any], dict[str, int], Columns]:
    """Demand has a cycle of unknown length and one of three columns raises it. Hard: later, with growth, and a lead."""
    names = sorted(chance.sample(NAMES, 3))
    period, delay = chance.randint(4, 12), chance.randint(1, 3) if hard else 0
    terms = {"hold": 1, "short": chance.randint(4, 15), "lead": chance.randint(1, 2) if hard else 0}
    flags = {name: [float(chance.random() < 0.15) for _ in range(2 * ROWS)] for name in names}
    cause = chance.choice(names)
    raised = [0.0] * delay + flags[cause]
    season = [chance.uniform(-0.8, 0.8) for _ in range(period)]
    size, lift, growth = chance.uniform(20, 200), chance.uniform(0.5, 0.9), chance.uniform(0.05, 0.15) if hard else 0.0
    y = [
        _short(size * math.exp(season[day % period] + lift * raised[day] + growth * day / 365 + chance.gauss(0, 0.12)))
        for day in range(2 * ROWS)
    ]
    columns = {"day": [float(day) for day in range(2 * ROWS)], **flags, "y": y, "true": y}
    return [period, cause, delay], terms, columns


def _short(x: float) -> float:
    """Return a number as the file has it."""
    return float(f"{x:.6g}")
