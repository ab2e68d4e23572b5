"""The vLLM engine: replies of vLLM servers, and new weights for them while they run.

    refresh:  save the weights -> pause, which ends replies under way where they are -> every server reads the weights
              and forgets its cache -> resume -> a probe tells whether they sample from what they were given

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
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from agentgym.errors import PolicyFailure
from agentgym.rollouts.policy import ContextFull
from agentgym.rollouts.trajectory import ImageSpan
from agentgym_trainers.engines.base import Completion, EngineRoom, Sampling
from agentgym_trainers.engines.options import Vllm, cache_bytes, is_cpu_build, weights_folder
from agentgym_trainers.engines.vllm.client import PartialCompletion, ServerUnavailable, VllmClient
from agentgym_trainers.engines.vllm.server import ServerFlags, VllmServer
from agentgym_trainers.nn import checkpoint

PROBE = Sampling(temperature=2.0, max_new_tokens=8)
"""Not at temperature 1: log-probabilities from before the temperature would look the same there."""
PROBE_TOKENS = 16
"""Tokens of the probe's prompt."""
PROBE_TOLERANCE = {"float32": 1e-2, "bfloat16": 0.5, "float16": 0.25}
"""Largest difference of the probe's log-probabilities from the learner's, by what the server computes in.

vLLM's float32 is less than 1e-3 off on a CPU, and was .0018 off on a GPU (docs/engines.md)."""
BLOCK = 128
"""Tokens of a block of vLLM's cache on a CPU: no two sequences share one that is not full."""
DRAIN_S = 0.05
"""Seconds between two orders to end what arrived after a pause."""

REVIVED_S = 60.0
"""An own vLLM that dies again within so many seconds will not do better the next time."""

T = TypeVar("T")


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
        self._given = folder
        """Folder of the weights that are sampled from."""
        self._refreshing, self._ready, self._idle = asyncio.Lock(), asyncio.Event(), asyncio.Event()
        self._ready.set()
        self._idle.set()
        self._broken: str | None = "the engine was given no weights yet: refresh comes first"
        self._under_way = self._saved = 0

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
            folder = await asyncio.to_thread(self._save, weights)
            self._ready.clear()
            self._broken = "the engine's last refresh failed, so what it would sample from is not known"
            try:
                if not self.clients:
                    await self._start(folder)
                try:
                    await self._exchange(str(folder.resolve()))
                except PolicyFailure as failure:
                    await self._start_again(folder, failure)
                self.version, self._given = version, folder
                await self._probe(weights)
                self._broken = None
            finally:
                self._ready.set()

    async def attach(self, version: int) -> None:
        """Sample from weights that another process has given the servers of `options.urls`. While it gives them new
        ones, this engine must `hold`; it does so until `release`."""
        if not self.clients:
            await self._connect(self.options.urls)
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
                return await client.complete(prompt, sampling, seed=seed, salt=f"version {version}"), version
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
                    await self._start_again(self._given, failure)
                    self._broken = None
                finally:
                    self._ready.set()

    def _save(self, weights: Mapping[str, Tensor]) -> Path:
        """Save the weights into one of two folders by turns: what servers were told last is whole while the next is
        written."""
        self._saved += 1
        folder = self.folder / f"weights-{self._saved % 2}"
        checkpoint.save_model(folder, self.model, self.tokenizer, weights)
        return folder

    async def _start(self, folder: Path) -> None:
        options, urls = self.options, self.options.urls
        if not urls:
            flags = server_flags(options, folder, self.model.config, self._max_sequences, self.max_length, self._seed)
            self._own = VllmServer(flags, self.folder / "server.log")
            urls = (await self._own.start(),)
        await self._connect(urls)

    async def _start_again(self, folder: Path, failure: PolicyFailure) -> None:
        """Start an own server that has died again. Raises the failure where it has not, or did so a short while ago,
        too."""
        own, lately = self._own, monotonic() < self._revived + REVIVED_S
        if own is None or lately or not isinstance(failure, ServerUnavailable) or not await asyncio.to_thread(own.died):
            raise failure
        logging.getLogger(__name__).warning("vLLM has died: starting it again (%s)", failure)
        self._broken = "vLLM died, and could not be started again"
        await self._idle.wait()  # whoever else waits for it learns that it is gone
        await self.aclose()
        await self._start(folder)
        self._revived = monotonic()

    async def _connect(self, urls: Sequence[str]) -> None:
        self.clients = [VllmClient(url, self.options.deadline_s) for url in urls]
        await self._each(lambda client: client.require(self.max_length))

    async def _exchange(self, folder: str) -> None:
        """Every server samples from the folder's weights. However it ends, they are told to go on."""
        others = asyncio.ensure_future(self.others.hold()) if self.others is not None else None
        try:
            await self._each(lambda client: client.pause())
            await self._drain(others)
            await self._each(lambda client: client.read_weights(folder))
            await self._each(lambda client: client.forget())
        finally:
            if others is not None:
                others.cancel()
            await self._each(lambda client: client.resume())

    async def _drain(self, others: asyncio.Future[None] | None) -> None:
        """A request that was sent before the pause may arrive after it, and would wait there for the new weights."""
        idle = asyncio.ensure_future(self._idle.wait())
        ended = asyncio.gather(idle, *([others] if others is not None else []))
        try:
            async with asyncio.timeout(self.options.deadline_s):
                while not ended.done():
                    await self._each(lambda client: client.abort())
                    await asyncio.wait([ended], timeout=DRAIN_S)
                await ended
        except TimeoutError as error:
            raise PolicyFailure(
                f"replies did not end within {self.options.deadline_s:g} s of the vLLM servers' pause: "
                f"{self._under_way} here" + (", and others elsewhere" if idle.done() else "")
            ) from error
        finally:
            ended.cancel()

    async def _probe(self, weights: Mapping[str, Tensor]) -> None:
        """Raises PolicyFailure where a server's log-probabilities are not those of `weights`."""
        rng = np.random.default_rng(0)
        room = min(PROBE_TOKENS, max(self.max_length - PROBE.max_new_tokens, 1))
        prompt = rng.integers(0, self.model.config.get_text_config().vocab_size, room).tolist()
        sampling = replace(PROBE, max_new_tokens=min(PROBE.max_new_tokens, self.max_length - room))
        salt = f"version {self.version}"
        parts = await self._each(lambda client: client.complete(prompt, sampling, seed=0, salt=salt))
        slack = PROBE_TOLERANCE[self.options.dtype]
        for client, part in zip(self.clients, parts, strict=True):
            expected = self._logprobs(weights, prompt, part.token_ids)
            gap = float(np.abs(expected - part.logprobs.token_logprobs).max(initial=0.0))
            if not gap <= slack:
                raise PolicyFailure(
                    f"after a refresh vLLM ({client.url}) gives log-probabilities that are {gap:.2g} away "
                    f"from those of the weights it was given (rounding explains {slack:g}): it samples from others, or "
                    "was started without the flags of docs/engines.md"
                )

    @torch.inference_mode()
    def _logprobs(self, weights: Mapping[str, Tensor], prompt: list[int], ids: list[int]) -> np.ndarray:
        """float32[ids]: what the weights say of `ids` after `prompt`."""
        given = {"input_ids": torch.tensor([[*prompt, *ids]], device=self.model.device), "use_cache": False}
        tensors: dict[tuple[int, torch.Size], Tensor] = {}  # tied weights have two names, and must be one object
        once = {name: tensors.setdefault((tensor.data_ptr(), tensor.shape), tensor) for name, tensor in weights.items()}
        logits = torch.func.functional_call(self.model, once, kwargs=given).logits[0, len(prompt) - 1 : -1]
        logprobs = torch.log_softmax(logits.float() / PROBE.temperature, dim=-1)
        return logprobs.gather(1, torch.tensor(ids, device=logprobs.device)[:, None])[:, 0].cpu().numpy()

    async def _each(self, call: Callable[[VllmClient], Awaitable[T]]) -> list[T]:
        """Call every server at once. All have answered, or failed, before the first failure is raised."""
        answers = await asyncio.gather(*(call(client) for client in self.clients), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers  # pyright: ignore[reportReturnType]  none is an exception


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
