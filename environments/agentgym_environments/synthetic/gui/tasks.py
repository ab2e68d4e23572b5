"""Every kind of task, and how one is drawn from (environment, split, index)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from random import Random

from agentgym.errors import ConfigError
from agentgym_environments.base.text_env import split_of, task_random
from agentgym_environments.synthetic.gui import calculations, documents, folders
from agentgym_environments.synthetic.gui.task import GuiTask

Maker = Callable[[Random], GuiTask]

KINDS: dict[tuple[str, str], tuple[Maker, ...]] = {
    ("editor", "easy"): documents.EASY,
    ("editor", "hard"): documents.HARD,
    ("calculator", "easy"): calculations.EASY,
    ("calculator", "hard"): calculations.HARD,
    ("files", "easy"): folders.EASY,
    ("files", "hard"): folders.HARD,
    ("long", "hard"): folders.LONG,
}
APPS = ("editor", "calculator", "files")


def makers(app: str, level: str) -> tuple[Maker, ...]:
    """Raises ConfigError for what there is not."""
    if app == "all" and level in ("easy", "hard"):
        return tuple(maker for one in APPS for maker in KINDS[one, level])
    if (app, level) not in KINDS:
        known = ", ".join(f"{app} {level}" for app, level in KINDS)
        raise ConfigError(f"there are no {level} tasks of {app}; there are {known}, all easy, all hard")
    return KINDS[app, level]


@lru_cache(maxsize=4096)
def make_task(app: str, level: str, split: str, index: int) -> GuiTask:
    """Kinds take turns; a task belongs to the one split that its content says."""
    random = task_random("gui", app, level, split, index)
    kinds = makers(app, level)
    while True:
        task = kinds[index % len(kinds)](random)
        if split_of(task.content) == split:
            return task
