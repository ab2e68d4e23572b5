"""BabyAI of MiniGrid: the mission and what is seen, in words; the solver is BabyAI's own bot."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym_environments.base.engine_env import EngineEnv, package
from agentgym_environments.base.text_env import Outcome, split_of, task_random
from agentgym_environments.benchmarks.babyai.words import view

WORDS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle")
"""MiniGrid's actions 0 to 5; the last, "done", does nothing in BabyAI."""


NO_SOLVER = {
    "KeyInBox", "OpenDoorsOrderN2Debug", "PutNextS5N2Carrying", "PutNextS6N3Carrying", "PutNextS7N4Carrying",
    "UnlockToUnlock",
}  # fmt: skip
"""Levels that the bot does not solve (none or half of six tasks), or, the last, in which it plans without end."""


class BabyAI(EngineEnv):
    """level: a BabyAI level, `GoToLocal` for the id BabyAI-GoToLocal-v0. The reward is 1 for a fulfilled mission."""

    def __init__(self, spec: EnvSpec | None = None, *, level: str = "GoToLocal") -> None:
        super().__init__(spec or EnvSpec.load(Path(__file__).with_name("spec.toml")))
        package("minigrid", "babyai")
        gymnasium: Any = package("gymnasium", "babyai")
        found = [name for name in gymnasium.registry if name.startswith("BabyAI-")]
        names = {name.removeprefix("BabyAI-").rpartition("-")[0]: name for name in found}
        if level not in names:
            raise ConfigError(f"babyai has no level {level!r}; it has {', '.join(sorted(names))}")
        if level in NO_SOLVER:
            keep = tuple(name for name in self.env_spec.capabilities if name != "solver")
            self.env_spec = self.env_spec.model_copy(update={"capabilities": keep})
        self.level = level
        self.inner: Any = gymnasium.make(names[level], disable_env_checker=True).unwrapped
        self.inner.gen_obs = self._look  # the engine's own would look a second time, and encode what nobody reads
        # It prints every room that it throws away.
        package("minigrid.envs.babyai.core.roomgrid_level", "babyai").print = lambda *marks: None
        self._view: Any = None
        self._bot: Any = None
        self._advice: tuple[int, int] | None = None
        """(turn, action) of the bot's last word."""

    def open(self, split: str, task: int) -> None:
        random = task_random("babyai", self.level, split, task)
        while True:
            self.inner.reset(seed=random.randrange(2**31))
            if split_of(self.key()) == split:
                break
        self.inner.max_steps = 10**9  # max_turns is the limit
        self._bot = self._advice = None

    def observe(self) -> str:
        return f"{self.inner.mission}\n{view(*self._view, self.inner.carrying)}"  # pyright: ignore[reportCallIssue]

    def _look(self) -> dict[str, Any]:
        self._view = self.inner.gen_obs_grid()
        return {}

    def apply(self, action: str) -> Outcome | None:
        if action not in WORDS:
            return None
        number = WORDS.index(action)
        _, reward, terminated, _, _ = self.inner.step(number)
        if self._bot is not None and self._advice != (len(self._taken), number):
            self._bot = None  # it counts on being obeyed: a new one looks at the environment as it is
        done = bool(terminated)
        return Outcome(float(done and reward > 0), ended=done, success=bool(done and reward > 0))

    def key(self) -> str:
        inner = self.inner
        cells = [_cell(place, cell) for place, cell in enumerate(inner.grid.grid) if cell is not None]
        you = f"{inner.agent_pos[0]},{inner.agent_pos[1]},{inner.agent_dir}"
        full_text = f"{you} {_cell(-1, inner.carrying)} {_progress(inner.instrs)} {inner.width} {' '.join(cells)}"
        return f"{inner.mission}: {hashlib.sha256(full_text.encode()).hexdigest()[:32]}"

    def solver(self) -> str:
        """BabyAI's bot."""
        self.require_episode("solver")
        if self.level in NO_SOLVER:
            return super().solver()  # type: ignore[return-value]
        turn = len(self._taken)
        if self._advice is None or self._advice[0] != turn or self._bot is None:
            self._advice = (turn, self._ask())
        return WORDS[self._advice[1]]

    def _ask(self) -> int:
        bots = package("minigrid.utils.baby_ai_bot", "babyai")
        for bot in (self._bot, None):
            self._bot = bot or bots.BabyAIBot(self.inner)
            try:
                advice = int(self._bot.replan())
            except Exception:  # noqa: BLE001 - the bot fails with whatever it trips over; a new one may not
                continue
            if advice < len(WORDS):
                return advice
        self._bot = None
        return 2

    def close(self) -> None:
        self.inner.close()


def _cell(place: int, cell: Any) -> str:
    if cell is None or cell.type == "wall":
        return str(place)
    inside = getattr(cell, "contains", None)
    state = f"{getattr(cell, 'is_open', '')}{getattr(cell, 'is_locked', '')}"
    return f"{place}{cell.color}{cell.type}{state}" + (f"({_cell(0, inside)})" if inside else "")


def _progress(instruction: Any) -> str:
    """Return what of a compound mission is fulfilled: part of the state, though not of the grid."""
    parts = [part for part in (getattr(instruction, name, None) for name in ("instr_a", "instr_b")) if part is not None]
    if not parts:
        return ""
    marks = "/".join(str(getattr(instruction, f"{which}_done", "")) for which in "ab")
    return f"{marks}({','.join(_progress(part) for part in parts)})"
