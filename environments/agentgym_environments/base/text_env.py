"""Base of environments of text, so that the file of an environment is only its rules.

An environment implements `begin`, `observe`, `act`, `key`, `save` and `load`; `TurnEnv` does the rest.
"""

from __future__ import annotations

import random
import zlib
from typing import Any, NamedTuple

from agentgym.env import Action
from agentgym_environments.backends.wording import AROUND, unlabelled
from agentgym_environments.base.episode_env import EpisodeEnv


class Outcome(NamedTuple):
    """Result of an understood action."""

    reward: float = 0.0
    ended: bool = False
    success: bool = False
    truncated: bool = False
    """The episode ends here though the task is not over."""


class TurnEnv(EpisodeEnv):
    """An environment of text in which every step, understood or not, is one turn."""

    invalid_reward: float = 0.0
    """Reward of an action that was not understood."""

    # Implemented by an environment, beside `begin`, `save` and `load`.

    def observe(self) -> str:
        raise NotImplementedError

    def act(self, action: str) -> Outcome | None:
        """Apply an action (lower case, single spaces); None, and nothing changed, when it is not understood."""
        raise NotImplementedError

    def refuse(self, action: str) -> str:
        """Return what the agent reads after an action that was not understood."""
        return f"not an action; say {', '.join(self.env_spec.actions)}\n{self.observe()}"

    def key(self) -> str:
        """`state_key`: the whole underlying state, without the turn."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """`progress` and `available_actions`, where the environment has them."""
        return {}

    def readings(self, action: Action) -> tuple[str, ...]:
        """Texts that `act` is given until it understands one: the action in lower case with single spaces, that
        without the punctuation and emphasis around it, as "Go north." and "**go north**" have it, and what follows
        "Action:"."""
        text = " ".join(action.lower().split()) if isinstance(action, str) else ""
        others = text.strip(AROUND), unlabelled(text).strip(AROUND)
        return text, *(other for other in dict.fromkeys(others) if other not in ("", text))

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.require_running("step")
        texts = self.readings(action)
        outcome = next((found for text in texts if (found := self.act(text)) is not None), None)
        reward, ended, self.success, cut = outcome or Outcome(reward=self.invalid_reward)
        terminated, truncated = self.end_turn(ended, cut)
        observation = self.refuse(texts[0]) if outcome is None else self.observe()
        return observation, reward, terminated, truncated, self._info(valid=outcome is not None)

    def _info(self, valid: bool) -> dict[str, Any]:
        return {"success": self.success, "valid_action": valid, "state_key": self.key(), **self.describe()}


def task_random(*names: str | int) -> random.Random:
    """The generator that a task is drawn from: the same for the same (environment, split, index) on every machine.

    Python's own generator, seeded by text (SHA-512), keeps its stream between versions; numpy's does not promise to.
    """
    return random.Random("/".join(map(str, names)))


def split_of(content: str) -> str:
    """The one split a task of this content may be in: four fifths train, a tenth validation, a tenth test.

    Generators draw until a task belongs to the split asked for, so that splits are disjoint however small the
    environment.
    """
    bucket = zlib.crc32(content.encode()) % 10
    return {0: "validation", 1: "test"}.get(bucket, "train")
