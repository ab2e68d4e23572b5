"""Any task of BrowserGym as an environment. BrowserGym runs in a process, and if need be an interpreter, of its own."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from agentgym.env import Action
from agentgym.errors import EnvironmentCrashed, MissingDependency
from agentgym.spec import EnvSpec
from agentgym_environments.backends.browser.browser import find_program
from agentgym_environments.backends.json_process import JsonProcess
from agentgym_environments.base.episode_env import EpisodeEnv

MISSING = (
    "the task {task} needs {missing}, which {python} does not have: python -m venv browsergym && "
    "browsergym/bin/pip install browsergym-core{package}, then browsergym:python=browsergym/bin/python"
)
PACKAGES = {"openended": "", "weblinx": "weblinx-browsergym"}
"""Package of a task's benchmark, where it is not browsergym-BENCHMARK; `openended` is in the core."""
CHILD = Path(__file__).with_name("child.py")
FIRST = {"train": 0, "validation": 1_000_000, "test": 2_000_000}
"""The seed of a split's first task."""


class BrowserGym(EpisodeEnv):
    """One BrowserGym task, its seeds as tasks. Tested with MiniWoB's; README.md says what others lack.

    task: as BrowserGym names it, "miniwob.click-button". python: an interpreter with BrowserGym, whose Playwright is
    an older one than ours. options: for `gymnasium.make`. Without a MINIWOB_URL, its MiniWoB pages are those of the
    `miniwob` package here.
    """

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        task: str = "miniwob.click-button",
        python: str = "",
        options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(spec or EnvSpec.load(Path(__file__).with_name("spec.toml")))
        self.task, self.python = task, python or sys.executable
        self.options = dict(options or {})
        if task.startswith("miniwob."):
            self.options = {"task_kwargs": {"base_url": _pages()}, **self.options}
        _require(self.python, task)
        self._child: JsonProcess | None = None
        self._page: dict[str, Any] = {}

    def begin(self, split: str, task: int) -> None:
        self._page = self._ask({"reset": FIRST.get(split, 3_000_000) + task})

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.require_running("step")
        self._page = self._ask({"step": action if isinstance(action, str) else ""})
        reward = min(1.0, max(0.0, float(self._page["reward"])))
        terminated, truncated = self.end_turn(bool(self._page["terminated"]), bool(self._page["truncated"]))
        self.success = terminated and reward > 0
        valid = bool(action) and not self._page["error"]
        return self.observe(), reward, terminated, truncated, self._info(valid)

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        if self._child is None:
            command = [self.python, str(CHILD), self.task, find_program(), json.dumps(self.options)]
            self._child = JsonProcess(command, name=f"BrowserGym's {self.task}", own_group=True)
        try:
            return self._child.ask(question)
        except EnvironmentCrashed:
            self.close()
            raise

    def observe(self) -> str:
        error = f"error: {self._page['error']}\n" if self._page["error"] else ""
        return f"{error}Task: {self._page['goal']}\n{self._page['tree']}"

    def _info(self, valid: bool) -> dict[str, Any]:
        state = hashlib.sha256(f"{self._page['url']}\n{self._page['goal']}\n{self._page['tree']}".encode())
        return {"success": self.success, "valid_action": valid, "state_key": state.hexdigest()[:16]}


def _require(python: str, task: str) -> None:
    """Raise MissingDependency, naming the package, where an interpreter lacks what a task needs."""
    benchmark = task.partition(".")[0]
    package = PACKAGES.get(benchmark, f"browsergym-{benchmark.replace('_', '-')}")
    needed = {"browsergym-core": "browsergym.core"} | ({package: f"browsergym.{benchmark}"} if package else {})
    for missing, module in needed.items():
        asks = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
        if subprocess.run([python, "-c", asks], capture_output=True, check=False).returncode:
            suffix = f" {package}" if package else ""
            raise MissingDependency(MISSING.format(task=task, missing=missing, python=python, package=suffix))


def _pages() -> str:
    from agentgym_environments.benchmarks.miniwob.site import folder

    return f"{folder().as_uri()}/miniwob/"
