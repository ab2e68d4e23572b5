"""Navigation: look for things in a house and put them where they belong."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym_environments.base.text_env import Outcome, TurnEnv
from agentgym_environments.synthetic.navigation.house import (
    CONTAINERS,
    ROOMS,
    SURFACES,
    THINGS,
    WAYS,
    House,
    NavigationState,
    on,
)
from agentgym_environments.synthetic.navigation.solver import next_action
from agentgym_environments.synthetic.navigation.tasks import house

_PUT = re.compile(r"put (\w+) (?:on|in|into|onto) (\w+)")


class Navigation(TurnEnv):
    """The only reward is 1 when everything lies where it belongs. One thing can be carried at a time.

    rooms: 2 to 9. goals: things to bring, 1 to 3. closed: things to bring are in furniture that must be opened.
    """

    def __init__(self, spec: EnvSpec | None = None, *, rooms: int = 4, goals: int = 1, closed: bool = False) -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        if not 2 <= rooms <= len(ROOMS) or not 1 <= goals <= 3:
            raise ConfigError(f"navigation: rooms is 2 to {len(ROOMS)}, goals 1 to 3; not {rooms} and {goals}")
        turns = max(spec.max_turns, goals * (2 * rooms + 4) + 3 * rooms * closed)
        super().__init__(spec.model_copy(update={"max_turns": turns}))
        self.rooms, self.goals, self.closed = rooms, goals, closed
        self.task: tuple[str, int] = ("", 0)
        self.house: House
        self.state: NavigationState
        self.reached: set[str] = set()
        """Milestones: what was wanted and in hand, or in its place, once."""

    def begin(self, split: str, task: int) -> None:
        self.task = (split, task)
        self.house = house(self.rooms, self.goals, self.closed, split, task)
        start = self.house.start
        self.state = NavigationState(start, dict(self.house.things), frozenset(), frozenset({start}))
        self.reached = set()

    def observe(self) -> str:
        here, state = self.state.here, self.state
        pieces = []
        for piece in self.house.furniture[here]:
            inside = ", ".join(state.inside((here, piece))) or "nothing"
            pieces.append(f"{piece}: {inside if state.shows((here, piece)) else 'closed'}")
        return (
            f"{self.house.description}\nyou are in the {here}, ways {', '.join(self._ways())}\n"
            f"{'; '.join(pieces)}\nyou carry {state.carried or 'nothing'}"
        )

    def refuse(self, action: str) -> str:
        return f"not an action; here you can {', '.join(self._doing())}\n{self.observe()}"

    def act(self, action: str) -> Outcome | None:
        action = action.replace(" the ", " ").replace(" a ", " ")
        verb, _, what = action.partition(" ")
        put = _PUT.fullmatch(action)
        if put and put[1] in THINGS and put[2] in SURFACES + CONTAINERS:
            self._put(put[1], put[2])
        elif verb == "go" and what in WAYS:
            room = self.house.doors[self.state.here].get(what, self.state.here)
            self.state = replace(self.state, here=room, visited=self.state.visited | {room})
        elif verb == "take" and what in THINGS:
            spot = self.state.things.get(what)
            if spot and spot[0] == self.state.here and self.state.shows(spot) and not self.state.carried:
                self.state = replace(self.state, things={**self.state.things, what: None})
        elif verb == "open" and what in SURFACES + CONTAINERS:
            if what in self.house.furniture[self.state.here] and what in CONTAINERS:
                self.state = replace(self.state, open=self.state.open | {(self.state.here, what)})
        else:
            return None
        self._note_milestones()
        done = self._placed() == len(self.house.goals)
        return Outcome(float(done), ended=done, success=done)

    def _put(self, thing: str, piece: str) -> None:
        spot = (self.state.here, piece)
        if self.state.carried == thing and piece in self.house.furniture[spot[0]] and self.state.shows(spot):
            self.state = replace(self.state, things={**self.state.things, thing: spot})

    def _placed(self) -> int:
        return sum(self.state.things[thing] == spot for thing, spot in self.house.goals)

    def _note_milestones(self) -> None:
        """A thing that lay in its place from the start has no milestones of its own."""
        for thing, spot in self.house.goals:
            if self.state.carried == thing:
                self.reached.add(f"{thing} taken")
            elif f"{thing} taken" in self.reached and self.state.things[thing] == spot:
                self.reached.add(f"{thing} in place")

    def _ways(self) -> list[str]:
        return [way for way in WAYS if way in self.house.doors[self.state.here]]

    def _doing(self) -> list[str]:
        """Return what changes something here."""
        here, state = self.state.here, self.state
        doing = [f"go {way}" for way in self._ways()]
        for piece in self.house.furniture[here]:
            if not state.shows((here, piece)):
                doing.append(f"open {piece}")
            elif state.carried:
                doing.append(f"put {state.carried} {on(piece)} {piece}")
            else:
                doing += [f"take {thing}" for thing in state.inside((here, piece))]
        return doing

    def key(self) -> str:
        things = [
            f"{thing} {'carried' if spot is None else ' '.join(spot)}" for thing, spot in self.state.things.items()
        ]
        opened = " ".join(map("-".join, sorted(self.state.open)))
        return f"{self.house.text}; now {self.state.here}; {', '.join(things)}; open {opened}"

    def describe(self) -> dict[str, Any]:
        """`progress` counts 1 for a thing in its place and 1/2 for one in hand, over the goals; `milestone` lists what
        was taken and what was brought to its place, once each."""
        wanted = {thing for thing, _ in self.house.goals}
        got = self._placed() + 0.5 * (self.state.carried in wanted)
        return {
            "progress": got / len(wanted),
            "milestone": ", ".join(sorted(self.reached)),
            "available_actions": [] if self._placed() == len(wanted) else self._doing(),
        }

    def solver(self) -> str:
        """Return whatever a helper does who knows only what was seen; "go north" when all is done."""
        self.require_episode("solver")
        return "go north" if self._placed() == len(self.house.goals) else next_action(self.house, self.state)

    def save(self) -> Any:
        state = self.state
        return {
            "task": self.task,
            "here": state.here,
            "things": state.things,
            "open": sorted(state.open),
            "seen": sorted(state.visited),
            "reached": sorted(self.reached),
        }

    def load(self, state: Any) -> None:
        self.begin(*state["task"])
        things = {thing: None if spot is None else (spot[0], spot[1]) for thing, spot in state["things"].items()}
        opened = frozenset((room, piece) for room, piece in state["open"])
        self.state = NavigationState(state["here"], things, opened, frozenset(state["seen"]))
        self.reached = set(state["reached"])
