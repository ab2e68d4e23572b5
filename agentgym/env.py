"""The environment contract: a Gymnasium environment that speaks messages.

    environment = MyEnvironment()
    observation, info = env.reset(seed=0, options={"split": "train", "task": 3})
    observation, reward, terminated, truncated, info = env.step("go north")

An observation is text, or `{"text": str, "image": uint8[H, W, 3]}`. An action is text, or a tool call
`{"name": str, "arguments": dict}`. The author of an environment never sees a token or a socket.
"""

from __future__ import annotations

from typing import Any, ClassVar, TypedDict

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


Observation = str | TextAndImage
Action = str | ToolCall


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
