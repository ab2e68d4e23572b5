"""The shop in a real browser: the same customer, catalogue and score, by way of its web pages."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentgym.env import Action, Observation
from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym_environments.backends.browser import browser
from agentgym_environments.backends.browser.actions import GRAMMAR, NotPossible, parse
from agentgym_environments.backends.browser.page import Page
from agentgym_environments.base.episode_env import EpisodeEnv
from agentgym_environments.synthetic.shop import site
from agentgym_environments.synthetic.shop.app import Customer
from agentgym_environments.synthetic.shop.env import offers, ordered, say, spec_for, state_key
from agentgym_environments.synthetic.shop.goals import score
from agentgym_environments.synthetic.shop.shop import Event
from agentgym_environments.synthetic.shop.solver import next_move
from agentgym_environments.synthetic.shop.tasks import make_task
from agentgym_environments.synthetic.shop.views import view

WINDOW = (800, 600)
"""Pixels."""
TURNS = 2
"""Turns for one of text: a search is a field and a button."""
NUMBER = "first => { if (!window.__numbered) { window.__numbered = true; __seen.restart(first); } }"


@dataclass(frozen=True)
class ShopElement:
    """A line of the accessibility tree that can be acted on."""

    id: int
    role: str
    name: str
    value: str
    """Text that a field holds or a list has selected."""
    options: tuple[str, ...]


class ShopBrowser(EpisodeEnv):
    """One order a task, in a tab of its own; the reward comes when it is placed.

    level: as in Shop. observation: "tree" (the accessibility tree), "html" or "screenshot".
    A snapshot is the list of actions, which `restore` plays again.
    """

    def __init__(self, spec: EnvSpec | None = None, *, level: str = "one", observation: str = "tree") -> None:
        if observation not in ("tree", "html", "screenshot"):
            raise ConfigError(f'shop-browser: observation is "tree", "html" or "screenshot", not {observation!r}')
        browser.require()
        site.require()
        spec = spec_for(spec or EnvSpec.load(Path(__file__).with_name("spec.toml"), "shop-browser"), level, TURNS)
        if observation == "screenshot":
            changes = {"observations": ("text", "image"), "capabilities": (*spec.capabilities, "image")}
            spec = spec.model_copy(update=changes)
        super().__init__(spec)
        self.level, self.view = level, observation
        self._page: Page | None = None
        self._token = ""
        self._customer: Customer | None = None
        self.tree = ""
        """The page as it was last seen."""

    def begin(self, split: str, task: int) -> None:
        shop = site.site()
        shop.forget(self._token)
        self._token, self._customer = shop.welcome(make_task(self.level, split, task))
        self._task, self._taken = (split, task), []
        if self._page is None or self._page.tab.lost:
            if self._page is not None:
                self._page.close()
            self._page = Page([shop.url], WINDOW)
        self._page.goto(f"{shop.url}enter/{self._token}")
        self._look()

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        self.require_running("step")
        problem = self._act(action if isinstance(action, str) else "")
        reward, ended, self.success, _ = ordered(self.customer.goal, self.customer.state)
        terminated, truncated = self.end_turn(ended)
        return self.observe(problem), reward, terminated, truncated, self._info(valid=not problem)

    def save(self) -> Any:
        return {"task": self._task, "taken": self._taken}

    def load(self, state: Any) -> None:
        (split, task), taken = state["task"], list(state["taken"])
        self.begin(split, task)
        for action in taken:
            self._act(action)

    def solver(self) -> str:
        """The text environment's next move, by the page's fields, links and buttons."""
        goal, state = self._moving("solver")
        here = elements(self.tree)
        if state.page == "product":
            fields = {one.name: one.value for one in here if one.role == "combobox"}
            state = replace(state, chosen=tuple((name, fields[name]) for name, _ in state.chosen))
        event = next_move(goal, state).event
        return on_page(event, say(event, view(state, goal)), here)

    def hint(self) -> str:
        return next_move(*self._moving("hint")).why

    def close(self) -> None:
        if self._token:
            site.site().forget(self._token)
            self._token = ""
        if self._page is not None:
            self._page.close()
            self._page = None

    @property
    def page(self) -> Page:
        assert self._page is not None
        return self._page

    @property
    def customer(self) -> Customer:
        """Return what the shop knows of this session: its state and the goal."""
        assert self._customer is not None
        return self._customer

    def _act(self, text: str) -> str:
        """Do what was said, and look; why it could not be done, or an empty string."""
        assert self._page is not None
        action = parse(text)
        if action is None:
            return f"not an action; an action is one of\n{GRAMMAR}"
        try:
            if action.verb == "back":  # as soon as it is there; nothing where there is nothing to go back to
                self._page.tab.run(self._page.tab.page.go_back(wait_until="load"))
            else:
                self._page.act(action)
        except NotPossible as error:
            return str(error)
        self._taken.append(text)
        self._look()
        return ""

    def _look(self) -> None:
        """Read the page. A number that is the same on every page could be said without looking."""
        assert self._page is not None
        self._page.look()  # waits for the page that is on its way
        key = f"{self.customer.goal.text} {self.customer.state}"
        self._page.tab.evaluate(NUMBER, 10 + int.from_bytes(hashlib.sha256(key.encode()).digest()[:4]) % 80)
        self.tree = self._page.look("tree")[0]

    def observe(self, problem: str = "") -> Observation:
        assert self._page is not None
        shown_text = self._page.look("html")[0] if self.view == "html" else self.tree if self.view == "tree" else ""
        text = "\n".join(part for part in (problem, f"Task: {self.customer.goal.text}", shown_text) if part)
        return {"text": text, "image": self._page.image()} if self.view == "screenshot" else text

    def _info(self, valid: bool) -> dict[str, Any]:
        goal, state = self.customer.goal, self.customer.state
        tree = hashlib.sha256(self.tree.encode()).hexdigest()[:16]
        searches = [one.removeprefix("search ") for one in offers(view(state, goal), goal) if one[:7] == "search "]
        return {
            "success": self.success,
            "valid_action": valid,
            "state_key": f"{state_key(goal, state)}/{tree}",
            "progress": score(goal, state),
            "available_actions": [] if self.over else page_offers(elements(self.tree), searches),
        }

    def _moving(self, what: str) -> tuple[Any, Any]:
        self.require_running(what)
        return self.customer.goal, self.customer.state


def elements(tree: str) -> list[ShopElement]:
    """Return what can be acted on in an accessibility tree."""
    found = []
    for line in tree.splitlines():
        match = re.match(r'\s*\[(\d+)\] (link|button|searchbox|combobox) ("(?:[^"\\]|\\.)*")(.*)', line)
        if not match:
            continue
        quoted = r'("(?:[^"\\]|\\.)*")'
        value = re.search(rf"(?:value=|selected ){quoted}", match[4])
        options = re.findall(rf"(?:selected|option) {quoted}", match[4])
        content = json.loads(value[1]) if value else ""
        found.append(
            ShopElement(int(match[1]), match[2], json.loads(match[3]), content, tuple(map(json.loads, options)))
        )
    return found


def page_offers(here: list[ShopElement], searches: list[str]) -> list[str]:
    """Clicks on links and buttons, lists to choose in, and words of the task for the search."""
    actions = []
    for one in here:
        if one.role == "combobox":
            actions += [f"select {one.id} {json.dumps(option)}" for option in one.options]
        elif one.role == "searchbox":
            actions += [f"fill {one.id} {query}" for query in searches]
        else:
            actions.append(f"click {one.id}")
    return actions


def on_page(event: Event, action: str, here: list[ShopElement]) -> str:
    """An event of the shop (`action` in text) as the next action on its page."""
    if event[0] == "choose":
        field = next(one for one in here if one.role == "combobox" and one.name == event[1])
        if field.value != event[2]:
            return f"select {field.id} {json.dumps(event[2])}"
        return _click(here, "Save")
    if action.startswith("search "):
        field = next(one for one in here if one.role == "searchbox")
        return f"fill {field.id} {event[1]}" if field.value != event[1] else _click(here, "Search")
    return _click(here, action.removeprefix("click "))


def _click(here: list[ShopElement], label: str) -> str:
    """Click the link or button of that name; a note may follow it."""
    named = [one for one in here if one.role in ("link", "button")]
    exact = [one for one in named if one.name == label]
    return f"click {(exact or [one for one in named if one.name.startswith(f'{label} ')])[0].id}"
