"""Gymnasium spaces of messages: any text (or text and image) is an observation; `sample` draws a legal action."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np


class ObservationSpace(gymnasium.Space):
    """A string, or with `image=True` a dict of "text" and "image" (uint8[H, W, 3])."""

    def __init__(self, image: bool = False, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(seed=seed)
        self.image = image

    def contains(self, x: Any) -> bool:
        if not self.image:
            return isinstance(x, str)
        return (
            isinstance(x, dict)
            and set(x) == {"text", "image"}
            and isinstance(x["text"], str)
            and isinstance(x["image"], np.ndarray)
            and x["image"].dtype == np.uint8
            and x["image"].ndim == 3
        )

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        text = f"observation {self.np_random.integers(1000)}"
        return {"text": text, "image": np.zeros((1, 1, 3), np.uint8)} if self.image else text

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObservationSpace) and other.image == self.image

    def __repr__(self) -> str:
        return f"ObservationSpace(image={self.image})"


class ActionSpace(gymnasium.Space):
    """Any text, or a tool call when `tools` are named. `sample` draws from `actions`, or a call without arguments."""

    def __init__(
        self, actions: Sequence[str] = (), tools: Sequence[str] = (), seed: int | np.random.Generator | None = None
    ) -> None:
        super().__init__(seed=seed)
        self.actions, self.tools = tuple(actions), tuple(tools)

    def contains(self, x: Any) -> bool:
        if isinstance(x, str):
            return True
        return isinstance(x, dict) and x.get("name") in self.tools and isinstance(x.get("arguments"), dict)

    def sample(self, mask: Any = None, probability: Any = None) -> Any:
        if self.tools:
            return {"name": self.tools[self.np_random.integers(len(self.tools))], "arguments": {}}
        if self.actions:
            return self.actions[self.np_random.integers(len(self.actions))]
        return f"action {self.np_random.integers(1000)}"

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ActionSpace) and (other.actions, other.tools) == (self.actions, self.tools)

    def __repr__(self) -> str:
        return f"ActionSpace({list(self.actions or self.tools)})"
