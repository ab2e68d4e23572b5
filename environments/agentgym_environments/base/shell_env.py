"""What worlds share whose agents work in a sandbox by `run`, `view`, `edit` and `submit`.

A world implements `begin`, `opening`, `judged`, `offers` and `subject`; `ShellEnv` does the actions, counts turns and
takes snapshots.
"""

from __future__ import annotations

import base64
import json
from typing import Any, NamedTuple

from agentgym.env import Action, Env
from agentgym.errors import BadRequest, ConfigError
from agentgym.spec import EnvSpec
from agentgym_environments.backends.sandbox import actions
from agentgym_environments.backends.sandbox.actions import Edit, Run, Said, Submit, View
from agentgym_environments.backends.sandbox.box import Sandbox

LINES = 150
"""Lines that one `view` shows."""


class Judged(NamedTuple):
    """What `submit` led to."""

    said: str
    over: bool = True
    """False where the work is refused and can be mended."""
    reward: float = 0.0
    success: bool = False


class ShellEnv(Env):
    """interface: "text", or "tools" where actions are tool calls (both are understood either way).
    variant: JSON that two instances of one id must share for a snapshot of one to fit the other."""

    def __init__(self, spec: EnvSpec, *, interface: str, command_s: float, variant: Any = None) -> None:
        if interface not in ("text", "tools"):
            raise ConfigError(f"interface is text or tools, not {interface!r}")
        if interface == "tools":
            spec = spec.model_copy(update={"tools": actions.TOOLS, "action_format": "tool_call"})
        super().__init__(spec)
        self.command_s, self.variant = command_s, variant
        self.where: tuple[str, int] = ("", 0)
        """Split and number of the present task."""
        self.turn, self.over, self.success, self.hints = -1, False, False, 0
        self._box: Sandbox | None = None

    # What a world implements.

    def begin(self) -> Sandbox:
        """The sandbox in which the task `self.where` begins."""
        raise NotImplementedError

    def opening(self) -> str:
        """The first observation."""
        raise NotImplementedError

    def judged(self) -> Judged:
        """What becomes of the files of `self.box` when they are submitted."""
        raise NotImplementedError

    def offers(self) -> list[str]:
        """A few of the many actions there are."""
        raise NotImplementedError

    def subject(self) -> str:
        """What `state_key` begins with."""
        raise NotImplementedError

    # What it gets for that.

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._begin(*self.select_task(options))
        return self.opening(), self._info(valid=True)

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.require_episode("step")
        if self.over:
            raise BadRequest(f"the episode of {self.env_spec.id} is over: call reset before the next step")
        said = actions.understand(action)
        self.turn += 1
        judged = Judged("", over=False)
        if isinstance(said, Run):
            observation = self._run(said.command)
        elif isinstance(said, View):
            observation = self._view(said)
        elif isinstance(said, Edit):
            observation = self._edit(said)
        elif isinstance(said, Submit):
            judged = self.judged()
            observation = judged.said
        else:
            observation = f"not an action; {actions.GRAMMAR}"
        self.success = judged.success
        truncated = self.turn >= self.env_spec.max_turns and not judged.over
        self.over = judged.over or truncated
        return observation, judged.reward, judged.over, truncated, self._info(valid=said is not None)

    def close(self) -> None:
        if self._box is not None:
            self._box.close()
            self._box = None

    def snapshot(self) -> bytes:
        self.require_episode("snapshot")
        whole = {
            "id": self.env_spec.id,
            "variant": self.variant,
            "where": self.where,
            "counts": [self.turn, self.over, self.success, self.hints],
            "random": self.np_random.bit_generator.state,
            "box": base64.b64encode(self.box.snapshot()).decode(),
        }
        return json.dumps(whole).encode()

    def restore(self, state: bytes) -> None:
        try:
            whole = json.loads(state)
            if (whole["id"], whole["variant"]) != (self.env_spec.id, self.variant):
                raise BadRequest(f"this snapshot is of {whole['id']}, not of {self.env_spec.id}")
            (split, task), counts, box = whole["where"], whole["counts"], base64.b64decode(whole["box"])
            split, task = self.select_task({"split": split, "task": task})
            self.np_random.bit_generator.state = whole["random"]
        except (ValueError, KeyError, TypeError) as error:
            raise BadRequest(f"not a snapshot of {self.env_spec.id}: {error}") from error
        if self._box is None or self.where != (split, task):
            self._begin(split, task)
        self.box.restore(box)
        self.turn, self.over, self.success, self.hints = counts

    @property
    def box(self) -> Sandbox:
        if self._box is None:
            raise BadRequest(f"{self.env_spec.id} is closed")
        return self._box

    def say(self, said: Said) -> Action:
        """An action of the expert in the world's interface."""
        return actions.as_call(said) if self.env_spec.tools else actions.as_text(said)

    def require_episode(self, what: str) -> None:
        if self.turn < 0:
            raise BadRequest(f"{self.env_spec.id} has no episode yet: call reset before {what}")

    def _begin(self, split: str, number: int) -> None:
        self.close()
        self.where = (split, number)
        self.turn, self.over, self.success, self.hints = 0, False, False, 0
        self._box = self.begin()

    # What the actions do.

    def _run(self, command: str) -> str:
        ran = self.box.run(command, self.command_s)
        why = f"\n[stopped: {ran.stopped}]" if ran.stopped else ""
        code = f"\n[exit code {ran.code}]" if ran.code and not ran.stopped else ""
        return f"{ran.output.rstrip()}{why}{code}".strip() or "[no output]"

    def _view(self, view: View) -> str:
        content = self.box.read(view.path)
        if content is None:
            return f"there is no file {view.path}; `run ls` lists a folder"
        lines = content.decode(errors="replace").split("\n")
        first = max(1, view.first)
        last = min(view.last or len(lines), len(lines), first + LINES - 1)
        shown = [f"{number:5d}  {lines[number - 1][:400]}" for number in range(first, last + 1)]
        more = f"\n[{view.path} has {len(lines)} lines]" if first > 1 or last < len(lines) else ""
        return ("\n".join(shown) or "[no such lines]") + more

    def _edit(self, edit: Edit) -> str:
        found = self.box.read(edit.path)
        if found is None and (edit.first, edit.last) != (1, 0):
            return f"there is no file {edit.path}; `edit {edit.path} 1-0` makes it"
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
        """`state_key` names the files of /work."""
        return {
            "success": self.success,
            "valid_action": valid,
            "state_key": f"{self.subject()}/{self.box.digest()[:20]}",
            "available_actions": [] if self.over else self.offers(),
        }
