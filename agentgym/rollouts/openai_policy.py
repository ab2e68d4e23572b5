"""OpenAIPolicy: any server that speaks OpenAI's /chat/completions, as a policy for evaluation and play.

async with OpenAIPolicy("http://localhost:8000/v1", "my-model", temperature=0.0) as policy:
    report = await evaluate(suite, policy, out, identity=policy.identity)
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, Self

import httpx
import numpy as np

from agentgym.env import ToolCall
from agentgym.errors import PolicyFailure, UsageError
from agentgym.rollouts.policy import Actor, ContextFull, EpisodeSpec, ModelResponse, TextActor, TurnContext, Usage
from agentgym.rollouts.prompt_format import Message, render_call
from agentgym.spec import ToolSpec

RETRIED = frozenset({408, 409, 425, 429, *range(500, 600)})
"""Answers that may be otherwise a moment later."""
CONTEXT_SIGNS = ("context_length_exceeded", "maximum context length", "maximum model length", "context window")
"""Phrases by which OpenAI, vLLM, SGLang and llama.cpp refuse a prompt that is too long, with a 400."""
EXCERPT = 300
"""Characters of a failed answer's body that are quoted."""


@dataclass
class OpenAIPolicy:
    """Asks `model` at `base_url` for every reply. Connections are shared by its actors and closed by `aclose`."""

    base_url: str
    """The server's URL with its version, without /chat/completions: "https://api.openai.com/v1"."""
    model: str
    api_key: str | None = field(default=None, repr=False)
    temperature: float | None = None
    """None leaves it to the server."""
    max_tokens: int | None = None
    """Maximum tokens of one response; None leaves it to the server."""
    timeout_s: float = 120.0
    """Seconds for one whole response, from sending the request."""
    retries: int = 4
    """Asked again this many times after 429, 5xx, a time-out, a lost connection or an answer that is not a reply."""
    extra_body: dict[str, Any] = field(default_factory=dict)
    """Further fields of the request: {"top_p": 0.9, "chat_template_kwargs": {...}}."""
    backoff_s: float = 0.5
    """The first wait; each further one is twice as long, with jitter. A server's Retry-After wins when longer."""
    max_wait_s: float = 120.0
    """A server that asks for a longer wait than this has failed."""
    _client: httpx.AsyncClient | None = field(default=None, init=False, repr=False)
    _loop: asyncio.AbstractEventLoop | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.base_url = self.base_url.rstrip("/").removesuffix("/chat/completions")
        self.api_key = (self.api_key or "").strip() or None
        if not self.base_url.startswith(("http://", "https://")):
            raise UsageError(f"a model's URL begins with http:// or https:// and ends with /v1, not {self.base_url!r}")

    @property
    def url(self) -> str:
        """Return the URL of the chat completions."""
        return f"{self.base_url}/chat/completions"

    @property
    def identity(self) -> str:
        """Return what decides the responses, for a run's record: URL, model and sampling options; never the key."""
        options = {"temperature": self.temperature, "max_tokens": self.max_tokens, **self.extra_body}
        settings = [f"{name}={json.dumps(value)}" for name, value in sorted(options.items()) if value is not None]
        return " ".join([self.base_url, self.model, *settings])

    def actor(self, episode: EpisodeSpec) -> Actor:
        """Return the actor of one episode."""
        return _OpenAIActor(self, episode.rng())

    async def aclose(self) -> None:
        """Close the connections. The next question opens new ones."""
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    def client(self) -> httpx.AsyncClient:
        """The connections of the running event loop."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            headers = {"Content-Type": "application/json"}
            if self.api_key:
                headers["Authorization"] = f"Bearer {self.api_key}"
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
            self._client, self._loop = httpx.AsyncClient(headers=headers, timeout=None, limits=limits), loop
        return self._client

    async def probe(self, timeout_s: float = 10.0) -> None:
        """Raise PolicyFailure at once when nobody answers at the URL, UsageError when it has no such model.

        Any HTTP answer will do. A server may run more models than it lists, so one that does not list the model is
        asked for one token of it.
        """
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self.client().get(f"{self.base_url}/models")
                listed = listed_models(answer)
                if not listed or self.model in listed:
                    return
                hello = {"model": self.model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
                answer = await self.client().post(self.url, json=hello)
                if answer.status_code == 404 or (answer.status_code in (400, 422) and self.model in answer.text):
                    raise UsageError(f"{self.base_url} has no model {self.model!r}; it has {', '.join(listed)}")
        except TimeoutError:
            raise PolicyFailure(f"{self.base_url} gave no answer in {timeout_s:g} s; check the URL") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise PolicyFailure(
                f"{self.base_url} cannot be reached ({error}); start the server, or check the URL"
            ) from error

    def body(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> dict[str, Any]:
        """The JSON of one question."""
        body: dict[str, Any] = {"model": self.model, "messages": list(messages)}
        if self.temperature is not None:
            body["temperature"] = self.temperature
        if self.max_tokens is not None:
            body["max_tokens"] = self.max_tokens
        if tools:
            body["tools"] = [as_openai_tool(tool) for tool in tools]
        return {**body, **self.extra_body}

    async def complete(self, body: dict[str, Any], rng: np.random.Generator) -> ModelResponse:
        """The reply to one request, asked again where that may help. `rng` draws the jitter of the waits.

        Raises PolicyFailure, ContextFull, or UsageError for a key or a name that is refused."""
        content = json.dumps(body).encode()  # escaped: a reply may hold half a surrogate pair
        for failures in range(self.retries + 1):
            problem, wait_s = "", 0.0
            try:
                async with asyncio.timeout(self.timeout_s):
                    response = await self.client().post(self.url, content=content)
            except TimeoutError:
                problem = f"gave no answer in {self.timeout_s:g} s"
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                problem = f"cannot be asked ({type(error).__name__}: {error})"
            else:
                try:
                    return self.read(response)
                except _TryAgain as again:
                    problem, wait_s = str(again), again.wait_s
            if failures == self.retries or wait_s > self.max_wait_s:
                break
            backoff_s = self.backoff_s * 2**failures * rng.uniform(0.75, 1.25)
            await asyncio.sleep(max(wait_s, min(backoff_s, self.max_wait_s)))
        attempts = f" (asked {failures + 1} times)" if failures else ""
        raise PolicyFailure(f"{self.url} {problem}{attempts}")

    def read(self, response: httpx.Response) -> ModelResponse:
        """The reply in an answer. Raises PolicyFailure, ContextFull, UsageError, or _TryAgain."""
        status, answer_text = response.status_code, self.excerpt(response)
        if status == 200:
            try:
                return parse_reply(response.json())
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                raise _TryAgain(f"answered 200 with something that is not a chat completion: {answer_text}") from error
        if status in (401, 403):
            key = self.api_key
            refused = (
                f"refused the API key that ends in {key[-4:]!r}" if key else "wants an API key, and none was given"
            )
            raise UsageError(f"{self.url} {refused} (status {status}); give a valid one. It said: {answer_text}")
        if status == 404:
            raise UsageError(
                f"{self.url} answered 404: check the URL (it ends with /v1) and the model's name, "
                f"{self.model!r}. It said: {answer_text}"
            )
        if status in (400, 413, 422) and any(sign in response.text.lower() for sign in CONTEXT_SIGNS):
            raise ContextFull(answer_text)
        if status in RETRIED:
            raise _TryAgain(f"answered {status}: {answer_text}", retry_after_s(response.headers.get("retry-after")))
        raise PolicyFailure(f"{self.url} answered {status}: {answer_text}")

    def excerpt(self, response: httpx.Response) -> str:
        """The beginning of the answer's body, with the key blacked out."""
        text = " ".join(response.text.split())
        if self.api_key:
            text = text.replace(self.api_key, "***")
        return text[:EXCERPT] + ("..." if len(text) > EXCERPT else "") if text else "(an empty body)"


@dataclass
class _OpenAIActor(TextActor):
    policy: OpenAIPolicy
    rng: np.random.Generator

    async def act(self, ask: TurnContext) -> ModelResponse:
        body = self.policy.body(ask.messages, ask.prompt_format.tools(ask.session.spec))
        return await self.policy.complete(body, self.rng)


class _TryAgain(Exception):
    """An answer that may be otherwise a moment later."""

    def __init__(self, problem: str, wait_s: float = 0.0) -> None:
        super().__init__(problem)
        self.wait_s = wait_s


def listed_models(answer: httpx.Response) -> list[str]:
    """Names in an answer of /models; none where it is no such list."""
    try:
        return [str(model["id"]) for model in answer.json()["data"]] if answer.status_code == 200 else []
    except (ValueError, LookupError, TypeError):
        return []


def as_openai_tool(tool: ToolSpec) -> dict[str, Any]:
    """A tool as the `tools` field takes it."""
    return {"type": "function", "function": tool.model_dump()}


def parse_reply(answer: dict[str, Any]) -> ModelResponse:
    """The first choice of a chat completion. Raises ValueError, KeyError... for what is none.

    Tool calls are also rendered into the text, so that a history of texts tells the whole reply. Where the arguments of
    a call are not JSON, all calls are only text, and the prompt format complains of it.
    """
    choice = answer["choices"][0]
    message = choice["message"]
    content = message.get("content") or ""
    if not isinstance(content, str):  # content parts
        content = "".join(part["text"] for part in content if part["type"] == "text")
    entries = message.get("tool_calls") or []
    named = [_call(entry["function"]) for entry in entries]
    texts = [content, *(text for text, _ in named)]
    calls = tuple(call for _, call in named if call is not None)
    finish = "length" if choice.get("finish_reason") == "length" else "stop"
    text = "\n".join(text for text in texts if text)
    usage = _usage(answer.get("usage"))
    if not calls or len(calls) < len(entries):
        return ModelResponse(text, finish=finish, usage=usage)
    calls_field = [
        {
            "id": entry.get("id") or f"call_{index}",
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
        }
        for index, (entry, call) in enumerate(zip(entries, calls, strict=True))
    ]
    reply: Message = {"role": "assistant", "content": content or None, "tool_calls": calls_field}
    return ModelResponse(text, calls, finish, message=reply, usage=usage)


def _usage(counted: Any) -> Usage | None:
    """Tokens of an answer's `usage`; None where the server gives no two numbers."""
    if not isinstance(counted, dict):
        return None
    prompt, completion = counted.get("prompt_tokens"), counted.get("completion_tokens")
    if not isinstance(prompt, int) or not isinstance(completion, int) or min(prompt, completion) < 0:
        return None
    return Usage(prompt, completion)


def _call(function: dict[str, Any]) -> tuple[str, ToolCall | None]:
    """(the call as text, the call or None when its arguments are no JSON object)."""
    name, raw = function["name"], function.get("arguments") or {}
    try:
        arguments = json.loads(raw) if isinstance(raw, str) else raw
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return f'<tool_call>{{"name": {json.dumps(name)}, "arguments": {raw}}}</tool_call>', None
    call: ToolCall = {"name": name, "arguments": arguments}
    return render_call(call), call


def retry_after_s(header: str | None) -> float:
    """Seconds that a Retry-After header asks for: a number, or a date. 0 when there is none or it is neither."""
    if header is None:
        return 0.0
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(header).timestamp() - time.time())
    except ValueError:
        return 0.0
