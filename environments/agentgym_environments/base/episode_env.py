"""The life of an episode: what every environment repeats, whatever its observations and actions are."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from agentgym.env import Env, Observation
from agentgym.errors import BadRequest
from agentgym.spec import EnvSpec


class EpisodeEnv(Env):
    """Base of an environment that counts its turns. It refuses calls outside an episode, ends the episode in time and
    packs snapshots.

    A subclass implements `begin`, `observe`, `_info` and `step`, which calls `require_running` first and `end_turn`
    last; one with snapshots implements `save` and `load`.
    """

    out_of_turns_terminates: ClassVar[bool] = False
    """True where the number of turns is a rule of the game, so that running out is a loss and no truncation."""

    def __init__(self, spec: EnvSpec) -> None:
        super().__init__(spec)
        self.turn = -1
        """Steps taken; -1 before the first reset."""
        self.over = False
        self.success = False

    # Implemented by an environment.

    def begin(self, split: str, task: int) -> None:
        """Go to the start of a task."""
        raise NotImplementedError

    def observe(self) -> Observation:
        """Return the present observation."""
        raise NotImplementedError

    def _info(self, valid: bool) -> dict[str, Any]:
        raise NotImplementedError

    def save(self) -> Any:
        """Return the state as JSON, except for turns and randomness."""
        raise NotImplementedError(f"{self.env_spec.id} has no snapshots")

    def load(self, state: Any) -> None:
        """Go to a state that `save` returned."""
        raise NotImplementedError(f"{self.env_spec.id} has no snapshots")

    # Provided in return.

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        if unknown := sorted(set(options or ()) - {"split", "task"}):
            raise BadRequest(f"reset of {self.env_spec.id} takes the options split and task, not {', '.join(unknown)}")
        split, task = self.select_task(options)
        self.begin(split, task)
        self.turn, self.over, self.success = 0, False, False
        return self.observe(), self._info(valid=True)

    def require_episode(self, what: str) -> None:
        """Raise BadRequest before the first reset."""
        if self.turn < 0:
            raise BadRequest(f"{self.env_spec.id} has no episode yet: call reset before {what}")

    def require_running(self, what: str) -> None:
        """Raise BadRequest before the first reset and after the end of an episode."""
        self.require_episode(what)
        if self.over:
            raise BadRequest(f"the episode of {self.env_spec.id} is over: call reset before {what}")

    def end_turn(self, terminated: bool, truncated: bool = False) -> tuple[bool, bool]:
        """Count a turn; return `terminated` and `truncated`, the limit of turns included."""
        self.turn += 1
        last = self.turn >= self.env_spec.max_turns
        terminated = terminated or (last and self.out_of_turns_terminates)
        truncated = (last or truncated) and not terminated
        self.over = terminated or truncated
        return terminated, truncated

    def snapshot(self) -> bytes:
        self.require_episode("snapshot")
        packed = {
            "id": self.env_spec.id,
            "turn": self.turn,
            "over": self.over,
            "success": self.success,
            "random": self.np_random.bit_generator.state,
            "state": self.save(),
        }
        return json.dumps(packed).encode()

    def restore(self, state: bytes) -> None:
        try:
            packed = json.loads(state)
            if packed["id"] != self.env_spec.id:
                raise BadRequest(f"this snapshot is of {packed['id']}, not of {self.env_spec.id}")
            self.np_random.bit_generator.state = packed["random"]
            self.load(packed["state"])
            self.turn, self.over, self.success = packed["turn"], packed["over"], packed["success"]
        except (ValueError, KeyError, TypeError) as error:
            raise BadRequest(f"not a snapshot of {self.env_spec.id}: {error}") from error
