"""Tokens of images by content: an image's placeholder tokens all have one id, whatever it shows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from agentgym.rollouts.trajectory import ImageSpan


def content_keys(ids: Sequence[int] | np.ndarray, images: Sequence[ImageSpan]) -> np.ndarray:
    """int64[T]: the ids, and a negative number that stands for the image's content at every token of an image. Two
    sequences show a model the same as far as their keys are equal."""
    keys = np.array(ids, np.int64)
    for image in images:
        keys[image.start : image.stop] = image_key(image.png)
    return keys


@lru_cache(maxsize=4096)
def image_key(png: bytes) -> int:
    """Negative 56-bit hash of an image's bytes."""
    return -1 - int.from_bytes(hashlib.sha256(png).digest()[:7])
