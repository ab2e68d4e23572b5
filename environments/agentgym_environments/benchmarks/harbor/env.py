"""Harbor task folders: an agent with a shell in a container of its own, and tests in another that write the reward."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentgym.env import Action
from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym.tasks import Task, TaskSet
from agentgym_environments.backends.containers.box import ContainerBox
from agentgym_environments.backends.containers.engine import DockerEngine
from agentgym_environments.backends.containers.grading import RewardVerdict
from agentgym_environments.backends.sandbox.actions import Run, Submit
from agentgym_environments.base.container_env import ContainerEnv
from agentgym_environments.benchmarks.harbor.admit import solution_command
from agentgym_environments.benchmarks.harbor.grader import grade, open_box
from agentgym_environments.tasks.division import Division, divided, division
from agentgym_environments.tasks.harbor import harbor_tasks

OWN = Path(__file__).with_name("data")
SPLIT = "test"
ELSEWHERE = re.compile(r"/solution\b|\$0|\$\{0|BASH_SOURCE|\$1|\$@")
"""Marks of a script that cannot be said as a command: it looks for itself."""


class Harbor(ContainerEnv):
    """Tasks of a folder in Harbor's format, or the ten of our own.

    folder: a task's folder, or one that holds a folder for each task; "" for our own. train: which tasks are the split
    "train" instead of "test": a share of them, drawn by the hash of each name, or a text file with their names, one a
    line; none when it is "". interface: "text", or "tools"
    where actions are tool calls (both are understood either way). command_s: longest command, in seconds. max_turns: of
    an episode; 0 for the spec's. time_factor: what the tasks' time limits for agent and tests are multiplied by.

    Raises ConfigError for a folder without tasks that we run; `reset` raises MissingDependency without a Docker engine,
    and EnvironmentCrashed where an image cannot be built or a container is lost.
    """

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        folder: str = "",
        train: float | str = "",
        interface: str = "text",
        command_s: float = 120.0,
        max_turns: int = 0,
        time_factor: float = 1.0,
    ) -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        if not isinstance(folder, str):
            raise ConfigError(f"{spec.id}: folder is the name of a folder, not {folder!r}")
        place = Path(folder).expanduser().resolve() if folder else OWN
        tasks, self.left_out = _load(place, _stamp(place), division(spec.id, train))
        self._solution = False
        """True while the solution lies in the container: from a call of `solver` to the end of the next step."""
        super().__init__(
            spec, tasks, interface=interface, command_s=command_s, max_turns=max_turns, time_factor=time_factor
        )

    def begin(self, split: str, task: int) -> None:
        super().begin(split, task)
        self._solution = False

    def open_box(self, engine: DockerEngine) -> ContainerBox:
        return open_box(engine, self.task)

    def grade(self, engine: DockerEngine, task: Task) -> RewardVerdict:
        return grade(engine, task, self.box)

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        result = super().step(action)
        if self._solution and not self.over:
            self.box.remove_solution()
        self._solution = False
        return result

    def solver(self) -> Action:
        """Says the commands of the task's solution, as one, and submits. A solution of several files lies in the
        container for that one command."""
        self.require_episode("solver")
        solution = Path(self.task.source, "solution")
        if self.turn > 0 or not (solution / "solve.sh").is_file():
            return self.say(Submit())
        self._solving = True
        script = (solution / "solve.sh").read_text(encoding="utf-8").strip()
        if not (ELSEWHERE.search(script) or self.task.grader["solution_env"] or len(list(solution.iterdir())) > 1):
            return self.say(Run(script))
        if not self._solution:
            self.box.put_solution(solution)
            self._solution = True
        return self.say(Run(solution_command(self.task)))


def _stamp(place: Path) -> float:
    """Return when anything in a folder changed last: one that has is read again."""
    return max(path.lstat().st_mtime for path in (place, *place.rglob("*"))) if place.is_dir() else 0.0


@lru_cache(maxsize=8)
def _load(place: Path, stamp: float, train: Division) -> tuple[TaskSet, dict[str, str]]:
    tasks, others = harbor_tasks(place)
    if not train:
        return TaskSet({SPLIT: tasks}), others
    return TaskSet(divided(tasks, train)), others
