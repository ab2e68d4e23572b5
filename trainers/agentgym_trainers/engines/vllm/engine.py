"""The vLLM engine: replies of vLLM servers, and new weights for them while they run.

    refresh:  save the weights, or the adapter -> pause, which ends replies under way where they are -> every server
              takes them and forgets its cache -> resume -> a probe tells whether they sample from what they were given

A reply that was cut short goes on from its prompt and what was sampled, so each token was sampled by the weights that
it names, from keys and values of no others. A conversation stays with its server, whose prefix cache has its past.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from agentgym.errors import PolicyFailure
from agentgym.rollouts.policy import ContextFull
from agentgym.rollouts.trajectory import ImageSpan
from agentgym_trainers.engines.base import Completion, EngineRoom, Sampling
from agentgym_trainers.engines.options import Vllm, cache_bytes, is_cpu_build, weights_folder
from agentgym_trainers.engines.vllm.client import PartialCompletion, ServerUnavailable, VllmClient
from agentgym_trainers.engines.vllm.device_sync import DeviceSync, backend_of, backend_to_start, gpu_of
from agentgym_trainers.engines.vllm.probe import Probe
from agentgym_trainers.engines.vllm.server import LORA_RANKS, ServerFlags, VllmServer
from agentgym_trainers.engines.vllm.weight_sync import AdapterSync, DiskSync, WeightSync, each, served_rank
from agentgym_trainers.nn import lora

BLOCK = 128
"""Tokens of a block of vLLM's cache on a CPU: no two sequences share one that is not full."""
DRAIN_S = 0.05
"""Seconds between two orders to end what arrived after a pause."""

REVIVED_S = 60.0
"""An own vLLM that dies again within so many seconds will not do better the next time."""


class WeightSyncListener(Protocol):
    """Others that sample from the same servers."""

    async def hold(self) -> None:
        """Ask nothing from now on. Returns once nothing of theirs is under way."""
        ...


class VllmEngine:
    """Samples from vLLM. Use it within one event loop; its first `refresh` starts it."""

    def __init__(
        self,
        options: Vllm,
        model: Any,
        tokenizer: Any,
        folder: Path,
        *,
        max_sequences: int,
        max_length: int,
        seed: int = 0,
    ) -> None:
        """`model`: the transformers model whose weights `refresh` is given; it says how they are saved, and what the
        probe's answer must be. `folder` is where they are saved, and the log of a server that is started."""
        self.options, self.model, self.tokenizer, self.folder = options, model, tokenizer, folder
        self.max_length, self.version = max_length, 0
        self.clients: list[VllmClient] = []
        self.conversations = [0] * max(len(options.urls), 1)
        """Open ones, of each server."""
        self.others: WeightSyncListener | None = None
        """Others that wait while weights change; whoever sets it releases them."""
        self._max_sequences, self._seed = max_sequences, seed
        self._own: VllmServer | None = None
        self._revived = -math.inf
        """Time at which it was started again."""
        self.sync: WeightSync | None = None
        """The way of new weights to these servers; chosen with the first."""
        self._probe = Probe(model, options.dtype, max_length) if model is not None else None
        self._refreshing, self._ready, self._idle = asyncio.Lock(), asyncio.Event(), asyncio.Event()
        self._ready.set()
        self._idle.set()
        self._broken: str | None = "the engine was given no weights yet: refresh comes first"
        self._under_way = 0

    def open(self, rng: np.random.Generator) -> VllmConversation:
        """Open a conversation on the server that has the fewest."""
        server = int(np.argmin(self.conversations))
        self.conversations[server] += 1
        return VllmConversation(self, server, rng)

    async def refresh(self, weights: Mapping[str, Tensor], version: int) -> None:
        """See `Engine`. Replies go on with the old weights while the new ones are saved, and wait while they are read.

        Raises PolicyFailure where a server cannot be told, or samples from something else afterwards; until a refresh
        succeeds nothing is sampled then. Raises UsageError where a server cannot be started.
        """
        async with self._refreshing:
            sync = self.sync or self._first_sync(weights)
            await asyncio.to_thread(sync.prepare, weights, version)
            self._ready.clear()
            self._broken = "the engine's last refresh failed, so what it would sample from is not known"
            try:
                if not self.clients:
                    await self._start(sync, served_rank(weights))
                if self.sync is None:
                    sync = self.sync = await self._choose(sync, weights, version)
                try:
                    await self._exchange(sync.give)
                except PolicyFailure as failure:
                    await self._start_again(failure)
                    await self._exchange(sync.give)
                self.version = version
                assert self._probe is not None
                await self._probe.check(self.clients, weights, salt_of(version))
                self._broken = None
            finally:
                self._ready.set()
            await asyncio.to_thread(sync.keep, weights)

    async def attach(self, version: int) -> None:
        """Sample from weights that another process has given the servers of `options.urls`. While it gives them new
        ones, this engine must `hold`; it does so until `release`."""
        if not self.clients:
            await self._connect(self.options.urls)
        await each(self.clients, lambda client: client.use_version(version))
        self.version, self._broken = version, None

    async def hold(self) -> None:
        """Ask the servers nothing until `release`. Returns once nothing is under way: whoever gives them new weights
        ends what is."""
        self._ready.clear()
        await self._idle.wait()

    def release(self) -> None:
        """Go on with what waits."""
        self._ready.set()

    async def aclose(self) -> None:
        """Close connections, and end the server that was started."""
        clients, self.clients = self.clients, []
        for client in clients:
            await client.aclose()
        own, self._own = self._own, None
        if own is not None:
            await asyncio.to_thread(own.stop)

    async def sample(
        self, server: int, prompt: Sequence[int], sampling: Sampling, seed: int
    ) -> tuple[PartialCompletion, int]:
        """Sample from a server; with the version of the weights that sampled all of it. An own one that died is started
        again, once, and asked again: what it was about to say was given to nobody."""
        while True:
            await self._ready.wait()
            if self._broken is not None:
                raise PolicyFailure(self._broken)
            version, client = self.version, self.clients[server]
            self._under_way += 1
            self._idle.clear()
            try:
                return await client.complete(prompt, sampling, seed=seed, salt=salt_of(version)), version
            except PolicyFailure as error:
                if self._own is None:
                    raise
                failure = error
            finally:
                self._under_way -= 1
                if not self._under_way:
                    self._idle.set()
            async with self._refreshing:
                if client not in self.clients:
                    continue  # another reply, or a refresh, has seen to it
                self._ready.clear()
                try:
                    await self._start_again(failure)
                    self._broken = None
                finally:
                    self._ready.set()

    def _first_sync(self, weights: Mapping[str, Tensor]) -> WeightSync:
        """The way to begin with."""
        kind = AdapterSync if served_rank(weights) is not None else DiskSync
        if kind is DiskSync and (adapter := lora.adapter_of(weights)) is not None:
            _note_merged(f"vLLM serves adapters up to rank {LORA_RANKS[-1]}, and model.lora.rank is {adapter.rank}")
        return kind(self.folder, self.model, self.tokenizer)

    async def _choose(self, sync: WeightSync, weights: Mapping[str, Tensor], version: int) -> WeightSync:
        """The best way that these servers have, each tried before it is relied on. `sync`: the one begun with."""
        disk = sync if isinstance(sync, DiskSync) else DiskSync(self.folder, self.model, self.tokenizer)
        if isinstance(sync, AdapterSync):
            try:
                await self._try_adapter(sync, weights)
                return sync
            except PolicyFailure as failure:
                _note_merged(str(failure))
            await each(self.clients, lambda client: client.drop_adapters())
            await asyncio.to_thread(disk.prepare, weights, version)
            return disk
        try:
            if (backend := await self._backend()) is None:
                return disk
            device = DeviceSync(backend, disk, self.options.dtype, self.options.deadline_s, own=self._own is not None)
            device.prepare(weights, version)
            await self._exchange(device.give)
            assert self._probe is not None
            await self._probe.check(self.clients, weights, salt_of(version))
            return device
        except PolicyFailure as failure:
            logging.getLogger(__name__).warning("weights reach vLLM through files: %s", failure)
        return disk

    async def _try_adapter(self, sync: AdapterSync, weights: Mapping[str, Tensor]) -> None:
        """Raises PolicyFailure unless an adapter that changes a great deal is served as it should be."""
        assert isinstance(weights, lora.MergedWeights)
        assert self._probe is not None
        if self._own is None:
            await self._exchange(sync.give_base)
        strong = lora.strong(weights)
        await self._exchange(lambda clients: sync.give_trial(clients, strong))
        await self._probe.check_served(self.clients, strong, salt_of("trial"))

    async def _backend(self) -> str | None:
        """vLLM's backend from the learner's GPU to the servers', if there is one."""
        if (gpu := gpu_of(self.model.device)) is None:
            return None
        found = await each(self.clients, lambda client: client.devices())
        return backend_of([device for devices in found for device in devices], gpu)

    async def _start(self, sync: WeightSync, rank: int | None) -> None:
        """Start an own server, which serves adapters of this rank, or find those of `options.urls`."""
        options, urls = self.options, self.options.urls
        if not urls:
            folder = await asyncio.to_thread(sync.start_folder)
            flags = server_flags(options, folder, self.model.config, self._max_sequences, self.max_length, self._seed)
            transfer = None if is_cpu_build() or rank is not None else backend_to_start(self.model.device)
            self._own = VllmServer(replace(flags, lora_rank=rank, transfer=transfer), self.folder / "server.log")
            urls = (await self._own.start(),)
        await self._connect(urls)
        await each(self.clients, lambda client: client.drop_adapters())

    async def _start_again(self, failure: PolicyFailure) -> None:
        """Start an own server that has died again. Raises the failure where it has not, or did so a short while ago,
        too."""
        own, lately = self._own, monotonic() < self._revived + REVIVED_S
        if own is None or lately or not isinstance(failure, ServerUnavailable) or not await asyncio.to_thread(own.died):
            raise failure
        logging.getLogger(__name__).warning("vLLM has died: starting it again (%s)", failure)
        self._broken = "vLLM died, and could not be started again"
        await self._idle.wait()  # whoever else waits for it learns that it is gone
        await self.aclose()
        assert self.sync is not None
        await self._start(self.sync, own.flags.lora_rank)
        await self.sync.restore(self.clients)
        self._revived = monotonic()

    async def _connect(self, urls: Sequence[str]) -> None:
        self.clients = [VllmClient(url, self.options.deadline_s) for url in urls]
        await each(self.clients, lambda client: client.require(self.max_length))

    async def _exchange(self, give: Callable[[Sequence[VllmClient]], Awaitable[None]]) -> None:
        """Pause the servers, `give` them weights and let them forget their caches. However it ends, they go on."""
        others = asyncio.ensure_future(self.others.hold()) if self.others is not None else None
        try:
            await each(self.clients, lambda client: client.pause())
            await self._drain(others)
            await give(self.clients)
            await each(self.clients, lambda client: client.forget())
        finally:
            if others is not None:
                others.cancel()
            await each(self.clients, lambda client: client.resume())

    async def _drain(self, others: asyncio.Future[None] | None) -> None:
        """A request that was sent before the pause may arrive after it, and would wait there for the new weights."""
        idle = asyncio.ensure_future(self._idle.wait())
        ended = asyncio.gather(idle, *([others] if others is not None else []))
        try:
            async with asyncio.timeout(self.options.deadline_s):
                while not ended.done():
                    await each(self.clients, lambda client: client.abort())
                    await asyncio.wait([ended], timeout=DRAIN_S)
                await ended
        except TimeoutError as error:
            raise PolicyFailure(
                f"replies did not end within {self.options.deadline_s:g} s of the vLLM servers' pause: "
                f"{self._under_way} here" + (", and others elsewhere" if idle.done() else "")
            ) from error
        finally:
            ended.cancel()


def _note_merged(reason: str) -> None:
    logging.getLogger(__name__).warning("adapters are merged into the model for vLLM: %s", reason)


def salt_of(version: int | str) -> str:
    """The salt that keeps keys and values of a version apart in a server's cache."""
    return f"version {version}"


def server_flags(
    options: Vllm, folder: Path, config: Any, max_sequences: int, max_length: int, seed: int
) -> ServerFlags:
    """Flags of a server here that starts from the weights in `folder`. `config`: transformers' own, of the model."""
    tokens = max_sequences * (max_length + BLOCK) + BLOCK
    memory = cache_bytes(config, options.dtype, tokens) if is_cpu_build() else None
    return ServerFlags(folder, max_length, max_sequences, options.dtype, seed, options.gpu_memory_utilization, memory)


class VllmConversation:
    """One episode's sequence, on the server that has its past in its prefix cache."""

    def __init__(self, engine: VllmEngine, server: int, rng: np.random.Generator) -> None:
        self._engine, self._server, self._rng = engine, server, rng
        self._closed = False

    @property
    def server(self) -> int:
        """Number of the engine's server that it is on."""
        return self._server

    async def generate(self, prompt: Sequence[int], sampling: Sampling, images: Sequence[ImageSpan] = ()) -> Completion:
        engine, sequence, start = self._engine, list(prompt), len(prompt)
        if not sequence:
            raise ValueError("an empty prompt")
        if start >= engine.max_length:
            raise ContextFull(f"the prompt has {start} tokens; the engine takes {engine.max_length}")
        most = min(sampling.max_new_tokens, engine.max_length - start)
        logprobs: list[float] = []
        versions: list[int] = []
        finish = "abort"
        while finish == "abort":
            left = replace(sampling, max_new_tokens=most - len(logprobs))
            part, version = await engine.sample(self._server, sequence, left, int(self._rng.integers(2**62)))
            sequence += part.token_ids
            logprobs += part.logprobs.token_logprobs
            versions += [version] * len(part.token_ids)
            finish = part.finish_reason
        return Completion(sequence[start:], logprobs, finish, versions)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._engine.conversations[self._server] -= 1


def build(options: Vllm, model: Any, tokenizer: Any, folder: Path, room: EngineRoom) -> VllmEngine:
    """See `EngineKind`. Without a model it only attaches to servers whose weights another process gives them."""
    return VllmEngine(
        options,
        model,
        tokenizer,
        weights_folder(options, folder),
        max_sequences=room.max_sequences,
        max_length=room.max_length,
        seed=room.seed,
    )
