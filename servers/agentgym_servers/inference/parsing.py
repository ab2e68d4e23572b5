"""Requests and errors of the inference server in OpenAI's shapes. A ChatRequest is what the other shapes become.

A field that would change the reply and is not supported is refused, unless it says what is done anyway (`top_p` 1).
Fields that are not known are ignored, as other servers do. Numbers are numbers: no strings, no booleans, no NaN.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from agentgym.spec import ToolSpec
from agentgym_servers.inference.template_options import TOP_LEVEL, option_error
from agentgym_servers.web.parsing import has_many

MAX_REPLIES = 64
"""Replies of one request, over all its prompts."""
MAX_STOPS = 16
MAX_STOP_CHARS = 256
"""Characters of a stop string: each token of a reply is compared with all of them."""
MAX_TOKENS = 2**31 - 1
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.01, 100.0
"""A temperature is 0, which is greedy, or in this range: logits divided by less overflow."""
SHOWN = 200
"""Characters of the client's own text that an error repeats."""


class ApiError(Exception):
    """A refusal. `body` is OpenAI's shape of it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.param, self.retry_s = status, code, param, retry_s

    def body(self) -> dict[str, Any]:
        kind = _KINDS.get(self.status, "invalid_request_error")
        fields = {"message": str(self), "type": kind}
        return {"error": {**fields, "param": self.param, "code": self.code}}


_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    500: "server_error",
    503: "overloaded_error",
}


def validation_error(error: ValidationError) -> ApiError:
    """A 400 that names the fields that are wrong."""
    if has_many(error):
        return ApiError(400, f"{error.error_count()} of its values are wrong", code="invalid_value")
    errors = error.errors(include_url=False, include_context=False, include_input=False)[:5]
    problems = [(".".join(map(str, one["loc"]))[:SHOWN], one["msg"].removeprefix("Value error, ")) for one in errors]
    message = "; ".join(f"{where}: {what}" if where else what for where, what in problems)
    return ApiError(400, message, code="invalid_value", param=problems[0][0] or None)


def too_long(length: int, prompt: str, limit: int = 0, param: str = "messages") -> ApiError:
    """`prompt` says how long the prompt is, `limit` how long the reply may become."""
    more = f" and the reply may have {limit}" if limit else ""
    message = (
        f"this model's maximum context length is {length} tokens; the prompt has {prompt}{more}: shorten the {param}, "
        "or lower max_tokens"
    )
    return ApiError(400, message, code="context_length_exceeded", param=param)


def invalid(message: str, param: str) -> ApiError:
    return ApiError(400, message, code="invalid_value", param=param)


UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
    "ignore_eos": (False,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "top_logprobs": (0,),
    "prompt_logprobs": (),
    "functions": ([],),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "continue_final_message": (False,),
    "audio": (),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "prompt_embeds": (),
    "skip_special_tokens": (True,),
    "truncate_prompt_tokens": (-1,),
    "use_beam_search": (False,),
}
"""Fields that are not supported, and the values that ask for nothing; so does null."""


def plain_fields(given: Any, unsupported: Mapping[str, tuple[Any, ...]]) -> Any:
    """The fields of a body that are not null. Raises ApiError for those that are not supported."""
    if not isinstance(given, dict):
        return given
    given = {name: value for name, value in given.items() if value is not None}
    for name, value in given.items():
        if name in unsupported and not any(_same(value, one) for one in unsupported[name]):
            neutral = unsupported[name]
            instead = f"; leave it out, or send {json.dumps(neutral[0])}" if neutral else "; leave it out"
            raise invalid(f"{name} is not supported by this server{instead}", name)
        if name in TOP_LEVEL or (name.startswith("return_") and name != "return_token_ids"):
            raise invalid(f"{name[:SHOWN]} is not supported: the server decides it; leave it out", name[:SHOWN])
    return given


def _not_too_low(temperature: float) -> float:
    if temperature and temperature < MIN_TEMPERATURE:
        raise ValueError(f"it is 0, which is greedy, or {MIN_TEMPERATURE:g} to {MAX_TEMPERATURE:g}")
    return temperature


def _stops(stop: list[str]) -> list[str]:
    if not all(stop):
        raise ValueError("an empty string ends nothing; leave it out")
    if any(len(one) > MAX_STOP_CHARS for one in stop):
        raise ValueError(f"a stop string has at most {MAX_STOP_CHARS} characters")
    return stop


TokenLimit = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Temperature = Annotated[float, Field(ge=0, le=MAX_TEMPERATURE, allow_inf_nan=False), AfterValidator(_not_too_low)]
StopStrings = Annotated[list[str], Field(max_length=MAX_STOPS), AfterValidator(_stops)]


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)

    include_usage: bool = False


class _Request(BaseModel):
    """Fields of both kinds of completion."""

    model_config = ConfigDict(extra="ignore", strict=True)

    model: str | None = None
    """None is the one that is served."""
    max_tokens: TokenLimit | None = None
    temperature: Temperature | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    n: int = Field(default=1, ge=1, le=MAX_REPLIES)
    stop: StopStrings = []
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, given: Any) -> Any:
        given = plain_fields(given, UNSUPPORTED)
        if isinstance(given, dict) and isinstance(given.get("stop"), str):
            given["stop"] = [given["stop"]]
        return given


class ChatRequest(_Request):
    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: TokenLimit | None = None
    logprobs: bool = False
    tools: list[dict[str, Any]] = []
    tool_choice: Literal["auto", "none"] = "auto"
    chat_template_kwargs: dict[str, Any] = {}

    def limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @field_validator("chat_template_kwargs")
    @classmethod
    def _plain_variables(cls, options: dict[str, Any]) -> dict[str, Any]:
        if (problem := option_error(options)) is not None:
            field, what = problem
            raise invalid(f"{field}: {what}", field)
        return options

    @model_validator(mode="after")
    def _read(self) -> Self:
        self.messages = [_message(message) for message in self.messages]
        return self

    @property
    def offers_tools(self) -> bool:
        return bool(self.tools) and self.tool_choice != "none"

    def read(self, text: str) -> tuple[str | None, list[dict[str, Any]]]:
        """(content, tool calls) of a reply to this request."""
        return read_calls(text) if self.offers_tools else (text, [])

    def tool_specs(self) -> list[ToolSpec]:
        """Raises ApiError for what is no function."""
        if self.tool_choice == "none":
            return []
        try:
            functions = [tool["function"] for tool in self.tools]
            known = [{key: one[key] for key in ToolSpec.model_fields if one.get(key) is not None} for one in functions]
            return [ToolSpec.model_validate(one) for one in known]
        except (LookupError, TypeError, AttributeError, ValidationError) as error:
            message = 'a tool is {"type": "function", "function": {"name", "description", "parameters"}}'
            raise ApiError(400, message, code="invalid_value", param="tools") from error


def chat_request(fields: dict[str, Any]) -> ChatRequest:
    """The chat request that another shape's becomes. Raises ApiError."""
    try:
        return ChatRequest.model_validate(fields)
    except ValidationError as error:
        raise validation_error(error) from error


class TextRequest(_Request):
    prompt: str | list[int] | list[str] | list[list[int]]
    logprobs: int | None = Field(default=None, ge=0)
    add_special_tokens: bool = True

    @field_validator("logprobs")
    @classmethod
    def _own(cls, logprobs: int | None) -> int | None:
        if logprobs:
            raise ValueError("alternatives are not given; send 0 for the sampled tokens' own")
        return logprobs

    def prompts(self) -> list[str | list[int]]:
        """One or several; an empty list is no prompt."""
        if isinstance(self.prompt, str) or (self.prompt and isinstance(self.prompt[0], int)):
            return [self.prompt]  # type: ignore[list-item]
        return list(self.prompt)  # type: ignore[arg-type]


_ROLE = re.compile(r"[a-zA-Z0-9_-]{1,32}", re.ASCII)


def _same(value: Any, other: Any) -> bool:
    """Equality in which `true` is not 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """A message as chat templates take it: its content is text, the arguments of its tool calls are objects, and
    OpenAI's newer name of the system is its older one."""
    role = message.get("role")
    if not isinstance(role, str) or not _ROLE.fullmatch(role):
        raise ValueError("messages: every message has a role: system, developer, user, assistant or tool")
    content = message.get("content")
    if isinstance(content, list):
        if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
            raise ValueError("messages: only text is understood; a part of a message is something else")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str | None):
        raise ValueError("messages: the content of a message is text")
    read = {**message, "role": "system" if role == "developer" else role, "content": content or ""}
    if message.get("tool_calls"):
        if not isinstance(message["tool_calls"], list):
            raise ValueError("messages: the tool calls of a message are a list")
        read["tool_calls"] = [_native_call(call) for call in message["tool_calls"]]
    return read


def _native_call(call: Any) -> dict[str, Any]:
    try:
        function = call["function"]
        arguments = function.get("arguments") or "{}"
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        return {**call, "function": {"name": function["name"], "arguments": arguments}}
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise ValueError("messages: a tool call has a function with a name and arguments that are JSON") from error


_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


def read_calls(text: str) -> tuple[str | None, list[dict[str, Any]]]:
    """(content, tool calls) of a reply to which tools were offered; no calls unless all that it names can be read."""
    calls = []
    for spelled in _CALL.findall(text):
        try:
            call = json.loads(spelled)
            json.dumps(call, allow_nan=False, ensure_ascii=False).encode()  # what no response can hold is no call
        except (ValueError, RecursionError):
            return text, []
        arguments = call.get("arguments", {})
        if not isinstance(call.get("name"), str) or not isinstance(arguments, dict):
            return text, []
        function = {"name": call["name"], "arguments": json.dumps(arguments)}
        calls.append({"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function})
    if not calls:
        return text, []
    return _CALL.sub("", text).strip() or None, calls


def usage(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def chat_logprobs(tokens: Sequence[str], logprobs: Sequence[float]) -> dict[str, Any]:
    content = [
        {"token": token, "logprob": logprob, "bytes": _bytes(token), "top_logprobs": []}
        for token, logprob in zip(tokens, logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


def text_logprobs(tokens: Sequence[str], logprobs: Sequence[float], offsets: Sequence[int]) -> dict[str, Any]:
    return {
        "tokens": list(tokens),
        "token_logprobs": list(logprobs),
        "top_logprobs": None,
        "text_offset": list(offsets),
    }


def _bytes(token: str) -> list[int] | None:
    """None for a token that is only part of a character."""
    return None if "\ufffd" in token else list(token.encode())
