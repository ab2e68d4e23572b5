"""Prompt tokens: append-only, and never re-tokenised once sampled.

The next prompt is the last prompt, the sampled tokens, and whatever the chat template writes after them:

    rendered before   <|im_start|>user\\nA<|im_end|>\\n<|im_start|>assistant\\n
    sampled           go north <|im_end|>                                   (tokens kept as they are)
    rendered now      ...the above... \\n<|im_start|>user\\nB<|im_end|>\\n<|im_start|>assistant\\n
                                      ^ only this suffix is encoded: boundary and observation, never trained

Where the new rendering does not begin with the old one and the reply (a template that strips earlier thinking or trims
replies, a history window, a tool call that is written otherwise), the transcript forks: a new branch begins whose
prompt is the new rendering, encoded whole. Forks are counted and say why.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from agentgym.errors import CheckpointError
from agentgym.harness import Message
from agentgym.policy import Tokens
from agentgym.spec import ToolSpec
from agentgym.trajectory import Branch, Span


class ChatTemplate:
    """A Hugging Face tokenizer's chat template as three functions: render, encode, decode."""

    def __init__(self, tokenizer: Any, options: dict[str, Any] | None = None) -> None:
        """`options` go to the template (`enable_thinking`, for instance)."""
        if not getattr(tokenizer, "chat_template", None):
            raise CheckpointError(
                f"the tokenizer of {tokenizer.name_or_path or 'this model'} has no chat template; save one with it "
                "(tokenizer.chat_template = ...) or choose a chat model"
            )
        self.tokenizer = tokenizer
        self._options = options or {}
        self._encode = lru_cache(maxsize=16384)(self._encode_uncached)

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), generation: bool = True) -> str:
        """The conversation as text; with `generation`, up to where the reply begins."""
        offered = [{"type": "function", "function": tool.model_dump()} for tool in tools] or None
        return self.tokenizer.apply_chat_template(
            list(messages), tools=offered, tokenize=False, add_generation_prompt=generation, **self._options
        )

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of rendered text: special tokens are recognised, none are added. Cached: suffixes repeat."""
        return self._encode(text)

    def _encode_uncached(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def stop_ids(self) -> frozenset[int]:
        """Tokens that end a reply: the tokenizer's EOS, and the one that the template writes after a reply."""
        marker = "\u2063reply\u2063"
        probe = [{"role": "user", "content": "x"}, {"role": "assistant", "content": marker}]
        tail = self.encode(self.render(probe, generation=False).rpartition(marker)[2])
        special = set(self.tokenizer.all_special_ids)
        found = {self.tokenizer.eos_token_id} | ({tail[0]} if tail and tail[0] in special else set())
        return frozenset(token for token in found if token is not None)


class Transcript:
    """The token record of one episode, built turn by turn:

    transcript.prompt(messages) -> ids so far; sample from them; transcript.sampled(turn, ids, ...); and again.
    """

    def __init__(self, template: ChatTemplate, stop_ids: frozenset[int], tools: Sequence[ToolSpec] = ()) -> None:
        self._template, self._stop_ids, self._tools = template, stop_ids, tools
        self._covered = ""
        """The text that `ids` stand for: rendered prompt, then reply text (its stop token included)."""
        self._done: list[Branch] = []
        self._forks: list[str] = []
        self.ids: list[int] = []
        self._turn: list[int] = []
        self._logprobs: list[float] = []
        self._versions: list[int] = []

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The prompt for the next reply to `messages`, extending what was sampled wherever that is exact."""
        return self._extend(self._template.render(messages, self._tools))

    def _extend(self, rendered: str) -> list[int]:
        if rendered.startswith(self._covered):
            suffix = self._template.encode(rendered[len(self._covered) :])
            self._append(suffix)
        else:
            self._forks.append(self._why(rendered))
            self._close_branch()
            self._append(self._template.encode(rendered))
        self._covered = rendered
        return self.ids

    def sampled(self, turn: int, ids: Sequence[int], logprobs: Sequence[float], version: int) -> tuple[Span, str]:
        """Record a reply exactly as it left the engine; returns where it lies and its text without the stop token."""
        start = len(self.ids)
        self.ids.extend(ids)
        self._turn.extend([turn] * len(ids))
        self._logprobs.extend(logprobs)
        self._versions.extend([version] * len(ids))
        stopped = bool(ids) and ids[-1] in self._stop_ids
        text = self._template.decode(ids[:-1] if stopped else ids)
        # After a stop token the template's own closing text begins with that very token; after a reply that was cut by
        # length it must be written whole, unsampled.
        self._covered += text + (self._template.decode(ids[-1:]) if stopped else "")
        return Span(len(self._done), start, len(self.ids)), text

    def finish(self, messages: Sequence[Message] | None) -> Tokens:
        """All branches. `messages` of an episode that was cut are appended, unsampled, so that their value is read."""
        if messages is not None:
            self._extend(self._template.render(messages, self._tools))
        self._close_branch()
        return Tokens(tuple(self._done), tuple(self._forks))

    def _append(self, ids: Sequence[int]) -> None:
        self.ids.extend(ids)
        self._turn.extend([-1] * len(ids))
        self._logprobs.extend([0.0] * len(ids))
        self._versions.extend([-1] * len(ids))

    def _close_branch(self) -> None:
        if self.ids:
            columns = (self.ids, self._turn, self._logprobs, self._versions)
            dtypes = (np.int32, np.int32, np.float32, np.int32)
            self._done.append(Branch(*(np.array(column, dtype) for column, dtype in zip(columns, dtypes, strict=True))))
        self.ids, self._turn, self._logprobs, self._versions = [], [], [], []

    def _why(self, rendered: str) -> str:
        at = next(
            (i for i, (a, b) in enumerate(zip(self._covered, rendered, strict=False)) if a != b),
            min(len(self._covered), len(rendered)),
        )
        was, now = self._covered[max(0, at - 20) : at + 30], rendered[max(0, at - 20) : at + 30]
        return f"the template wrote {now!r} where the tokens say {was!r}"


def check_template(template: ChatTemplate) -> list[str]:
    """What to know of a template before training: why an ordinary second turn would fork; empty when it does not."""
    stop_ids = template.stop_ids()
    transcript = Transcript(template, stop_ids)
    first = [{"role": "user", "content": "one"}]
    transcript.prompt(first)
    reply = template.encode("two")
    transcript.sampled(0, [*reply, *sorted(stop_ids)[:1]], [0.0] * (len(reply) + 1), 0)
    tokens = transcript.finish([*first, {"role": "assistant", "content": "two"}, {"role": "user", "content": "three"}])
    return list(tokens.forks)
