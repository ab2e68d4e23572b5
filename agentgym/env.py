"""The environment contract: a Gymnasium environment that speaks messages.

    env = MyEnvironment()
    observation, info = env.reset(seed=0, options={"split": "train", "task": 3})
    observation, reward, terminated, truncated, info = env.step("go north")

An observation is text, or `{"text": str, "image": uint8[H, W, 3]}`. An action is text, or a tool call
`{"name": str, "arguments": dict}`. The author of an environment never sees a token or a socket.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from numbers import Real
from typing import Any, ClassVar, NamedTuple, TypedDict

import gymnasium
import numpy as np
from gymnasium.utils import seeding

from agentgym.errors import BadRequest
from agentgym.spaces import ActionSpace as ActionSpace
from agentgym.spaces import ObservationSpace as ObservationSpace
from agentgym.spec import EnvSpec


class TextAndImage(TypedDict):
    """An observation that can be seen."""

    text: str
    image: np.ndarray
    """uint8[height, width, 3]"""


class ToolCall(TypedDict):
    """An action that names a tool."""

    name: str
    arguments: dict[str, Any]


class CallResults(TypedDict):
    """An observation of the rollout's own, after a reply that made several tool calls."""

    text: str
    """All results, numbered."""
    results: list[Observation]
    """One a call, in the order of the calls; fewer than calls where the episode ended before the last."""


Observation = str | TextAndImage
Action = str | ToolCall
Display = Observation | CallResults
"""An observation as the agent is shown it, before a reply."""


class Step(NamedTuple):
    """The result of a step; after `reset`, reward is 0 and both ends are False."""

    observation: Observation
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


LazyPolicy = Callable[[Step, np.random.Generator], Generator[Action, Step, None]]
"""A policy that does not do what the environment is there to teach, as one episode: it gets the first step, yields an
action, is sent the next step, and so on. If it returns, its last action is repeated."""

MAX_REWARD = 1e9
"""Largest absolute reward: sums and squares of larger ones leave float32."""
MAX_MILESTONE = 2**31


def _is_reward(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) <= MAX_REWARD


INFO_TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "success": ("a bool", lambda value: isinstance(value, bool)),
    "valid_action": ("a bool", lambda value: isinstance(value, bool)),
    "other_left": ("a bool", lambda value: isinstance(value, bool)),
    "state_key": ("a string", lambda value: isinstance(value, str)),
    "progress": ("a number from 0 to 1", lambda value: type(value) in (int, float) and 0 <= value <= 1),
    "milestone": (
        "a string or a count",
        lambda value: isinstance(value, str) or (type(value) is int and 0 <= value <= MAX_MILESTONE),
    ),
    "available_actions": ("a list of strings", lambda value: isinstance(value, list) and {*map(type, value)} <= {str}),
    "role": ("0 or 1", lambda value: type(value) is int and value in (0, 1)),
    "rewards": (
        f"two numbers from -{MAX_REWARD:g} to {MAX_REWARD:g}",
        lambda value: isinstance(value, list) and len(value) == 2 and all(map(_is_reward, value)),
    ),
}
"""Types of the documented keys of `info`; other keys are the environment's own."""


def info_problem(info: Any, where: str = "") -> str:
    """Fault in the documented keys of `info`, naming the key and its type; "" where there is none."""
    if not isinstance(info, dict):
        return f"info{where} should be a dict, it is {_shown(info)} (a {_kind(info)})"
    for name, value in info.items():
        if name in INFO_TYPES and not INFO_TYPES[name][1](value):
            expected = INFO_TYPES[name][0]
            return f"info[{name!r}]{where} is {_shown(value)}, not {expected} (it is a {_kind(value)})"
    return ""


def reward_problem(reward: Any) -> str:
    """Fault in a step's reward; "" where there is none."""
    if type(reward) is float and -MAX_REWARD <= reward <= MAX_REWARD:  # every step of every environment comes here
        return ""
    if isinstance(reward, Real | np.number | np.bool_):
        if abs(reward) <= MAX_REWARD:  # type: ignore[operator]  # compared as it is: not every int is a float
            return ""
        if isinstance(reward, int) or math.isfinite(reward):  # type: ignore[arg-type]
            return f"the reward should be at most {MAX_REWARD:g} either way, it is {_shown(reward)}"
    return f"the reward should be a finite number, it is {_shown(reward)} (a {_kind(reward)})"


def _kind(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


class Env(gymnasium.Env):
    """Base of every environment. Implement `reset` and `step`; call `super().reset(seed=seed)` first and draw only from
    `self.np_random`.

    A step before the first reset or after the episode's end raises BadRequest.

    `info` may carry `success` (bool), `valid_action` (bool), `state_key` (str: names the underlying state, without a
    step counter, so that equal states of different episodes get equal keys), `progress` (float in [0, 1]), `milestone`
    (str or int: names the last subgoal that was reached, "" or 0 before the first) and `available_actions`
    (list[str]); `env_spec.info_keys` says which. An environment of two players (capability "two_player") asks both in
    one episode: `role` (0 or 1) is who is asked now, the observation is what that role may
    see, `reward` is what the step gave to the role that acted, and `rewards` ([float, float]) what it gave to each.
    """

    env_spec: EnvSpec
    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    lazy_policies: ClassVar[Mapping[str, LazyPolicy]] = {}
    """Lazy policies by what they do ("keep all that is worth more than 0"). None of them may earn much: `agentgym envs
    baselines` shows the best of them."""

    def __init__(self, spec: EnvSpec | None = None) -> None:
        if spec is not None:
            self.env_spec = spec
        self.observation_space = ObservationSpace(image="image" in self.env_spec.observations)
        self.action_space = ActionSpace(self.env_spec.actions, [tool.name for tool in self.env_spec.tools])

    def snapshot(self) -> bytes:
        """The whole state of the episode, the random generator's included. Capability "snapshot"."""
        raise NotImplementedError(f"{self.env_spec.id} has no snapshots")

    def restore(self, state: bytes) -> None:
        """Become the episode that `snapshot` saw; works on a fresh instance. Capability "snapshot"."""
        raise NotImplementedError(f"{self.env_spec.id} has no snapshots")

    def reseed(self, seed: int) -> None:
        """Draw from `seed` whatever chance decides from here on: a restored episode gets another future.

        Enough for an environment that draws only from `self.np_random`; one that wraps another's chance overrides it.
        """
        self.np_random, _ = seeding.np_random(seed)

    def solver(self) -> Action:
        """A scripted solver's next action in the present state. Capability "solver"."""
        raise NotImplementedError(f"{self.env_spec.id} has no solver")

    def hint(self) -> str:
        """Guidance for the present state, in words. Capability "hint"."""
        raise NotImplementedError(f"{self.env_spec.id} has no hints")

    def select_task(self, options: dict[str, Any] | None) -> tuple[str, int]:
        """`(split, index)` that `reset(options=...)` asks for; without a task, one is drawn from `self.np_random`.

        Raises BadRequest for a split or index that does not exist, naming those that do.
        """
        options = options or {}
        splits = self.env_spec.splits
        split = options.get("split", next(iter(splits)))
        if split not in splits:
            raise BadRequest(f"{self.env_spec.id} has no split {split!r}; it has {', '.join(splits)}")
        index = options.get("task")
        if index is None:
            index = int(self.np_random.integers(splits[split]))
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < splits[split]:
            raise BadRequest(f"{self.env_spec.id} {split} has tasks 0 to {splits[split] - 1}, not {index!r}")
        return split, index
