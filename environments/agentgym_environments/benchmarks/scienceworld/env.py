"""ScienceWorld: thirty kinds of experiment, in rooms with objects that melt, grow and conduct."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from agentgym.env import Action
from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym_environments.base.engine_env import EngineEnv, require_flag, require_int
from agentgym_environments.base.text_env import Outcome, task_random
from agentgym_environments.benchmarks.scienceworld.engine import ScienceWorldEngine

SPLITS = {"train": "getVariationsTrain", "validation": "getVariationsDev", "test": "getVariationsTest"}
"""Split: who of the engine's names its variations, which are its own."""


LEAST_HEAP_MB = 64

WHICH = "Ambiguous request"
"""Beginning of the engine's question which of several things is meant; the next action is a number."""


class ScienceWorld(EngineEnv):
    """The reward of a step is what the engine's score, 0 to 1, rises by.

    task: the engine's name of an experiment. simplifications: its, with commas; "easy" is all of them.
    offer: `info` lists the actions that are possible, which costs the engine ten times a step's time.
    """

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        task: str = "find-animal",
        simplifications: str = "easy",
        offer: bool = True,
        heap_mb: int = 256,
    ) -> None:
        super().__init__(spec or EnvSpec.load(Path(__file__).with_name("spec.toml")))
        require_flag("scienceworld", "offer", offer)
        require_int("scienceworld", "heap_mb", heap_mb, LEAST_HEAP_MB)
        self.engine = ScienceWorldEngine(heap_mb)
        try:
            self.variations = self._variations(task, simplifications)
        except ConfigError:
            self.engine.close()
            raise
        keys = tuple(key for key in self.env_spec.info_keys if offer or key != "available_actions")
        sizes = {split: len(found) for split, found in self.variations.items()}
        self.env_spec = self.env_spec.model_copy(update={"splits": sizes, "info_keys": keys})
        self.task, self.simplifications, self.offer = task, simplifications, offer
        self.plan: list[str] = []
        """The engine's own solution, and how far it has been followed."""
        self._followed, self._score, self._text = 0, 0.0, ""
        self._possible: list[str] | None = None

    def open(self, split: str, task: int) -> None:
        variation = self.variations[split][task]
        seed = task_random("scienceworld", self.task, variation).randrange(2**31)
        self.plan = self.engine.open(self.task, variation, self.simplifications, seed)
        self._followed, self._score, self._possible = 0, 0.0, None
        self._text = f"{self.engine.server.freeActionTaskDesc()}\n{self.engine.server.freeActionLook()}"

    def observe(self) -> str:
        return self._text

    def readings(self, action: Action) -> tuple[str, ...]:
        """One: the engine's time goes on with an action that it refuses."""
        return super().readings(action)[-1:]

    def apply(self, action: str) -> Outcome | None:
        server = self.engine.server
        answer = server.step(action)
        # It offers a few things that it then does not know: what moves has moved on. That is not the agent's fault.
        if answer.startswith(("No known action", "Unknown action")) and action not in (self._possible or ()):
            self._taken.append(action)  # it takes the engine's time, which is part of its state
            self._text = answer
            return None
        if self._followed < len(self.plan) and action == self.plan[self._followed]:
            self._followed += 1
        self._text, self._possible = answer, None
        if answer.startswith(WHICH):
            self._possible = [line.partition(":")[0] for line in answer.splitlines()[1:]]
        score = float(server.getScore())
        failed = score < 0  # the wrong thing was chosen, which nothing mends
        score = max(0.0, score)
        gained, self._score = score - self._score, score
        return Outcome(gained, ended=bool(server.getCompleted()) or failed, success=score >= 1.0)

    def refuse(self, action: str) -> str:
        return self._text

    def key(self) -> str:
        server = self.engine.server
        question = self._text if self._text.startswith(WHICH) else ""
        parts = [self.task, question, server.freeActionLook(), server.freeActionInventory(), f"{self._score:.3f}"]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]

    def describe(self) -> dict[str, Any]:
        found: dict[str, Any] = {"progress": min(1.0, self._score)}
        if self.offer:
            if self._possible is None:
                self._possible = [] if self.over else list(self.engine.server.getValidActionObjectCombinations())
            found["available_actions"] = self._possible
        return found

    def solver(self) -> str:
        """The engine's own solution, from its first action that has not been taken yet."""
        self.require_episode("solver")
        return self.plan[self._followed] if self._followed < len(self.plan) else "look around"

    def close(self) -> None:
        self.engine.close()

    def _variations(self, task: str, simplifications: str) -> dict[str, list[int]]:
        names = sorted(self.engine.server.getTaskNames())
        if task not in names:
            raise ConfigError(f"scienceworld has no task {task!r}; it has {', '.join(names)}")
        known = ["easy", *self.engine.server.getPossibleSimplifications().split(", ")]
        unknown = [name for name in str(simplifications).split(",") if name and name not in known]
        if unknown:
            raise ConfigError(f"scienceworld has no simplification {unknown[0]!r}; it has {', '.join(known)}")
        self.engine.server.load(task, 0, "", False)
        return {split: list(getattr(self.engine.server, name)()) for split, name in SPLITS.items()}
