"""Tools of any MCP server: an action is a tool call, and the reward is read from calls, state or answer."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from agentgym.env import Action, Observation
from agentgym.errors import BadRequest, ConfigError
from agentgym.spec import EnvSpec, ToolSpec
from agentgym.tasks import Task, TaskSet
from agentgym_environments.backends.tool_server.definition import ServerDefinition
from agentgym_environments.backends.tool_server.results import ToolResult
from agentgym_environments.backends.tool_server.server import ToolServer
from agentgym_environments.base.engine_env import require_flag, require_int
from agentgym_environments.base.episode_env import EpisodeEnv
from agentgym_environments.base.question_env import SPLITS, stamps
from agentgym_environments.benchmarks.mcp.admit import require_admitted
from agentgym_environments.benchmarks.mcp.play import CallEndedServer, ToolEpisode
from agentgym_environments.benchmarks.mcp.tasks import server_of, solution_of, tool_tasks

OWN = Path(__file__).with_name("data")
OWN_SPLITS = ("train", "test")
INSTRUCTIONS = "Do the task with the tools, then call finish, with the answer where one is asked for."
FINISH = ToolSpec(
    name="finish",
    description="End the task once it is done; with the answer where one is asked for.",
    parameters={"type": "object", "properties": {"answer": {"type": "string"}}, "additionalProperties": False},
)
BLANK = np.full((32, 32, 3), 255, np.uint8)
"""Picture of an observation before the first one that a tool returns."""


class ToolTasks(EpisodeEnv):
    """Tasks for the tools of an MCP server, which is started for every episode and ended with it.

    train, validation, test: files of tasks; one that is given replaces all of the environment's own. command: command
    line or URL of the server, for tasks that name none. sandbox: run the server in one. network: let it reach the
    network. images: show pictures. max_turns: of an episode; 0 for the spec's. admit: refuse tasks whose solution does
    not score 1, or where doing nothing does not score 0.
    """

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        train: str = "",
        validation: str = "",
        test: str = "",
        command: str = "",
        sandbox: bool = True,
        network: bool = False,
        images: bool = False,
        max_turns: int = 0,
        admit: bool = False,
    ) -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        for name, flag in (("sandbox", sandbox), ("network", network), ("images", images), ("admit", admit)):
            require_flag(spec.id, name, flag)
        require_int(spec.id, "max_turns", max_turns, 0)
        files = {split: str(one) for split, one in zip(SPLITS, (train, validation, test)) if one != ""}
        if command and not files:
            raise ConfigError(f"{spec.id}: command is the server of a file of tasks: give train, validation or test")
        sources = files or {split: str(OWN / f"{split}.jsonl") for split in OWN_SPLITS}
        self.tasks = _load(tuple(sources.items()), str(command), stamps(sources))
        self.options = {"sandbox": sandbox, "network": network, "images": images}
        if admit:
            _admit(self.tasks, tuple(self.options.items()))
        changes: dict[str, Any] = {"splits": self.tasks.splits, "task_set": self.tasks.content_hash}
        if files:
            changes |= _described(self.tasks, tuple(self.options.items()))
        if images:
            capabilities = changes.get("capabilities", spec.capabilities)
            changes |= {"observations": ("text", "image"), "capabilities": (*capabilities, "image")}
        if max_turns:
            changes["max_turns"] = max_turns
        super().__init__(spec.model_copy(update=changes))
        self.place = ("", 0)
        self._episode: ToolEpisode | None = None
        self._observation = ToolResult("")
        self._history: list[list[Any]] = []
        """Name, arguments and hash of the result of every call, those that failed too."""
        self._next = 0
        """Calls of the solution that were made."""

    @property
    def task(self) -> Task:
        return self.tasks[self.place]

    def begin(self, split: str, task: int) -> None:
        self.close()
        self.place, self._history, self._next = (split, task), [], 0
        self._observation = ToolResult(self.task.prompt)
        self._episode = ToolEpisode(self.task, **self.options)

    def close(self) -> None:
        if self._episode is not None:
            self._episode.close()
            self._episode = None

    def observe(self) -> Observation:
        text, image = self._observation.text, self._observation.image
        return {"text": text, "image": BLANK if image is None else image} if self.options["images"] else text

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Carry out a call. What it does to the server is the agent's turn: an error, or the end without a reward."""
        self.require_running("step")
        call = read_call(action)
        ended = False
        try:
            if isinstance(call, str):
                result = ToolResult(f"error: {call}", failed=True)
            elif call[0] == FINISH.name:
                result, ended = self._finish(call[1])
            else:
                result = self._carry_out(*call)
        except CallEndedServer as error:
            result, ended = ToolResult(f"error: {error}. The task is over, without a reward", failed=True), True
        self._observation = result._replace(image=self._observation.image if result.image is None else result.image)
        terminated, truncated = self.end_turn(ended)
        if self.over:
            self.close()
        return self.observe(), float(self.success), terminated, truncated, self._info(valid=not result.failed)

    def _carry_out(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        if name not in {tool.name for tool in self.env_spec.tools}:
            return ToolResult(f"error: there is no tool {name[:60]!r}", failed=True)
        result = self.episode.call(name, arguments)
        self._history.append([name, arguments, hashlib.sha256(result.text.encode()).hexdigest()[:16]])
        solution = solution_of(self.task)
        if solution is not None and self._next < len(solution.calls):
            wanted = solution.calls[self._next]
            self._next += not result.failed and (wanted.name, wanted.arguments) == (name, arguments)
        return result

    def _finish(self, arguments: dict[str, Any]) -> tuple[ToolResult, bool]:
        """Return the observation, and whether the episode is over."""
        answer = arguments.get("answer")
        if set(arguments) - {"answer"} or isinstance(answer, list | dict):
            return ToolResult("error: finish takes one argument, answer, which is text", failed=True), False
        self.success = self.episode.solved("" if answer is None else str(answer))
        return ToolResult("finished"), True

    def _info(self, valid: bool) -> dict[str, Any]:
        """`state_key` is a hash of the task, its calls and their results: what else a server knows is its own."""
        return {"success": self.success, "valid_action": valid, "state_key": self._key()}

    def _key(self) -> str:
        state = json.dumps([self.place[0], self.task.id, self._history, self.over])
        return hashlib.sha256(state.encode()).hexdigest()[:20]

    def solver(self) -> Action:
        """The task's solution from the first call that was not made, then `finish`."""
        self.require_episode("solver")
        solution = solution_of(self.task)
        if solution is None:
            raise BadRequest(f"task {self.task.id} of {self.env_spec.id} has no solution")
        if self._next < len(solution.calls):
            call = solution.calls[self._next]
            return {"name": call.name, "arguments": call.arguments}
        return {"name": FINISH.name, "arguments": {"answer": solution.answer} if solution.answer else {}}

    def save(self) -> Any:
        return {"place": self.place, "history": self._history, "text": self._observation.text}

    def load(self, state: Any) -> None:
        """Start another server and make the same calls."""
        split, task = state["place"]
        self.begin(*self.select_task({"split": split, "task": task}))
        for name, arguments, _ in state["history"]:
            self._carry_out(name, arguments)
        if self._history != state["history"]:
            raise BadRequest(f"this snapshot of {self.env_spec.id} comes out otherwise when its calls are made again")
        self._observation = ToolResult(state["text"])

    @property
    def episode(self) -> ToolEpisode:
        if self._episode is None:
            raise BadRequest(f"{self.env_spec.id} is closed: call reset")
        return self._episode


def read_call(action: Action) -> tuple[str, dict[str, Any]] | str:
    """Return the name and arguments of an action, a tool call or its JSON as text; or what is wrong with it."""
    problem = 'not a tool call: write one JSON object {"name": tool, "arguments": {...}}'
    try:
        if isinstance(action, str):
            action = json.loads(action)
        if not isinstance(action, dict) or set(action) - {"name", "arguments"}:
            return problem
        name, arguments = action.get("name"), action.get("arguments", {})
        if isinstance(arguments, str):
            arguments = json.loads(arguments)
        json.dumps(action, ensure_ascii=False, allow_nan=False).encode()  # no message could hold what fails here
    except (TypeError, ValueError, RecursionError):
        return problem
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return problem
    return name, arguments


@lru_cache(maxsize=8)
def _load(sources: tuple[tuple[str, str], ...], line: str, stamp: tuple[float, ...]) -> TaskSet:
    """Raises ConfigError where tasks are of several servers: an environment has one list of tools."""
    tasks = TaskSet({split: tool_tasks(source, line) for split, source in sources})
    programs = {server_of(one).program for one in _all(tasks)}
    if len(programs) > 1:
        names = ", ".join(sorted({command or url for command, url, _ in programs}))
        raise ConfigError(
            f"the tasks of one environment have one server with the same hidden tools, not {names}: "
            "make a file of tasks for each"
        )
    return tasks


def _all(tasks: TaskSet) -> list[Task]:
    return [tasks[split, index] for split, size in tasks.splits.items() for index in range(size)]


@lru_cache(maxsize=8)
def _described(tasks: TaskSet, options: tuple[tuple[str, bool], ...]) -> dict[str, Any]:
    """Return the fields of the spec that depend on the files: the tools that a server lists, above all."""
    some = _all(tasks)
    solved = all(solution_of(task) is not None for task in some)
    tools, instructions = _listed(server_of(some[0]), options)
    return {
        "tools": tools,
        "instructions": f"{INSTRUCTIONS}\n\n{instructions}".strip(),
        "capabilities": ("solver",) if solved else (),
        "deterministic": False,
        "notes": "The server decides what is shown; two of its processes may answer otherwise.",
    }


def _listed(server: ServerDefinition, options: tuple[tuple[str, bool], ...]) -> tuple[tuple[ToolSpec, ...], str]:
    """Return the tools that the agent is offered, and what the server says of their use."""
    running = ToolServer(server, **dict(options))
    try:
        tools, instructions = running.tools(), running.instructions
    finally:
        running.close()
    if any(tool.name == FINISH.name for tool in tools):
        raise ConfigError("the server has a tool `finish`, which ends an episode here: name it in server.hidden")
    if not tools:
        raise ConfigError("the server lists no tools that the agent may call")
    return (FINISH, *tools), instructions


@lru_cache(maxsize=8)
def _admit(tasks: TaskSet, options: tuple[tuple[str, bool], ...]) -> None:
    require_admitted(_all(tasks), **dict(options))
