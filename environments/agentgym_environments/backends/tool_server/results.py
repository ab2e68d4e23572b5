"""ToolResult: what a tool answered, as text, picture and value."""

from __future__ import annotations

import base64
import binascii
import io
import json
from typing import Any, NamedTuple

import numpy as np

from agentgym_environments.base.engine_env import package

MAX_TEXT = 20_000
"""Characters of a result that are shown: its first and its last half."""
MAX_SIDE = 4096
"""Longest side of a picture that is shown."""


class ToolResult(NamedTuple):
    """The answer to one call."""

    text: str
    failed: bool = False
    image: np.ndarray | None = None
    value: Any = None
    """Value that a grader compares: the structured content, else the text as JSON, else the text."""


def result_of(answer: Any, images: bool) -> ToolResult:
    """Read a `CallToolResult`. Pictures are decoded where `images`, else mentioned."""
    texts: list[str] = []
    image, spoken = None, ""
    for block in answer.content:
        if block.type == "text":
            spoken += block.text
            texts.append(block.text)
        elif block.type == "image":
            decoded, note = _picture(block) if images else (None, "not shown")
            image = decoded if decoded is not None else image
            texts.append(f"[image {block.mime_type}{': ' if note else ''}{note}]")
        else:
            texts.append(_other(block))
    structured = answer.structured_content
    if structured is not None and not spoken.strip():
        texts.append(json.dumps(structured, ensure_ascii=False))
    value = _value(structured, spoken)
    return ToolResult(shortened("\n".join(texts)) or "[no content]", bool(answer.is_error), image, value)


def shortened(text: str) -> str:
    """Return text of at most `MAX_TEXT` characters and a note, encodable as UTF-8."""
    text = text.encode(errors="backslashreplace").decode()
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def _value(structured: Any, spoken: str) -> Any:
    if isinstance(structured, dict) and list(structured) == ["result"]:
        return structured["result"]  # servers wrap a result that is no object so
    if structured is not None:
        return structured
    try:
        return json.loads(spoken)
    except (ValueError, RecursionError):
        return spoken


def _picture(block: Any) -> tuple[np.ndarray | None, str]:
    """Return the picture, or why it is not shown."""
    pictures = package("PIL.Image", "mcp")
    try:
        with pictures.open(io.BytesIO(base64.b64decode(block.data, validate=True))) as opened:
            if max(opened.size) > MAX_SIDE:
                return None, f"{opened.size[0]} x {opened.size[1]}, too large to show"
            return np.asarray(opened.convert("RGB"), dtype=np.uint8), ""
    except (OSError, ValueError, SyntaxError, binascii.Error, pictures.DecompressionBombError):
        return None, "cannot be read"


def _other(block: Any) -> str:
    if block.type == "resource":
        text = getattr(block.resource, "text", None)
        return text if isinstance(text, str) else f"[resource {block.resource.uri}: not text]"
    if block.type == "resource_link":
        return f"[resource {block.uri}]"
    return f"[{block.type}: not shown]"
