"""Servers of an evaluation of external agents: the model under evaluation, and an environment for each program.

/episodes/NAME/v1/...                     the model: calls are passed on to it, and kept
POST /episodes/NAME/finish                what the agent claims
POST /episodes/NAME/turn                  likewise, of one call
"""

from __future__ import annotations

import contextlib
import hmac
import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from agentgym.env import Env
from agentgym.errors import EpisodeRefused
from agentgym.evaluation.agents.attempt import AgentAttempt, ClaimedResult, ModelCall
from agentgym_servers.agents.replies import ReadReply, prompt_text, read_reply
from agentgym_servers.env_server.app import create_app
from agentgym_servers.inference.episodes import EpisodeResult, TurnReport
from agentgym_servers.inference.error_handlers import add_error_handlers
from agentgym_servers.inference.parsing import ApiError
from agentgym_servers.inference.schemas import read_body
from agentgym_servers.web.cross_origin import SiteGuard, foreign
from agentgym_servers.web.run import serve_in_loop

MAX_BYTES = 64 * 2**20
"""Largest request of a program."""
PASSED_ON = ("content-type", "accept", "anthropic-version", "anthropic-beta")
"""Headers of a program's request that the model's server gets."""
PASSED_BACK = ("content-type", "retry-after")
AGENTS_OWN = frozenset({400, 413, 422})
"""Statuses by which a server refuses a request that is wrong: the agent's mistake, not the server's failure."""
TIMEOUT_S = 600.0
LAST_EVENT = re.compile(rb"(?m)^(data: ?\[DONE\]|event: ?(message_stop|response\.(completed|incomplete)))\s*$")
"""The event after which a streamed reply has no other."""


@dataclass
class AgentServers:
    """The model's calls of all programs, over one client. `serve_agents` makes it."""

    base_url: str
    """URL of the model under evaluation, with /v1."""
    model: str
    """Its name, which replaces what a program asks for."""
    model_key: str | None
    client: httpx.AsyncClient
    key: str = field(default_factory=lambda: secrets.token_hex(16))
    url: str = ""
    attempts: dict[str, AgentAttempt] = field(default_factory=dict)

    def open(self, attempt: AgentAttempt) -> None:
        """Let a program of this name call the model."""
        self.attempts[attempt.name] = attempt

    def forget(self, name: str) -> None:
        """Refuse its calls from now on."""
        self.attempts.pop(name, None)

    def serve_env(self, make: Callable[[], Env]) -> AbstractAsyncContextManager[str]:
        """Serve one program's environment at a port of its own."""
        return serve_in_loop(create_app({"episode": make}, max_sessions=8, queue=0))

    async def forward(self, request: Request, episode: str, path: str) -> Response:
        """Pass a call on to the model, and keep it once its reply is whole."""
        attempt, started = self._attempt(request, episode), time.perf_counter()
        if any(segment in (".", "..") for segment in path.split("/")):  # httpx resolves them, and they lead out of /v1
            raise ApiError(400, "a path has no dot segments: it stays below /v1", code="invalid_path")
        call, content = await self._body(request)
        url = f"{self.base_url}/{quote(path, safe='/:@')}"
        sent = self.client.build_request(request.method, url, content=content, headers=self._headers(request))
        try:
            answer = await self.client.send(sent, stream=True)
            headers = {name: answer.headers[name] for name in PASSED_BACK if name in answer.headers}
            streamed = "event-stream" in headers.get("content-type", "") and answer.status_code == 200
            if call is None or not streamed:
                await answer.aread()
        except httpx.HTTPError as error:
            attempt.problem = f"{self.base_url} cannot be asked ({type(error).__name__}: {error})"
            raise ApiError(502, attempt.problem, code="model_unreachable") from error
        if call is None or answer.status_code != 200:
            if call is not None and answer.status_code not in AGENTS_OWN:
                attempt.problem = f"{sent.url} answered {answer.status_code}: {answer.text[:300]}"
            return Response(answer.content, answer.status_code, headers)

        def keep(body: bytes) -> None:
            try:
                reply = read_reply(f"/{path}", body, streamed)
            except ValueError:
                reply = ReadReply(body[:1000].decode(errors="replace"), "stop", None)
            attempt.problem = ""
            attempt.calls.append(ModelCall(prompt_text(call), *reply, seconds=time.perf_counter() - started))

        if not streamed:
            keep(answer.content)
            return Response(answer.content, 200, headers)
        return StreamingResponse(_streamed(answer, keep, attempt), 200, headers)

    async def finish(self, request: Request, episode: str) -> Response:
        """Keep what the agent claims of its episode."""
        attempt = self._attempt(request, episode)
        result = await read_body(request, EpisodeResult, 2**18, "an ending is short")
        attempt.finish(ClaimedResult(result.reward, result.success, result.truncated))
        return JSONResponse({"episode": episode, "turns": len(attempt.calls)})

    async def turn(self, request: Request, episode: str) -> Response:
        """Keep the reward that the agent claims of one call."""
        attempt = self._attempt(request, episode)
        report = await read_body(request, TurnReport, 2**18, "what is sent of a turn is short")
        index = len(attempt.calls) - 1 if report.turn is None else report.turn
        if not 0 <= index < len(attempt.calls):
            raise EpisodeRefused(f"the episode {episode!r} has {len(attempt.calls)} calls, and none has number {index}")
        if report.reward is not None:
            attempt.rewards[index] = report.reward
        return JSONResponse({"episode": episode, "turn": index})

    def _attempt(self, request: Request, episode: str) -> AgentAttempt:
        """The program's attempt. Raises ApiError."""
        bearer, key = (request.headers.get(name, "").encode() for name in ("authorization", "x-api-key"))
        own = f"Bearer {self.key}".encode()
        if foreign(request.scope) is not None or not any(
            hmac.compare_digest(given, own) for given in (bearer, b"Bearer " + key)
        ):
            raise ApiError(401, "this server wants the key in OPENAI_API_KEY", code="invalid_api_key")
        if episode not in self.attempts:
            raise ApiError(404, f"the episode {episode[:128]!r} is over, or never began", code="episode_refused")
        return self.attempts[episode]

    async def _body(self, request: Request) -> tuple[dict[str, Any] | None, bytes]:
        """(the request's JSON with the model's name, its bytes); None of a request without a body."""
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > MAX_BYTES:
                raise ApiError(413, f"a request has at most {MAX_BYTES} bytes")
        if request.method != "POST":
            return None, b""
        try:
            call = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise ApiError(400, f"the body is not JSON: {error}", code="invalid_json") from error
        if not isinstance(call, dict):
            raise ApiError(400, "the body is no JSON object", code="invalid_json")
        call["model"] = self.model
        return call, json.dumps(call).encode()

    def _headers(self, request: Request) -> dict[str, str]:
        headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        if self.model_key:
            headers |= {"authorization": f"Bearer {self.model_key}", "x-api-key": self.model_key}
        return headers


async def _streamed(
    answer: httpx.Response, keep: Callable[[bytes], None], attempt: AgentAttempt
) -> AsyncIterator[bytes]:
    body, complete = bytearray(), False
    try:
        async for part in answer.aiter_bytes():
            body += part
            yield part
        complete = True
    except httpx.HTTPError as error:
        attempt.problem = f"its stream broke off ({type(error).__name__}: {error})"
        raise
    finally:
        if complete or LAST_EVENT.search(body):  # a program may hang up at the last event, before the response ends
            keep(bytes(body))
        await answer.aclose()


@contextlib.asynccontextmanager
async def serve_agents(base_url: str, model: str, model_key: str | None = None) -> AsyncIterator[AgentServers]:
    """Serve the model at `base_url` to programs of this machine, in the running event loop."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
    async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits) as client:
        servers = AgentServers(base_url.rstrip("/").removesuffix("/chat/completions"), model, model_key, client)
        app = FastAPI(title="AgentGym evaluation of agents")
        app.add_api_route("/episodes/{episode}/finish", servers.finish, methods=["POST"], response_model=None)
        app.add_api_route("/episodes/{episode}/turn", servers.turn, methods=["POST"], response_model=None)
        path = "/episodes/{episode}/v1/{path:path}"
        app.add_api_route(path, servers.forward, methods=["GET", "POST"], response_model=None)
        app.add_middleware(SiteGuard, origins=False)
        add_error_handlers(app)
        async with serve_in_loop(app) as url:
            servers.url = url
            yield servers
