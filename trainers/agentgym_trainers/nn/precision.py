"""bfloat16: weights and their optimizer's state are float32, what they compute is rounded to eight bits.

The learner's forwards run under autocast. The in-process engine has a copy whose weights are bfloat16, as any engine
would; how far the two are apart is the metric policy/engine_gap.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

Dtype = Literal["float32", "bfloat16"]


def autocast(model: Any, dtype: Dtype) -> torch.autocast:
    """A context in which `model` computes in `dtype`."""
    return torch.autocast(model.device.type, torch.bfloat16, enabled=dtype == "bfloat16")


def cast(model: Any, dtype: Dtype) -> Any:
    """The same model, its parameters in `dtype`. Buffers stay: rotary frequencies need their digits."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(getattr(torch, dtype))
    return model
