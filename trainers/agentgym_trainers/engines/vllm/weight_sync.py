"""Ways of new weights to the servers: as files of all of them, as an adapter alone, or from memory to memory.

DiskSync      a checkpoint, which every server reads; adapters are merged into it
AdapterSync   a run with model.lora: the model once, then the adapter of each version under the version's name
DeviceSync    `device_sync.py`: from this process's GPU to the servers' GPUs
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torch import Tensor

from agentgym_trainers.engines.vllm.client import VllmClient, adapter_name
from agentgym_trainers.engines.vllm.server import LORA_RANKS
from agentgym_trainers.nn import checkpoint, lora

T = TypeVar("T")


class WeightSync(Protocol):
    """A way of new weights to the servers."""

    def prepare(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Do what can be done while replies go on. Blocks."""
        ...

    async def give(self, clients: Sequence[VllmClient]) -> None:
        """Let servers sample from what was prepared. They are paused."""
        ...

    def start_folder(self) -> Path:
        """A checkpoint that a server can start from."""
        ...

    async def restore(self, clients: Sequence[VllmClient]) -> None:
        """Give servers that have just started from `start_folder` what they had before they died."""
        ...

    def keep(self, weights: Mapping[str, Tensor]) -> None:
        """Keep what a server that dies is started from again. Blocks."""
        ...


class DiskSync:
    """All weights through a folder that every server can read: two by turns, so that what servers were told last is
    complete while the next is written."""

    def __init__(self, folder: Path, model: Any, tokenizer: Any) -> None:
        self.folder, self.model, self.tokenizer = folder, model, tokenizer
        self._saved = 0

    def prepare(self, weights: Mapping[str, Tensor], version: int) -> None:
        self._saved += 1
        checkpoint.save_model(self.start_folder(), self.model, self.tokenizer, weights)

    async def give(self, clients: Sequence[VllmClient]) -> None:
        folder = str(self.start_folder().resolve())
        await each(clients, lambda client: client.read_weights(folder))

    def start_folder(self) -> Path:
        return self.folder / f"weights-{self._saved % 2}"

    async def restore(self, clients: Sequence[VllmClient]) -> None: ...

    def keep(self, weights: Mapping[str, Tensor]) -> None: ...


class AdapterSync:
    """The adapter alone, in one of two folders by turns, loaded under the name of its version: requests name it, and
    vLLM keeps keys and values of each name and folder apart."""

    def __init__(self, folder: Path, model: Any, tokenizer: Any) -> None:
        self.folder, self.model, self.tokenizer = folder, model, tokenizer
        self._saved, self._name = 0, ""

    def prepare(self, weights: Mapping[str, Tensor], version: int) -> None:
        if not self._saved:
            checkpoint.save_model(self.start_folder(), self.model, self.tokenizer, lora.base_of(weights))
        adapter = lora.adapter_of(weights)
        assert adapter is not None
        self._saved, self._name = self._saved + 1, adapter_name(version)
        checkpoint.save_adapter(self._adapter(), adapter)

    def _adapter(self) -> Path:
        return self.folder / f"adapter-{self._saved % 2}"

    async def give(self, clients: Sequence[VllmClient]) -> None:
        folder = str(self._adapter().resolve())
        await each(clients, lambda client: client.load_adapter(self._name, folder))

    async def give_base(self, clients: Sequence[VllmClient]) -> None:
        """Let servers that were started from other weights have the model beneath the adapters."""
        folder = str(self.start_folder().resolve())
        await each(clients, lambda client: client.read_weights(folder))

    async def give_trial(self, clients: Sequence[VllmClient], strong: lora.MergedWeights) -> None:
        """Load an adapter that changes a great deal."""
        folder = self.folder / "adapter-trial"
        await asyncio.to_thread(checkpoint.save_adapter, folder, strong.adapter)
        await each(clients, lambda client: client.load_adapter("trial", str(folder.resolve())))

    def start_folder(self) -> Path:
        return self.folder / "base"

    async def restore(self, clients: Sequence[VllmClient]) -> None:
        await self.give(clients)

    def keep(self, weights: Mapping[str, Tensor]) -> None: ...


def served_rank(weights: Mapping[str, Tensor]) -> int | None:
    """Rank of the adapter among the weights, where vLLM has room for it."""
    adapter = lora.adapter_of(weights)
    return adapter.rank if adapter is not None and adapter.rank <= LORA_RANKS[-1] else None


async def each(clients: Sequence[VllmClient], call: Callable[[VllmClient], Awaitable[T]]) -> list[T]:
    """Call every server at once. All have answered, or failed, before the first failure is raised."""
    answers = await asyncio.gather(*(call(client) for client in clients), return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return answers  # pyright: ignore[reportReturnType]  none is an exception
