"""Registering, listing and removing environments. Nothing is half-registered.

An environment's row is written once a replica of it has passed the check; what fails before stops the replica. What a
killed gateway leaves running has no row, or is found again by the next: child processes end with their standard input,
containers carry labels.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable
from typing import Any

import httpx
from pydantic import ValidationError

from agentgym.conformance.run import check_server
from agentgym.errors import ConfigError, EnvironmentFailure
from agentgym.spec import EnvSpec
from agentgym_servers.gateway.backend import RegisteredEnv
from agentgym_servers.gateway.containers import ContainerEngine, Image
from agentgym_servers.gateway.database import EnvironmentRecord, RegistrationStore
from agentgym_servers.gateway.destinations import Destinations
from agentgym_servers.gateway.errors import ConformanceFailed, DuplicateName, EnvNotRegistered, NoEngine
from agentgym_servers.gateway.metrics import Meters, Traffic
from agentgym_servers.gateway.passthrough import check_foreign
from agentgym_servers.gateway.pool import ReplicaPool, started
from agentgym_servers.gateway.quotas import Quotas
from agentgym_servers.gateway.replicas import EntryPoint, ExternalServer, Launcher, Replica, metadata_of
from agentgym_servers.gateway.schemas import Registration

DRAIN_S = 30.0
"""Sessions of a removed environment may go on for so long, unless told."""

log = logging.getLogger(__name__)


class Gateway:
    """The registered environments, each with its pool of replicas."""

    def __init__(
        self, registry: RegistrationStore, destinations: Destinations, quotas: Callable[[], Quotas] = Quotas
    ) -> None:
        self.registry, self.destinations, self._quotas = registry, destinations, quotas
        self.envs: dict[str, RegisteredEnv] = {}
        self.meters = Meters()
        self.engine = ContainerEngine(registry.id)
        self.born = time.time()
        self.registering: dict[str, float] = {}
        """Names whose registration is under way, and since when."""
        self._removing: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self) -> None:
        """Bring the registered environments up again, and remove what a killed gateway left behind."""
        rows = await asyncio.to_thread(self.registry.envs)
        images = {row.id for row in rows if row.registration.image is not None}
        with contextlib.suppress(NoEngine):  # then there are no containers either; image environments will say so
            await self.engine.reap(keep=images)
        found: dict[str, list[Replica]] = {}
        for row in rows:
            entry, found[row.id] = row.registration, []
            if entry.url is not None:
                found[row.id] = [Replica(ExternalServer(entry.url, self.destinations))]
            elif entry.image is not None:
                with contextlib.suppress(NoEngine):
                    found[row.id] = [Replica(one) for one in await self.engine.found(row.id, entry)]
        await asyncio.gather(*(replica.look() for replicas in found.values() for replica in replicas))
        for row in rows:
            self._open(row, found[row.id])

    async def stop(self) -> None:
        """Stop everything that the gateway started."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(env.pool.stop("the gateway stopped") for env in self.envs.values()))
        if any(env.image_id is not None for env in self.envs.values()):
            with contextlib.suppress(NoEngine):
                await self.engine.reap(keep=set())
        await self.engine.close()

    async def register(self, entry: Registration) -> RegisteredEnv:
        """Start the environment, check it, write it down, and make it live. Raises the refusal that says what is
        wrong."""
        if entry.name in self.envs or entry.name in self.registering:
            state = "being removed" if entry.name in self._removing else "taken"
            raise DuplicateName(f"the name {entry.name!r} is {state}; choose another, or remove that environment first")
        self.registering[entry.name] = time.time()
        try:
            return await self._finish(self._register(entry))
        finally:
            del self.registering[entry.name]

    async def remove(self, name: str, drain_s: float = DRAIN_S) -> int:
        """Unregister an environment, let its sessions end, stop its replicas; the number of sessions lost."""
        env = self.find(name)
        if name in self._removing:
            raise DuplicateName(f"{name!r} is being removed already")
        self._removing.add(name)
        try:
            return await self._finish(self._remove(env, drain_s))
        finally:
            self._removing.discard(name)

    def find(self, name: str) -> RegisteredEnv:
        """Raises EnvNotRegistered."""
        if name not in self.envs:
            known = ", ".join(sorted(self.envs)) or "none yet"
            raise EnvNotRegistered(f"no environment is registered as {name!r}; there are: {known}")
        return self.envs[name]

    async def _finish(self, work: Any) -> Any:
        """Run to completion even if the caller disconnects; cancelled at shutdown."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _register(self, entry: Registration) -> RegisteredEnv:
        row_id = secrets.token_hex(16)
        if target := entry.url or entry.mcp_url:
            url = httpx.URL(target)
            await self.destinations.require(url.host, url.port or 80)
        image_id = None if entry.image is None else await self.engine.image_id(entry.image)
        replica = await started(self._launcher(row_id, entry, image_id), entry.startup_s)
        try:
            spec = await _checked(replica, entry)
            described = None if spec is None else spec.model_dump(mode="json")
            row = EnvironmentRecord(row_id, entry, described, time.time(), image_id)
            await asyncio.to_thread(self.registry.add_env, row)
        except BaseException:
            await replica.stop("its environment was not registered")
            raise
        log.info("registered %s by %s", entry.name, entry.kind)
        return self._open(row, [replica])

    async def _remove(self, env: RegisteredEnv, drain_s: float) -> int:
        await asyncio.to_thread(self.registry.remove_env, env.id)
        lost = await env.pool.drain(drain_s)
        del self.envs[env.name]
        log.info("removed %s; %d sessions were lost", env.name, lost)
        return lost

    def _open(self, row: EnvironmentRecord, replicas: list[Replica]) -> RegisteredEnv:
        entry = row.registration
        spec = None if row.spec is None else _spec(row.spec)
        launcher = self._launcher(row.id, entry, row.image_id)
        pool = ReplicaPool(entry, launcher, replicas, piped=spec is None)
        traffic = Traffic(entry.name, self.meters)
        env = RegisteredEnv(row.id, pool, traffic, spec, row.created, row.image_id, self._quotas())
        self.envs[entry.name] = env
        pool.supervise()
        return env

    def _launcher(self, row_id: str, entry: Registration, image_id: str | None) -> Launcher:
        if entry.url is not None:
            return ExternalServer(entry.url, self.destinations)
        if entry.image is None:
            return EntryPoint(entry)
        return Image(self.engine, row_id, entry, image_id or entry.image)  # rows of older versions have no id


async def _checked(replica: Replica, entry: Registration) -> EnvSpec | None:
    """The spec of the environment behind the replica, None for a foreign one. Raises CheckFailed."""
    metadata = await metadata_of(replica)
    try:
        async with asyncio.timeout(entry.check_s):
            if metadata.get("agentgym") is None:
                broken = await check_foreign(replica)
                rules = "OpenEnv's protocol"
            else:
                link = replica.link
                connect = None if link.destinations is None else link.destinations.socket
                findings = await check_server(link.url, tasks=entry.check_tasks, connect=connect)
                broken = [f"{one.rule}: {one.message}" for one in findings if not one.ok]
                rules = f"{len(findings)} rules"
    except TimeoutError:
        raise ConformanceFailed(f"{entry.name} was not through its check after {entry.check_s:g} s") from None
    except (ConfigError, EnvironmentFailure) as error:
        raise ConformanceFailed(f"{entry.name} cannot be checked: {error}") from error
    if broken:
        listed = "".join(f"\n- {one}" for one in broken)
        raise ConformanceFailed(f"{entry.name} breaks {len(broken)} of {rules}:{listed}")
    if metadata.get("agentgym") is None:
        return None
    try:
        return _spec(metadata["agentgym"]["spec"])
    except (ValidationError, TypeError, KeyError) as error:
        raise ConformanceFailed(
            f"{entry.name} describes itself in a way that this gateway cannot read: {error}"
        ) from error


def _spec(fields: dict[str, Any]) -> EnvSpec:
    """Fields that a newer server may have are left out. Raises ValidationError."""
    return EnvSpec.model_validate({key: value for key, value in fields.items() if key in EnvSpec.model_fields})
