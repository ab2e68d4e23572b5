"""The inference server's answers, in OpenAI's shapes: whole, or in chunks as the replies grow."""

from __future__ import annotations

import time
import uuid
from typing import Any, ClassVar

from agentgym_servers.inference.generation import Decode, Generation
from agentgym_servers.inference.parsing import (
    ChatRequest,
    TextRequest,
    chat_logprobs,
    read_calls,
    text_logprobs,
    usage,
)

Chunk = dict[str, Any]


class CompletionResponse:
    """One request's replies: `n` to each prompt, prompt by prompt."""

    kind: ClassVar[tuple[str, str, str]]
    """The id's prefix, and `object` of the whole answer and of a chunk."""

    def __init__(
        self, model: str, fingerprint: str, prompts: list[list[int]], replies: list[Generation], decode: Decode
    ) -> None:
        self.prompts, self.replies, self._decode = prompts, replies, decode
        self.recorded: dict[str, Any] | None = None
        """The turn and episode that the response became, where it is recorded."""
        prefix, self._object, self._chunk = self.kind
        self._head = {
            "id": f"{prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": fingerprint or None,
        }

    def full(self) -> dict[str, Any]:
        choices = [self.choice(index, reply) for index, reply in enumerate(self.replies)]
        fields = {"choices": choices, "usage": self.usage(), **self.extra(), **self.recording()}
        return {**self._head, "object": self._object, **fields}

    def chunk(self, *choices: Chunk, **more: Any) -> dict[str, Any]:
        return {**self._head, "object": self._chunk, "choices": list(choices), **more}

    def usage(self) -> dict[str, int]:
        return usage(sum(map(len, self.prompts)), sum(len(reply.ids) for reply in self.replies))

    def texts(self, reply: Generation, tokens: slice) -> list[str]:
        return [self._decode([token]) for token in reply.ids[tokens]]

    def extra(self) -> dict[str, Any]:
        """Fields beside OpenAI's."""
        return {}

    def recording(self) -> dict[str, Any]:
        return {"agentgym": self.recorded} if self.recorded is not None else {}

    def choice(self, index: int, reply: Generation) -> Chunk:
        raise NotImplementedError

    def opening(self, index: int) -> Chunk | None:
        """The first chunk's choice, before any text."""
        return None

    def growth(self, index: int, reply: Generation) -> Chunk | None:
        """Return what is new in a response; None when there is nothing to send yet."""
        raise NotImplementedError

    def closing(self, index: int, reply: Generation) -> Chunk:
        """The last chunk's choice: why the reply ended."""
        raise NotImplementedError


class ChatResponse(CompletionResponse):
    kind = ("chatcmpl", "chat.completion", "chat.completion.chunk")

    def __init__(self, request: ChatRequest, *rest: Any) -> None:
        super().__init__(*rest)
        self.request = request
        self._offered = bool(request.tools) and request.tool_choice != "none"

    def extra(self) -> dict[str, Any]:
        return {"prompt_token_ids": self.prompts[0]} if self.request.return_token_ids else {}

    def choice(self, index: int, reply: Generation) -> Chunk:
        content, calls = self._read(reply)
        message = {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}
        finish = "tool_calls" if calls else reply.finish
        return {"index": index, "message": message, "finish_reason": finish, **self._tokens(reply, slice(None))}

    def opening(self, index: int) -> Chunk:
        return {"index": index, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}

    def growth(self, index: int, reply: Generation) -> Chunk | None:
        if self._offered:  # whether it is text or a call is known at its end
            return None
        text, tokens = reply.take()
        fields = self._tokens(reply, tokens)
        wanted = text or ((self.request.logprobs or self.request.return_token_ids) and reply.ids[tokens])
        return {"index": index, "delta": {"content": text}, "finish_reason": None, **fields} if wanted else None

    def closing(self, index: int, reply: Generation) -> Chunk:
        if not self._offered:
            return {"index": index, "delta": {}, "finish_reason": reply.finish}
        content, calls = self._read(reply)
        numbered = [{"index": number, **call} for number, call in enumerate(calls)]
        delta = {"content": content, **({"tool_calls": numbered} if calls else {})}
        finish = "tool_calls" if calls else reply.finish
        return {"index": index, "delta": delta, "finish_reason": finish, **self._tokens(reply, slice(None))}

    def _read(self, reply: Generation) -> tuple[str | None, list[dict[str, Any]]]:
        return read_calls(reply.text) if self._offered else (reply.text, [])

    def _tokens(self, reply: Generation, tokens: slice) -> dict[str, Any]:
        logprobs = chat_logprobs(self.texts(reply, tokens), reply.logprobs[tokens]) if self.request.logprobs else None
        ids = {"token_ids": reply.ids[tokens]} if self.request.return_token_ids else {}
        return {"logprobs": logprobs, **ids}


class TextResponse(CompletionResponse):
    kind = ("cmpl", "text_completion", "text_completion")

    def __init__(self, request: TextRequest, *rest: Any) -> None:
        super().__init__(*rest)
        self.request = request

    def choice(self, index: int, reply: Generation) -> Chunk:
        return self._choice(index, reply, reply.text, slice(None), reply.finish)

    def growth(self, index: int, reply: Generation) -> Chunk | None:
        text, tokens = reply.take()
        wanted = text or ((self.request.logprobs is not None or self.request.return_token_ids) and reply.ids[tokens])
        return self._choice(index, reply, text, tokens, None) if wanted else None

    def closing(self, index: int, reply: Generation) -> Chunk:
        return {"index": index, "text": "", "finish_reason": reply.finish, "logprobs": None}

    def _choice(self, index: int, reply: Generation, text: str, tokens: slice, finish: str | None) -> Chunk:
        logprobs = None
        if self.request.logprobs is not None:
            logprobs = text_logprobs(self.texts(reply, tokens), reply.logprobs[tokens], reply.offsets[tokens])
        fields: Chunk = {"index": index, "text": text, "finish_reason": finish, "logprobs": logprobs}
        if self.request.return_token_ids:
            fields |= {"token_ids": reply.ids[tokens], "prompt_token_ids": self.prompts[index // self.request.n]}
        return fields
