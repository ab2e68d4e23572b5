"""Sliced states in checkpoints: every process writes its own slices, and one process reads them whole.

    trainer.pt   the state, with a name in place of each sliced tensor
    slices/      shard-00001-model-00001-of-00001.safetensors ...  a file of every process

torch.distributed.checkpoint writes and reads the files. They are safetensors: nothing in them is executed.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from agentgym_trainers.nn.process_group import DataParallel

FOLDER = "slices"
SLICED = "sliced tensor"
"""The only key of what stands for a sliced tensor."""


def save_slices(state: Mapping[str, Any], checkpoint: Path, processes: DataParallel) -> dict[str, Any]:
    """Write the sliced tensors of a state into the folder of a checkpoint, this process's slices of them; returns the
    rest. Call it in every process, with its own slices of the same state."""
    sliced: dict[str, Any] = {}
    rest = _without_slices(state, "", sliced)
    if sliced:
        # Here, since the import registers log handlers.
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
        from torch.distributed.checkpoint.state_dict_saver import save

        writer = HuggingFaceStorageWriter(str(checkpoint / FOLDER), save_distributed=True)
        save(sliced, storage_writer=writer, process_group=processes.group)
    return rest


def read_slices(state: dict[str, Any], checkpoint: Path) -> dict[str, Any]:
    """A state with all tensors, whole, from what `save_slices` left of it and wrote. Raises KeyError where one is
    missing."""
    if not (checkpoint / FOLDER).is_dir():
        return state
    # Here, since the import registers log handlers.
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(checkpoint / FOLDER))
    entries = reader.read_metadata().state_dict_metadata
    tensors: dict[str, Any] = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in entries.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process reads, on purpose
        load(tensors, storage_reader=reader, no_dist=True)
    return _with_tensors(state, tensors)


def is_shared(folder: Path, processes: DataParallel) -> bool:
    """True where every process sees this folder of one of them. Call it in every process."""
    visible = torch.tensor(float(folder.is_dir()))
    processes.sum(visible)
    return int(visible) == processes.size


def _without_slices(tree: Any, name: str, sliced: dict[str, Any]) -> Any:
    if isinstance(tree, DTensor):
        sliced[name] = tree.detach()
        return {SLICED: name}
    if isinstance(tree, Tensor):
        return tree.detach().cpu()
    if isinstance(tree, Mapping):
        return {key: _without_slices(entry, f"{name}/{key}".lstrip("/"), sliced) for key, entry in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_without_slices(entry, f"{name}/{i}", sliced) for i, entry in enumerate(tree))
    return tree


def _with_tensors(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(tree, dict):
        if tree.keys() == {SLICED}:
            return tensors[tree[SLICED]]
        return {key: _with_tensors(entry, tensors) for key, entry in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_with_tensors(entry, tensors) for entry in tree)
    return tree
