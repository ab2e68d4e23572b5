"""The exact gradient of a loss that couples tokens across rows: sums over a trajectory, pairs, groups.

    1. without gradient, every token's number x_A = f(row), of all rows
    2. the loss of the whole column, and g_A = ∂L/∂x_A
    3. with gradient, row after row, Σ_A g_A x_A: its gradient is that of L, by the chain rule

So no trajectory, pair or group has to fit into one micro-batch, or onto one process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from agentgym_trainers.nn.process_group import SINGLE_PROCESS, DataParallel

T = TypeVar("T")


def full_batch_gradient(
    forward: Callable[[T], tuple[np.ndarray, Tensor]],
    parts: Sequence[T],
    size: int,
    loss_of: Callable[[Tensor], tuple[Tensor, Any]],
    processes: DataParallel = SINGLE_PROCESS,
) -> tuple[Tensor, float, Any]:
    """Steps 1 and 2: (g float64[size], the loss, what else `loss_of` returned).

    `forward(part)` gives (index int[k], x float[k]) of one micro-batch; `loss_of` a scalar and anything else of the
    whole column. With several processes each brings its own parts, and all see the same column.
    """
    column = torch.zeros(size, dtype=torch.float64)  # a number a token: the same for all processes, and cheap
    with torch.no_grad():
        for part in parts:
            index, x = forward(part)
            column[torch.from_numpy(index)] = x.to(column)
    processes.sum(column)
    leaf = column.requires_grad_()
    with torch.enable_grad():
        loss, rest = loss_of(leaf)
    if not loss.requires_grad:  # nothing to learn from, as of a batch without a pair
        return torch.zeros_like(column), float(loss), rest
    (gradient,) = torch.autograd.grad(loss, leaf)
    return gradient, loss.item(), rest


def backward_full_batch(
    forward: Callable[[T], tuple[np.ndarray, Tensor]],
    parts: Sequence[T],
    size: int,
    loss_of: Callable[[Tensor], tuple[Tensor, Any]],
    processes: DataParallel = SINGLE_PROCESS,
) -> tuple[float, Any]:
    """All three steps: gradients are added to the parameters' `.grad`. Returns (the loss, the rest)."""
    gradient, loss, rest = full_batch_gradient(forward, parts, size, loss_of, processes)
    for part in parts:
        index, x = forward(part)
        (gradient[torch.from_numpy(index)].to(x) * x).sum().backward()
    return loss, rest
