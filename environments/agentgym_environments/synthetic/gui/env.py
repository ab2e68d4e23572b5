"""A desktop: a real X display with a text editor, a calculator and a file manager, rewarded for what they leave."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from agentgym.env import Action, Observation
from agentgym.errors import EnvironmentCrashed
from agentgym.spec import EnvSpec
from agentgym_environments.backends.desktop.actions import parse
from agentgym_environments.backends.desktop.desktop import Desktop
from agentgym_environments.backends.desktop.setup import COMMANDS, CONFIGURATION, FOLDER, SIZE, WINDOW_MANAGER
from agentgym_environments.backends.desktop.tree import Numbers
from agentgym_environments.base.desktop_env import DesktopEnv
from agentgym_environments.synthetic.gui.solver import SolverInput, next_action
from agentgym_environments.synthetic.gui.task import GuiTask, Tree
from agentgym_environments.synthetic.gui.tasks import make_task, makers

CLICKED = {"menu", "item", "button", "icon", "checkbox", "radio", "text", "combo", "cell"}
SHORTCUTS = ("ctrl+a", "ctrl+s", "return", "escape", "tab")


class Gui(DesktopEnv):
    """The only reward is 1, when the documents (or the calculator's display) are what the task asks for.

    app: "editor", "calculator", "files", "all" (they take turns) or "long". level: "easy" or "hard".
    observation: "text" (the accessibility tree), "image" (a screenshot, and the task in words) or "both".
    """

    def __init__(
        self, spec: EnvSpec | None = None, *, app: str = "all", level: str = "easy", observation: str = "text"
    ) -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        makers(app, level)
        super().__init__(spec, observation)
        self.app, self.level = app, level
        self.task: GuiTask
        self.files: Tree = {}
        self._history: list[str] = []

    # The contract.

    def begin(self, split: str, task: int) -> None:
        self.task = make_task(self.app, self.level, split, task)
        if self.desktop is not None and not self.desktop.alive:
            self.close()
        if self.desktop is None:
            self.desktop = Desktop(tuple(COMMANDS.values()))
        try:
            with self.desktop.watched():
                self._prepare(self.desktop)
        except BaseException:
            self.close()  # the next reset starts another
            raise
        self._numbers, self._history = Numbers(), []
        self._look()

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self.require_running("step")
        assert self.desktop is not None
        act = parse(action, self.where) if isinstance(action, str) else "say what to do in words"
        if not isinstance(act, str):
            self._history.append(str(action).strip())
            with self.desktop.watched():
                self.act(act, self.desktop)
                self._look()
            if crashed := self.desktop.ask("crashed"):
                raise EnvironmentCrashed(f"an application of the desktop has crashed: {', '.join(crashed)}")
            self.success = self._is_done()
        with self.desktop.watched():
            nothing_open = not self.elements and not self.desktop.has_windows()  # and nothing can be opened
        terminated, truncated = self.end_turn(self.success or nothing_open)
        info = self._info(valid=not isinstance(act, str))
        refusal = f"{act}\n" if isinstance(act, str) else ""
        return self.observe(refusal), float(self.success), terminated, truncated, info

    def solver(self) -> str:
        self.require_episode("solver")
        return next_action(SolverInput(self.task, self.elements, self.files, self._history))

    # How it is done.

    def _prepare(self, desktop: Desktop) -> None:
        desktop.move(SIZE[0] - 1, SIZE[1] - 1)
        desktop.sync()
        paths = {f"{FOLDER}/{path}": text for path, text in self.task.before.items()}
        folders = [FOLDER, *(path for path, text in paths.items() if text is None)]
        files = {path: text for path, text in paths.items() if text is not None}
        desktop.ask(
            "launch",
            folders=folders,
            files={**CONFIGURATION, **files},
            manager=WINDOW_MANAGER,
            commands=self.task.commands,
        )

    def _look(self) -> None:
        assert self.desktop is not None
        self.look(self.desktop)
        self.files = self.desktop.files(FOLDER)

    def _is_done(self) -> bool:
        if not self.task.shows:
            return self.files == self.task.after
        return self._display() == self.task.shows

    def _display(self) -> str:
        """Return what the calculator shows; below it, in scientific mode, are its modes."""
        shown = [one.text or "" for one in self.elements if one.role == "text" and one.window == "galculator"]
        return shown[0].split("\n")[0].strip() if shown else ""

    def observe(self, refusal: str = "") -> Observation:
        return self.picture(f"{refusal}task: {self.task.goal}")

    def _info(self, valid: bool) -> dict[str, Any]:
        shown = "\n".join(one.line(numbered=False) for one in self.elements)
        state = f"{self.task.content}\n{shown}\n{sorted(self.files.items(), key=lambda one: one[0])}"
        return {
            "success": self.success,
            "valid_action": valid,
            "state_key": hashlib.sha256(state.encode()).hexdigest()[:16],
            "progress": 1.0 if self.success else self._progress(),
            "available_actions": [] if self.over else self._available(),
        }

    def _progress(self) -> float:
        """The share of files and folders that are still wrong and should change, less those spoilt."""
        before, after, now = self.task.before, self.task.after, self.files
        wanted = [path for path in {**before, **after} if differs(before, after, path)]
        done = sum(not differs(now, after, path) for path in wanted)
        spoilt = sum(differs(now, after, path) for path in {**before, **now} if path not in wanted)
        return max(0.0, (done - spoilt) / len(wanted)) if wanted else 0.0

    def _available(self) -> list[str]:
        clicks = [one for one in self.elements if one.role in CLICKED and "sensitive" in one.states]
        doubles = [f"double {one.number}" for one in clicks if one.role == "icon"]
        return [*(f"click {one.number}" for one in clicks), *doubles, *(f"press {keys}" for keys in SHORTCUTS)]


def differs(one: Tree, other: Tree, path: str) -> bool:
    return (path in one) != (path in other) or one.get(path) != other.get(path)
