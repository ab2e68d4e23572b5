"""FSDP2: every process keeps a slice of each weight, gradient and optimizer state; a layer is whole while it computes.

With `DataParallel.replicas` a layer is gathered within each replica alone, so that only gradients cross between
replicas: machines, where a replica fills one.

Gradients are sums over all rows, as with whole weights, and not means over processes. All processes must forward
equally often, since each forward gathers slices from all: who has fewer micro-batches forwards idle ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from agentgym_trainers.data.sequences import Row
from agentgym_trainers.nn.forward import micro_batches
from agentgym_trainers.nn.precision import Dtype
from agentgym_trainers.nn.process_group import DataParallel

_NOWHERE = np.zeros(0, np.int64)
DUMMY_ROW = Row(np.zeros(1, np.int64), _NOWHERE, _NOWHERE, -1, False)
"""A row without action tokens: its loss and its gradient are zero."""


def shard(
    processes: DataParallel, model: Any, *, value: Any = None, reference: Any = None, dtype: Dtype = "float32"
) -> None:
    """Slice, in place, what a Learner is given. Call it in every process, with the same weights, before the Learner is
    made; with adapters, after they were added.

    In bfloat16 layers are gathered in bfloat16; slices, gradients and their sums are float32.
    """
    mesh = processes.mesh(model.device.type)
    models = [model, value.trunk if value is not None else None, reference if reference is not model else None]
    for trunk in (part for part in models if part is not None):
        _shard_layers(trunk, mesh, dtype)
    if value is not None:
        _shard_layers(value.head, mesh)


def shard_module(processes: DataParallel, module: Any) -> None:
    """Slice a module by itself, in place, in float32. Call it in every process, with the same weights, before its
    optimizer is made."""
    _shard_layers(module, processes.mesh(next(module.parameters()).device.type))


def _shard_layers(trunk: Any, mesh: DeviceMesh, dtype: Dtype = "float32") -> None:
    # Logits are a view of the output layer's; nothing here is changed in place, which is what the warning is about.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
    policy = MixedPrecisionPolicy()
    if dtype == "bfloat16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in (module for module in trunk.modules() if isinstance(module, GradientCheckpointingLayer)):
        _shard(layer, mesh, policy)
    _shard(trunk, mesh, policy)


def _shard(module: Any, mesh: DeviceMesh, policy: MixedPrecisionPolicy) -> None:
    # Also what is outside all layers is sliced again after a forward: one without a backward pass, as of a reference,
    # would else leave whole weights behind, which a step of the optimizer makes stale.
    fully_shard(module, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)  # a factor of its own is NCCL's alone


def is_sharded(model: Any) -> bool:
    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def own_micro_batches(rows: Sequence[Row], budget: int, processes: DataParallel, model: Any) -> list[list[Row]]:
    """This process's micro-batches of `budget` tokens; where `model` is sliced, and idle ones until it has as many as
    the process that has most."""
    parts = list(micro_batches(processes.share(rows), budget))
    if not is_sharded(model):
        return parts
    return [*parts, *[[DUMMY_ROW]] * (processes.most(len(parts)) - len(parts))]


def full_state_dict(tree: Any, processes: DataParallel) -> Any:
    """A state with its slices put together, on the CPU, in the process of rank 0; in others they are None. What is
    whole stays as it is. Call it in every process."""
    if isinstance(tree, DTensor):
        tensor = tree.full_tensor()
        return tensor.detach().cpu() if processes.rank == 0 else None
    if isinstance(tree, Mapping):
        return {key: full_state_dict(entry, processes) for key, entry in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(full_state_dict(entry, processes) for entry in tree)
    return tree


def shard_state_dict(state: Mapping[str, Any], like: Mapping[str, Tensor]) -> dict[str, Any]:
    """The part of a state that this process keeps, as `like` does. Every process is given all of it."""
    return {name: _sliced(tensor, like.get(name)) for name, tensor in state.items()}


def shard_optimizer_state_dict(state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The same of an optimizer's state: what has a parameter's shape is sliced like it."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    kept = {
        i: {name: _sliced(entry, parameters[i]) for name, entry in entries.items()}
        for i, entries in state["state"].items()
    }
    return {**state, "state": kept}


def _sliced(entry: Any, like: Tensor | None) -> Any:
    if not isinstance(like, DTensor) or not isinstance(entry, Tensor) or entry.shape != like.shape:
        return entry
    return distribute_tensor(entry.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
