"""Base of environments whose agents work in a sandbox by `run`, `view`, `edit` and `submit`.

An environment implements `open_sandbox`, `observe`, `judged`, `offers` and `subject`; `ShellEnv` does the actions.
The sandbox is a `Sandbox`, a container, or any other `ShellBox`.
"""

from __future__ import annotations

import base64
from typing import Any, Generic, NamedTuple, TypeVar

from agentgym.env import Action
from agentgym.errors import BadRequest, ConfigError
from agentgym.spec import EnvSpec, ToolSpec
from agentgym_environments.backends.sandbox import actions
from agentgym_environments.backends.sandbox.actions import Command, Edit, Run, Submit, View
from agentgym_environments.backends.sandbox.box import SandboxEnded, WorkRefused
from agentgym_environments.backends.shell_box import ShellBox
from agentgym_environments.base.episode_env import EpisodeEnv

Box = TypeVar("Box", bound=ShellBox)

LINES = 150
"""Lines that one `view` shows."""


class Judged(NamedTuple):
    """Result of `submit`."""

    message: str
    over: bool = True
    """False where the work is refused and can be mended."""
    reward: float = 0.0
    success: bool = False


class ShellEnv(EpisodeEnv, Generic[Box]):
    """interface: "text", or "tools" where actions are tool calls (both are understood either way).
    variant: JSON that two instances of one id must share for a snapshot of one to fit the other.
    tools: the tools of interface "tools"."""

    def __init__(
        self,
        spec: EnvSpec,
        *,
        interface: str,
        command_s: float,
        variant: Any = None,
        tools: tuple[ToolSpec, ...] = actions.TOOLS,
    ) -> None:
        if interface not in ("text", "tools"):
            raise ConfigError(f"interface is text or tools, not {interface!r}")
        if interface == "tools":
            spec = spec.model_copy(update={"tools": tools, "action_format": "tool_call"})
        super().__init__(spec)
        self.command_s, self.variant = command_s, variant
        self.where: tuple[str, int] = ("", 0)
        """Split and number of the present task."""
        self.hints = 0
        """Hints given in this episode."""
        self._box: Box | None = None

    # What an environment implements.

    def open_sandbox(self) -> Box:
        """The sandbox in which the task `self.where` begins."""
        raise NotImplementedError

    def observe(self) -> str:
        """Return the first observation of an episode."""
        raise NotImplementedError

    def judged(self) -> Judged:
        """Return what becomes of the files of `self.box` when they are submitted."""
        raise NotImplementedError

    def offers(self) -> list[str]:
        """A few of the many actions there are."""
        raise NotImplementedError

    def subject(self) -> str:
        """Return what `state_key` begins with."""
        raise NotImplementedError

    def command_seconds(self) -> float:
        """Return how long the next command may take."""
        return self.command_s

    def concluded(self, judged: Judged) -> Judged:
        """Return what a turn comes to: an environment with an end of its own beside `submit` judges here."""
        return judged

    # Provided in return.

    def begin(self, split: str, task: int) -> None:
        self.close()
        self.where, self.hints = (split, task), 0
        self._box = self.open_sandbox()

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Do an action. Whatever it does to the sandbox is the agent's turn: an observation, or the end without reward.

        Raises SandboxLost when the sandbox ended for another reason.
        """
        self.require_running("step")
        parsed = actions.understand(action)
        try:
            judged = self.concluded(self._do(parsed))
        except WorkRefused as error:
            judged = Judged(f"not {'submitted' if isinstance(parsed, Submit) else 'done'}: {error}", over=False)
        except SandboxEnded as error:
            judged = Judged(f"{error}: the episode is over, without a reward")
        self.success = judged.success
        terminated, truncated = self.end_turn(judged.over)
        message = judged.message.encode(errors="backslashreplace").decode()  # a file's name may be no text
        return message, judged.reward, terminated, truncated, self._info(valid=parsed is not None)

    def close(self) -> None:
        if self._box is not None:
            self._box.close()
            self._box = None

    def save(self) -> Any:
        box = base64.b64encode(self.box.snapshot()).decode()
        return {"variant": self.variant, "where": self.where, "hints": self.hints, "box": box}

    def load(self, state: Any) -> None:
        if state["variant"] != self.variant:
            raise BadRequest(f"this snapshot is of {self.env_spec.id} with other arguments")
        (split, task), hints, box = state["where"], int(state["hints"]), base64.b64decode(state["box"])
        split, task = self.select_task({"split": split, "task": task})
        if self._box is None or self.where != (split, task):
            self.begin(split, task)
        self.box.restore(box)
        self.hints = hints

    @property
    def box(self) -> Box:
        if self._box is None:
            raise BadRequest(f"{self.env_spec.id} is closed")
        return self._box

    def say(self, parsed: Command) -> Action:
        """An action of the solver in the environment's interface."""
        return actions.as_call(parsed) if self.env_spec.tools else actions.as_text(parsed)

    # What the actions do.

    def _do(self, parsed: Command | None) -> Judged:
        if isinstance(parsed, Submit):
            return self.judged()
        if isinstance(parsed, Run):
            observation = self._run(parsed.command)
        elif isinstance(parsed, View):
            observation = self._view(parsed)
        elif isinstance(parsed, Edit):
            observation = self._edit(parsed)
        else:
            observation = f"not an action; {actions.GRAMMAR}"
        return Judged(observation, over=False)

    def _run(self, command: str) -> str:
        ran = self.box.run(command, self.command_seconds())
        why = f"\n[stopped: {ran.stopped}]" if ran.stopped else ""
        code = f"\n[exit code {ran.code}]" if ran.code and not ran.stopped else ""
        return f"{ran.output.rstrip()}{why}{code}".strip() or "[no output]"

    def _view(self, view: View) -> str:
        content = self.box.read(view.path)
        if content is None:
            return f"there is no file {view.path} that can be viewed; `run ls` lists a folder"
        lines = content.decode(errors="replace").split("\n")
        first = max(1, view.first)
        last = min(view.last or len(lines), len(lines), first + LINES - 1)
        shown = [f"{number:5d}  {lines[number - 1][:400]}" for number in range(first, last + 1)]
        more = f"\n[{view.path} has {len(lines)} lines]" if first > 1 or last < len(lines) else ""
        return ("\n".join(shown) or "[no such lines]") + more

    def _edit(self, edit: Edit) -> str:
        found = self.box.read(edit.path)
        if found is None and (edit.first, edit.last) != (1, 0):
            return f"there is no file {edit.path} that can be edited; `edit {edit.path} 1-0` makes it"
        old = (found or b"").decode(errors="surrogateescape")
        new = actions.replace(old, edit)
        if new is None:
            count = old.count("\n") + 1
            return f"{edit.path} has lines 1 to {count}, not {edit.first}-{edit.last}"
        why = self.box.write(edit.path, new.encode(errors="surrogateescape"))
        if why:
            return f"{edit.path} was not written: {why}"
        added = len(new.split("\n")) - len(old.split("\n")) + edit.last - edit.first + 1
        return self._view(View(edit.path, max(1, edit.first - 2), edit.first + min(added, 20) + 1))

    def _info(self, valid: bool) -> dict[str, Any]:
        """`state_key` ends with the box's digest."""
        return {
            "success": self.success,
            "valid_action": valid,
            "state_key": f"{self.subject()}/{self._digest()[:20]}",
            "available_actions": [] if self.over else self.offers(),
        }

    def _digest(self) -> str:
        try:
            return self.box.digest()
        except (SandboxEnded, WorkRefused) as error:
            return type(error).__name__
