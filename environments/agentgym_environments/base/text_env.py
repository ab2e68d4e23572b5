"""What turn-based worlds share, so that the file of a world is only its rules.

A world implements `begin`, `observe`, `act`, `key`, `save` and `load`; `TurnEnv` counts turns, refuses steps outside an
episode, ends the episode in time, builds `info` and takes snapshots.
"""

from __future__ import annotations

import json
import random
import zlib
from typing import Any, ClassVar, NamedTuple

from agentgym.env import Action, Env
from agentgym.errors import BadRequest
from agentgym.spec import EnvSpec


class Outcome(NamedTuple):
    """What an understood action led to."""

    reward: float = 0.0
    ended: bool = False
    success: bool = False
    truncated: bool = False
    """The episode ends here though the task is not over."""


class TurnEnv(Env):
    """A world of text in which every step, understood or not, is one turn."""

    out_of_turns_terminates: ClassVar[bool] = False
    """True where the number of turns is a rule of the game, so that running out is a loss and no truncation."""

    invalid_reward: float = 0.0
    """Reward of an action that was not understood."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec)
        self.turn = -1
        """Steps taken; -1 before the first reset."""
        self.over = False
        self.success = False

    # What a world implements.

    def begin(self, split: str, task: int) -> None:
        """Put the world at the start of a task."""
        raise NotImplementedError

    def observe(self) -> str:
        raise NotImplementedError

    def act(self, action: str) -> Outcome | None:
        """Apply an action (lower case, single spaces); None, and nothing changed, when it is not understood."""
        raise NotImplementedError

    def refuse(self, action: str) -> str:
        """What the agent reads after an action that was not understood."""
        return f"not an action; say {', '.join(self.env_spec.actions)}\n{self.observe()}"

    def key(self) -> str:
        """`state_key`: the whole underlying state, without the turn."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """`progress` and `available_actions`, where the world has them."""
        return {}

    def save(self) -> Any:
        """The state as JSON."""
        raise NotImplementedError

    def load(self, state: Any) -> None:
        raise NotImplementedError

    # What it gets for that.

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        split, task = self.select_task(options)
        self.begin(split, task)
        self.turn, self.over, self.success = 0, False, False
        return self.observe(), self._info(valid=True)

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._require_episode("step")
        if self.over:
            raise BadRequest(f"the episode of {self.env_spec.id} is over: call reset before the next step")
        said = " ".join(action.lower().split()) if isinstance(action, str) else ""
        outcome = self.act(said)
        self.turn += 1
        reward, terminated, self.success, cut = outcome or Outcome(reward=self.invalid_reward)
        last = self.turn >= self.env_spec.max_turns
        terminated = terminated or (last and self.out_of_turns_terminates)
        truncated = (last or cut) and not terminated
        self.over = terminated or truncated
        observation = self.refuse(said) if outcome is None else self.observe()
        return observation, reward, terminated, truncated, self._info(valid=outcome is not None)

    def snapshot(self) -> bytes:
        self._require_episode("snapshot")
        whole = {
            "id": self.env_spec.id,
            "turn": self.turn,
            "over": self.over,
            "success": self.success,
            "random": self.np_random.bit_generator.state,
            "state": self.save(),
        }
        return json.dumps(whole).encode()

    def restore(self, state: bytes) -> None:
        try:
            whole = json.loads(state)
            if whole["id"] != self.env_spec.id:
                raise BadRequest(f"this snapshot is of {whole['id']}, not of {self.env_spec.id}")
            self.np_random.bit_generator.state = whole["random"]
            self.load(whole["state"])
            self.turn, self.over, self.success = whole["turn"], whole["over"], whole["success"]
        except (ValueError, KeyError, TypeError) as error:
            raise BadRequest(f"not a snapshot of {self.env_spec.id}: {error}") from error

    def _require_episode(self, what: str) -> None:
        if self.turn < 0:
            raise BadRequest(f"{self.env_spec.id} has no episode yet: call reset before {what}")

    def _info(self, valid: bool) -> dict[str, Any]:
        return {"success": self.success, "valid_action": valid, "state_key": self.key(), **self.describe()}


def task_random(*names: str | int) -> random.Random:
    """The generator that a task is drawn from: the same for the same (world, split, index) on every machine.

    Python's own generator, seeded by text (SHA-512), keeps its stream between versions; numpy's does not promise to.
    """
    return random.Random("/".join(map(str, names)))


def split_of(content: str) -> str:
    """The one split a task of this content may be in: four fifths train, a tenth validation, a tenth test.

    Generators draw until a task belongs to the split asked for, so that splits are disjoint however small the world.
    """
    bucket = zlib.crc32(content.encode()) % 10
    return {0: "validation", 1: "test"}.get(bucket, "train")
