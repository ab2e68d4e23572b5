"""A site of one page with BrowserGym's observations: it asks for the double of a number, by the chat."""

from __future__ import annotations

import base64
import io
import re
from typing import Any

import gymnasium
import numpy as np
from PIL import Image


class Site(gymnasium.Env):
    """number: what is to be doubled; the seed where it is 0. picture: the goal has a picture, 8 by 2 pixels."""

    def __init__(self, number: int = 0, picture: bool = False, action_mapping: Any = None) -> None:
        self.number, self.picture, self.action_mapping = number, picture, action_mapping

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.value = self.number or seed or 0
        self.chat = [("assistant", "Hello."), ("user", self.goal[0]["text"])]
        if self.picture:
            self.chat.append(("user_image", self.goal[1]["image_url"]["url"]))
        return self.observation(""), {}

    @property
    def goal(self) -> list[dict[str, Any]]:
        text = {"type": "text", "text": f"Double {self.value}."}
        file = io.BytesIO()
        Image.new("RGB", (8, 2), (9, 9, 9)).save(file, "png")
        url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
        return [text, {"type": "image_url", "image_url": {"url": url}}] if self.picture else [text]

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        code = self.action_mapping(action)
        answer = re.fullmatch(r'answer\("(.*)"\)', code)
        if not answer:
            return self.observation("" if code == "wait()" else f"no action: {code}"), 0.0, False, False, {}
        self.chat.append(("assistant", answer[1]))
        right = answer[1] == str(2 * self.value)
        return self.observation(""), float(right), right, False, {}

    def observation(self, error: str) -> dict[str, Any]:
        return {
            "axtree_object": {"name": f"page {self.value}"},
            "extra_element_properties": {},
            "goal_object": tuple(self.goal),
            "chat_messages": tuple({"role": role, "timestamp": 0.0, "message": text} for role, text in self.chat),
            "open_pages_titles": ("Home", "Double"),
            "open_pages_urls": ("http://site/", "http://site/double"),
            "active_page_index": np.asarray([1]),
            "url": "http://site/double",
            "screenshot": np.full((4, 6, 3), self.value, np.uint8),
            "last_action_error": error,
        }


def register(name: str, **arguments: Any) -> None:
    gymnasium.register(f"browsergym/{name}", "browsergym.core.site:Site", kwargs=arguments, disable_env_checker=True)
