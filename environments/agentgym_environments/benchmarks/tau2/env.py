"""tau2-bench: serve a simulated user by talking and by tools, under a written policy, through its own package."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentgym.env import Action
from agentgym.errors import ConfigError, EnvironmentCrashed, MissingDependency
from agentgym.spec import EnvSpec, ToolSpec
from agentgym.tasks import Task, TaskSet
from agentgym_environments.backends.json_process import JsonProcess, answering
from agentgym_environments.base.engine_env import require_flag
from agentgym_environments.base.episode_env import EpisodeEnv

DOMAINS = ("retail", "airline", "telecom")
BASE = "base"
"""The package's split of all tasks that are evaluated."""
ROOT = "~/.cache/agentgym/tau2-bench"
INSTALL = "git clone https://github.com/sierra-research/tau2-bench {root} && cd {root} && uv sync --extra gym"
CHILD = Path(__file__).with_name("child.py")
ANSWER_S = 600.0
"""Seconds for an answer, which may take several calls of the user's model."""
STEPS_A_TURN = 2
"""Fewest messages of a turn, as the package counts its steps: the agent's, and that of the user or of a tool."""
CUT = "max_steps"
"""The package's reason of an end for which nobody asked."""
SAY = ToolSpec(
    name="say",
    description="Say something to the user. You read the answer.",
    parameters={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
)
DONE = ToolSpec(name="done", description="End the conversation when the task is done.")


class Tau2(EpisodeEnv):
    """The only reward is that of the package's evaluator, at the end of the conversation.

    domain: one of DOMAINS. base: one split of all tasks, on which scores are published, in place of train and test,
    which divide them. user: the URL of an OpenAI-compatible server whose `model` plays the user; "" for the package's
    own choice, whose key it reads by itself. root: tau2-bench's checkout. python: an interpreter that has the package;
    by default that of the checkout's `.venv`.
    """

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        domain: str = "retail",
        base: bool = False,
        user: str = "",
        model: str = "",
        api_key: str = "none",
        root: str = ROOT,
        python: str = "",
    ) -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        if domain not in DOMAINS:
            raise ConfigError(f"{spec.id}: domain is one of {', '.join(DOMAINS)}, not {domain!r}")
        require_flag(spec.id, "base", base)
        if bool(user) != bool(model):
            raise ConfigError(f"{spec.id}: the user is played by a model at a URL: give both user and model")
        self.python = python or str(Path(root).expanduser().absolute() / ".venv" / "bin" / "python")
        try:
            self.tasks, tools, policy = _described(self.python, domain, (BASE,) if base else ("train", "test"))
        except (FileNotFoundError, LookupError) as error:
            install = INSTALL.format(root=root)
            raise MissingDependency(f"{spec.id} needs tau2-bench, and {error.args[-1]}: {install}") from error
        self.domain = domain
        self.user: dict[str, Any] = {}
        if user:
            self.user = {"user_llm": f"openai/{model}", "user_llm_args": {"api_base": user, "api_key": api_key}}
        changes = {
            "splits": self.tasks.splits,
            "task_set": self.tasks.content_hash,
            "tools": (SAY, DONE, *tools),
            "text_tool": SAY.name,  # the package's own agents talk to the user in plain text
            "instructions": f"{spec.instructions.strip()}\n\n{policy}",
        }
        super().__init__(spec.model_copy(update=changes))
        self._names = {tool.name for tool in self.env_spec.tools}
        self._child: JsonProcess | None = None
        self._text = ""
        self._state = hashlib.sha256()

    def begin(self, split: str, task: int) -> None:
        if self.turn >= 0 and not self.over:
            self.close()  # the package's thread would wait for the rest of that conversation
        name = self.tasks[split, task].id
        steps = STEPS_A_TURN * self.env_spec.max_turns
        options = {"domain": self.domain, "task_id": name, "max_steps": steps, **self.user}
        self._text = self._ask({"open": options})["text"]
        self._state = hashlib.sha256(f"{name}\0{self._text}".encode())

    def observe(self) -> str:
        return self._text

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.require_running("step")
        text = self._message(action)
        if text is None:
            self._text = "error: no such call; the tools are " + ", ".join(sorted(self._names))
            return self._text, 0.0, *self.end_turn(False), self._info(False)
        answer = self._ask({"act": text})
        self._text = answer["text"]
        self._state.update(f"\0{text}\0{self._text}".encode())
        cut = answer["reason"] == CUT
        terminated, truncated = self.end_turn(answer["over"] and not cut, cut)
        self.success = terminated and answer["reward"] >= 1.0
        return self._text, answer["reward"], terminated, truncated, self._info(True)

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def _message(self, action: Action) -> str | None:
        """Return an action as the package reads it: a message, or a tool call in JSON. None where it is neither."""
        if not isinstance(action, dict) or action.get("name") not in self._names:
            return None
        arguments = action.get("arguments")
        if not isinstance(arguments, dict):
            return None
        if action["name"] != SAY.name:
            return json.dumps({"name": action["name"], "arguments": arguments})
        text = arguments.get("text")
        return text if isinstance(text, str) and text.strip() else None

    def _ask(self, request: dict[str, Any]) -> Any:
        if self._child is None:
            self._child = _process(self.python)
        try:
            return self._child.ask(request, timeout_s=ANSWER_S)
        except EnvironmentCrashed:
            self.close()
            raise

    def _info(self, valid: bool) -> dict[str, Any]:
        return {"success": self.success, "valid_action": valid, "state_key": self._state.hexdigest()[:16]}


def _process(python: str) -> JsonProcess:
    return JsonProcess(answering(python, CHILD, "Tau2Conversation"), name="tau2-bench", own_group=True)


@lru_cache(maxsize=8)
def _described(python: str, domain: str, splits: tuple[str, ...]) -> tuple[TaskSet, tuple[ToolSpec, ...], str]:
    """Return tasks, tools and policy of a domain. Raises FileNotFoundError or LookupError where the package lacks."""
    if not Path(python).exists():
        raise FileNotFoundError(f"there is no {python}")
    process = _process(python)
    try:
        found = process.ask({"describe": {"domain": domain, "splits": splits}}, timeout_s=ANSWER_S)
    finally:
        process.close()
    if "problem" in found:
        raise LookupError(found["problem"])
    # Of a task the agent is shown nothing before the user speaks.
    divided = {
        split: [Task(id=id, prompt="", setup={"sha256": digest}) for id, digest in tasks]
        for split, tasks in found["splits"].items()
    }
    return TaskSet(divided), tuple(ToolSpec(**tool) for tool in found["tools"]), found["policy"]
