"""Replicas in containers, through the Docker SDK: limited, without privileges, labelled so that none is left behind.

Without `limits.network` a container sits on a network that leads nowhere but to this host.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from agentgym_servers.gateway.errors import BadImage, NoEngine, NotStarted
from agentgym_servers.gateway.images import require_image, require_plain_user, resolve_image, user_of
from agentgym_servers.gateway.schemas import ContainerLimits, Registration

if TYPE_CHECKING:
    from docker.models.containers import Container as DockerContainer

GATEWAY_LABEL = "agentgym.gateway"
ENV_LABEL = "agentgym.env"
ENGINE_TIMEOUT_S = 30
STOP_S = 5
LOG_LINES = 20
TMP_MB = 256

Returned = TypeVar("Returned")
log = logging.getLogger(__name__)


class Container:
    """A running container with a server in it. It outlives a gateway that is killed, which finds it again."""

    ours = True
    destinations = None

    def __init__(self, engine: ContainerEngine, container: DockerContainer, url: str) -> None:
        self.url = url
        self.ident = f"container {container.short_id}"
        self._engine, self._container = engine, container

    async def ended(self) -> str | None:
        try:
            return await self._engine.run(lambda _: _how_ended(self._container))
        except NoEngine:  # nobody knows: its server has to tell
            return None

    async def stop(self) -> None:
        await self._engine.discard(self._container)


@dataclass(frozen=True)
class Image:
    """Starts containers of one registration."""

    engine: ContainerEngine
    env_id: str
    registration: Registration
    image_id: str
    """Id of the registration's image when it was registered: a tag that moves changes nothing."""

    async def start(self) -> Container:
        await self.engine.run(lambda client: require_image(client, self.registration.image or "", self.image_id))
        # In a thread that goes on when the task is cancelled: so its container is waited for and removed.
        starting = asyncio.ensure_future(self.engine.run(lambda client: self._run(client)))
        try:
            container, url = await asyncio.shield(starting)
        except asyncio.CancelledError:
            with contextlib.suppress(BadImage, NotStarted, NoEngine):
                container, _ = await starting
                await self.engine.discard(container)
            raise
        return Container(self.engine, container, url)

    def _run(self, client: Any) -> tuple[DockerContainer, str]:
        import docker.errors
        import docker.types

        entry, limits = self.registration, self.registration.limits or ContainerLimits()
        container = None
        self.engine.remove_discarded()
        try:
            user = user_of(client, self.image_id)
            network: dict[str, Any] = {"ports": {f"{entry.port}/tcp": ("127.0.0.1", None)}}
            if not limits.network:
                network = {"network": self.engine.closed_network(client)}
            container = client.containers.create(
                self.image_id,
                init=True,
                labels={GATEWAY_LABEL: self.engine.gateway_id, ENV_LABEL: self.env_id},
                mem_limit=f"{limits.memory_mb}m",
                memswap_limit=f"{limits.memory_mb}m",
                nano_cpus=int(limits.cpus * 1e9),
                pids_limit=limits.pids,
                cap_drop=["ALL"],
                security_opt=["no-new-privileges"],
                user=user,
                read_only=entry.read_only,
                tmpfs={"/tmp": f"size={TMP_MB}m,mode=1777"},
                environment={"HOME": "/tmp"},
                log_config=docker.types.LogConfig(type="json-file", config={"max-size": "10m", "max-file": "2"}),
                **network,
            )
            require_plain_user(container, user)
            container.start()
            return container, _url(container, entry.port, published=limits.network)
        except BaseException as error:
            if container is not None:
                self.engine.remove(container)
            if isinstance(error, docker.errors.APIError):
                raise BadImage(f"{entry.image} cannot be run: {error.explanation or error}") from error
            raise


class ContainerEngine:
    """The Docker engine, and which of its containers are this gateway's. Its methods raise NoEngine without one."""

    def __init__(self, gateway_id: str) -> None:
        self.gateway_id = gateway_id
        self._client: Any = None
        self._discarded: set[Any] = set()
        """Containers that could not be removed when they should have been, because the engine did not answer."""

    async def run(self, call: Callable[[Any], Returned]) -> Returned:
        """`call` with the SDK's client, in a thread."""
        return await asyncio.to_thread(self._call, call)

    async def image_id(self, name: str) -> str:
        """Return the id of the image that the name has now, pulled where it is not here. Raises BadImage."""
        return await self.run(lambda client: resolve_image(client, name))

    async def discard(self, container: Any) -> None:
        """Remove a container: now, or once the engine answers again."""
        try:
            await self.run(lambda _: self.remove(container))
        except NoEngine as error:
            log.warning("container %s is removed later: %s", container.short_id, error)

    def remove(self, container: Any) -> None:
        """Remove a container. Blocks; where that fails, the next start of a container tries again."""
        self._discarded.add(container)
        _remove(container)
        self._discarded.discard(container)

    def remove_discarded(self) -> None:
        """Remove what could not be removed before. Blocks."""
        for container in list(self._discarded):
            _remove(container)
            self._discarded.discard(container)

    async def found(self, env_id: str, registration: Registration) -> list[Container]:
        """The environment's containers that still run from before."""
        labels = [f"{GATEWAY_LABEL}={self.gateway_id}", f"{ENV_LABEL}={env_id}"]
        published = (registration.limits or ContainerLimits()).network

        def look(client: Any) -> list[Container]:
            # Without `ignore_removed` one that is removed meanwhile fails the list of all.
            running = client.containers.list(filters={"label": labels, "status": "running"}, ignore_removed=True)
            return [Container(self, one, _url(one, registration.port, published=published)) for one in running]

        return await self.run(look)

    async def reap(self, keep: set[str]) -> int:
        """Remove this gateway's containers but the running ones of the environments `keep`; the number removed."""

        def sweep(client: Any) -> int:
            label = {"label": f"{GATEWAY_LABEL}={self.gateway_id}"}
            ours = client.containers.list(all=True, filters=label, ignore_removed=True)
            left = [one for one in ours if one.labels.get(ENV_LABEL) not in keep or one.status != "running"]
            for container in left:
                log.warning("container %s was left behind and is removed", container.short_id)
                _remove(container)
            return len(left)

        return await self.run(sweep)

    async def close(self) -> None:
        """Remove the closed network, once nothing is on it, and let the engine go."""
        if self._client is None:
            return

        def leave(client: Any) -> None:
            import docker.errors

            for network in client.networks.list(names=[self._network_name]):
                with contextlib.suppress(docker.errors.APIError):  # another container is on it
                    network.remove()
            client.close()

        with contextlib.suppress(NoEngine):
            await self.run(leave)

    def closed_network(self, client: Any) -> str:
        """A network without a way out, whose containers do not see each other."""
        if not client.networks.list(names=[self._network_name]):
            client.networks.create(
                self._network_name,
                driver="bridge",
                internal=True,
                options={"com.docker.network.bridge.enable_icc": "false"},
                labels={GATEWAY_LABEL: self.gateway_id},
            )
        return self._network_name

    @property
    def _network_name(self) -> str:
        return f"agentgym-{self.gateway_id}"

    def _call(self, call: Callable[[Any], Returned]) -> Returned:
        try:
            import docker
            import docker.errors
            import requests.exceptions
        except ModuleNotFoundError as error:
            raise NoEngine(f"containers need the package {error.name}: pip install 'turngym[docker]'") from error
        try:
            if self._client is None:
                _knock()
                self._client = docker.from_env(timeout=ENGINE_TIMEOUT_S)
            return call(self._client)
        except docker.errors.APIError as error:
            raise NoEngine(f"the Docker engine refused: {error.explanation or error}") from error
        except (OSError, docker.errors.DockerException, requests.exceptions.RequestException) as error:
            raise NoEngine(f"no Docker engine answers: {error}; start one, or set DOCKER_HOST") from error


def _knock() -> None:
    """Raises OSError where nobody listens at the engine's Unix socket: the docker package leaves its own open then."""
    import docker.constants
    import docker.utils

    address = docker.utils.kwargs_from_env().get("base_url") or docker.constants.DEFAULT_UNIX_SOCKET
    kind, _, path = str(docker.utils.parse_host(address)).partition("://")
    if kind == "http+unix":
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knock:
            knock.connect(path)


def _url(container: Any, port: int, *, published: bool) -> str:
    """Address of the container's server. Raises NotStarted for a container that has ended already, and so has none."""
    container.reload()
    settings = container.attrs["NetworkSettings"]
    if published:
        bindings = (settings["Ports"] or {}).get(f"{port}/tcp") or []
        if bindings:
            return f"http://127.0.0.1:{bindings[0]['HostPort']}"
    else:
        for network in settings["Networks"].values():
            if network["IPAddress"]:
                return f"http://{network['IPAddress']}:{port}"
    raise NotStarted(f"the container has no address: {_how_ended(container) or 'it runs, and is on no network'}")


def _how_ended(container: Any) -> str | None:
    import docker.errors

    try:
        container.reload()
        if container.status == "running":
            return None
        state = container.attrs["State"]
        killed = ", killed for its memory" if state.get("OOMKilled") else ""
        end = container.logs(tail=LOG_LINES).decode(errors="replace").strip()
        return f"it ended with status {state.get('ExitCode')}{killed}. The end of its log:\n{end or '(empty)'}"
    except docker.errors.NotFound:
        return "it was removed"


def _remove(container: Any) -> None:
    import docker.errors

    with contextlib.suppress(docker.errors.NotFound):
        with contextlib.suppress(docker.errors.APIError):
            container.stop(timeout=STOP_S)
        try:
            container.remove(force=True, v=True)
        except docker.errors.APIError as error:
            if "already in progress" not in str(error):  # somebody else's, or an engine's that was killed meanwhile
                raise
