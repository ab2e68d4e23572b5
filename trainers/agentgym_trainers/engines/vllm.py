"""The vLLM engine: replies of one or several vLLM servers, and new weights for them while they run.

    refresh:  save the weights -> pause, which ends replies under way where they are -> every server reads the weights
              and forgets its cache -> resume -> a probe tells whether they sample from what they were given

A reply that was cut short goes on from its prompt and what was sampled, so each token was sampled by the weights that
it names, from keys and values of no others. A conversation stays with its server, whose prefix cache has its past.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from agentgym.errors import PolicyFailure
from agentgym.policy import ContextFull
from agentgym_trainers import checkpoint
from agentgym_trainers.engines.base import Completion, Sampling
from agentgym_trainers.engines.options import Vllm, cache_bytes, is_cpu_build
from agentgym_trainers.engines.vllm_client import Part, VllmClient
from agentgym_trainers.engines.vllm_server import ServerFlags, VllmServer

PROBE = Sampling(temperature=2.0, max_new_tokens=8)
"""Not at temperature 1: log-probabilities from before the temperature would look the same there."""
PROBE_TOKENS = 16
"""Of the probe's prompt."""
SLACK = {"float32": 1e-3, "bfloat16": 0.5, "float16": 0.25}
"""How far the probe's log-probabilities may be from the learner's, by what the server computes in."""
BLOCK = 128
"""Tokens of a block of vLLM's cache on a CPU: no two sequences share one that is not full."""
DRAIN_S = 0.05
"""Between two orders to end what arrived after a pause."""

T = TypeVar("T")


class VllmEngine:
    """Samples from vLLM servers. Use it within one event loop; its first `refresh` starts it."""

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
        self._max_sequences, self._seed = max_sequences, seed
        self._server: VllmServer | None = None
        self._refreshing, self._ready, self._idle = asyncio.Lock(), asyncio.Event(), asyncio.Event()
        self._ready.set()
        self._broken: str | None = "the engine was given no weights yet: refresh comes first"
        self._under_way = self._saved = 0

    def open(self, rng: np.random.Generator) -> VllmConversation:
        """On the server that has the fewest."""
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
                await self._exchange(str(folder.resolve()))
                self.version = version
                await self._probe(weights)
                self._broken = None
            finally:
                self._ready.set()

    async def attach(self, version: int) -> None:
        """Sample from weights that another process has given the servers of `options.urls`. Nothing may be under way
        while it gives them new ones."""
        if not self.clients:
            await self._connect(self.options.urls)
        self.version, self._broken = version, None

    async def aclose(self) -> None:
        """Close connections, and end the server that was started."""
        clients, self.clients = self.clients, []
        for client in clients:
            await client.aclose()
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(server.stop)

    async def sample(self, server: int, prompt: Sequence[int], sampling: Sampling, seed: int) -> tuple[Part, int]:
        """What a server says, and the version of the weights that said all of it."""
        await self._ready.wait()
        if self._broken is not None:
            raise PolicyFailure(self._broken)
        version = self.version
        self._under_way += 1
        self._idle.clear()
        try:
            return await self.clients[server].complete(prompt, sampling, seed=seed, salt=f"version {version}"), version
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    def _save(self, weights: Mapping[str, Tensor]) -> Path:
        """Into one of two folders by turns: what servers were told last is whole while the next is written."""
        self._saved += 1
        folder = self.folder / f"weights-{self._saved % 2}"
        checkpoint.save_model(folder, self.model, self.tokenizer, weights)
        return folder

    async def _start(self, folder: Path) -> None:
        options, urls = self.options, self.options.urls
        if not urls:
            flags = server_flags(options, folder, self.model.config, self._max_sequences, self.max_length, self._seed)
            self._server = VllmServer(flags, self.folder / "server.log")
            urls = (await self._server.start(),)
        await self._connect(urls)

    async def _connect(self, urls: Sequence[str]) -> None:
        self.clients = [VllmClient(url, self.options.deadline_s) for url in urls]
        await self._each(lambda client: client.require(self.max_length))

    async def _exchange(self, folder: str) -> None:
        """Every server samples from the folder's weights. However it ends, they are told to go on."""
        try:
            await self._each(VllmClient.pause)
            await self._drain()
            await self._each(lambda client: client.read_weights(folder))
            await self._each(VllmClient.forget)
        finally:
            await self._each(VllmClient.resume)

    async def _drain(self) -> None:
        """A request that was sent before the pause may arrive after it, and would wait there for the new weights."""
        try:
            async with asyncio.timeout(self.options.deadline_s):
                while self._under_way:
                    await self._each(VllmClient.abort)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(DRAIN_S):
                            await self._idle.wait()
        except TimeoutError as error:
            raise PolicyFailure(
                f"{self._under_way} replies did not end within {self.options.deadline_s:g} s of the vLLM servers' pause"
            ) from error

    async def _probe(self, weights: Mapping[str, Tensor]) -> None:
        """Raises PolicyFailure where a server's log-probabilities are not those of `weights`."""
        rng = np.random.default_rng(0)
        room = min(PROBE_TOKENS, max(self.max_length - PROBE.max_new_tokens, 1))
        prompt = rng.integers(0, self.model.config.get_text_config().vocab_size, room).tolist()
        sampling = replace(PROBE, max_new_tokens=min(PROBE.max_new_tokens, self.max_length - room))
        salt = f"version {self.version}"
        parts = await self._each(lambda client: client.complete(prompt, sampling, seed=0, salt=salt))
        slack = SLACK[self.options.dtype]
        for client, part in zip(self.clients, parts, strict=True):
            expected = self._logprobs(weights, prompt, part.token_ids)
            gap = float(np.abs(expected - part.logprobs.token_logprobs).max(initial=0.0))
            if not gap <= slack:
                raise PolicyFailure(
                    f"after a refresh the vLLM server at {client.url} gives log-probabilities that are {gap:.2g} away "
                    f"from those of the weights it was given (rounding explains {slack:g}): it samples from others, or "
                    "was started without the flags of docs/engines.md"
                )

    @torch.inference_mode()
    def _logprobs(self, weights: Mapping[str, Tensor], prompt: list[int], ids: list[int]) -> np.ndarray:
        """float32[ids]: what the weights say of `ids` after `prompt`."""
        given = {"input_ids": torch.tensor([[*prompt, *ids]], device=self.model.device), "use_cache": False}
        seen: dict[tuple[int, torch.Size], Tensor] = {}  # tied weights have two names, and must be one object
        once = {name: seen.setdefault((tensor.data_ptr(), tensor.shape), tensor) for name, tensor in weights.items()}
        logits = torch.func.functional_call(self.model, once, kwargs=given).logits[0, len(prompt) - 1 : -1]
        logprobs = torch.log_softmax(logits.float() / PROBE.temperature, dim=-1)
        return logprobs.gather(1, torch.tensor(ids, device=logprobs.device)[:, None])[:, 0].cpu().numpy()

    async def _each(self, call: Callable[[VllmClient], Awaitable[T]]) -> list[T]:
        """Of every server at once. All have answered, or failed, before the first failure is raised."""
        answers = await asyncio.gather(*(call(client) for client in self.clients), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers  # pyright: ignore[reportReturnType]  none is an exception


def server_flags(
    options: Vllm, folder: Path, config: Any, max_sequences: int, max_length: int, seed: int
) -> ServerFlags:
    """Of a server here that starts from the weights in `folder`. `config`: transformers' own, of the model."""
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
        """Which of the engine's servers it is on."""
        return self._server

    async def generate(self, prompt: Sequence[int], sampling: Sampling) -> Completion:
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
