"""Images in messages: parts of OpenAI's schema, as a model's chat template and its tokens have them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

from agentgym.env import Display
from agentgym.errors import CheckpointError
from agentgym.protocol import decode_observation
from agentgym.rollouts.prompt_format import Message
from agentgym.rollouts.trajectory import Turn


def images_of(messages: Sequence[Message]) -> list[bytes]:
    """The images of a conversation, in order. Raises CheckpointError for one that is not in a data URL."""
    return [_decoded(part) for message in messages for part in _parts(message) if _is_image(part)]


def for_template(messages: Sequence[Message], token: str) -> list[Message]:
    """Messages for the chat template of a vision-language model, which writes `token` once an image. Where a text has
    that very token, a space breaks it."""

    def plain(text: Any) -> Any:
        return text.replace(token, f"{token[:-1]} {token[-1:]}") if isinstance(text, str) else text

    def part_of(part: dict[str, Any]) -> dict[str, Any]:
        return {"type": "image"} if _is_image(part) else {**part, "text": plain(part.get("text", ""))}

    return [
        {**message, "content": [part_of(part) for part in _parts(message)] or plain(message.get("content"))}
        for message in messages
    ]


def refuse_images(messages: Sequence[Message], why: str) -> None:
    """Raise CheckpointError where a conversation has an image."""
    if any(_is_image(part) for message in messages for part in _parts(message)):
        raise CheckpointError(f"the conversation has an image, and {why} (docs/vision.md)")


def observation_of(turn: Turn) -> Display:
    """The observation of a recorded turn, with its image where that was kept."""
    if not turn.image:
        return turn.observation
    return decode_observation({"text": turn.observation, "image": turn.image.partition(",")[2]})


def _parts(message: Message) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def _is_image(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "image_url"


def _decoded(part: dict[str, Any]) -> bytes:
    url = part["image_url"]["url"]
    head, _, data = url.partition(",")
    if not head.startswith("data:image/") or not head.endswith(";base64"):
        raise CheckpointError(f"an image must be a PNG in a data URL, not {url[:40]!r}")
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise CheckpointError(f"an image's data URL is not base64: {error}") from error
