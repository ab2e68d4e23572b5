"""NetHack: the terminal's screen, the keys by name, and one of three tasks that the game itself decides."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym_environments.base.engine_env import EngineEnv, package
from agentgym_environments.base.text_env import Outcome, task_random
from agentgym_environments.benchmarks.nle.solver import Explorer

KEYS = {
    "north": "k", "south": "j", "east": "l", "west": "h", "northeast": "u", "northwest": "y", "southeast": "n",
    "southwest": "b", "far north": "K", "far south": "J", "far east": "L", "far west": "H", "far northeast": "U",
    "far northwest": "Y", "far southeast": "N", "far southwest": "B", "down": ">", "up": "<", "wait": ".",
    "search": "s", "kick": "\x04", "eat": "e", "pick up": ",", "open": "o", "close": "c", "more": "\r",
}  # fmt: skip
"""Word: the key that NetHack is given."""

TASKS = {"staircase": 1.0, "descend": 1.0, "gold": 20.0}
"""Task: what must be reached: a staircase down underfoot, levels gone down, pieces of gold."""

MONK = "mon-hum-neu-mal"
"""Human, neutral, male."""

CHARACTERS = {
    "arc", "bar", "cav", "hea", "kni", "mon", "pri", "rog", "ran", "sam", "tou", "val", "wiz",
    "hum", "elf", "dwa", "gno", "orc", "law", "neu", "cha", "mal", "fem",
}  # fmt: skip
"""NetHack's short names of roles, peoples, alignments and sexes."""

GOLD, DEPTH = 13, 12
"""Places in NLE's `blstats`."""


@cache
def staircases() -> dict[str, list[int]]:
    """Split: the draws whose first level the explorer solves; `make_levels.py` wrote them."""
    lines = Path(__file__).with_name("levels.txt").read_text(encoding="utf-8").splitlines()
    return {line.split()[0]: [int(draw) for draw in line.split()[1:]] for line in lines if line[:1] not in ("", "#")}


class NetHack(EngineEnv):
    """task: "staircase" (on levels whose staircase a plain explorer has found), "descend" or "gold".
    goal: how many levels down or pieces of gold, where it counts.

    character: NLE's, such as "mon-hum-neu-mal"; the whole dungeon follows from the task's seed.
    """

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        task: str = "staircase",
        goal: float = 0.0,
        character: str = MONK,
    ) -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        self._known = staircases() if (task, character) == ("staircase", MONK) else {}
        if self._known:
            changes: dict[str, Any] = {"splits": {split: len(draws) for split, draws in self._known.items()}}
        else:
            changes = {"capabilities": tuple(name for name in spec.capabilities if name != "solver")}
        super().__init__(spec.model_copy(update=changes))
        nle: Any = package("nle.env.base", "nle")
        if task not in TASKS:
            raise ConfigError(f"nle has no task {task!r}; it has {', '.join(TASKS)}")
        if isinstance(goal, bool) or not isinstance(goal, (int, float)) or goal < 0:
            raise ConfigError(f"nle: goal is a number above 0, not {goal!r}")
        if not CHARACTERS.issuperset(str(character).split("-")):
            raise ConfigError(f"nle: character is such as {MONK!r}, not {character!r}")
        self.task, self.goal, self.character = task, goal or TASKS[task], character
        keys = tuple(ord(key) for key in KEYS.values())
        self.inner: Any = nle.NLE(
            save_ttyrec_every=0,
            character=character,
            actions=keys,
            observation_keys=("glyphs", "chars", "blstats", "tty_chars"),
            max_episode_steps=10**9,
            render_mode=None,
            fix_moon_phase=True,
        )
        self.view: dict[str, Any] = {}
        self._explorer = Explorer()
        self._ended = False
        self._start = 0
        self._best = 0.0

    def open(self, split: str, task: int) -> None:
        draw = self._known[split][task] if self._known else task
        random = task_random("nle", self.character, split, draw)
        core, display, levels = (random.randrange(2**31) for _ in range(3))
        self.inner.seed(core=core, disp=display, reseed=False, lgen=levels)
        self.view, _ = self.inner.reset()
        self._explorer, self._ended = Explorer(), False
        self._explorer.see(self.view)
        self._start, self._best = int(self.view["blstats"][GOLD]), 0.0

    def observe(self) -> str:
        if self._ended:
            return "the game is over"  # NetHack shows its list of high scores, which remembers other episodes
        lines = [bytes(line).decode("latin-1").rstrip() for line in self.view["tty_chars"]]
        while lines and not lines[-1]:
            lines.pop()
        return "\n".join(lines)

    def apply(self, action: str) -> Outcome | None:
        if action not in KEYS:
            return None
        self.view, _, done, _, _ = self.inner.step(list(KEYS).index(action))
        self._explorer.see(self.view, action)
        reached = self._reached()
        gained = max(0.0, min(1.0, reached) - self._best)
        self._best += gained
        solved = reached >= 1.0
        self._ended = bool(done) and not solved
        return Outcome(gained, ended=bool(done) or solved, success=solved)

    def key(self) -> str:
        """Place, map and figures, without the clock."""
        figures = [int(value) for place, value in enumerate(self.view["blstats"]) if place not in (9, 20)]
        state = bytes(self.view["glyphs"].tobytes()) + str(figures).encode()
        return hashlib.sha256(state).hexdigest()[:32]

    def describe(self) -> dict[str, Any]:
        return {"progress": self._best}

    def solver(self) -> str:
        """Explores until a staircase is seen, and walks there."""
        self.require_episode("solver")
        if not self._known:
            return super().solver()  # type: ignore[return-value]
        return self._explorer.next(self.view)

    def close(self) -> None:
        self.inner.close()

    def _reached(self) -> float:
        """1 and more when the task is done."""
        if self.task == "staircase":
            return float(self.inner.last_observation[self.inner._internal_index][4])  # NLE's own measure
        if self.task == "descend":
            return (int(self.view["blstats"][DEPTH]) - 1) / self.goal
        return (int(self.view["blstats"][GOLD]) - self._start) / self.goal
