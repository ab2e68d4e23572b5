"""An optimizer batch whose loss or gradient is not finite: nothing is learned, it is kept, and it says where from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from agentgym_credit.batch import Batch, Credit
from agentgym_trainers.data.sequences import Row

READ = ("ref_logprob_A", "prox_logprob_A", "value_A", "value_N", "bootstrap_M")
"""Columns that a loss reads; others may hold NaN for "nobody said"."""


def dump_nonfinite_batch(
    folder: Path, step: int, batch: Batch, rows: Sequence[Row], credit: Credit, metrics: Mapping[str, float],
    parameters: Sequence[str],
) -> str:  # fmt: skip
    """Write all that the update was given into `folder`/skipped; the sentence says where the first number that is not
    finite was, and where the batch is (`torch.load` reads it). `parameters`: those whose gradient is not finite."""
    home = folder / "skipped"
    home.mkdir(parents=True, exist_ok=True)
    path = home / f"step-{step:06d}-{len(list(home.glob(f'step-{step:06d}-*')))}.pt"
    given = {"batch": asdict(batch), "credit": asdict(credit), "rows": [asdict(row) for row in rows]}
    torch.save({**_tensors(given), "metrics": dict(metrics), "parameters": list(parameters)}, path)
    return (
        f"step {step}: loss or gradient is not finite, so nothing was learned from an optimizer batch of "
        f"{len(batch.group_M)} attempts: {first_nonfinite(batch, credit, metrics, parameters)}. The batch is in {path}"
    )


def nonfinite_gradients(parts: Mapping[str, torch.nn.Module | None]) -> list[str]:
    """Names of the parameters whose gradient is not finite, as far as this process has it, each after its part's."""
    named = [(f"{at}{name}", p.grad) for at, part in parts.items() if part for name, p in part.named_parameters()]
    own = [(name, g.to_local() if isinstance(g, DTensor) else g) for name, g in named if g is not None]
    return [name for name, gradient in own if not bool(torch.isfinite(gradient).all())]


def first_nonfinite(batch: Batch, credit: Credit, metrics: Mapping[str, float], parameters: Sequence[str]) -> str:
    """The first number that is not finite, on the way from rewards to the gradient."""
    columns: dict[str, np.ndarray | None] = {
        "reward_N": batch.reward_N,
        "logprob_A": batch.logprob_A,
        **{name: batch.x.get(name) for name in READ},
        "advantage_A": credit.advantage_A,
        "weight_A": credit.weight_A,
        **{f"target of {name}": column for name, column in credit.targets.items()},
    }
    for name, column in columns.items():
        if column is not None and not np.isfinite(column).all():
            first = int(np.flatnonzero(~np.isfinite(column))[0])
            return f"{name} is {column[first]} at {_place(batch, name, first)}"
    for name, value in metrics.items():
        if name.startswith("loss/") and not np.isfinite(value):
            return f"{name} is {value}, and all that it was computed from is finite but the model's own numbers"
    named = ", ".join(parameters[:3]) + (f" and {len(parameters) - 3} more" if len(parameters) > 3 else "")
    return f"the loss is finite, the gradient of {named} is not"


def _tensors(given: Any) -> Any:
    """Arrays as tensors, which `torch.load` reads without trusting the file."""
    if isinstance(given, dict):
        return {name: _tensors(value) for name, value in given.items()}
    if isinstance(given, list):
        return [_tensors(value) for value in given]
    return torch.from_numpy(given) if isinstance(given, np.ndarray) else given


def _place(batch: Batch, name: str, at: int) -> str:
    """A turn or attempt, in words."""
    if name.endswith("_M"):
        return f"attempt {at} of the batch"
    n = at if name.endswith("_N") else int(batch.turn_A[at])
    m = int(batch.traj_N[n])
    turn = n - int(np.searchsorted(batch.traj_N, m))
    task = f" (task {int(batch.x['task_M'][m])})" if "task_M" in batch.x else ""
    return f"turn {turn} of attempt {m} of the batch{task}"
