"""Which pages and seeds the tasks are; `make_tasks.py` wrote tasks.json."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from agentgym.errors import ConfigError

SPLITS = ("train", "validation", "test")


@cache
def table() -> dict[str, Any]:
    """{"seeds": {page: {split: [seed]}}, "reload": [page], "groups": {group: [page]}}"""
    return json.loads(Path(__file__).with_name("tasks.json").read_text(encoding="utf-8"))


def pages_of(group: str) -> list[str]:
    """The pages of a group. Raises ConfigError for one that does not exist."""
    groups = table()["groups"]
    if group not in groups:
        raise ConfigError(f"miniwob has no group {group!r} of pages; it has {', '.join(groups)}")
    return groups[group]


def tasks_of(pages: list[str]) -> dict[str, list[tuple[str, int]]]:
    """The (page, seed) of every task of every split: one of each page in turn, as long as each has another."""
    seeds = table()["seeds"]
    unknown = [page for page in pages if page not in seeds]
    if unknown:
        raise ConfigError(f"miniwob has no page {unknown[0]!r}; `agentgym_environments.web.miniwob.tasks.table` lists them")
    found = {split: _in_turn(pages, split) for split in SPLITS}
    return {split: some for split, some in found.items() if some}


def _in_turn(pages: list[str], split: str) -> list[tuple[str, int]]:
    seeds = {page: table()["seeds"][page][split] for page in pages}
    longest = max(map(len, seeds.values()))
    return [(page, seeds[page][turn]) for turn in range(longest) for page in pages if turn < len(seeds[page])]
