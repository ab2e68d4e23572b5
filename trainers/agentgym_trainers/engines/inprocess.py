"""The in-process engine: continuous batching over episodes with a key-value cache kept across an episode's turns.

Each forward packs whatever is to be computed: new observation tokens of some episodes beside one sampled token of
others. A finished reply leaves the batch at once; its cache stays until the episode closes. Log-probabilities are
those of the distribution that was sampled, in float32.

With `lockstep`, a forward waits until every open episode waits for the engine. Batches, and with them every bit of the
result, then depend on nothing but the seeds; environments that answer slowly make each other wait.

Shapes: B requests in a forward, T their new tokens, V vocabulary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentgym.errors import PolicyFailure
from agentgym.rollouts.policy import ContextFull
from agentgym.rollouts.trajectory import ImageSpan
from agentgym_trainers.data.images import content_keys
from agentgym_trainers.engines.base import Completion, EngineRoom, Sampling
from agentgym_trainers.engines.kv_cache import BatchedCache, CachedLayout, key_heads
from agentgym_trainers.engines.options import InProcess
from agentgym_trainers.nn import lora
from agentgym_trainers.nn.attention import use_packed_attention
from agentgym_trainers.nn.vision import image_inputs, reader_of, rope_positions, without_placeholder


@dataclass(eq=False)
class _Request:
    slot: int
    prompt: list[int]
    """Its `content_keys`: token ids, and at images what they show."""
    start: int
    """Position of the first token to compute before the next one is sampled."""
    version: int
    """Version of the weights whose keys and values are before `start`."""
    sampling: Sampling
    rng: np.random.Generator
    future: asyncio.Future[Completion]
    first: bool = False
    """The conversation's first: nothing of it is cached."""
    on_token: Callable[[int, float], bool] | None = None
    """Told every token and its log-probability; whether the reply ends with it."""
    images: Sequence[ImageSpan] = ()
    rope_3P: np.ndarray | None = None
    """int64[3, its length] of the prompt: `rope_positions`, of a vision-language model."""
    leads: bool = False
    """Its prompt is kept for others to copy from."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    fresh: list[int] = field(init=False)
    """The tokens to compute."""

    def __post_init__(self) -> None:
        self.fresh = self.prompt[self.start :]

    def renew(self, version: int) -> None:
        """Compute everything again, with other weights."""
        self.fresh, self.start, self.version = [*self.prompt, *self.ids], 0, version

    @property
    def fresh_images(self) -> list[bytes]:
        """The images among the tokens to compute."""
        return [image.png for image in self.images if image.start >= self.start]

    @property
    def fresh_rope(self) -> np.ndarray:
        """int64[3, T] of the tokens to compute; those after the prompt count on from its greatest."""
        assert self.rope_3P is not None
        at, known = self.start + np.arange(len(self.fresh)), len(self.prompt)
        return np.where(at < known, self.rope_3P[:, np.minimum(at, known - 1)], self.rope_3P.max() + 1 + at - known)


class InProcessEngine:
    """Samples from a transformers model in this process. Use it within one event loop."""

    def __init__(
        self, model: Any, *, max_sequences: int, max_length: int, lockstep: bool = False, version: int = 0
    ) -> None:
        """`max_sequences` episodes at once, each of at most `max_length` tokens."""
        use_packed_attention(model)
        self.model, self.version, self.lockstep = model, version, lockstep
        self.max_length = max_length
        self._free = list(range(max_sequences))[::-1]
        self._cache = BatchedCache(model, max_sequences + 1, max_length)
        self._prefix_slot, self._prefix, self._prefix_version = max_sequences, [], version
        config = model.config.get_text_config()
        self._groups = config.num_attention_heads // key_heads(config)
        self.reader = reader_of(model)
        self._open = 0
        self._waiting: list[_Request] = []
        self._entering: list[_Request] = []
        self._running: list[_Request] = []
        self._loop_task: asyncio.Task[None] | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self.computed_tokens = 0
        """Tokens that went through the model, prompt and sampled."""
        self.forwards = 0

    def open(self, rng: np.random.Generator) -> InProcessConversation:
        if not self._free:
            raise PolicyFailure(
                f"all {self._open} sequences of the engine are open; raise its max_sequences or lower the concurrency"
            )
        self._open += 1
        return InProcessConversation(self, self._free.pop(), rng)

    async def refresh(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Sample from these weights from now on; see `Engine`. Those that are the model's own are not copied.

        Raises PolicyFailure where they are not those of this model.
        """
        await asyncio.get_running_loop().run_in_executor(self._executor, self._load, weights, version)

    @torch.no_grad()
    def _load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Load weights between two forwards, since the executor has one thread."""
        own, shapes = self.model.state_dict(), lora.base_of(weights)  # merged weights are merged by reading them
        if set(weights) != set(own) or any(shapes[name].shape != own[name].shape for name in own):
            raise PolicyFailure("the weights to sample from are those of another model")
        for name, tensor in own.items():
            given = weights[name]
            if tensor.data_ptr() != given.data_ptr():
                tensor.copy_(given)
        self.version = version

    def shutdown(self) -> None:
        self._executor.shutdown()

    async def aclose(self) -> None:
        self.shutdown()

    def _share_prefix(self, entering: list[_Request]) -> list[_Request]:
        """First prompts begin alike (instructions, a group's task): one is computed, the others copy what they share.

        Returns the requests that may enter now; those that wait for the first one enter at the next step.
        """
        first = [request for request in entering if request.first]
        if self._prefix_version != self.version:
            self._prefix = []
        for request in first if self._prefix else []:
            request.start, request.version = shared_prefix(self._prefix, request.fresh), self._prefix_version
            request.fresh = request.fresh[request.start :]
            self._cache.copy(self._prefix_slot, request.slot, request.start)
            self._cache.shared[request.slot] = request.start
        if not self._prefix and first:
            first[0].leads = True
            return [request for request in entering if not request.first or request is first[0]]
        return entering

    def _submit(self, request: _Request) -> None:
        self._waiting.append(request)
        self._wake()

    def _closed(self, slot: int) -> None:
        self._free.append(slot)
        self._free.sort(reverse=True)  # low slots first: the batch stays at the cache's beginning
        self._open -= 1
        if not self._open:  # nothing is carried from one batch of episodes to the next: each can be repeated exactly
            self._prefix = []
        self._wake()

    def _wake(self) -> None:
        if self._waiting and (self._loop_task is None or self._loop_task.done()):
            self._loop_task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        """Step until nobody waits."""
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0)
        while True:
            try:
                if not self._admit():
                    return
                self._advance(*await loop.run_in_executor(self._executor, self._step, self._running))
            except Exception as error:  # noqa: BLE001  whatever went wrong is told to every caller
                self._fail(error)
            await asyncio.sleep(0)

    def _fail(self, error: Exception) -> None:
        for request in (*self._running, *self._entering, *self._waiting):
            if not request.future.done():
                request.future.set_exception(error)
        self._running, self._entering, self._waiting = [], [], []
        self._cache.clean()

    def _admit(self) -> bool:
        """Let waiting requests into the batch; whether there is anything to compute."""
        self._waiting, self._entering, self._running = (
            [request for request in requests if not request.future.done()]  # a caller that was cancelled is gone
            for requests in (self._waiting, self._entering, self._running)
        )
        if not self.lockstep or (not self._running and not self._entering and len(self._waiting) == self._open):
            self._entering += self._waiting
            self._waiting = []
        if self._entering:
            self._entering.sort(key=lambda request: request.slot)
            enter = self._share_prefix(self._entering)
            self._entering = [request for request in self._entering if request not in enter]
            self._running = [*self._running, *enter]
        return bool(self._running)

    def _advance(self, tokens: list[tuple[int, float]], version: int) -> None:
        """Append one sampled token to each running request; answer those that are finished."""
        still = []
        for request, (token, logprob) in zip(self._running, tokens, strict=True):
            if request.leads and not request.ids:
                self._cache.copy(request.slot, self._prefix_slot, len(request.fresh))
                self._cache.shared[:] = 0
                self._cache.shared[request.slot] = len(request.fresh)
                self._prefix, self._prefix_version = request.fresh, version
            request.start += len(request.fresh)
            request.fresh = [token]
            request.ids.append(token)
            request.logprobs.append(logprob)
            request.versions.append(version)
            ended = request.on_token is not None and not request.future.done() and request.on_token(token, logprob)
            stopped = ended or token in request.sampling.stop_ids
            full = len(request.ids) >= request.sampling.max_new_tokens or request.start + 1 >= self.max_length
            if not (stopped or full):
                still.append(request)
            elif not request.future.done():
                finish = "stop" if stopped else "length"
                request.future.set_result(Completion(request.ids, request.logprobs, finish, request.versions))
        self._running = still

    @torch.inference_mode()
    def _step(self, requests: list[_Request]) -> tuple[list[tuple[int, float]], int]:
        """One forward over everything fresh, and one token sampled a request; and the version of the weights."""
        for request in requests:
            if request.version != self.version:
                request.renew(self.version)
            self._cache.overwrite(request.slot, request.start)
        requests.sort(key=lambda request: (len(request.fresh) > 1, request.slot))
        layout = CachedLayout(
            self._cache,
            np.array([len(request.fresh) for request in requests]),
            np.array([request.start for request in requests]),
            np.array([request.slot for request in requests]),
            self._prefix_slot,
            self._groups,
        )
        inputs = self._inputs(requests, layout)
        self.computed_tokens += inputs["input_ids"].shape[1]
        self.forwards += 1
        logits = self.model(**inputs, use_cache=False, logits_to_keep=layout.last_B, layout=layout).logits[0]
        return _sample(without_placeholder(logits, self.model), requests), self.version

    def _inputs(self, requests: list[_Request], layout: CachedLayout) -> dict[str, Tensor]:
        """Arguments of the model's forward: tokens, positions, and the images among them."""
        keys_T = np.array([token for request in requests for token in request.fresh])
        if self.reader is None:
            ids = torch.from_numpy(keys_T).to(self.model.device)
            return {"input_ids": ids[None], "position_ids": layout.position_T[None]}
        pngs = [png for request in requests for png in request.fresh_images]
        rope_3T = np.concatenate([request.fresh_rope for request in requests], axis=1)
        inputs = image_inputs(self.reader, keys_T, pngs, self.model.device)
        return {**inputs, "position_ids": torch.from_numpy(rope_3T).to(self.model.device)[:, None]}


class InProcessConversation:
    """One episode's sequence in an InProcessEngine."""

    def __init__(self, engine: InProcessEngine, slot: int, rng: np.random.Generator) -> None:
        self._engine, self._slot, self._rng = engine, slot, rng
        self._cached: list[int] = []
        self._version = engine.version
        self._future: asyncio.Future[Completion] | None = None
        self._closed = False

    @property
    def cached(self) -> list[int]:
        """`content_keys` whose keys and values are kept: a prompt that begins with them is continued from there."""
        return self._cached

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        images: Sequence[ImageSpan] = (),
        *,
        rng: np.random.Generator | None = None,
        on_token: Callable[[int, float], bool] | None = None,
    ) -> Completion:
        """`rng` stands in for the conversation's own in this call. `on_token` is told every token and its
        log-probability as it is sampled; where it returns True, the reply ends with that token."""
        engine = self._engine
        rope_3P = rope_positions(engine.model, len(prompt), images) if engine.reader is not None else None
        prompt = [int(key) for key in content_keys(prompt, images)] if images else list(prompt)
        if engine.reader is not None and engine.reader.token_id in prompt:
            raise PolicyFailure(f"the prompt has placeholder tokens ({engine.reader.token}) without their image")
        if not prompt:
            raise ValueError("an empty prompt")
        if len(prompt) >= engine.max_length:
            raise ContextFull(f"the prompt has {len(prompt)} tokens; the engine takes {engine.max_length}")
        version = engine.version
        if self._version != version:  # other weights' keys and values
            self._cached, self._version = [], version
        shared, first = shared_prefix(self._cached, prompt), not self._cached
        self._cached = self._cached[:shared]  # however this call ends, the rest is overwritten
        self._future = asyncio.get_running_loop().create_future()
        rng = self._rng if rng is None else rng
        request = _Request(self._slot, prompt, shared, version, sampling, rng, self._future, first, on_token)
        request.images, request.rope_3P = images, rope_3P
        engine._submit(request)
        completion = await self._future
        self._cached = [*prompt, *completion.ids[:-1]]  # the last token is sampled, not yet computed
        self._version = completion.versions[-1]
        return completion

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._future is not None:
                self._future.cancel()  # does nothing to an answered one
            self._engine._closed(self._slot)


def shared_prefix(cached: list[int], prompt: list[int]) -> int:
    """Number of tokens of `cached` that begin `prompt`; at least one token of `prompt` is left to compute."""
    if cached == prompt[: len(cached)]:
        return min(len(cached), len(prompt) - 1)
    differ = (i for i, (a, b) in enumerate(zip(cached, prompt, strict=False)) if a != b)
    return next(differ, len(prompt) - 1)


def _sample(logits_BV: Tensor, requests: list[_Request]) -> list[tuple[int, float]]:
    """One token a row by inverting the cumulative distribution at a uniform number of the row's own stream."""
    temperatures = [request.sampling.temperature for request in requests]
    scale = torch.tensor([t or 1.0 for t in temperatures], device=logits_BV.device)
    logprobs_BV = torch.log_softmax(logits_BV.float() / scale[:, None], dim=-1)
    uniform = torch.tensor([request.rng.random() for request in requests], dtype=torch.float64)
    cumulative = logprobs_BV.double().exp().cumsum(dim=-1)
    drawn = torch.searchsorted(cumulative, (uniform.to(cumulative.device)[:, None] * cumulative[:, -1:]), right=True)
    tokens = drawn[:, 0].clamp(max=logits_BV.shape[1] - 1)
    if not all(temperatures):
        greedy = torch.tensor([t == 0 for t in temperatures], device=tokens.device)
        tokens = torch.where(greedy, logits_BV.argmax(dim=-1), tokens)
    chosen = logprobs_BV.gather(1, tokens[:, None])[:, 0]
    if not torch.isfinite(chosen).all():
        raise PolicyFailure("the model gave log-probabilities that are not finite; its weights have diverged")
    return list(zip(tokens.tolist(), chosen.tolist(), strict=True))


def build(options: InProcess, model: Any, tokenizer: Any, folder: Path, room: EngineRoom) -> InProcessEngine:
    """See `EngineKind`."""
    return InProcessEngine(model, max_sequences=room.max_sequences, max_length=room.max_length, lockstep=room.lockstep)
