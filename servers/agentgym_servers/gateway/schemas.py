"""The body of POST /environments."""

from __future__ import annotations

import json
from typing import Literal, Self

import httpx
from pydantic import Field, model_validator

from agentgym.protocol import RequestModel

MAX_REPLICAS = 256
PLAIN_PATH = r"^[^,\s-][^,\n]*$"
"""A path that can stand among the arguments of an environment."""


class Replicas(RequestModel):
    """Number of servers of the environment that may run."""

    min: int = Field(default=1, ge=0, le=MAX_REPLICAS)
    max: int = Field(default=1, ge=1, le=MAX_REPLICAS)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"replicas.min is {self.min}, replicas.max {self.max}: the least cannot exceed the most")
        return self


class ContainerLimits(RequestModel):
    """Limits of one container."""

    memory_mb: int = Field(default=1024, ge=16)
    cpus: float = Field(default=1.0, gt=0, le=1024)
    pids: int = Field(default=256, ge=8)
    network: bool = False
    """True if it may reach anything but the gateway."""


SOURCES = ("url", "image", "entry_point", "tasks", "harbor")
ENGINES = {"qa": "qa:test", "search": "search-qa:test", "code": "code:file"}
"""Environments that play a file of tasks, and the argument that takes it."""
HARBOR = "harbor:folder"
ADMISSION_S = 600.0
"""Time to start where the solution of every task is played first."""


class Registration(RequestModel):
    """An environment to be registered: a name, and exactly one of `SOURCES`."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    url: str | None = Field(default=None, max_length=2048)
    """A server's root (its first environment) or .../envs/NAME. Whoever runs it starts and stops it."""
    image: str | None = Field(default=None, min_length=1, max_length=512)
    """A container image whose server listens on `port`."""
    entry_point: str | None = Field(default=None, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:-]*$", max_length=512)
    """The id of an installed environment, or "package.module:Class": served by a child process of the gateway."""
    tasks: str | None = Field(default=None, pattern=PLAIN_PATH, max_length=2048)
    """A file of tasks on the gateway's machine, or hf:OWNER/NAME/FILES, played by `engine` or with `mcp`."""
    engine: Literal["qa", "search", "code"] | None = None
    mcp: str | None = Field(default=None, pattern=PLAIN_PATH, max_length=2048)
    """The command line, run on the gateway's machine, or the URL of an MCP server whose tools `tasks` are for."""
    harbor: str | None = Field(default=None, pattern=PLAIN_PATH, max_length=2048)
    """A folder of Harbor tasks on the gateway's machine."""
    replicas: Replicas = Replicas()
    limits: ContainerLimits | None = None
    """Limits of a container; by default `ContainerLimits()`."""
    port: int = Field(default=8000, ge=1, le=65535)
    read_only: bool = True
    """True if the container's root is read-only; /tmp never is."""
    max_sessions: int | None = Field(default=None, ge=1)
    """Sessions of one replica by entry point; by default the server's own."""
    idle_s: float = Field(default=300.0, ge=0)
    """A replica beyond `replicas.min` without sessions stops after so long."""
    startup_s: float = Field(default=60.0, gt=0, le=600)
    """A replica that does not answer so long after its start has failed."""
    check_tasks: int = Field(default=3, ge=1, le=1000)
    """Number of tasks of a split that the conformance check tries."""
    check_s: float = Field(default=300.0, gt=0, le=3600)
    """The check may take so long."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [kind for kind in SOURCES if getattr(self, kind) is not None]
        if len(given) != 1:
            listed = f"{', '.join(SOURCES[:-1])} and {SOURCES[-1]}"
            raise ValueError(f"give exactly one of {listed}, not {' and '.join(given) or 'none'}")
        if (self.tasks is not None) != ((self.engine is None) != (self.mcp is None)):
            engines = ", ".join(ENGINES)
            raise ValueError(
                f"tasks and engine go together (it is one of {engines}), or tasks and mcp: a server's tools"
            )
        if self.mcp_url:
            _parsed(self.mcp_url, "mcp")
        if self.mcp is not None and "startup_s" not in self.model_fields_set:
            self.startup_s = ADMISSION_S
        if self.url is not None:
            _require_url(self.url)
        if self.url is not None and self.replicas != Replicas():
            raise ValueError(
                "an environment by URL is one replica that the gateway does not start: leave out `replicas`"
            )
        if self.limits is not None and self.image is None:
            raise ValueError("limits apply to containers: give an `image`, or leave them out")
        if self.max_sessions is not None and (self.url or self.image):
            raise ValueError(
                "max_sessions applies to what the gateway serves; a URL's or an image's server has its own"
            )
        return self

    @property
    def kind(self) -> str:
        """The one of `SOURCES` that is given."""
        return next(kind for kind in SOURCES if getattr(self, kind) is not None)

    @property
    def mcp_url(self) -> str:
        """URL of the MCP server; "" where there is none or a command."""
        return self.mcp if self.mcp is not None and self.mcp.startswith(("http://", "https://")) else ""

    @property
    def environment(self) -> str:
        """Name of the environment that a child process of the gateway serves; "" for a URL or an image."""
        if self.harbor is not None:
            return f"{HARBOR}={self.harbor}"
        if self.mcp is not None:
            return f"mcp:command={json.dumps(self.mcp)},test={self.tasks},admit=true"  # JSON's strings are TOML's
        if self.tasks is not None and self.engine is not None:
            return f"{ENGINES[self.engine]}={self.tasks}"
        return self.entry_point or ""


def _require_url(url: str) -> None:
    parsed = _parsed(url, "url")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError("url should be http://host:port or http://host:port/envs/NAME")
    if parsed.query or parsed.fragment or "?" in url or "#" in url:
        raise ValueError("url is a server's root or .../envs/NAME: leave out the query and the fragment")


def _parsed(url: str, field: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"{field} is not a URL: {error}") from error
    if parsed.userinfo:
        raise ValueError(f"{field} must not hold a user or a password: they would be shown in listings and logs")
    return parsed
