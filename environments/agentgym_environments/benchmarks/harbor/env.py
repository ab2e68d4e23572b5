"""Harbor task folders: an agent with a shell in a container of its own, and tests in another that write the reward."""

from __future__ import annotations

import re
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentgym.env import Action
from agentgym.errors import ConfigError, MissingDependency
from agentgym.spec import EnvSpec
from agentgym.tasks import Task, TaskSet
from agentgym_environments.backends.containers.box import ContainerBox
from agentgym_environments.backends.containers.engine import ContainerLost, DockerEngine
from agentgym_environments.backends.sandbox import actions
from agentgym_environments.backends.sandbox.actions import Run, Submit
from agentgym_environments.base.shell_env import Judged, ShellEnv
from agentgym_environments.benchmarks.harbor.admit import solution_command
from agentgym_environments.benchmarks.harbor.grader import RewardVerdict, grade, open_box
from agentgym_environments.tasks.harbor import harbor_tasks

OWN = Path(__file__).with_name("data")
SPLIT = "test"
RUN_TOOL = "Run a command by bash, in the folder where the last one ended. Servers may be left running."
ELSEWHERE = re.compile(r"/solution\b|\$0|\$\{0|BASH_SOURCE|\$1|\$@")
"""Marks of a script that cannot be said as a command: it looks for itself."""
MARGIN_S = 120
"""Seconds that the engine may take in a step beside commands and tests."""


class Harbor(ShellEnv[ContainerBox]):
    """Tasks of a folder in Harbor's format, or the ten of our own.

    folder: a task's folder, or one that holds a folder for each task; "" for our own. interface: "text", or "tools"
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
        interface: str = "text",
        command_s: float = 120.0,
        max_turns: int = 0,
        time_factor: float = 1.0,
    ) -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        if not isinstance(folder, str):
            raise ConfigError(f"{spec.id}: folder is the name of a folder, not {folder!r}")
        for name, value, least in (("command_s", command_s, 1), ("max_turns", max_turns, 0)):
            if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
                raise ConfigError(f"{spec.id}: {name} is a number of at least {least}, not {value!r}")
        if isinstance(time_factor, bool) or not isinstance(time_factor, int | float) or time_factor <= 0:
            raise ConfigError(f"{spec.id}: time_factor is a number above 0, not {time_factor!r}")
        place = Path(folder).expanduser().resolve() if folder else OWN
        self.tasks, self.left_out = _load(place, _stamp(place))
        self.time_factor = float(time_factor)
        limits = [self._limits(self.tasks[SPLIT, number]) for number in range(self.tasks.splits[SPLIT])]
        update: dict[str, Any] = {
            "splits": self.tasks.splits,
            "task_set": self.tasks.content_hash,
            "step_deadline_s": max(max(build, max(command_s, agent) + 3 * tests) for build, agent, tests in limits)
            + MARGIN_S,
        }
        if max_turns:
            update["max_turns"] = int(max_turns)
        super().__init__(
            spec.model_copy(update=update),
            interface=interface,
            command_s=float(command_s),
            variant=self.tasks.content_hash,
            tools=actions.tools(RUN_TOOL),
        )
        self._engine: DockerEngine | None = None
        self._had_engine = False
        self._solution = False
        """True while the solution lies in the container: from a call of `solver` to the end of the next step."""
        self._solving = False
        """True from a call of `solver` to the end of the next step."""
        self._begun = 0.0

    @property
    def task(self) -> Task:
        return self.tasks[self.where]

    # The episode.

    def begin(self, split: str, task: int) -> None:
        super().begin(split, task)
        self._solution = self._solving = False
        self._begun = time.monotonic()

    def open_sandbox(self) -> ContainerBox:
        try:
            self._engine = DockerEngine()
        except MissingDependency as error:
            if self._had_engine:
                raise ContainerLost(f"the Docker engine is gone: {error}") from error
            raise
        self._had_engine = True
        return open_box(self._engine, self._timed(self.task))

    def observe(self) -> str:
        return f"{self.task.prompt}\n\nYou are in a container, in the folder {self.box.workdir}."

    def offers(self) -> list[str]:
        return ["submit", "run ls -la", f"run find {self.box.workdir} -type f | head -50"]

    def subject(self) -> str:
        return f"{self.where[0]}/{self.task.id}"

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        result = super().step(action)
        if self._solution and not self.over:
            self.box.remove_solution()
        self._solution = self._solving = False
        return result

    def command_seconds(self) -> float:
        """Return what the task's time leaves; the solution may use all of it."""
        left = self._left_s()
        return max(1.0, left if self._solving else min(self.command_s, left))

    def concluded(self, judged: Judged) -> Judged:
        """The last turn, and the end of the agent's time, are graded as a submit is."""
        if judged.over:
            return judged
        if self._left_s() <= 0:
            why = "the time for the task is over"
        elif self.turn + 1 >= self.env_spec.max_turns:
            why = "this was the last turn"
        else:
            return judged
        final = self.judged()
        return final._replace(message=f"{judged.message}\n[{why}]\n{final.message}")

    def judged(self) -> Judged:
        assert self._engine is not None
        verdict: RewardVerdict = grade(self._engine, self._timed(self.task), self.box)
        if verdict.reward is None:
            return Judged(f"not solved: {verdict.message}")
        solved = verdict.reward >= 1
        message = "solved: every test passes" if solved else f"not solved: the reward is {verdict.reward:g}"
        return Judged(message, reward=verdict.reward, success=solved)

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

    # Snapshots.

    def save(self) -> Any:
        return {**super().save(), "spent_s": time.monotonic() - self._begun}

    def load(self, state: Any) -> None:
        super().load(state)
        self._begun = time.monotonic() - float(state["spent_s"])

    def close(self) -> None:
        super().close()
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    # Time.

    def _left_s(self) -> float:
        _, agent_s, _ = self._limits(self.task)
        return (agent_s or float("inf")) - (time.monotonic() - self._begun)

    def _limits(self, task: Task) -> tuple[float, float, float]:
        """Return a task's seconds for building, for the agent (0 for no limit) and for the tests."""
        factor = self.time_factor
        return task.setup["build_s"], factor * (task.setup["agent_s"] or 0), factor * task.grader["timeout_s"]

    def _timed(self, task: Task) -> Task:
        _, _, tests_s = self._limits(task)
        return task.model_copy(update={"grader": {**task.grader, "timeout_s": tests_s}})


def _stamp(place: Path) -> float:
    """Return when anything in a folder changed last: one that has is read again."""
    return max(path.lstat().st_mtime for path in (place, *place.rglob("*"))) if place.is_dir() else 0.0


@lru_cache(maxsize=8)
def _load(place: Path, stamp: float) -> tuple[TaskSet, dict[str, str]]:
    tasks, others = harbor_tasks(place)
    return TaskSet({SPLIT: tasks}), others
