"""The in-process engine: continuous batching over episodes with a key-value cache kept across an episode's turns.

Each forward packs whatever is to be computed: new observation tokens of some episodes beside one sampled token of
others. A finished reply leaves the batch at once; its cache stays until the episode closes. Log-probabilities are
those of the distribution that was sampled, in float32.

With `lockstep`, a forward waits until every open episode waits for the engine. Batches, and with them every bit of the
result, then depend on nothing but the seeds; worlds that answer slowly make each other wait.

Shapes: S slots, B requests in this forward, T their new tokens, R rows of the attention (a request's each, and idle
slots between), Q the most new tokens of one, L cached positions, Hq/Hk query/key heads, D head size, V vocabulary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from agentgym.errors import PolicyFailure
from agentgym.policy import ContextFull
from agentgym_trainers.attention import use_packed_attention
from agentgym_trainers.engines.base import Completion, Sampling


@dataclass(eq=False)
class _Request:
    slot: int
    prompt: list[int]
    start: int
    """Position of the first token to compute before the next one is sampled."""
    version: int
    """Of the weights whose keys and values are before `start`."""
    sampling: Sampling
    rng: np.random.Generator
    future: asyncio.Future[Completion]
    first: bool = False
    """The conversation's first: nothing of it is cached."""
    on_token: Callable[[int, float], bool] | None = None
    """Told every token and its log-probability; whether the reply ends with it."""
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
        self._cache = _Cache(model, max_sequences + 1, max_length)
        self._prefix_slot, self._prefix, self._prefix_version = max_sequences, [], version
        self._groups = model.config.num_attention_heads // _key_heads(model.config)
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
        """Between two forwards, since the executor has one thread."""
        own = self.model.state_dict()
        if set(weights) != set(own) or any(weights[name].shape != own[name].shape for name in own):
            raise PolicyFailure("the weights to sample from are those of another model")
        for name, tensor in own.items():
            if tensor.data_ptr() != weights[name].data_ptr():
                tensor.copy_(weights[name])
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
        requests.sort(key=lambda request: (len(request.fresh) > 1, request.slot))
        layout = _CachedLayout(self._cache, requests, self._groups)
        ids = torch.tensor([[token for request in requests for token in request.fresh]])
        self.computed_tokens += ids.shape[1]
        self.forwards += 1
        logits = self.model(
            input_ids=ids.to(self.model.device),
            position_ids=layout.position_T[None],
            use_cache=False,
            logits_to_keep=layout.last_B,
            layout=layout,
        ).logits[0]
        return _sample(logits, requests), self.version


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
        """Tokens whose keys and values are kept: a prompt that begins with them is continued from there."""
        return self._cached

    async def generate(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        *,
        rng: np.random.Generator | None = None,
        on_token: Callable[[int, float], bool] | None = None,
    ) -> Completion:
        """`rng` stands in for the conversation's own in this call. `on_token` is told every token and its
        log-probability as it is sampled; where it returns True, the reply ends with that token."""
        engine = self._engine
        prompt = list(prompt)
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
        engine._submit(_Request(self._slot, prompt, shared, version, sampling, rng, self._future, first, on_token))
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


class _Cache:
    """Keys and values: one [S, L, Hk, D] tensor a layer each, so that a token's entry is one run of memory."""

    def __init__(self, model: Any, slots: int, length: int) -> None:
        config = model.config
        heads = _key_heads(config)
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape, kind = (slots, length, heads, size), {"dtype": model.dtype, "device": model.device}
        self.length = length
        self.keys = [torch.zeros(shape, **kind) for _ in range(config.num_hidden_layers)]
        self.values = [torch.zeros(shape, **kind) for _ in range(config.num_hidden_layers)]

    def put(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.keys[0].device)

    def copy(self, source: int, target: int, length: int) -> None:
        """The first `length` positions of one slot into another."""
        for store in (*self.keys, *self.values):
            store[target, :length] = store[source, :length]

    def clean(self) -> None:
        """Forget what is not finite: beyond a sequence's end it is masked, but NaN times zero is NaN."""
        for store in (*self.keys, *self.values):
            torch.nan_to_num_(store, 0.0, 0.0, 0.0)


class _CachedLayout:
    """New tokens of several sequences, attending to their cached past."""

    def __init__(self, cache: _Cache, requests: list[_Request], groups: int) -> None:
        """`groups`: query heads to a key head. Requests of one new token come first."""
        self.cache = cache
        counts = np.array([len(request.fresh) for request in requests])
        starts = np.array([request.start for request in requests])
        slots = np.array([request.slot for request in requests])
        ends = np.cumsum(counts)
        position_T = np.repeat(starts + counts - ends, counts) + np.arange(ends[-1])
        self.position_T, self.last_B = cache.put(position_T), cache.put(ends - 1)
        self.place_T = cache.put(np.repeat(slots, counts) * cache.length + position_T)
        single = int((counts == 1).sum())  # apart, lest their queries are padded to the length of an observation
        parts = [part for part in (slice(0, single), slice(single, None)) if len(counts[part])]
        self.blocks = [_Block(cache, counts[part], starts[part], slots[part], groups) for part in parts]
        self.sizes = [int(counts[part].sum()) for part in parts]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        for store, new in ((keys, key), (values, value)):
            store.flatten(0, 1).index_copy_(0, self.place_T, new.transpose(0, 1))
        queries = query.transpose(0, 1).split(self.sizes)
        outs = [block.attend(part, keys, values, scale) for block, part in zip(self.blocks, queries, strict=True)]
        return torch.cat(outs).transpose(0, 1)


class _Block:
    """Requests whose queries are padded to the same length Q and computed together."""

    def __init__(self, cache: _Cache, counts: np.ndarray, starts: np.ndarray, slots: np.ndarray, groups: int) -> None:
        low, high = int(slots.min()), int(slots.max()) + 1
        # Slots side by side are read as a view, idle ones between them included; only scattered ones are gathered,
        # which copies their whole past.
        dense = 2 * len(slots) >= high - low
        row_B = slots - low if dense else np.arange(len(slots))
        self.slots = slice(low, high) if dense else cache.put(slots)
        self.rows = high - low if dense else len(slots)
        self.most, self.length = int(counts.max()), int((starts + counts).max())
        row_T, offset_T = np.repeat(row_B, counts), np.concatenate([np.arange(count) for count in counts])
        self.padded_T = cache.put(row_T * self.most + offset_T)
        # A query sees the positions up to its own; padding queries see position 0, and are thrown away.
        seen_RQ = np.zeros((self.rows, self.most), np.int64)
        seen_RQ[row_T, offset_T] = np.repeat(starts, counts) + offset_T
        seen_RQ = np.tile(seen_RQ, (1, groups))
        blind_RQL = np.where(np.arange(self.length) <= seen_RQ[:, :, None], np.float32(0), np.float32(-np.inf))
        self.mask = cache.put(blind_RQL)[:, None].to(cache.keys[0].dtype)

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """query [T, Hq, D], keys and values [S, L, Hk, D] -> [T, Hq, D]."""
        keys_R, values_R = (store[self.slots, : self.length].transpose(1, 2) for store in (keys, values))
        (_, heads, size), kv_heads = query.shape, keys.shape[2]
        padded = query.new_zeros(self.rows * self.most, heads, size).index_copy_(0, self.padded_T, query)
        # Query heads that share a key head are folded into its queries, so that no key is repeated.
        folded = padded.view(self.rows, self.most, heads, size).transpose(1, 2)
        folded = folded.reshape(self.rows, kv_heads, heads // kv_heads * self.most, size)
        out = scaled_dot_product_attention(folded, keys_R, values_R, attn_mask=self.mask, scale=scale)
        out = out.reshape(self.rows, heads, self.most, size).transpose(1, 2).reshape(self.rows * self.most, heads, size)
        return out.index_select(0, self.padded_T)


def _key_heads(config: Any) -> int:
    return getattr(config, "num_key_value_heads", None) or config.num_attention_heads


def shared_prefix(cached: list[int], prompt: list[int]) -> int:
    """How many tokens of `cached` begin `prompt`; at least one token of `prompt` is left to compute."""
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
