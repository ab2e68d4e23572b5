"""ALFWorld: its own games, played on its engine."""

from __future__ import annotations

import hashlib
import json
import re
from functools import lru_cache
from pathlib import Path

from agentgym.errors import ConfigError, MissingDependency
from agentgym.spec import EnvSpec
from agentgym.tasks import Task, TaskSet
from agentgym_environments.base.alfred_env import AlfredEnv
from agentgym_environments.base.engine_env import package

VERSION = "json_2.1.1"
"""Folder of the games in ALFWorld's data."""
GAME = "game.tw-pddl"
NOT_PLAYED = ("movable", "Sliced")
"""Words in the folders of games that ALFWorld leaves out."""
SOLVABLE = re.compile(rb'"solvable":\s*true')


class AlfWorld(AlfredEnv):
    """The only reward is 1 when the chore is done.

    data: ALFWorld's folder of data, as `alfworld-download` makes it; by default the package's own, ALFWORLD_DATA.
    """

    def __init__(self, spec: EnvSpec | None = None, *, data: str = "") -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        root = Path(data or package("alfworld.info", "alfworld").ALFWORLD_DATA).expanduser() / VERSION
        splits = tuple(split for split in spec.splits if (root / split).is_dir())
        if not splits:
            problem = f"{spec.id} needs ALFWorld's games, and {root} has none: alfworld-download"
            raise ConfigError(problem) if data else MissingDependency(problem)
        self.root, self.tasks = root, games(root, splits)
        super().__init__(spec.model_copy(update={"splits": self.tasks.splits, "task_set": self.tasks.content_hash}))

    def game(self, split: str, task: int) -> dict[str, str]:
        path = self.root / split / self.tasks[split, task].id / GAME
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return {name: content[name] for name in ("pddl_domain", "grammar", "pddl_problem")}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is no game of ALFWorld: {error!r}") from error


@lru_cache(maxsize=4)
def games(root: Path, splits: tuple[str, ...]) -> TaskSet:
    """Return the games of each split that ALFWorld plays, by path: solvable ones, without movable and sliced things."""
    found: dict[str, list[Task]] = {}
    for split in splits:
        found[split] = []
        for path in sorted((root / split).rglob(GAME)):
            name = path.parent.relative_to(root / split).as_posix()
            content = b"" if any(word in name for word in NOT_PLAYED) else path.read_bytes()
            if SOLVABLE.search(content):
                digest = hashlib.sha256(content).hexdigest()
                found[split].append(Task(id=name, prompt=name.partition("/")[0], setup={"game": digest}))
        if not found[split]:
            raise ConfigError(f"{root / split} has no game that can be played: a game is a folder with {GAME}")
    return TaskSet(found)
