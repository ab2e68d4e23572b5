"""Maze: find the way out, with the map in sight or only the ways that are open here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym_environments.base.text_env import Outcome, TurnEnv
from agentgym_environments.synthetic.maze.plan import WAYS, Cell, Plan, beyond
from agentgym_environments.synthetic.maze.solver import explore
from agentgym_environments.synthetic.maze.tasks import plan

VIEWS = ("map", "compass", "ways")


class Maze(TurnEnv):
    """The only reward is 1 at the exit.

    size: the maze is size by size cells, 3 to 20. loops: passages beyond the fewest that join all cells.
    view: "map" shows the whole maze; "compass" the open ways and where the exit lies; "ways" the open ways alone.
    """

    def __init__(self, spec: EnvSpec | None = None, *, size: int = 6, loops: int = 2, view: str = "compass") -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        if not 3 <= size <= 20 or view not in VIEWS:
            raise ConfigError(f"maze: size is 3 to 20, view {', '.join(VIEWS)}; not size={size}, view={view!r}")
        turns = max(spec.max_turns, size * size if view == "ways" else 5 * size)
        super().__init__(spec.model_copy(update={"max_turns": turns}))
        self.size, self.loops, self.view = size, loops, view
        self.task: tuple[str, int] = ("", 0)
        self.plan: Plan
        self.here: Cell
        self.visited: set[Cell] = set()
        """Cells that were visited: all that the solver knows where the map is not shown."""

    def begin(self, split: str, task: int) -> None:
        self.task = (split, task)
        self.plan = plan(self.size, self.loops, self.view, self.env_spec.max_turns, split, task)
        self.here, self.visited = self.plan.start, {self.plan.start}

    def observe(self) -> str:
        if self.view == "map":
            return self.plan.draw(self.here)
        if self.here == self.plan.exit:
            return "out"
        open_ways = f"open: {', '.join(self.plan.ways(self.here))}"
        if self.view == "ways":
            return open_ways
        east, south = self.plan.exit[0] - self.here[0], self.plan.exit[1] - self.here[1]
        far = [f"{abs(south)} {'south' if south > 0 else 'north'}"] * bool(south)
        far += [f"{abs(east)} {'east' if east > 0 else 'west'}"] * bool(east)
        return f"{open_ways}\nexit: {', '.join(far)}"

    def act(self, action: str) -> Outcome | None:
        if action not in self.env_spec.actions:
            return None
        way = action.removeprefix("go ")
        if way in self.plan.ways(self.here):
            self.here = beyond(self.here, way)
            self.visited.add(self.here)
        out = self.here == self.plan.exit
        return Outcome(float(out), ended=out, success=out)

    def key(self) -> str:
        return self.plan.draw(self.here)

    def describe(self) -> dict[str, Any]:
        """`progress` is the share of the way that is behind; `available_actions` go somewhere."""
        steps = self.plan.to_exit
        doing = [] if self.here == self.plan.exit else [f"go {way}" for way in self.plan.ways(self.here)]
        return {
            "progress": max(0.0, 1 - steps[self.here] / steps[self.plan.start]),
            "available_actions": doing,
        }

    def solver(self) -> str:
        """Return the next step: with the map of a shortest way; without it of an explorer who knows what was seen."""
        self.require_episode("solver")
        if self.view != "map":
            return f"go {explore(self.plan, self.visited, self.here, self.view == 'compass') or 'north'}"
        steps = self.plan.to_exit
        return "go " + min(self.plan.ways(self.here) or WAYS, key=lambda way: steps[beyond(self.here, way)])

    def save(self) -> Any:
        return {"task": self.task, "here": self.here, "seen": sorted(self.visited)}

    def load(self, state: Any) -> None:
        self.begin(*state["task"])
        self.here, self.visited = tuple(state["here"]), {(x, y) for x, y in state["seen"]}
