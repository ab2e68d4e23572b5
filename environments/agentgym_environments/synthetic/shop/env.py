"""The shop as text: search, click and choose until the order is placed."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym_environments.base.text_env import Outcome, TurnEnv
from agentgym_environments.synthetic.shop.catalogue import search
from agentgym_environments.synthetic.shop.goals import ShoppingGoal, reward, score
from agentgym_environments.synthetic.shop.lazy import LAZY_POLICIES
from agentgym_environments.synthetic.shop.shop import Event, EventRefused, Line, State, go
from agentgym_environments.synthetic.shop.solver import next_move
from agentgym_environments.synthetic.shop.tasks import LEVELS, make_task
from agentgym_environments.synthetic.shop.views import PageView, plain, view


class Shop(TurnEnv):
    """One order a task; the reward comes when it is placed.

    level: "easy" (two features), "one" (features and options) or "two" (two products, one limit, an address).
    """

    lazy_policies = LAZY_POLICIES

    def __init__(self, spec: EnvSpec | None = None, *, level: str = "one") -> None:
        super().__init__(spec_for(spec or EnvSpec.load(Path(__file__).with_name("spec.toml")), level))
        self.level = level
        search("anything")  # makes the catalogue and its index, once in a process
        self.state = State()

    def begin(self, split: str, task_index: int) -> None:
        self.task = (split, task_index)
        self.goal: ShoppingGoal = make_task(self.level, split, task_index)
        self.state = State()

    def observe(self) -> str:
        return f"Task: {self.goal.text}\n{plain(view(self.state, self.goal))}"

    def refuse(self, action: str) -> str:
        return f"not possible here; say search WORDS, click NAME or choose OPTION VALUE\n{self.observe()}"

    def act(self, action: str) -> Outcome | None:
        event = understand(action, view(self.state, self.goal))
        if event is None:
            return None
        try:
            self.state = go(self.state, event)
        except EventRefused:
            return None
        return ordered(self.goal, self.state)

    def key(self) -> str:
        return state_key(self.goal, self.state)

    def describe(self) -> dict[str, Any]:
        """`progress` is how near the order is to what was asked."""
        offered = [] if self.over else offers(view(self.state, self.goal), self.goal)
        return {"progress": score(self.goal, self.state), "available_actions": offered}

    def solver(self) -> str:
        self.require_running("solver")
        return say(next_move(self.goal, self.state).event, view(self.state, self.goal))

    def hint(self) -> str:
        self.require_running("hint")
        return next_move(self.goal, self.state).why

    def save(self) -> Any:
        return {"task": self.task, "state": asdict(self.state)}

    def load(self, state: Any) -> None:
        split, index = state["task"]
        loaded = read_state(state["state"])
        self.begin(split, index)
        self.state = loaded


def spec_for(spec: EnvSpec, level: str, turns: int = 1) -> EnvSpec:
    """The spec of an environment made with another level than its own: the length of an episode goes with the level.

    turns: how many of this environment's turns one of text takes. Raises ConfigError for a level that there is not.
    """
    if level not in LEVELS:
        raise ConfigError(f"shop: level is one of {', '.join(LEVELS)}, not {level!r}")
    return (
        spec
        if spec.kwargs.get("level") == level
        else spec.model_copy(
            update={"max_turns": turns * LEVELS[level].turns, "kwargs": {**spec.kwargs, "level": level}}
        )
    )


def ordered(goal: ShoppingGoal, state: State) -> Outcome:
    """The reward of a placed order, nothing before."""
    if not state.ordered:
        return Outcome()
    worth = reward(goal, state)
    return Outcome(worth, ended=True, success=worth == 1.0)


def understand(action: str, page: PageView) -> Event | None:
    """The event that a line of text (lower case, single spaces) names on a page; None when there is none."""
    verb, _, rest = action.partition(" ")
    if verb == "search" and rest:
        return ("search", rest)
    rest = rest.strip("[]")
    if verb == "click":
        return next((press.event for press in page.presses if press.label.lower() == rest), None)
    if verb == "choose":
        for group in page.groups:
            for value in group.values:
                if rest == f"{group.name} {value}".lower():
                    return ("choose", group.name, value)
    return None


def say(event: Event, page: PageView) -> str:
    """An event as an action on a page; the reverse of `understand`."""
    if event[0] == "choose":
        return f"choose {event[1]} {event[2]}"
    label = next((press.label for press in page.presses if press.event == event), None)
    return f"click {label}" if label else f"search {event[1]}"


def offers(page: PageView, goal: ShoppingGoal) -> list[str]:
    """Everything that can be clicked or chosen, and searches for words of the task."""
    words = [query for one in goal.wanted for query in (one.kind, " ".join((*one.features, one.kind)))]
    searches = [f"search {query.lower()}" for query in dict.fromkeys(words)]
    clicks = [f"click {press.label}" for press in page.presses]
    return [*searches, *clicks, *(f"choose {group.name} {value}" for group in page.groups for value in group.values)]


def state_key(goal: ShoppingGoal, state: State) -> str:
    """Names a task and all that the shop knows of the customer."""
    return hashlib.sha256(f"{goal}\n{state}".encode()).hexdigest()[:16]


def read_state(saved: dict[str, Any]) -> State:
    """The reverse of `asdict` by way of JSON."""
    pairs = lambda some: tuple((str(name), str(value)) for name, value in some)  # noqa: E731
    basket = tuple(Line(int(line["product"]), pairs(line["options"])) for line in saved["basket"])
    return State(**{**saved, "chosen": pairs(saved["chosen"]), "basket": basket})
