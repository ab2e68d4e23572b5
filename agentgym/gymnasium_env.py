"""GymnasiumEnv: a plain Gymnasium environment, in text.

    class Pole(GymnasiumEnv):
        def __init__(self):
            super().__init__("CartPole-v1", actions=["left", "right"])

`agentgym envs check poles:Pole` and `agentgym serve poles:Pole` take such a class; `gymnasium:CartPole-v1` names an
environment with the defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from pydantic import ValidationError

from agentgym.env import Action, Env
from agentgym.errors import BadRequest, ConfigError
from agentgym.spec import EnvSpec

SPLITS = {"train": 1000, "validation": 100, "test": 100}
MAX_REWARD = 1e6
"""Bound of a step's reward where `reward_range` is not given: Gymnasium does not know it."""


def plain(observation: Any) -> str:
    """Text of an observation: text itself, numbers with at most four decimals, the parts of a dict with their names."""
    if isinstance(observation, dict):
        return "\n".join(f"{name}: {plain(part)}" for name, part in observation.items())
    if isinstance(observation, tuple):
        return ", ".join(plain(part) for part in observation)
    if isinstance(observation, np.ndarray):
        return np.array2string(observation, precision=4, separator=", ", suppress_small=True)
    return f"{observation:.4g}" if isinstance(observation, float | np.floating) else str(observation)


class GymnasiumEnv(Env):
    """Environment of text around a Gymnasium environment with named actions.

    env: an id for `gymnasium.make`, or a function that makes the environment. Its actions are `Discrete` or `Text`;
    wrap any other in a `gymnasium.ActionWrapper`.
    actions: names of the discrete actions in their order; "0", "1", ... if none are given.
    render: text of an observation.
    fields: fields of the EnvSpec, such as `instructions`, `max_turns` or `reward_range`, in place of the defaults.

    A task is a seed for the inner `reset`; chance after it follows the seed of this one. An episode is a success when
    its return reaches the `reward_threshold` that the environment is registered with.
    """

    def __init__(
        self,
        env: str | Callable[[], gymnasium.Env],
        *,
        actions: Sequence[str] = (),
        render: Callable[[Any], str] = plain,
        **fields: Any,
    ) -> None:
        try:
            self.inner = gymnasium.make(env, disable_env_checker=True) if isinstance(env, str) else env()
        except gymnasium.error.Error as error:
            raise ConfigError(f"gymnasium cannot make {env!r}: {error}") from error
        self.text = render
        self.values = _named(self.inner.action_space, actions)
        known = self.inner.spec
        self.threshold = known.reward_threshold if known else None
        name = known.id if known else type(self.inner.unwrapped).__name__
        if "max_turns" not in fields and (known is None or known.max_episode_steps is None):
            raise ConfigError(f"{name} has no limit of steps: give one, as in GymnasiumEnv(..., max_turns=200)")
        super().__init__(self._describe(name, fields))
        self.turn, self.over, self.total = -1, False, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        split, task = self.select_task(options)
        place = [list(self.env_spec.splits).index(split), task]
        raw, _ = self.inner.reset(seed=int(np.random.SeedSequence(place).generate_state(1)[0]))
        self.inner.unwrapped.np_random = np.random.default_rng(self.np_random.integers(2**31))
        self.turn, self.over, self.total = 0, False, 0.0
        return self.text(raw), self._info(valid=True)

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.turn < 0 or self.over:
            raise BadRequest(f"{self.env_spec.id} has no running episode: call reset before step")
        self.turn += 1
        value = self.read(action)
        if value is None:
            known = f"the actions are {', '.join(self.values)}" if self.values else "see the instructions"
            observation, reward, terminated, truncated = f"not an action; {known}", 0.0, False, False
        else:
            raw, gained, terminated, truncated, _ = self.inner.step(value)
            observation, reward = self.text(raw), float(gained)
        truncated = not terminated and (bool(truncated) or self.turn >= self.env_spec.max_turns)
        self.total += reward
        self.over = bool(terminated) or truncated
        return observation, reward, bool(terminated), truncated, self._info(valid=value is not None)

    def read(self, action: Action) -> Any:
        """The inner environment's action; None where there is no such action."""
        if not isinstance(action, str):
            return None
        if self.values:
            return self.values.get(action.strip())
        return action if self.inner.action_space.contains(action) else None

    def close(self) -> None:
        self.inner.close()

    def _info(self, valid: bool) -> dict[str, Any]:
        success = {} if self.threshold is None else {"success": self.over and self.total >= self.threshold}
        return {"valid_action": valid, **success}

    def _describe(self, name: str, fields: dict[str, Any]) -> EnvSpec:
        limit = self.inner.spec.max_episode_steps if self.inner.spec else None
        how = f"Each turn say one of: {', '.join(self.values)}." if self.values else "Each turn say an action."
        described = {
            "id": name.replace("/", "-"),
            "description": f"{name} of Gymnasium, in text.",
            "instructions": f"Act in {name}. {how}",
            "actions": tuple(self.values),
            "splits": SPLITS,
            "max_turns": limit,
            "reward_range": (-MAX_REWARD, MAX_REWARD),
            "info_keys": ("valid_action",) if self.threshold is None else ("valid_action", "success"),
            **fields,
        }
        try:
            return EnvSpec.model_validate(described)
        except ValidationError as error:
            raise ConfigError(f"the fields given for {name} are no EnvSpec: {error}") from error


def _named(space: gymnasium.Space, names: Sequence[str]) -> dict[str, Any]:
    """Name of each discrete action -> the action; empty where actions are text. Raises ConfigError for other spaces."""
    if isinstance(space, gymnasium.spaces.Text):
        return {}
    if not isinstance(space, gymnasium.spaces.Discrete):
        raise ConfigError(
            f"the action space {space} has no text: GymnasiumEnv takes Discrete and Text spaces; wrap the environment "
            "in a gymnasium.ActionWrapper with one of these"
        )
    names = list(names) or [str(number) for number in range(int(space.n))]
    if len(set(names)) != len(names) or len(names) != space.n:
        raise ConfigError(f"{space} needs {space.n} different action names, not {len(names)}: {', '.join(names)}")
    return {name: space.start + number for number, name in enumerate(names)}
