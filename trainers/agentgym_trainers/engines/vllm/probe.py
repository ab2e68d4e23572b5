"""The probe after each weight sync: do the servers sample from the weights that they were given?

One request: the log-probabilities of a fixed text, and of a few tokens sampled after it, which must be those of the
weights, computed here. The fixed text is compared with what was said of it before, too: rounding hides small changes of
the weights, but not that an answer stays as it was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentgym.errors import PolicyFailure
from agentgym_trainers.engines.base import Sampling
from agentgym_trainers.engines.vllm.client import PartialCompletion, VllmClient
from agentgym_trainers.nn import lora

TEMPERATURE = 2.0
"""Not 1: log-probabilities from before the temperature would look the same there."""
TEXT, SAMPLED = 32, 8
"""Tokens of the fixed text, and of what is sampled after it."""
TOLERANCE = {"float32": 1e-2, "bfloat16": 0.5, "float16": 0.25}
"""Largest difference of log-probabilities from the learner's, by what the server computes in.

vLLM's float32 is less than 1e-3 off on a CPU, and was .0018 off on a GPU (docs/engines.md)."""
MOVED, FOLLOWED = 1e-4, 0.1
"""Log-probabilities that the weights move by MOVED, a server's move by the share FOLLOWED of it at least."""
FOUND = 0.25
"""Share of a strong adapter's change that may be missing in the answers of a server that serves it."""


class Probe:
    """The probe of one engine: it knows what each server said last."""

    def __init__(self, model: Any, dtype: str, max_length: int) -> None:
        """`model`: the transformers model of the weights; `dtype`: what servers compute in."""
        self.model, self.slack = model, TOLERANCE[dtype]
        room = min(TEXT, max(max_length - SAMPLED, 1))
        vocabulary = model.config.get_text_config().vocab_size
        self.text: list[int] = np.random.default_rng(0).integers(0, vocabulary, room).tolist()
        self.sampling = Sampling(TEMPERATURE, min(SAMPLED, max_length - room))
        self._last: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        """Log-probabilities of the text by server, as computed here and as answered."""

    async def check(self, clients: Sequence[VllmClient], weights: Mapping[str, Tensor], salt: str) -> None:
        """Raises PolicyFailure where a server's log-probabilities are not those of `weights`, or stayed as they were
        when those of the weights did not."""
        for client, part in zip(clients, await self._answers(clients, salt), strict=True):
            answer = text_logprobs(part, self.text)
            sampled = np.array(part.logprobs.token_logprobs)
            expected, expected_sampled = self.expected(weights, part.token_ids)
            gaps = np.abs(np.concatenate([answer - expected, sampled - expected_sampled]))
            gap = float(gaps.max(initial=0.0))
            if not gap <= self.slack:
                raise PolicyFailure(
                    f"after a refresh vLLM ({client.url}) gives log-probabilities that are {gap:.2g} away "
                    f"from those of the weights it was given (rounding explains {self.slack:g}): it samples from "
                    "others, or was started without the flags of docs/engines.md"
                )
            self._follows(client.url, expected, answer)

    def _follows(self, url: str, expected: np.ndarray, answer: np.ndarray) -> None:
        before, answer_before = self._last.get(url, (expected, answer))
        moved, followed = (
            float(np.abs(a - b).max(initial=0.0)) for a, b in ((expected, before), (answer, answer_before))
        )
        if moved >= MOVED and followed < FOLLOWED * moved:
            raise PolicyFailure(
                f"after a refresh vLLM ({url}) answers as before, where the new weights change log-probabilities by "
                f"{moved:.2g}: it still samples from the old ones, or from the model without its adapter"
            )
        if moved >= MOVED or url not in self._last:  # else small changes add up
            self._last[url] = expected, answer

    async def check_served(self, clients: Sequence[VllmClient], strong: lora.MergedWeights, salt: str) -> None:
        """Raises PolicyFailure where a server does not sample from `strong`, whose adapter changes a great deal. So an
        adapter that is applied in part, or by another factor, is found in bfloat16, too."""
        (with_it, _), (without, _) = self.expected(strong, []), self.expected(strong.base, [])
        change = float(np.abs(with_it - without).mean())
        for client, part in zip(clients, await self._answers(clients, salt), strict=True):
            missing = float(np.abs(text_logprobs(part, self.text) - with_it).mean())
            if not missing <= FOUND * change:
                raise PolicyFailure(
                    f"vLLM ({client.url}) took an adapter, but a text's log-probabilities are {missing:.2g} away from "
                    f"those it should give, where it changes them by {change:.2g}"
                )

    async def _answers(self, clients: Sequence[VllmClient], salt: str) -> list[PartialCompletion]:
        return await asyncio.gather(
            *(client.complete(self.text, self.sampling, seed=0, salt=salt, score=True) for client in clients)
        )

    @torch.inference_mode()
    def expected(self, weights: Mapping[str, Tensor], ids: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """float32: what the weights say of the text from its second token on, and of `ids` sampled after it."""
        sequence, start = [*self.text, *ids], len(self.text) - 1
        given = {"input_ids": torch.tensor([sequence], device=self.model.device), "use_cache": False}
        tensors: dict[tuple[int, torch.Size], Tensor] = {}  # tied weights have two names, and must be one object
        base = lora.base_of(weights)
        once = {name: tensors.setdefault((tensor.data_ptr(), tensor.shape), tensor) for name, tensor in base.items()}
        with lora.applied(self.model, lora.adapter_of(weights)):
            logits = torch.func.functional_call(self.model, once, kwargs=given).logits[0, :-1].float()
        logits[start:] /= TEMPERATURE
        targets = torch.tensor(sequence[1:], device=logits.device)
        logprobs = torch.log_softmax(logits, dim=-1).gather(1, targets[:, None])[:, 0].cpu().numpy()
        return logprobs[:start], logprobs[start:]


def text_logprobs(part: PartialCompletion, text: Sequence[int]) -> np.ndarray:
    """The answer's log-probabilities of the text, from its second token on. Raises PolicyFailure where it has none."""
    entries = (part.prompt_logprobs or [])[1:]
    if len(entries) != len(text) - 1 or any(not e or i not in e for e, i in zip(entries, text[1:], strict=True)):
        raise PolicyFailure("vLLM gave no log-probabilities of a prompt: is it vLLM 0.32 or later?")
    return np.array([entry[i].logprob for entry, i in zip(entries, text[1:], strict=True) if entry])
