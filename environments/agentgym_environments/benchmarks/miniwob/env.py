"""MiniWoB++: small tasks on real web pages, in a real browser."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from agentgym.env import Action, Observation
from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym_environments.backends.browser.actions import GRAMMAR, NotPossible, parse
from agentgym_environments.base.episode_env import EpisodeEnv
from agentgym_environments.benchmarks.miniwob.elements import Elements
from agentgym_environments.benchmarks.miniwob.lazy import LAZY_POLICIES
from agentgym_environments.benchmarks.miniwob.site import MiniWobSite, PageState, folder
from agentgym_environments.benchmarks.miniwob.solver import SOLVERS, solve
from agentgym_environments.benchmarks.miniwob.tasks import RELOAD, pages_of, tasks_of

PASSED = 0.9
"""A page's score from which its task counts as solved. Some pages score how near an answer comes."""
WORDS = 4
"""Words of the task that `available_actions` offers to fill a field with."""

READING = {
    "html": "Do what the task says on the web page below. It is HTML; an element's ref is its ID. One action a turn:",
    "screenshot": "Do what the page in the picture asks (160 by 210 pixels). One action a turn; a place is X,Y:",
}
"""Beginning of the instructions where the tree is not shown."""


class MiniWob(EpisodeEnv):
    """One page and seed a task. The reward is 1 when the page says that its task is solved, else 0.

    page: the one page that all tasks are of. group: which pages otherwise: "solved", "easy" or "all".
    observation: "tree" (the accessibility tree), "html" or "screenshot". pace_ms: how much of the page's
    time an action takes.

    A snapshot is the list of actions, which `restore` plays again.
    """

    lazy_policies = LAZY_POLICIES

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        page: str = "",
        group: str = "solved",
        observation: str = "tree",
        pace_ms: int = 1000,
    ) -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        if observation not in ("tree", "html", "screenshot"):
            raise ConfigError(f'miniwob: observation is "tree", "html" or "screenshot", not {observation!r}')
        if pace_ms < 1:
            raise ConfigError(f"miniwob: pace_ms is at least 1, not {pace_ms}")
        folder()
        pages = [page] if page else pages_of(group)
        self.tasks = tasks_of(pages)
        super().__init__(_spec_for(spec, pages, self.tasks, observation, pace_ms))
        self.view, self.pace_ms = observation, pace_ms
        self._site: MiniWobSite | None = None
        self._task: tuple[str, int] = ("", 0)
        """Page and seed."""
        self._taken: list[str] = []
        self._shown_page = PageState("", "", False, 0.0)

    def begin(self, split: str, task: int) -> None:
        self._start(*self.tasks[split][task])

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self.require_running("step")
        problem = self._act(action if isinstance(action, str) else "")
        terminated, truncated = self.end_turn(self._shown_page.done)
        return self.observe(problem), float(self.success), terminated, truncated, self._info(valid=not problem)

    def save(self) -> Any:
        return {"task": self._task, "taken": self._taken}

    def load(self, state: Any) -> None:
        (page, seed), taken = state["task"], list(state["taken"])
        self._start(page, seed)
        self.success = False
        for action in taken:
            self._act(action)

    def solver(self) -> str:
        """The next action of the page's scripted solver. Raises BadRequest on a page that has none."""
        self.require_episode("solver")
        return solve(self._task[0], self._shown_page.task, Elements(self._shown_page.tree, self._taken))

    def close(self) -> None:
        if self._site is not None:
            self._site.close()
            self._site = None

    def _start(self, page: str, seed: int) -> None:
        if self._site is None or self._site.lost:
            self.close()
            self._site = MiniWobSite(RELOAD)
        self._task, self._taken = (page, seed), []
        # A number that is the same on every page could be said without looking.
        self._site.start(
            page, seed, first=10 + int.from_bytes(hashlib.sha256(f"{page} {seed}".encode()).digest()[:4]) % 80
        )
        self._shown_page = self._site.look()

    def _act(self, command: str) -> str:
        """Do what was said, and look; why it could not be done, or an empty string."""
        assert self._site is not None
        action = parse(command)
        if action is None:
            return f"not an action; an action is one of\n{GRAMMAR}"
        try:
            self._site.act(action)
        except NotPossible as error:
            return str(error)
        self._taken.append(command)
        self._shown_page = self._site.look(self.pace_ms)
        self.success = self._shown_page.done and self._shown_page.score >= PASSED
        return ""

    def observe(self, problem: str = "") -> Observation:
        assert self._site is not None
        parts = [problem, f"Task: {self._shown_page.task}"]
        if self.view == "tree":
            parts.append(self._shown_page.tree)
        elif self.view == "html":
            parts.append(self._site.html())
        text = "\n".join(part for part in parts if part)
        return {"text": text, "image": self._site.image()} if self.view == "screenshot" else text

    def _info(self, valid: bool) -> dict[str, Any]:
        page, seed = self._task
        state = hashlib.sha256(f"{self._shown_page.task}\n{self._shown_page.tree}".encode()).hexdigest()[:16]
        return {
            "success": self.success,
            "valid_action": valid,
            "state_key": f"{page}/{seed}/{state}",
            "available_actions": [] if self.over else offers(self._shown_page),
            "page": page,
            "page_score": self._shown_page.score,
        }


def offers(page: PageState) -> list[str]:
    """Actions that can be done now: clicks on every element, and fields filled with words of the task."""
    words = re.findall(r'"([^"]+)"', page.task) or page.task.rstrip(".").split()[-WORDS:]
    elements = [element for element in Elements(page.tree) if element.id]
    found = [f"click {element.id}" for element in elements]
    for element in elements:
        if element.role in ("textbox", "searchbox", "spinbutton") and not element.has("disabled"):
            found += [f"fill {element.id} {word}" for word in dict.fromkeys(words)]
        elif element.role in ("combobox", "listbox"):
            found += [f"select {element.id} {json.dumps(option)}" for option in element.options]
    return found


def _spec_for(
    spec: EnvSpec, pages: list[str], tasks: dict[str, list[tuple[str, int]]], observation: str, pace_ms: int
) -> EnvSpec:
    """Return what the environment says of itself with these arguments."""
    image = observation == "screenshot"
    solved = set(pages) <= set(SOLVERS) and pace_ms == 1000
    capabilities = ["snapshot", *(["solver"] if solved else []), *(["image"] if image else [])]
    first, _, rest = spec.instructions.partition("\n")
    update: dict[str, Any] = {
        "instructions": f"{READING.get(observation, first)}\n{rest}",
        "splits": {split: len(some) for split, some in tasks.items()},
        "observations": ("text", "image") if image else ("text",),
        "capabilities": tuple(capabilities),
    }
    return spec.model_copy(update=update)
