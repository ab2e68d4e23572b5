"""The device of a process: its GPU where it has one, its CPU otherwise."""

from __future__ import annotations

import re
from typing import Annotated

import torch
from pydantic import AfterValidator

from agentgym.errors import ConfigError


def _checked(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", name):
        raise ValueError(f'unknown device {name!r}: use "auto", "cpu", "cuda" or "cuda:N"')
    return name


DeviceName = Annotated[str, AfterValidator(_checked)]
""""auto", "cpu", "cuda" or "cuda:N"."""


def device_of(name: str) -> torch.device:
    """Return the device with this name. Raises ConfigError where this machine has none such."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f'model.device = "{name}", but PyTorch sees {torch.cuda.device_count()} CUDA devices here: '
            'use "auto" or "cpu", or install a build of PyTorch for this GPU'
        )
    return device
