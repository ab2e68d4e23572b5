"""The gateway's application: environments are registered at /environments, played below /envs/NAME/, seen at /."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from prometheus_client import generate_latest
from pydantic import Field

from agentgym import __version__
from agentgym.errors import ConfigError
from agentgym.protocol import RequestModel
from agentgym_servers.env_server.routes import add_routes
from agentgym_servers.gateway.auth import Guard, Keyring, is_loopback
from agentgym_servers.gateway.backend import GatewayBackend, RegisteredEnv
from agentgym_servers.gateway.database import RegistrationStore
from agentgym_servers.gateway.destinations import Destinations
from agentgym_servers.gateway.passthrough import Pipe
from agentgym_servers.gateway.quotas import SESSIONS_PER_ADDRESS, SESSIONS_PER_KEY, Quotas
from agentgym_servers.gateway.schemas import Registration
from agentgym_servers.gateway.service import DRAIN_S, Gateway
from agentgym_servers.web.fast_path import NO_TELEMETRY
from agentgym_servers.web.logs import Format
from agentgym_servers.web.metrics import PAGE_TYPE
from agentgym_servers.web.parsing import parse
from agentgym_servers.web.responses import body_of, handle_errors, reply_dump, reply_json
from agentgym_servers.web.run import run_app

RATE = "2000/second"
PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
)
MAX_BODY_BYTES = 16 * 2**20


class _Removal(RequestModel):
    drain_s: float = Field(default=DRAIN_S, ge=0, le=3600)


def create_gateway(
    registry: RegistrationStore,
    *,
    rate: str = RATE,
    sessions_per_key: int = SESSIONS_PER_KEY,
    sessions_per_address: int = SESSIONS_PER_ADDRESS,
    private_urls: bool = True,
    hosts: Iterable[str] = (),
    max_body_bytes: int = MAX_BODY_BYTES,
) -> FastAPI:
    """The application over a registry. Raises ConfigError for what is no rate.

    `rate` is how often one key may ask, over HTTP and by frames; a key and an address may have so many sessions of each
    environment. With `private_urls` an environment may be registered at an address of this machine or of a private
    network. `hosts` are names of the gateway, beside its addresses and localhost.
    """
    quotas = partial(Quotas, sessions_per_key, sessions_per_address)
    gateway = Gateway(registry, Destinations(private=private_urls), quotas)
    keyring = Keyring(registry, rate)
    keyring.load()

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await gateway.start()
        refresher = asyncio.create_task(keyring.keep_fresh())
        try:
            yield
        finally:
            refresher.cancel()
            await gateway.stop()

    app = FastAPI(title="AgentGym gateway", version="1.0.0", lifespan=lifespan, telemetry=NO_TELEMETRY)
    app.state.gateway = gateway
    _add_environments(app, gateway, max_body_bytes)
    _add_watching(app, gateway, keyring)
    add_routes(app, GatewayBackend(gateway.envs), max_body_bytes=max_body_bytes, root=False)
    app.add_middleware(Pipe, envs=gateway.envs)
    app.add_middleware(Guard, keyring=keyring, hosts=hosts)  # the last added is asked first
    return app


def run_gateway(
    database: str,
    host: str,
    port: int,
    *,
    die_with_stdin: bool = False,
    announce: Callable[[str], None] | None = None,
    log_format: Format | None = None,
    private_urls: bool | None = None,
    hosts: Iterable[str] = (),
    **options: Any,
) -> None:
    """Serve a gateway until SIGINT or SIGTERM. `options` are further ones of `create_gateway`.

    Private addresses may be registered by URL if `private_urls` says so, by default where the gateway listens to this
    machine alone.

    Raises ConfigError when it would listen beyond this machine without an API key, or on another gateway's database.
    """
    registry = RegistrationStore(database)
    try:
        registry.lock()
        if not is_loopback(host) and not registry.all_keys():
            raise ConfigError(
                f"without API keys the gateway listens to this machine alone, not on {host}: make a key first, by "
                "`agentgym gateway keys create`"
            )
        private = is_loopback(host) if private_urls is None else private_urls
        app = create_gateway(registry, private_urls=private, hosts=[host, *hosts], **options)
        run_app(app, host, port, die_with_stdin=die_with_stdin, announce=announce, log_format=log_format)
    finally:
        registry.close()


def _add_environments(app: FastAPI, gateway: Gateway, largest: int) -> None:
    async def register(request: Request) -> Response:
        """Start an environment, check it, and make it live: 201, or what is wrong and nothing is left of it."""
        env = await gateway.register(parse(Registration, await body_of(request, largest)))
        return reply_json(json.dumps(_shown(env)).encode(), 201)

    async def environments(_: Request) -> Response:
        return reply_dump({"environments": [_shown(env) for env in gateway.envs.values()]})

    async def environment(request: Request) -> Response:
        return reply_dump(_shown(gateway.find(request.path_params["name"])))

    async def remove(request: Request) -> Response:
        """Let no session begin, wait up to `drain_s` seconds for those that run, stop the environment."""
        name, how = request.path_params["name"], _Removal.model_validate(dict(request.query_params))
        lost = await gateway.remove(name, how.drain_s)
        return reply_dump({"name": name, "removed": True, "sessions_lost": lost})

    body = {"requestBody": {"content": {"application/json": {"schema": Registration.model_json_schema()}}}}
    app.add_api_route(
        "/environments",
        handle_errors(register),
        methods=["POST"],
        status_code=201,
        response_model=None,
        openapi_extra=body,
    )
    app.add_api_route("/environments", handle_errors(environments), methods=["GET"], response_model=None)
    app.add_api_route("/environments/{name}", handle_errors(environment), methods=["GET"], response_model=None)
    app.add_api_route("/environments/{name}", handle_errors(remove), methods=["DELETE"], response_model=None)


def _add_watching(app: FastAPI, gateway: Gateway, keyring: Keyring) -> None:
    page = resources.files("agentgym_servers.gateway").joinpath("page.html").read_text(encoding="utf-8")

    async def index(_: Request) -> Response:
        return HTMLResponse(page, headers={"Content-Security-Policy": PAGE_POLICY, "X-Frame-Options": "DENY"})

    async def health(_: Request) -> Response:
        return reply_dump({"status": "healthy"})

    async def status(_: Request) -> Response:
        """Return the data of the page."""
        return reply_dump(
            {
                "version": __version__,
                "now": time.time(),
                "since": gateway.born,
                "open": keyring.empty,
                "registering": gateway.registering,
                "envs": [{**_shown(env), **_traffic(env)} for env in gateway.envs.values()],
            }
        )

    async def metrics(_: Request) -> Response:
        return Response(generate_latest(gateway.meters.registry), media_type=PAGE_TYPE)

    for path, handler in {"/": index, "/health": health, "/status": status, "/metrics": metrics}.items():
        app.add_api_route(path, handler, methods=["GET"], response_model=None)


def _shown(env: RegisteredEnv) -> dict[str, Any]:
    pool, entry = env.pool, env.pool.registration
    if pool.draining:
        state = "removing"
    elif pool.ready():
        state = "live"
    else:
        state = "asleep" if entry.replicas.min == 0 and not pool.last_failure else "down"
    return {
        **entry.model_dump(mode="json", exclude_none=True),
        "kind": entry.kind,
        "path": f"/envs/{env.name}",
        "state": state,
        "created": env.created,
        **({} if env.image_id is None else {"image_id": env.image_id}),
        "spec": None if env.spec is None else env.spec.model_dump(mode="json"),
        "running": [
            {
                "id": replica.ident,
                "url": replica.link.url,
                "state": replica.state,
                "why": replica.why,
                "sessions": replica.sessions,
                "capacity": replica.capacity,
                "age_s": time.monotonic() - replica.born,
            }
            for replica in pool.replicas
        ],
        "waiting": len(pool.waiting),
        "restarts": pool.restarts,
        "last_failure": pool.last_failure,
    }


def _traffic(env: RegisteredEnv) -> dict[str, Any]:
    counters = env.traffic
    return {
        "steps": counters.steps,
        "episodes": counters.episodes,
        **counters.last_minute(),
        "failures": dict(counters.failures),
        "recent": list(counters.recent),
    }
