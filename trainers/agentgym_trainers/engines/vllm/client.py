"""One vLLM server over HTTP: replies token by token, and the few orders that new weights need.

Nothing is applied twice by asking again: a reply that was lost was given to nobody, and every order may be repeated. So
a lost connection is tried again, a few times; a status that refuses and a deadline that passed are not.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any, Literal, TypeVar

import httpx
from pydantic import BaseModel, Field, ValidationError

from agentgym.errors import ConfigError, PolicyFailure
from agentgym_trainers.engines.base import Sampling

TRIES = 3
BACKOFF_S = 0.2
"""Seconds before the second try; twice as long before the third."""
CONNECT_S = 10.0
KEPT_S = 2.0
"""Idle connections are let go after this, before the server's own 5 seconds can cut one that is being used."""
EXCERPT = 300
"""Characters of a refusal that are quoted."""
UNTOUCHED = {
    "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0, "n": 1,
}  # fmt: skip
"""The distribution is the model's own. Said, since a server may take defaults from the checkpoint."""
RESPONSE_FIELDS = {"logprobs": 0, "return_token_ids": True, "return_tokens_as_token_ids": True}
ADAPTER = re.compile(r"step-\d+|trial", re.ASCII)
"""Names under which adapters of ours are loaded."""


def adapter_name(version: int) -> str:
    """The name of the adapter with the weights of this version."""
    return f"step-{version}"


class ServerUnavailable(PolicyFailure):
    """Nobody is there, or who is there has just lost what answers."""


class Logprobs(BaseModel):
    token_logprobs: list[float]


class PromptLogprob(BaseModel):
    logprob: float


class PartialCompletion(BaseModel):
    """Result of one request: a response, or the part of it that was sampled before an abort."""

    token_ids: list[int]
    logprobs: Logprobs
    finish_reason: Literal["stop", "length", "abort"]
    prompt_logprobs: list[dict[int, PromptLogprob] | None] | None = None
    """Log-probabilities of the prompt from its second token on, at temperature 1, where they were requested."""


class _Answer(BaseModel):
    choices: list[PartialCompletion] = Field(min_length=1, max_length=1)


class _Model(BaseModel):
    id: str
    max_model_len: int | None
    """None of an adapter."""


class _Models(BaseModel):
    data: list[_Model] = Field(min_length=1)


class _Reset(BaseModel):
    success: bool


class WorkerDevice(BaseModel):
    """Device of one of a server's workers, and how it takes weights from another process's memory."""

    gpu: str | None
    """UUID; None on a CPU."""
    backend: str | None
    """vLLM's name of it: "ipc", "nccl"; None: not at all."""


class _Devices(BaseModel):
    results: list[WorkerDevice]


class _Anything(BaseModel): ...


M = TypeVar("M", bound=BaseModel)


class VllmClient:
    """Asks the server at `url`. Every call ends within `deadline_s` seconds, or raises PolicyFailure."""

    def __init__(self, url: str, deadline_s: float) -> None:
        self.url, self.deadline_s = url.rstrip("/").removesuffix("/v1"), deadline_s
        self.model = self.base = ""
        """Names of what requests sample from, an adapter or not, and of the server's own model; known after `require`.
        """
        limits = httpx.Limits(max_connections=None, keepalive_expiry=KEPT_S)
        self._http = httpx.AsyncClient(
            base_url=self.url, limits=limits, timeout=httpx.Timeout(None, connect=CONNECT_S), trust_env=False
        )

    async def require(self, max_length: int) -> None:
        """Learn the model's name. Raises ConfigError where it holds fewer than `max_length` tokens."""
        model = (await self._models())[0]
        if (model.max_model_len or 0) < max_length:
            raise ConfigError(
                f"the vLLM server at {self.url} holds {model.max_model_len} tokens and rollout.max_length is "
                f"{max_length}: start it with --max-model-len {max_length}, or lower rollout.max_length"
            )
        self.model = self.base = model.id

    async def _models(self) -> list[_Model]:
        """The server's own model, and its adapters."""
        return (await self._ask("GET", "/v1/models", _Models)).data

    async def _adapters(self) -> set[str]:
        """Names of adapters of ours, those of an earlier run too."""
        return {m.id for m in await self._models() if m.max_model_len is None and ADAPTER.fullmatch(m.id)}

    async def use_version(self, version: int) -> None:
        """Sample from the adapter of this version from now on, or from the server's model where there is none such."""
        name = adapter_name(version)
        self.model = name if name in await self._adapters() else self.base

    async def load_adapter(self, name: str, folder: str) -> None:
        """Sample from the adapter in `folder` from now on. Others of ours are let go before: nothing may be under way.

        vLLM 0.32's `load_inplace` is not for this: it reads the folder again with every request.
        """
        await self.drop_adapters()
        await self._change_adapter("load", True, {"lora_name": name, "lora_path": folder})
        self.model = name

    async def drop_adapters(self) -> None:
        """Sample from the server's own model from now on, and let go of adapters of ours."""
        self.model = self.base
        for name in await self._adapters():
            await self._change_adapter("unload", False, {"lora_name": name})

    async def _change_adapter(self, verb: str, loaded: bool, body: dict[str, str]) -> None:
        """Load or unload an adapter. What was done, and whose answer was lost, is refused when it is asked again."""
        try:
            await self._answer("POST", f"/v1/{verb}_lora_adapter", {"json": body})
        except PolicyFailure:
            if (body["lora_name"] in await self._adapters()) is not loaded:
                raise

    async def devices(self) -> list[WorkerDevice]:
        """Devices of the server's workers."""
        return (await self._rpc("agentgym_device", _Devices)).results

    async def complete(
        self, prompt: Sequence[int], sampling: Sampling, *, seed: int, salt: str, score: bool = False
    ) -> PartialCompletion:
        """Sample up to `sampling.max_new_tokens` tokens after `prompt`, the stop token included, and their
        log-probabilities; with `score` also those of the prompt.

        `salt` keeps apart the keys and values of different weights in the server's cache.
        """
        body = {
            "model": self.model,
            "prompt": list(prompt),
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "stop_token_ids": sorted(sampling.stop_ids),
            "ignore_eos": True,  # only `stop_ids` stop
            "seed": seed,
            "cache_salt": salt,
            **UNTOUCHED,
            **RESPONSE_FIELDS,
            **({"prompt_logprobs": 0} if score else {}),
        }
        part = (await self._ask("POST", "/v1/completions", _Answer, json=body)).choices[0]
        ids, logprobs = part.token_ids, part.logprobs.token_logprobs
        has_tokens = part.finish_reason == "abort" or ids
        if len(ids) != len(logprobs) or not has_tokens or len(ids) > sampling.max_new_tokens:
            raise PolicyFailure(
                f"the vLLM server at {self.url} answered {len(ids)} tokens and {len(logprobs)} log-probabilities where "
                f"at most {sampling.max_new_tokens} tokens were asked for"
            )
        return part

    async def pause(self) -> None:
        """Begin nothing new, and end every reply under way: each answers with what it has."""
        await self._ask("POST", "/pause", _Anything, params={"mode": "abort"})

    async def abort(self) -> None:
        """End what arrived after the pause."""
        await self._ask("POST", "/abort_requests", _Anything, json={})

    async def read_weights(self, folder: str) -> None:
        """Take the weights of a checkpoint's folder; adapters are added to them."""
        await self._rpc("read_agentgym_weights", _Anything, folder)

    async def _rpc(self, method: str, kind: type[M], *arguments: str) -> M:
        """Call a method of every worker of the server."""
        return await self._ask("POST", "/collective_rpc", kind, json={"method": method, "args": list(arguments)})

    async def order(self, path: str, body: dict[str, Any]) -> None:
        """One of vLLM's own orders of a weight transfer."""
        await self._answer("POST", path, {"json": body})

    async def update_from_ipc(self, update: str) -> None:
        """Take weights from the memory of this GPU; see `ipc_handles`."""
        await self._rpc("update_agentgym_weights", _Anything, update)

    async def forget(self) -> None:
        """Drop all cached keys and values."""
        if not (await self._ask("POST", "/reset_prefix_cache", _Reset)).success:
            raise PolicyFailure(f"the vLLM server at {self.url} holds on to keys and values of the weights before")

    async def resume(self) -> None:
        await self._ask("POST", "/resume", _Anything)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _ask(self, method: str, path: str, kind: type[M], **request: Any) -> M:
        """Raises PolicyFailure, in a sentence, for every way in which no answer of this kind comes."""
        content = await self._answer(method, path, request)
        try:
            return kind.model_validate_json(content)
        except ValidationError as error:
            what = error.errors()[0]
            where = ".".join(str(part) for part in what["loc"])
            raise PolicyFailure(
                f"the vLLM server at {self.url} answered {path} with something else than was asked for ({where}: "
                f"{what['msg']}); is it vLLM 0.32 or later, with the flags of docs/engines.md?"
            ) from error

    async def _answer(self, method: str, path: str, request: dict[str, Any]) -> bytes:
        """The body of an answer with status 200."""
        try:
            async with asyncio.timeout(self.deadline_s):
                response = await self._send(method, path, request)
        except TimeoutError as error:
            raise PolicyFailure(
                f"the vLLM server at {self.url} gave no answer to {path} within {self.deadline_s:g} s"
            ) from error
        if response.status_code == 404 and not path.startswith("/v1/"):
            raise PolicyFailure(
                f"the vLLM server at {self.url} has no {path}: start it with VLLM_SERVER_DEV_MODE=1 (docs/engines.md)"
            )
        if response.status_code != 200:
            excerpt = response.text[:EXCERPT].strip()
            failure = ServerUnavailable if response.status_code >= 500 else PolicyFailure
            raise failure(
                f"the vLLM server at {self.url} answered {path} with status {response.status_code}: {excerpt}"
            )
        return response.content

    async def _send(self, method: str, path: str, request: dict[str, Any]) -> httpx.Response:
        for attempt in range(TRIES):
            try:
                return await self._http.request(method, path, **request)
            except httpx.TransportError as error:
                if attempt == TRIES - 1:
                    raise ServerUnavailable(
                        f"the vLLM server at {self.url} cannot be reached ({error or type(error).__name__})"
                    ) from error
            await asyncio.sleep(BACKOFF_S * 2**attempt)
        raise AssertionError("every try returns or raises")
