"""The verbs, answered by replicas: a session always by its own, a new one by whichever has room."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import BaseModel

from agentgym.errors import AtCapacity, DeadlineExceeded, EnvironmentFailure, EpisodeLost, UnknownSession, Unreachable
from agentgym.protocol import ResetRequest, RestoreRequest, SessionReply, SessionRequest, StepRequest, Verb
from agentgym.spec import EnvSpec
from agentgym_servers.gateway.errors import EnvNotRegistered
from agentgym_servers.gateway.metrics import Traffic
from agentgym_servers.gateway.pool import ReplicaPool
from agentgym_servers.gateway.quotas import Owner, Quotas
from agentgym_servers.gateway.replicas import Replica
from agentgym_servers.web.backend import BackendReply, consume_exception
from agentgym_servers.web.caller import CALLER

MARGIN_S = 30.0
"""A replica may take so much longer than the environment's own deadline."""
LOOKUP_S = 5.0
PlacedT = TypeVar("PlacedT")
_SESSION_ID = re.compile(r"[0-9a-f]{32}")
"""The form of a session id of our servers."""


@dataclass
class RegisteredEnv:
    """A registered environment."""

    id: str
    pool: ReplicaPool
    traffic: Traffic
    spec: EnvSpec | None
    """None for one that does not speak AgentGym's extension: it is piped through, not routed."""
    created: float
    image_id: str | None = None
    """Id of the image that its containers run."""
    quotas: Quotas = field(default_factory=Quotas)
    beginning: dict[str, asyncio.Future[bytes]] = field(default_factory=dict)
    """Episodes that are being begun now: asked for again, one joins."""

    @property
    def name(self) -> str:
        return self.pool.registration.name

    @property
    def timeout_s(self) -> float:
        return MARGIN_S + (0.0 if self.spec is None else self.spec.step_deadline_s)


class GatewayBackend:
    """The `EnvBackend` of the registered environments.

    A request that was let in, or a socket, may outlive its environment: its verbs then raise EnvNotRegistered.
    """

    def __init__(self, envs: dict[str, RegisteredEnv]) -> None:
        self.envs = envs

    def names(self) -> Sequence[str]:
        return [name for name, env in self.envs.items() if env.spec is not None]

    def spec(self, env: str) -> EnvSpec:
        spec = self._env(env).spec
        assert spec is not None
        return spec

    def health(self, env: str) -> dict[str, Any]:
        pool = self._env(env).pool
        ready = pool.ready()
        asleep = not ready and pool.registration.replicas.min == 0 and not pool.last_failure
        capacity = max((replica.capacity or 0 for replica in ready), default=0)
        return {
            "status": "healthy" if ready or asleep else "unhealthy",
            "env": env,
            "sessions": sum(replica.sessions for replica in ready),
            "max_sessions": capacity * max(pool.registration.replicas.max, len(ready)),
            "replicas": len(ready),
            "waiting": len(pool.waiting),
        }

    def open(self, env: str) -> BackendReply:
        return self._run(env, "open", self._open(self._env(env)))

    def reset(self, env: str, body: ResetRequest) -> BackendReply:
        found = self._env(env)
        if body.session_id is not None:
            return self._run(env, "reset", self._ask(found, body.session_id, "/reset", _json(body)))
        return self._begin(found, "reset", body)

    def restore(self, env: str, body: RestoreRequest) -> BackendReply:
        return self._begin(self._env(env), "restore", body)

    def step(self, env: str, body: StepRequest) -> BackendReply:
        return self._run(env, "step", self._step(self._env(env), body))

    def close(self, env: str, body: SessionRequest) -> BackendReply:
        return self._run(env, "close", self._close(self._env(env), body))

    def query(self, env: str, verb: Verb, body: SessionRequest) -> BackendReply:
        work = self._ask(self._env(env), body.session_id, f"/{verb.name}", _json(body))
        return self._run(env, verb.name, work)

    def state(self, env: str, session_id: str) -> BackendReply:
        path = f"/state?session_id={quote(session_id, safe='')}"
        return self._run(env, "state", self._ask(self._env(env), session_id, path, None))

    def lookup(self, env: str, session_id: str) -> BackendReply:
        path = f"/sessions/{quote(session_id, safe='')}"
        return self._run(env, "lookup", self._ask(self._env(env), session_id, path, None))

    def _env(self, name: str) -> RegisteredEnv:
        """Return a registered environment. Raises EnvNotRegistered."""
        if name not in self.envs:
            raise EnvNotRegistered(f"{name} was removed from this gateway, and its sessions with it")
        return self.envs[name]

    def _run(self, env: str, verb: str, work: Awaitable[bytes]) -> asyncio.Future[bytes]:
        """The answer to come, measured. It is fetched even when whoever asked goes away."""
        traffic = self._env(env).traffic

        async def measured() -> bytes:
            begun = time.monotonic()
            try:
                answer = await work
            except EnvironmentFailure as error:
                traffic.failed(verb, error.code, str(error))
                raise
            traffic.answered(verb, time.monotonic() - begun)
            return answer

        task = asyncio.get_running_loop().create_task(measured())
        task.add_done_callback(consume_exception)
        return task

    # --- sessions that are there -----------------------------------------------------------------------------------

    async def _ask(self, env: RegisteredEnv, session_id: str, path: str, body: bytes | None) -> bytes:
        return await self._at(env, session_id, lambda replica: replica.ask(path, body, env.timeout_s))

    async def _step(self, env: RegisteredEnv, body: StepRequest) -> bytes:
        content, once = _json(body), body.step is not None or body.request_id is not None
        return await self._at(
            env, body.session_id, lambda replica: replica.step(content, env.timeout_s, repeatable=once)
        )

    async def _at(self, env: RegisteredEnv, session_id: str, ask: Callable[[Replica], Awaitable[bytes]]) -> bytes:
        replica = env.pool.table.get(session_id) or await self._find(env, session_id)
        env.quotas.used(session_id)
        try:
            return await ask(replica)
        except (Unreachable, EpisodeLost) as error:
            if isinstance(error, EpisodeLost):
                env.quotas.ended(session_id)
            if replica.state == "gone" or not replica.running.ours:
                env.pool.request_health_check()
            raise

    async def _close(self, env: RegisteredEnv, body: SessionRequest) -> bytes:
        try:
            answer = await self._ask(env, body.session_id, "/close", _json(body))
        except EpisodeLost:  # with its replica: what was wanted
            answer = _json(SessionReply(session_id=body.session_id, closed=True))
        env.quotas.ended(body.session_id)
        replica = env.pool.table.pop(body.session_id, None)
        if replica is not None:
            env.pool.left(replica)
        return answer

    async def _find(self, env: RegisteredEnv, session_id: str) -> Replica:
        """Ask every replica: the gateway may have been restarted since. Raises UnknownSession or EpisodeLost."""
        path = f"/sessions/{quote(session_id, safe='')}"
        segment = session_id not in ("", ".", "..") and "/" not in session_id  # a server reads others as another path
        replicas = [replica for replica in env.pool.replicas if segment and replica.state != "gone"]
        requests = [replica.ask(path, None, LOOKUP_S) for replica in replicas]
        answers = await asyncio.gather(*requests, return_exceptions=True)
        for replica, answer in zip(replicas, answers):
            if isinstance(answer, bytes):
                env.pool.remember(session_id, replica)
                return replica
        for answer in answers:
            if isinstance(answer, DeadlineExceeded):  # the episode is not lost for that
                raise Unreachable(f"{env.name}: a replica did not say in time whether it has the session")
            if isinstance(answer, BaseException) and not isinstance(answer, UnknownSession):
                raise answer
        if env.pool.registration.kind != "url" and _SESSION_ID.fullmatch(session_id):
            raise EpisodeLost(
                f"no replica of {env.name} has this session: it ended, or was lost with its replica or the "
                "gateway's "
                "restart; POST /reset without a session_id opens another"
            )
        raise UnknownSession(
            f"{env.name} has no session {session_id[:64]!r}; POST /reset without a session_id opens one"
        )

    # --- sessions that begin ---------------------------------------------------------------------------------------

    def _begin(self, env: RegisteredEnv, verb: str, body: ResetRequest | RestoreRequest) -> BackendReply:
        episode = body.episode_id
        if episode is not None and episode in env.beginning:
            return self._run(env.name, verb, self._again(env, verb, body, env.beginning[episode]))
        answer = self._run(env.name, verb, self._place(env, verb, body))
        if episode is not None:
            env.beginning[episode] = answer
            answer.add_done_callback(lambda _: env.beginning.pop(episode))
        return answer

    async def _again(
        self, env: RegisteredEnv, verb: str, body: ResetRequest | RestoreRequest, first: asyncio.Future[bytes]
    ) -> bytes:
        """Repeat a request for this episode after the first: its replica knows whether this one is the same."""
        await asyncio.wait([first])
        return await self._place(env, verb, body)

    async def _place(self, env: RegisteredEnv, verb: str, body: ResetRequest | RestoreRequest) -> bytes:
        pool, key = env.pool, body.episode_id
        content = _json(body)

        async def begin(replica: Replica) -> bytes:
            return await replica.ask(f"/{verb}", content, env.timeout_s)

        replica, known = (pool.episodes.get(key) if key is not None else None) or (None, "")
        if replica is not None and replica.state == "ready":
            owners = env.quotas.begin(CALLER.get(), known)
            try:
                answer = await self._within(env, owners, begin(replica))
            except AtCapacity:  # the session is no longer there
                pass
            else:
                return self._begun(env, replica, answer, key, owners)
        owners = env.quotas.begin(CALLER.get())
        replica, answer = await self._within(env, owners, pool.place(key, body.queue_s, begin))
        return self._begun(env, replica, answer, key, owners)

    async def _within(self, env: RegisteredEnv, owners: list[Owner], placing: Awaitable[PlacedT]) -> PlacedT:
        """Open a session for its owners, who have a place for it until it is open or cannot be opened."""
        try:
            return await placing
        except BaseException:
            env.quotas.failed(owners)
            raise

    async def _open(self, env: RegisteredEnv) -> bytes:
        """A session without an episode, by the one way that the protocol has to ask for it."""
        ask = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create", "params": {}}

        async def begin(replica: Replica) -> bytes:
            answer = json.loads(await replica.ask("/mcp", json.dumps(ask).encode(), env.timeout_s))
            if "error" in answer:
                error: Callable[[str], EnvironmentFailure] = EnvironmentFailure
                if "max_sessions" in (answer["error"].get("data") or {}):
                    error = AtCapacity
                raise error(str(answer["error"].get("message")))
            return _json(SessionReply(session_id=answer["result"]["session_id"]))

        owners = env.quotas.begin(CALLER.get())
        replica, answer = await self._within(env, owners, env.pool.place(None, 0.0, begin))
        return self._begun(env, replica, answer, None, owners)

    def _begun(
        self, env: RegisteredEnv, replica: Replica, answer: bytes, episode_id: str | None, owners: list[Owner]
    ) -> bytes:
        try:
            session_id = str(json.loads(answer)["session_id"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            env.quotas.failed(owners)
            raise EnvironmentFailure(f"{env.name} opened a session and did not say which: {error!r}"[:300]) from error
        env.pool.remember(session_id, replica, episode_id)
        env.quotas.opened(CALLER.get(), owners, session_id)
        return answer


def _json(body: BaseModel) -> bytes:
    """Return the request's JSON without the wait for room: that is the gateway's."""
    return body.model_dump_json(exclude_unset=True, exclude={"queue_s"}).encode()
