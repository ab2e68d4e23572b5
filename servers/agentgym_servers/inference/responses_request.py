"""Request of OpenAI's Responses API, and the chat request that it becomes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from agentgym_servers.inference.parsing import (
    SHOWN,
    UNSUPPORTED,
    ChatRequest,
    Temperature,
    TokenLimit,
    chat_request,
    invalid,
    plain_fields,
)

UNSUPPORTED_HERE: dict[str, tuple[Any, ...]] = {
    **UNSUPPORTED,
    "background": (False,),
    "chat_template_kwargs": ({},),
    "context_management": ([],),
    "conversation": (),
    "include": ([], ["reasoning.encrypted_content"]),
    "prompt": (),
    "reasoning": ({}, {"effort": "none"}),
    "return_token_ids": (False,),
    "text": ({"format": {"type": "text"}}, {}),
    "truncation": ("disabled",),
}
"""Fields that are not supported, and the values that ask for nothing; so does null."""
ITEMS = ("message", "function_call", "function_call_output")


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)


class TextPart(_Part):
    type: Literal["input_text", "output_text"]
    text: str


def _parts(content: Any) -> Any:
    """A text is a list of one part. Raises ValueError for a part that is no text."""
    if isinstance(content, str):
        return [{"type": "input_text", "text": content}]
    for part in content if isinstance(content, list) else []:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("input_text", "output_text"):
            raise ValueError(f"only text is understood: input_text and output_text, not {str(kind)[:SHOWN]!r}")
    return content


def _items(given: Any) -> Any:
    """A text is one message. Raises ValueError for an item that is none of ITEMS."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if not isinstance(given, list):
        return given
    items = [{"type": "message", **item} if isinstance(item, dict) else item for item in given]
    for item in items:
        kind = item["type"] if isinstance(item, dict) else None
        if kind not in ITEMS:
            raise ValueError(f"an item is one of {', '.join(ITEMS)}; not {str(kind)[:SHOWN]!r}: nothing else is read")
    return items


TextParts = Annotated[list[TextPart], BeforeValidator(_parts, json_schema_input_type=str | list[Any])]


class MessageItem(_Part):
    type: Literal["message"]
    role: Literal["user", "assistant", "system", "developer"]
    content: TextParts


class FunctionCallItem(_Part):
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class FunctionOutputItem(_Part):
    type: Literal["function_call_output"]
    call_id: str
    output: TextParts


Item = Annotated[MessageItem | FunctionCallItem | FunctionOutputItem, Field(discriminator="type")]
Items = Annotated[
    list[Item], Field(min_length=1), BeforeValidator(_items, json_schema_input_type=str | list[dict[str, Any]])
]


class FunctionDefinition(_Part):
    type: Literal["function"]
    name: str
    description: str = ""
    parameters: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _kind(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("type") != "function":
            kind = str(given.get("type"))[:SHOWN]
            raise ValueError(f'the tool {kind!r} is not here: a tool is {{"type": "function", "name", "parameters"}}')
        return {name: value for name, value in given.items() if value is not None} if isinstance(given, dict) else given


class ResponsesRequest(_Part):
    model: str | None = None
    """None is the one that is served."""
    input: Items
    instructions: str = ""
    tools: list[FunctionDefinition] = []
    tool_choice: Literal["auto", "none"] = "auto"
    max_output_tokens: TokenLimit | None = None
    temperature: Temperature | None = None
    stream: bool = False
    metadata: dict[str, str] = {}

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, given: Any) -> Any:
        given = plain_fields(given, UNSUPPORTED_HERE)
        if isinstance(given, dict) and "previous_response_id" in given:
            message = "no response is stored here, so that none can be gone on with: send the conversation as input"
            raise invalid(message, "previous_response_id")
        return given

    def chat(self) -> ChatRequest:
        """The same conversation as a chat request. Raises ApiError.

        Calls that follow a message of the assistant are that message's.
        """
        messages: list[dict[str, Any]] = []
        if self.instructions:
            messages.append({"role": "system", "content": self.instructions})
        for item in self.input:
            if isinstance(item, MessageItem):
                messages.append({"role": item.role, "content": _text(item.content)})
            elif isinstance(item, FunctionOutputItem):
                messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _text(item.output)})
            else:
                if not messages or messages[-1]["role"] != "assistant":
                    messages.append({"role": "assistant", "content": ""})
                function = {"name": item.name, "arguments": item.arguments}
                call = {"id": item.call_id, "type": "function", "function": function}
                messages[-1].setdefault("tool_calls", []).append(call)
        tools = [tool.model_dump(exclude={"type"}, exclude_none=True) for tool in self.tools]
        return chat_request(
            {
                "model": self.model,
                "messages": messages,
                "max_tokens": self.max_output_tokens,
                "temperature": self.temperature,
                "stream": self.stream,
                "tools": [{"type": "function", "function": tool} for tool in tools],
                "tool_choice": self.tool_choice,
            }
        )


def _text(parts: list[TextPart]) -> str:
    return "".join(part.text for part in parts)
