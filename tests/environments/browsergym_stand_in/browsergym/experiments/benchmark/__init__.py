"""Benchmarks with the names and fields of BrowserGym's, on small files in its format."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Run:
    task_name: str
    task_seed: int
    max_steps: int


class Table:
    def __init__(self, name: str) -> None:
        with (Path(__file__).parent / "metadata" / f"{name}.csv").open(newline="") as file:
            self.rows = list(csv.DictReader(file))

    def to_dict(self, orient: str) -> list[dict[str, str]]:
        assert orient == "records"
        return self.rows


class Actions:
    def make_action_set(self) -> Actions:
        return self

    def describe(self, with_long_description: bool, with_examples: bool) -> str:
        return "\n2 different types of actions are available.\n\nnoop()\nsend_msg_to_user(text: str)\n"

    def to_python_code(self, action: str) -> str:
        return action.replace("send_msg_to_user", "answer").replace("noop", "wait")


class Benchmark:
    high_level_action_set_args = Actions()

    def __init__(self, table: str, max_steps: int, seeds: tuple[int, ...] = (5,), level: str | None = None) -> None:
        self.task_metadata = Table(table)
        rows = [row for row in self.task_metadata.rows if row.get("level") == level]
        self.env_args_list = [Run(row["task_name"], seed, max_steps) for row in rows for seed in seeds]


DEFAULT_BENCHMARKS: dict[str, Callable[[], Benchmark]] = {
    "webarena": lambda: Benchmark("webarena", 4),
    "workarena_l1": lambda: Benchmark("workarena", 3, (102, 7, 102), "l1"),
    "assistantbench": lambda: Benchmark("assistantbench", 3),
}
