"""Weights from this process's GPU to the servers' GPUs, by vLLM's own weight transfer; no file in between.

    ipc     servers on this very GPU map a buffer of ours (CUDA IPC) and read the weights from it, buffer by buffer
    nccl    servers on other GPUs, here or on other machines, receive a broadcast

No GPU was there when this was written: docs/engines.md says what has run. The first sync that fails is not the end of a
run, which goes on through files.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor

from agentgym.errors import PolicyFailure
from agentgym_trainers.engines.vllm import ipc_handles
from agentgym_trainers.engines.vllm.client import VllmClient, WorkerDevice
from agentgym_trainers.engines.vllm.server import free_port
from agentgym_trainers.engines.vllm.weight_sync import DiskSync, each

BUFFER_BYTES = 2**28
"""Size of the shared buffer, unless one tensor is larger."""


def backend_of(devices: Sequence[WorkerDevice], gpu: str | None) -> str | None:
    """vLLM's backend from the GPU of this UUID to all of these; None where only files do."""
    backends = {device.backend for device in devices}
    here = [device.gpu == gpu for device in devices]
    if gpu is None or not devices or any(device.gpu is None for device in devices):
        return None
    if backends == {"ipc"} and all(here):
        return "ipc"
    return "nccl" if backends == {"nccl"} and not any(here) else None


def backend_to_start(device: torch.device) -> str | None:
    """The backend for a server that is started here, which takes the first GPU; `device` is the learner's."""
    if device.type != "cuda":
        return None
    return "ipc" if not device.index else "nccl"


def gpu_of(device: torch.device) -> str | None:
    """UUID of a GPU; None of a CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None


class TransferSource:
    """Names and tensors in the servers' precision: a WeightSource of vLLM's trainer side."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.weights: Mapping[str, Tensor] = {}

    def _once(self) -> Iterator[tuple[str, Tensor]]:
        """Tied weights by their first name."""
        known: set[tuple[int, torch.Size]] = set()
        for name, tensor in self.weights.items():
            if (key := (tensor.data_ptr(), tensor.shape)) not in known:
                known.add(key)
                yield name, tensor

    def metadata(self) -> list[Any]:
        from vllm.distributed.weight_transfer import ParamMeta  # pyright: ignore[reportMissingImports]

        return [ParamMeta(name, self.dtype, tuple(tensor.shape)) for name, tensor in self._once()]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._once():
            yield name, tensor.detach().to(self.dtype)

    def largest(self) -> int:
        """Bytes of the largest tensor."""
        return max(tensor.numel() for _, tensor in self._once()) * self.dtype.itemsize


class ServerOrders:
    """A VLLMWeightSyncClient of vLLM's trainer side, over several servers. It is called in a thread."""

    def __init__(self, clients: Sequence[VllmClient], workers: Sequence[int]) -> None:
        """`workers` of each server. Use it where the clients' event loop runs."""
        self._clients, self._loop = clients, asyncio.get_running_loop()
        self._ranks = dict(zip(clients, accumulate([0, *workers]), strict=False))

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        def order(client: VllmClient) -> Awaitable[None]:
            ranks = (
                {"rank_offset": init_info["rank_offset"] + self._ranks[client]} if "rank_offset" in init_info else {}
            )
            return client.order("/init_weight_transfer_engine", {"init_info": init_info | ranks})

        self._all(order)

    def start_weight_update(self) -> None:
        self._all(lambda client: client.order("/start_weight_update", {}))

    def update_weights(self, update_info: Any) -> None:
        if update_info.get("ipc_handles") is None:
            self._all(lambda client: client.order("/update_weights", {"update_info": update_info}))
        else:
            text = ipc_handles.to_json(update_info)
            self._all(lambda client: client.update_from_ipc(text))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._all(lambda client: client.order("/finish_weight_update", {}))

    def _all(self, order: Callable[[VllmClient], Awaitable[None]]) -> None:
        asyncio.run_coroutine_threadsafe(each(self._clients, order), self._loop).result()


class DeviceSync:
    """See `WeightSync`. A server that dies is started from a copy in this machine's memory."""

    def __init__(self, backend: str, disk: DiskSync, dtype: str, deadline_s: float, *, own: bool) -> None:
        """`own`: servers are started again from here."""
        self.backend, self.disk, self.deadline_s, self.own = backend, disk, deadline_s, own
        self.source = TransferSource(getattr(torch, dtype))
        self._sender: Any = None
        self._kept: dict[str, Tensor] | None = None

    def prepare(self, weights: Mapping[str, Tensor], version: int) -> None:
        self.source.weights = weights

    async def give(self, clients: Sequence[VllmClient]) -> None:
        if self._sender is None:
            await self.restore(clients)
        await self._in_thread(lambda: self._sender.send_weights())

    async def restore(self, clients: Sequence[VllmClient]) -> None:
        workers = [len(devices) for devices in await each(clients, lambda client: client.devices())]
        orders = ServerOrders(clients, workers)
        await self._in_thread(lambda: self._connect(orders, [client.url for client in clients], sum(workers)))

    def start_folder(self) -> Path:
        if self._kept is not None:
            self.disk.prepare(self._kept, 0)
        return self.disk.start_folder()

    def keep(self, weights: Mapping[str, Tensor]) -> None:
        if self.own:
            self._kept = {name: tensor.detach().to("cpu", self.source.dtype) for name, tensor in weights.items()}

    def _connect(self, orders: ServerOrders, urls: Sequence[str], workers: int) -> None:
        from vllm.distributed.weight_transfer import (  # pyright: ignore[reportMissingImports]
            WeightTransferTrainerFactory,
        )

        info = self.init_info(urls, workers)
        self._sender = WeightTransferTrainerFactory.trainer_init(info, client=orders, source=self.source)

    def init_info(self, urls: Sequence[str], workers: int) -> Any:
        """vLLM's description of this side."""
        if self.backend == "ipc":
            from vllm.distributed.weight_transfer.ipc_engine import (  # pyright: ignore[reportMissingImports]
                IPCTrainerInitInfo,
            )

            size = max(BUFFER_BYTES, self.source.largest())
            return IPCTrainerInitInfo(rank=0, packed=True, packed_buffer_size_bytes=size)
        from vllm.distributed.weight_transfer.nccl_engine import (  # pyright: ignore[reportMissingImports]
            NCCLTrainerInitInfo,
        )

        return NCCLTrainerInitInfo(address_towards(urls), free_port(), 1 + workers, rank=0)

    async def _in_thread(self, call: Callable[[], None]) -> None:
        """Raises PolicyFailure for whatever fails, and where it takes longer than the deadline."""

        def on_device() -> None:
            with torch.cuda.device(self.disk.model.device):  # a thread's own begins as the first
                call()

        try:
            async with asyncio.timeout(self.deadline_s):
                await asyncio.to_thread(on_device)
        except PolicyFailure:
            raise
        except Exception as error:  # vLLM, NCCL and CUDA each have their own
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise PolicyFailure(f"weights did not reach vLLM by {self.backend}: {reason}") from error


def address_towards(urls: Sequence[str]) -> str:
    """Address of this machine as the servers see it; nothing is sent."""
    found = []
    for url in urls:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
            link.connect((urlsplit(url).hostname, 9))
            found.append(link.getsockname()[0])
    return next((address for address in found if not address.startswith("127.")), found[0])
