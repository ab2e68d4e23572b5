"""The room: an agent, a key and a door on an n by n floor. Rules only, on immutable states; x grows east, y south."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from agentgym_environments.base.text_env import Outcome, task_random
from agentgym_environments.diagnostics.keydoor.steps import STEPS

Cell = tuple[int, int]


@dataclass(frozen=True)
class GridState:
    agent: Cell
    key: Cell | None
    """None once the agent has it."""
    door: Cell
    opened: bool = False


class Grid:
    """Fetch the key, then open the door. The observation is relative and complete: "key south west door here"."""

    actions = (*(f"go {way}" for way in STEPS), "take", "open")

    def __init__(self, size: int) -> None:
        self.size = size
        cells = size * size
        self.layouts = cells * cells * (cells - 1)
        """The agent anywhere, the key and the door in different cells."""
        self.needed = 4 * (size - 1) + 2
        """Turns that the longest task takes."""

    def start(self, split: str, task: int, splits: dict[str, int]) -> GridState:
        """Task `task` of `split`: the splits are slices of one list of different layouts, drawn at random."""
        names = list(splits)
        offset = sum(splits[name] for name in names[: names.index(split)])
        number = _drawn(self.size, self.layouts, sum(splits.values()))[offset + task]
        cells = self.size * self.size
        number, agent = divmod(number, cells)
        key, door = divmod(number, cells - 1)
        door += door >= key
        return GridState(self._cell(agent), self._cell(key), self._cell(door))

    def act(self, state: GridState, action: str) -> tuple[GridState, Outcome] | None:
        if action not in self.actions:
            return None
        if action == "take":
            return (replace(state, key=None) if state.key == state.agent else state), Outcome()
        if action == "open":
            opened = state.key is None and state.agent == state.door
            return replace(state, opened=opened), Outcome(float(opened), ended=opened, success=opened)
        dx, dy = STEPS[action.removeprefix("go ")]
        x, y = state.agent[0] + dx, state.agent[1] + dy
        inside = 0 <= x < self.size and 0 <= y < self.size
        return (replace(state, agent=(x, y)) if inside else state), Outcome()

    def observe(self, state: GridState) -> str:
        if state.opened:
            return "door open"
        key = "have key" if state.key is None else f"key {_bearing(state.agent, state.key)}"
        return f"{key} door {_bearing(state.agent, state.door)}"

    def key(self, state: GridState) -> str:
        key = "held" if state.key is None else "{},{}".format(*state.key)
        opened = " open" if state.opened else ""
        return "agent {},{} key {} door {},{}{}".format(*state.agent, key, *state.door, opened)

    def describe(self, state: GridState) -> dict[str, Any]:
        """`progress` is the part of the longest possible way that is behind; `milestone` "key", then "door";
        `available_actions` do something now."""
        doing = [action for action in self.actions if self.act(state, action)[0] != state]  # type: ignore[index]
        left = 0 if state.opened else self._left(state)
        return {
            "progress": 1 - left / self.needed,
            "milestone": "door" if state.opened else "key" if state.key is None else "",
            "available_actions": [] if state.opened else doing,
        }

    def solver(self, state: GridState) -> str:
        target = state.door if state.key is None else state.key
        if state.agent == target:
            return "open" if state.key is None else "take"
        return f"go {_bearing(state.agent, target).split()[0]}"

    def save(self, state: GridState) -> Any:
        return [state.agent, state.key, state.door, state.opened]

    def load(self, saved: Any) -> GridState:
        agent, key, door, opened = saved
        return GridState(tuple(agent), tuple(key) if key else None, tuple(door), opened)  # type: ignore[arg-type]

    def _cell(self, number: int) -> Cell:
        return number % self.size, number // self.size

    def _left(self, state: GridState) -> int:
        if state.key is None:
            return _distance(state.agent, state.door) + 1
        return _distance(state.agent, state.key) + _distance(state.key, state.door) + 2


@lru_cache
def _drawn(size: int, layouts: int, tasks: int) -> list[int]:
    return task_random("keydoor", size).sample(range(layouts), tasks)


def _distance(a: Cell, b: Cell) -> int:
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def _bearing(a: Cell, b: Cell) -> str:
    """Return where b lies, seen from a: "south west", or "here"."""
    south = "south" if b[1] > a[1] else "north" if b[1] < a[1] else ""
    east = "east" if b[0] > a[0] else "west" if b[0] < a[0] else ""
    return f"{south} {east}".strip() or "here"
