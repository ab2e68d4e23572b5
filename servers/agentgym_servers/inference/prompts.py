"""Prompt tokens of a request: made in threads, within a time limit, and no longer than the context could hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from agentgym.errors import UsageError
from agentgym.spec import ToolSpec
from agentgym_servers.inference.parsing import MAX_REPLIES, ApiError, ChatRequest, TextRequest, invalid, too_long
from agentgym_servers.inference.time_limit import TimeLimit

BYTES_A_TOKEN = 64
"""A prompt may have this many bytes for each token of the context, and 64 KiB: nothing longer could fit."""
RENDER_S = 10.0
"""Seconds in which a chat template and a tokenizer make tokens of one request."""
RENDERS_AT_ONCE = 4
RETRY_AFTER_S = 1

ResultT = TypeVar("ResultT")


class PromptModel(Protocol):
    """Interface of a model's prompts; `render` and `encode` are called from several threads."""

    max_length: int
    """Tokens of prompt and reply together."""

    @property
    def vocabulary(self) -> int: ...

    def render(self, messages: Sequence[dict[str, Any]], tools: Sequence[ToolSpec], options: dict[str, Any]) -> str:
        """The conversation as text, up to where the reply begins. Raises UsageError where the chat template refuses
        it."""
        ...

    def encode(self, text: str, special: bool) -> list[int]:
        """A text's tokens; with `special`, those that the tokenizer puts around a text, too."""
        ...


def max_bytes(max_length: int) -> int:
    """Most bytes of a body, and characters of a prompt, for a context of `max_length` tokens."""
    return 2**16 + BYTES_A_TOKEN * max_length


class PromptReader:
    """All methods raise ApiError for what cannot be a prompt."""

    def __init__(self, model: PromptModel, render_s: float = RENDER_S) -> None:
        self.model = model
        self._limit = TimeLimit(render_s, RENDERS_AT_ONCE)

    async def chat(self, body: ChatRequest) -> tuple[str, list[int]]:
        """The conversation as text, and its tokens."""
        tools, longest = body.tool_specs(), self.model.max_length
        if len(body.messages) > longest:
            raise too_long(longest, f"{len(body.messages)} messages")

        def render() -> tuple[str, list[int]]:
            text = self.model.render(body.messages, tools, body.chat_template_kwargs)
            if len(text) > max_bytes(longest):
                raise too_long(longest, f"{len(text)} characters")
            return text, self.model.encode(text, False)

        try:
            text, ids = await self._within_limit(render, "messages")
        except UsageError as error:
            message = f"the model's chat template cannot read these messages: {error}"
            raise ApiError(400, message, code="invalid_messages", param="messages") from error
        if not ids:
            raise ApiError(400, "a prompt has at least one token", code="invalid_messages", param="messages")
        return text, ids

    async def texts(self, body: TextRequest) -> list[list[int]]:
        """The tokens of each prompt."""
        prompts, vocabulary = body.prompts(), self.model.vocabulary
        if len(prompts) > MAX_REPLIES:
            raise invalid(f"a request has at most {MAX_REPLIES} replies", "prompt")

        def encode() -> list[list[int]]:
            special = body.add_special_tokens
            return [self.model.encode(one, special) if isinstance(one, str) else one for one in prompts]

        found = await self._within_limit(encode, "prompt")
        if not found or not all(found):
            raise invalid("a prompt has at least one token", "prompt")
        if not all(0 <= token < vocabulary for prompt in found for token in prompt):
            raise invalid(f"a token's id is 0 to {vocabulary - 1}", "prompt")
        return found

    async def _within_limit(self, function: Callable[[], ResultT], param: str) -> ResultT:
        try:
            return await self._limit.run(function)
        except TimeoutError as error:
            message = f"no prompt could be made of the {param} within {self._limit.limit_s:g} s: shorten them"
            raise ApiError(400, message, code="prompt_timeout", param=param) from error
        except BlockingIOError as error:
            raise ApiError(503, "other prompts are being read; ask again later", retry_s=RETRY_AFTER_S) from error
