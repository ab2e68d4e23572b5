"""Handles of another process's GPU memory as JSON.

vLLM sends them over HTTP pickled, and takes them with VLLM_ALLOW_INSECURE_SERIALIZATION=1 only: whoever reached the
server's port could then run any code. They are numbers, bytes and names of types.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import torch

TYPES = {"Tensor": torch.Tensor, "Parameter": torch.nn.Parameter, "UntypedStorage": torch.UntypedStorage}


def to_json(update: dict[str, Any]) -> str:
    """An update of vLLM's IPC backend, packed: `ipc_handles` are by GPU what `reduce_tensor` of PyTorch gives."""
    handles = {gpu: [_encoded(part) for part in handle] for gpu, handle in update["ipc_handles"].items()}
    rest = {name: value for name, value in update.items() if value is not None and name != "ipc_handles"}
    return json.dumps({**rest, "ipc_handles": handles})


def from_json(text: str) -> dict[str, Any]:
    """The update that `to_json` was given."""
    update = json.loads(text)
    handles = {gpu: tuple(_decoded(part) for part in handle) for gpu, handle in update["ipc_handles"].items()}
    return {**update, "ipc_handles": handles}


def _encoded(part: Any) -> Any:
    if isinstance(part, bytes):
        return {"bytes": base64.b64encode(part).decode()}
    if isinstance(part, torch.dtype):
        return {"dtype": str(part).removeprefix("torch.")}
    if isinstance(part, type):
        return {"type": part.__name__}
    if isinstance(part, torch.device):
        return part.index
    return list(part) if isinstance(part, tuple) else part


def _decoded(part: Any) -> Any:
    if isinstance(part, list):
        return tuple(part)
    if not isinstance(part, dict):
        return part
    (kind, value), *_ = part.items()
    return {"bytes": base64.b64decode, "dtype": lambda name: getattr(torch, name), "type": TYPES.__getitem__}[kind](
        value
    )
