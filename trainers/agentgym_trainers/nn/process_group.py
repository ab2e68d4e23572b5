"""Data-parallel processes: each forwards its own rows of one batch, and gradients are sums over all rows.

Every process holds the whole batch's columns (they are small), so every statistic and every denominator is global and
the sum of the processes' gradients is the gradient of one process with all rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

T = TypeVar("T")


@dataclass(frozen=True)
class DataParallel:
    """A process group of torch.distributed, or one process alone."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None
    replicas: int = 1
    """Copies of sliced weights: each is sliced between `size / replicas` neighbouring processes."""
    _meshes: dict[str, DeviceMesh] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, group: dist.ProcessGroup | None = None, replicas: int = 1) -> DataParallel:
        """The processes of an initialized group (None: the default one, the only one that may have `replicas`)."""
        return cls(dist.get_rank(group), dist.get_world_size(group), group, replicas)

    def mesh(self, device: str) -> DeviceMesh:
        """The mesh that weights are sliced and replicated over, the same object each time. Call it in every process."""
        if device not in self._meshes:
            if self.group is not None:
                self._meshes[device] = DeviceMesh.from_group(self.group, device)
            elif self.replicas == 1:
                self._meshes[device] = init_device_mesh(device, (self.size,))
            else:
                shape = (self.replicas, self.size // self.replicas)
                self._meshes[device] = init_device_mesh(device, shape, mesh_dim_names=("replicas", "slices"))
        return self._meshes[device]

    def share(self, rows: Sequence[T]) -> list[T]:
        """This process's rows."""
        return list(rows[self.rank :: self.size])

    def sum(self, tensor: Tensor) -> None:
        """Sum in place, over all processes."""
        if self.size > 1:
            dist.all_reduce(tensor, group=self.group)

    def most(self, count: int) -> int:
        """The largest of all processes' counts."""
        largest = torch.tensor(count)
        if self.size > 1:
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.group)
        return int(largest)

    def sum_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """A parameter that no process used keeps no gradient. Sliced ones were summed as they were computed."""
        if self.size == 1:
            return
        every = [parameter for parameter in parameters if not isinstance(parameter, DTensor)]
        used = torch.tensor([float(parameter.grad is not None) for parameter in every])
        self.sum(used)
        for parameter in (parameter for parameter, count in zip(every, used.tolist(), strict=True) if count):
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            self.sum(parameter.grad)

    def add(self, numbers: dict[str, float], largest: Sequence[str] = ()) -> dict[str, float]:
        """Sums of named numbers over all processes, maxima of those in `largest`."""
        if self.size == 1:
            return numbers
        every: list[dict[str, float] | None] = [None] * self.size
        dist.all_gather_object(every, numbers, group=self.group)
        found = [metrics for metrics in every if metrics is not None]
        names = sorted({name for metrics in found for name in metrics})
        return {
            name: (max if name in largest else sum)([metrics[name] for metrics in found if name in metrics])
            for name in names
        }


SINGLE_PROCESS = DataParallel()
