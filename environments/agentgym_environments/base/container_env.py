"""Base of environments whose tasks are containers: an agent with a shell in one, its grader in another."""

from __future__ import annotations

import time
from typing import Any

from agentgym.env import Action
from agentgym.errors import ConfigError, MissingDependency
from agentgym.spec import EnvSpec
from agentgym.tasks import Task, TaskSet
from agentgym_environments.backends.containers.box import ContainerBox
from agentgym_environments.backends.containers.engine import ContainerLost, DockerEngine
from agentgym_environments.backends.containers.grading import RewardVerdict
from agentgym_environments.backends.sandbox import actions
from agentgym_environments.base.shell_env import Judged, ShellEnv

RUN_TOOL = "Run a command by bash, in the folder where the last one ended. Servers may be left running."
MARGIN_S = 120
"""Seconds that the engine may take in a step beside commands and tests."""


class ContainerEnv(ShellEnv[ContainerBox]):
    """interface: "text", or "tools" where actions are tool calls (both are understood either way). command_s: longest
    command, in seconds. max_turns: of an episode; 0 for the spec's. time_factor: what the tasks' time limits for agent
    and tests are multiplied by.

    An environment implements `open_box`, `grade` and `solver`. A task's setup has `build_s` and `agent_s` (None for no
    limit), its grader `timeout_s`, all in seconds. `reset` raises MissingDependency without a Docker engine, and
    EnvironmentCrashed where an image cannot be had or a container is lost.
    """

    def __init__(
        self,
        spec: EnvSpec,
        tasks: TaskSet,
        *,
        interface: str,
        command_s: float,
        max_turns: int,
        time_factor: float,
    ) -> None:
        for name, value, least in (("command_s", command_s, 1), ("max_turns", max_turns, 0)):
            if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
                raise ConfigError(f"{spec.id}: {name} is a number of at least {least}, not {value!r}")
        if isinstance(time_factor, bool) or not isinstance(time_factor, int | float) or time_factor <= 0:
            raise ConfigError(f"{spec.id}: time_factor is a number above 0, not {time_factor!r}")
        self.tasks, self.time_factor = tasks, float(time_factor)
        limits = {self._limits(tasks[split, place]) for split, size in tasks.splits.items() for place in range(size)}
        update: dict[str, Any] = {
            "splits": tasks.splits,
            "task_set": tasks.content_hash,
            "step_deadline_s": max(max(build, max(command_s, agent) + 3 * tests) for build, agent, tests in limits)
            + MARGIN_S,
        }
        if max_turns:
            update["max_turns"] = int(max_turns)
        super().__init__(
            spec.model_copy(update=update),
            interface=interface,
            command_s=float(command_s),
            variant=tasks.content_hash,
            tools=actions.tools(RUN_TOOL),
        )
        self._engine: DockerEngine | None = None
        self._had_engine = False
        self._solving = False
        """True from a call of `solver` to the end of the next step."""
        self._begun = 0.0

    # What an environment implements.

    def open_box(self, engine: DockerEngine) -> ContainerBox:
        """Return a new container in which an agent can begin the present task."""
        raise NotImplementedError

    def grade(self, engine: DockerEngine, task: Task) -> RewardVerdict:
        """Return the reward of the files in `self.box`. `task` is the present one with the time limits that hold."""
        raise NotImplementedError

    # Provided in return.

    @property
    def task(self) -> Task:
        return self.tasks[self.where]

    def begin(self, split: str, task: int) -> None:
        super().begin(split, task)
        self._solving = False
        self._begun = time.monotonic()

    def open_sandbox(self) -> ContainerBox:
        try:
            self._engine = DockerEngine()
        except MissingDependency as error:
            if self._had_engine:
                raise ContainerLost(f"the Docker engine is gone: {error}") from error
            raise
        self._had_engine = True
        return self.open_box(self._engine)

    def observe(self) -> str:
        return f"{self.task.prompt}\n\nYou are in a container, in the folder {self.box.workdir}."

    def offers(self) -> list[str]:
        # Neither shows the clock: a container that goes on from a snapshot was started later than the first.
        return ["submit", "run ls -A", f"run find {self.box.workdir} -type f | sort | head -50"]

    def subject(self) -> str:
        return f"{self.where[0]}/{self.task.id}"

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        result = super().step(action)
        self._solving = False
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
        _, _, tests_s = self._limits(self.task)
        task = self.task.model_copy(update={"grader": {**self.task.grader, "timeout_s": tests_s}})
        verdict = self.grade(self._engine, task)
        if verdict.reward is None:
            return Judged(f"not solved: {verdict.message}")
        solved = verdict.reward >= 1
        message = "solved: every test passes" if solved else f"not solved: the reward is {verdict.reward:g}"
        return Judged(message, reward=verdict.reward, success=solved)

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
