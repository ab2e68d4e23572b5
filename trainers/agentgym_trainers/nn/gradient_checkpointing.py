"""Activation checkpointing: a layer's activations are computed again in the backward pass instead of being kept.

Memory then grows with one layer's activations and every layer's input, and a step costs about a third more. The
gradient is the same.
"""

from __future__ import annotations

from typing import Any

from transformers.modeling_layers import GradientCheckpointingLayer

from agentgym.errors import CheckpointError


def use_recompute(model: Any) -> None:
    """Let every layer of `model` be computed again. Copies of it do so too, until their `eval` or `train` is called.

    Raises CheckpointError for architectures that cannot.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise CheckpointError(
            f"{type(model).__name__} has no layers that can be computed again; set model.gradient_checkpointing = false"
        )
    # Without dropout a second forward draws nothing, so there is no random state to put back.
    model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    for layer in layers:
        layer.training = True  # transformers asks this of the layer itself; what is inside stays as it is: no dropout
