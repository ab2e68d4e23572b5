"""An engine over vLLM servers, a client that records, and what a model says of tokens by transformers alone."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agentgym_trainers.engines.options import Vllm
from agentgym_trainers.engines.vllm.client import VllmClient, WorkerDevice
from agentgym_trainers.engines.vllm.engine import VllmEngine

SLACK = 1e-3
"""Largest difference of two log-probabilities."""
LENGTH, EPISODES = 640, 6
"""Tokens that a server holds, and sequences at once."""


@contextlib.asynccontextmanager
async def engine_over(
    urls: list[str], model: Any, tokenizer: Any, folder: Path, deadline_s: float = 120.0
) -> AsyncIterator[VllmEngine]:
    """Without `urls` it starts a server of its own."""
    options = Vllm(kind="vllm", urls=tuple(urls), deadline_s=deadline_s)
    engine = VllmEngine(options, model, tokenizer, folder, max_sequences=EPISODES, max_length=LENGTH)
    try:
        yield engine
    finally:
        await engine.aclose()


def tokens(seed: int, count: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 320, count).tolist()


def plain(model: Any, ids: list[int], temperature: float = 1.0) -> torch.Tensor:
    """float32[T - 1, V] of positions 1 .. T - 1, by transformers' own forward."""
    reference = copy.deepcopy(model)
    reference.set_attn_implementation("sdpa")
    with torch.inference_mode():
        logits = reference(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1]
    return torch.log_softmax(logits / (temperature or 1.0), dim=-1)


def logprobs_of(model: Any, prompt: list[int], ids: list[int], temperature: float = 1.0) -> np.ndarray:
    """What the model says of `ids` after `prompt`."""
    logprobs = plain(model, [*prompt, *ids], temperature)[len(prompt) - 1 :]
    return logprobs.gather(1, torch.tensor(ids)[:, None])[:, 0].numpy()


class RecordingClient(VllmClient):
    """A server's client that answers nothing and remembers what it was asked."""

    def __init__(self, device: WorkerDevice, url: str = "http://127.0.0.1:9") -> None:
        self.url, self.device = url, device
        self.orders: list[tuple[str, Any]] = []

    async def devices(self) -> list[WorkerDevice]:
        return [self.device]

    async def order(self, path: str, body: dict[str, Any]) -> None:
        self.orders.append((path, body))

    async def update_from_ipc(self, update: str) -> None:
        self.orders.append(("ipc", update))
