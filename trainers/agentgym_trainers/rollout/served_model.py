"""A model for the inference server: prompts become tokens, and replies are sampled many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from agentgym.rollouts.prompt_format import Message
from agentgym.spec import ToolSpec
from agentgym_trainers.engines.base import Engine, Sampling
from agentgym_trainers.engines.inprocess import InProcessConversation, InProcessEngine, shared_prefix
from agentgym_trainers.rollout.images import refuse_images
from agentgym_trainers.rollout.tokens import ChatTemplate


class ServedModel:
    """Replies of an engine to prompts that come one by one. Use it within one event loop.

    An InProcessEngine's sequences are kept open: a prompt that begins with an earlier one and its reply is computed
    from there on. Another engine is asked for every reply anew, and tells it when it is whole. At most `max_sequences`
    prompts are answered at once; others wait, first come first served.
    """

    def __init__(
        self,
        engine: Engine,
        template: ChatTemplate,
        *,
        name: str,
        max_sequences: int,
        temperature: float = 1.0,
        max_tokens: int | None = None,
        fingerprint: str = "",
    ) -> None:
        """`temperature` and `max_tokens` are of requests that do not say; None is as many as there is room for."""
        self.engine, self.template, self.name = engine, template, name
        self.temperature, self.max_tokens, self.fingerprint = temperature, max_tokens, fingerprint
        self.max_length, self.stop_ids = engine.max_length, template.stop_ids()
        self._room = asyncio.Semaphore(max_sequences)
        self._most = self._unopened = max_sequences
        self._idle: list[tuple[InProcessConversation, int]] = []
        """Sequences that nobody uses, the longest idle first, and the length of the last prompt of each."""
        self._unseeded = np.random.default_rng()

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec], options: dict[str, Any]) -> str:
        """The conversation as text, up to where the reply begins; `options` go to the chat template.

        Raises CheckpointError where the template refuses the conversation, or it has an image: served models read text
        alone.
        """
        refuse_images(messages, "a served model reads text alone")
        merged = self.template.options | options
        template = ChatTemplate(self.template.tokenizer, merged) if options else self.template
        return template.render(messages, tools)

    def encode(self, text: str, special: bool) -> list[int]:
        """A text's tokens; with `special`, those that the tokenizer puts around a text, too."""
        text = text.encode(errors="replace").decode()
        return list(self.template.tokenizer(text, add_special_tokens=special)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        return self.template.decode(ids)

    @property
    def vocabulary(self) -> int:
        return len(self.template.tokenizer)

    async def generate(
        self,
        prompt: Sequence[int],
        *,
        temperature: float,
        max_tokens: int,
        seed: Sequence[int] | np.random.Generator | None,
        on_token: Callable[[int, float], bool],
    ) -> list[int]:
        """Sample a reply; returns the version of the weights that sampled each token. `on_token` is told every token
        and its log-probability; where it returns True, or at one of `stop_ids`, the reply is over. `seed` may be a
        random stream that is gone on with. Raises PolicyFailure when the engine fails."""
        rng = self._unseeded.spawn(1)[0] if seed is None else np.random.default_rng(seed)
        sampling = Sampling(temperature, max_tokens, self.stop_ids)
        async with self._room:
            if not isinstance(self.engine, InProcessEngine):
                return await self._full_response(self.engine, prompt, sampling, rng, on_token)
            conversation = self._take(self.engine, prompt)
            try:
                return (await conversation.generate(prompt, sampling, rng=rng, on_token=on_token)).versions
            finally:
                self._idle.append((conversation, len(prompt)))

    async def close(self) -> None:
        """Give the engine's sequences back, once nothing is under way any more. The next prompt opens new ones."""
        for _ in range(self._most):
            await self._room.acquire()
        for conversation, _ in self._idle:
            conversation.close()
        self._unopened, self._idle = self._most, []
        for _ in range(self._most):
            self._room.release()

    async def _full_response(
        self,
        engine: Engine,
        prompt: Sequence[int],
        sampling: Sampling,
        rng: np.random.Generator,
        on_token: Callable[[int, float], bool],
    ) -> list[int]:
        conversation = engine.open(rng)
        try:
            completion = await conversation.generate(prompt, sampling)
        finally:
            conversation.close()
        for count, one in enumerate(zip(completion.ids, completion.logprobs, strict=True), 1):
            if on_token(*one):
                return completion.versions[:count]
        return completion.versions

    def _take(self, engine: InProcessEngine, prompt: Sequence[int]) -> InProcessConversation:
        """The idle sequence that this prompt continues; else one that was never used; else the one with most to share.

        A reply may come back as other tokens than were sampled, so a prompt continues a sequence when it begins with
        that sequence's last prompt.
        """
        prompt = list(prompt)
        shared = [min(shared_prefix(idle.cached, prompt), len(idle.cached)) for idle, _ in self._idle]
        best = max(range(len(shared)), key=shared.__getitem__, default=None)
        if self._unopened and (best is None or shared[best] < self._idle[best][1] - 1):
            self._unopened -= 1
            return engine.open(self._unseeded)
        assert best is not None, "the semaphore lets in no more than there are sequences"
        return self._idle.pop(best)[0]
