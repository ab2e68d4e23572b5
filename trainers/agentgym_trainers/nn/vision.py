"""Images as a vision-language model reads them: Qwen2.5-VL's and Qwen3-VL's architectures.

The token record keeps an image's PNG and the positions of its placeholder tokens. Pixel values are made from the PNG
where a forward needs them, by the model's own image processor: always the one of Pillow, so that engine and learner see
the same on every machine, whether or not torchvision is installed.

Shapes: T tokens, P patches of the images.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoImageProcessor, AutoModelForCausalLM, AutoModelForImageTextToText

from agentgym.errors import CheckpointError
from agentgym.rollouts.trajectory import ImageSpan

MODEL_TYPES = ("qwen2_5_vl", "qwen3_vl")
"""Architectures whose images can be read, by transformers' `model_type`."""

NEVER = -1e9
"""Logit of the placeholder token: finite, so that an entropy stays a number."""


@dataclass(eq=False)
class ImageReader:
    """A model's image processor, and the token that stands for a piece of an image."""

    processor: Any
    token: str
    token_id: int
    grids: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    """Patches by an image's width and height."""

    def count(self, png: bytes) -> int:
        """Number of placeholder tokens of an image."""
        time, height, width = self.grid(png)
        return time * height * width // self.processor.merge_size**2

    def grid(self, png: bytes) -> tuple[int, int, int]:
        """Patches of an image along time, height and width. Raises CheckpointError where it cannot be read."""
        size = _opened(png).size
        if size not in self.grids:
            try:
                inputs = self.processor([Image.new("RGB", size)], return_tensors="np")
            except ValueError as error:
                what = f"an image of {size[0]} by {size[1]} pixels"
                raise CheckpointError(f"the model's image processor refuses {what}: {error}") from error
            self.grids[size] = tuple(inputs["image_grid_thw"][0].tolist())
        return self.grids[size]

    def pixels(self, pngs: Sequence[bytes], device: Any) -> dict[str, Tensor]:
        """pixel_values float32[P, values of a patch] and image_grid_thw int64[images, 3]."""
        inputs = self.processor([_opened(png, decode=True) for png in pngs], return_tensors="pt")
        return {name: inputs[name].to(device) for name in ("pixel_values", "image_grid_thw")}


def is_vision(config: Any) -> bool:
    """True where a transformers configuration is of a model whose images are read. Others are taken as text models."""
    return config.model_type in MODEL_TYPES


def model_class(config: Any) -> Any:
    """The class of transformers that makes a model of this configuration."""
    return AutoModelForImageTextToText if is_vision(config) else AutoModelForCausalLM


def load_processor(path: str | Path) -> Any:
    """The image processor of a folder or hub id."""
    return AutoImageProcessor.from_pretrained(path, backend="pil")


def attach(processor: Any, model: Any, tokenizer: Any) -> None:
    """Give a model and its tokenizer the image processor that `reader_of` finds."""
    token_id = model.config.image_token_id
    reader = ImageReader(processor, tokenizer.convert_ids_to_tokens(token_id), token_id)
    model.base_model.image_reader = tokenizer.image_reader = reader


def reader_of(part: Any) -> ImageReader | None:
    """The image reader of a model, its trunk, a copy of either, or a tokenizer; None of those that read text alone."""
    return getattr(getattr(part, "base_model", part), "image_reader", None)


def rope_positions(model: Any, length: int, images: Sequence[ImageSpan]) -> np.ndarray:
    """int64[3, T]: time, height and width of each token of a sequence, as rotary embeddings count them."""
    if not images:
        return np.tile(np.arange(length), (3, 1))
    reader = reader_of(model)
    assert reader is not None
    kinds = torch.zeros(1, length, dtype=torch.int64)
    for image in images:
        kinds[0, image.start : image.stop] = 1
    grids = torch.tensor([reader.grid(image.png) for image in images])
    positions, _ = model.base_model.get_rope_index(torch.zeros_like(kinds), kinds, image_grid_thw=grids)
    return positions[:, 0].numpy()


def image_inputs(reader: ImageReader, keys_T: np.ndarray, pngs: Sequence[bytes], device: Any) -> dict[str, Tensor]:
    """Arguments of a forward over tokens that are given by their `content_keys`, and the images in their order.

    Raises CheckpointError where tokens of images have no image: whoever made the sequence has lost it.
    """
    ids = np.where(keys_T < 0, reader.token_id, keys_T)
    if (keys_T == reader.token_id).any():
        raise CheckpointError("a sequence has placeholder tokens without their image")
    inputs = {"input_ids": torch.from_numpy(ids).to(device)[None]}
    return inputs | (reader.pixels(pngs, device) if pngs else {})


def without_placeholder(logits: Tensor, model: Any) -> Tensor:
    """The same logits, changed in place: a reply never holds the token that stands for an image."""
    reader = reader_of(model)
    if reader is not None:
        logits[..., reader.token_id] = NEVER
    return logits


def _opened(png: bytes, decode: bool = False) -> Image.Image:
    try:
        image = Image.open(io.BytesIO(png))
        return image.convert("RGB") if decode else image
    except OSError as error:
        raise CheckpointError(f"an image of {len(png)} bytes cannot be read; images are PNGs") from error
