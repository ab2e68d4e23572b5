"""The corridor: take the key of the far door's colour, walk, open. The first decision decides, the last turn tells.

Rules only, on immutable states.
"""

from __future__ import annotations

import zlib
from dataclasses import asdict, dataclass, replace
from typing import Any

from agentgym_environments.base.text_env import Outcome, split_of, task_random
from agentgym_environments.diagnostics.keydoor.steps import OPPOSITE, STEPS

COLOURS = ("red", "blue", "green", "gold", "black", "white")


@dataclass(frozen=True)
class CorridorState:
    door: str
    """The far door's colour."""
    bends: tuple[str, ...]
    """The right way at each place of the corridor."""
    sights: tuple[str, ...]
    """Other things that each place shows; "" is nothing. They mean nothing."""
    taken: str = ""
    """Colour of the key taken; "" while in the first room."""
    place: int = 0
    """Bends behind; `len(bends)` is at the door."""
    opened: bool = False


class Corridor:
    """A key of `colours` is chosen once, then `length` places lie before the door; neither colour is shown again."""

    def __init__(self, length: int, colours: int, distractors: float, reveal: bool = True, wide: bool = False) -> None:
        """`reveal`: the opening names the right key; else it is always the first colour's. `wide`: all ways lead on."""
        self.reveal, self.wide = reveal, wide
        self.length, self.colours, self.distractors = length, COLOURS[:colours], distractors
        self.actions = (*(f"take {colour}" for colour in self.colours), *(f"go {way}" for way in STEPS), "open")
        self.needed = length + 2

    def start(self, split: str, task: int, splits: dict[str, int]) -> CorridorState:
        name = f"keydoor-delayed {self.length} {len(self.colours)} {self.distractors:g}"
        name += ("" if self.reveal else " untold") + (" wide" if self.wide else "")
        random = task_random(name, split, task)
        while True:
            bends = [random.choice(list(STEPS))]
            while len(bends) < self.length:
                bends.append(random.choice([way for way in STEPS if way != OPPOSITE[bends[-1]]]))
            sights = [self._sight(random) if random.random() < self.distractors else "" for _ in bends]
            state = CorridorState(self._door(random), tuple(bends), tuple(sights))
            if split_of(f"{state.door} {' '.join(bends)}") == split:
                return state

    def act(self, state: CorridorState, action: str) -> tuple[CorridorState, Outcome] | None:
        if action not in self.actions:
            return None
        verb, _, what = action.partition(" ")
        if verb == "take" and not state.taken:
            return replace(state, taken=what), Outcome()
        walking = verb == "go" and state.taken and state.place < self.length
        if walking and (self.wide or what == state.bends[state.place]):
            return replace(state, place=state.place + 1), Outcome()
        if verb == "open" and state.place == self.length:
            fits = state.taken == state.door
            return replace(state, opened=True), Outcome(float(fits), ended=True, success=fits)
        return state, Outcome()

    def observe(self, state: CorridorState) -> str:
        if state.opened:
            return "door open" if state.taken == state.door else "wrong key"
        if not state.taken:
            return f"keys here far door {state.door}" if self.reveal else "keys here"
        if state.place == self.length:
            return "door here"
        sight = state.sights[state.place]
        place = "meadow" if self.wide else f"corridor bends {state.bends[state.place]}"
        return f"{place} {sight}".rstrip()

    def key(self, state: CorridorState) -> str:
        way = "".join(way[0] for way in state.bends)
        look = zlib.crc32(" ".join(state.sights).encode())
        opened = " open" if state.opened else ""
        return f"door {state.door} taken {state.taken or '-'} place {state.place} of {way} look {look:08x}{opened}"

    def describe(self, state: CorridorState) -> dict[str, Any]:
        """`progress` counts the way only: whether the key fits is for credit assignment to find out. So `milestone`
        names the key that was taken, whichever it is; the door is one when it opened."""
        doing = [action for action in self.actions if self.act(state, action)[0] != state]  # type: ignore[index]
        done = (bool(state.taken) + state.place + (state.opened and state.taken == state.door)) / self.needed
        key = f"{state.taken} key" if state.taken else ""
        return {
            "progress": done,
            "milestone": "door" if state.opened and state.taken == state.door else key,
            "available_actions": [] if state.opened else doing,
        }

    def solver(self, state: CorridorState) -> str:
        if not state.taken:
            return f"take {state.door}"
        return "open" if state.place == self.length else f"go {state.bends[state.place]}"

    def save(self, state: CorridorState) -> Any:
        return asdict(state)

    def load(self, saved: Any) -> CorridorState:
        lists = {name: tuple(saved[name]) for name in ("bends", "sights")}
        return CorridorState(**{**saved, **lists})

    def _door(self, random: Any) -> str:
        return random.choice(self.colours) if self.reveal else self.colours[0]

    def _sight(self, random: Any) -> str:
        thing = random.choice(("coin here", "lamp here", "note says"))
        return thing if thing != "note says" else f"note says {random.choice(self.colours)}"
