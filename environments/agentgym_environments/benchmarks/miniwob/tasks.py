"""Pages and seeds of the tasks; `make_tasks.py` wrote tasks.json."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from agentgym.errors import ConfigError
from agentgym_environments.benchmarks.miniwob.solver import SOLVERS

SPLITS = ("train", "validation", "test")

EASY = (
    "buy-ticket", "choose-date-easy", "circle-center", "click-collapsible", "click-color", "click-shape", "copy-paste",
    "copy-paste-2", "count-shape", "drag-box", "drag-circle", "drag-items", "drag-single-shape", "draw-line",
    "enter-date", "enter-text-2", "enter-time", "find-greatest", "find-midpoint", "find-word", "form-sequence-2",
    "form-sequence-3", "grid-coordinate", "identify-shape", "navigate-tree", "order-food", "read-table", "read-table-2",
    "resize-textarea", "right-angle", "scroll-text", "simple-algebra", "simple-arithmetic", "social-media",
    "text-transform", "use-colorwheel", "visual-addition",
)  # fmt: skip
"""Pages of one to four actions that no lazy policy of `lazy.py` solves."""

RELOAD = frozenset({
    "book-flight", "book-flight-nodelay", "chase-circle", "choose-date", "choose-date-easy", "choose-date-medium",
    "choose-date-nodelay", "click-menu-2", "click-pie", "copy-paste-2", "drag-items", "drag-items-grid",
    "drag-sort-numbers",
    "form-sequence", "moving-items", "scroll-text", "scroll-text-2", "search-engine", "simon-says", "terminal",
    "use-autocomplete", "use-autocomplete-nodelay", "use-colorwheel", "use-colorwheel-2", "use-slider", "use-slider-2",
    "use-spinner",
})  # fmt: skip
"""Pages that open otherwise after another episode: they are loaded anew for each."""


@cache
def seeds() -> dict[str, dict[str, list[int]]]:
    """The seeds of every page's splits."""
    return json.loads(Path(__file__).with_name("tasks.json").read_text(encoding="utf-8"))


def pages_of(group: str) -> list[str]:
    """The pages of a group. Raises ConfigError for one that does not exist."""
    groups = {"easy": EASY, "solved": SOLVERS, "all": seeds()}
    if group not in groups:
        raise ConfigError(f"miniwob has no group {group!r} of pages; it has {', '.join(groups)}")
    return sorted(groups[group])


def tasks_of(pages: list[str]) -> dict[str, list[tuple[str, int]]]:
    """The (page, seed) of every task of every split: one of each page in turn, as long as each has another."""
    unknown = [page for page in pages if page not in seeds()]
    if unknown:
        raise ConfigError(f"miniwob has no page {unknown[0]!r}; it has {', '.join(seeds())}")
    found = {split: _in_turn(pages, split) for split in SPLITS}
    return {split: some for split, some in found.items() if some}


def _in_turn(pages: list[str], split: str) -> list[tuple[str, int]]:
    some = {page: seeds()[page][split] for page in pages}
    longest = max(map(len, some.values()))
    return [(page, some[page][turn]) for turn in range(longest) for page in pages if turn < len(some[page])]
