"""Images of tasks: named ones are pulled, Dockerfiles are built once for each content of their folder."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any, NamedTuple

from agentgym_environments.backends.containers.engine import ContainerLost, DockerEngine, reaching

REPOSITORY = "localhost/agentgym-task"
END_LINES = 15
"""Lines of a failed build that its error shows."""


class TaskImage(NamedTuple):
    id: str
    workdir: str
    path: str
    """PATH of its processes."""
    user: str


def named(engine: DockerEngine, name: str) -> TaskImage:
    """Return an image by its name, pulled where it is not here. Raises ContainerLost."""
    found = _found(engine, name)
    if found is None:
        with reaching(f"the image {name} cannot be pulled"):
            engine.client.images.pull(*_parts(name))
            found = _found(engine, name)
    if found is None:
        raise ContainerLost(f"the image {name} was pulled and is not there")
    return found


def built(engine: DockerEngine, folder: Path, digest: str, timeout_s: float) -> TaskImage:
    """Return the image of a folder with a Dockerfile, built where none of this `digest` is here.

    Raises ContainerLost.
    """
    tag = f"{REPOSITORY}:{digest[:40]}"
    found = _found(engine, tag)
    if found is None:
        _build(engine, folder, tag, timeout_s)
        found = _found(engine, tag)
    if found is None:
        raise ContainerLost(f"{folder} was built and its image is not there")
    return found


def _found(engine: DockerEngine, name: str) -> TaskImage | None:
    import docker.errors

    with reaching(f"the image {name} cannot be looked up"):
        try:
            facts = engine.client.api.inspect_image(name)
        except docker.errors.ImageNotFound:
            return None
    config: dict[str, Any] = facts["Config"] or {}
    variables = dict(line.partition("=")[::2] for line in config.get("Env") or ())
    path = variables.get("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
    return TaskImage(facts["Id"], config.get("WorkingDir") or "/", path, config.get("User") or "")


def _parts(name: str) -> tuple[str, str | None]:
    """Return repository and tag: without a tag the SDK would pull all there are."""
    if "@" in name:
        return name, None
    repository, colon, tag = name.rpartition(":")
    return (repository, tag) if colon and "/" not in tag else (name, "latest")


def _build(engine: DockerEngine, folder: Path, tag: str, timeout_s: float) -> None:
    import docker.errors

    deadline, lines = time.monotonic() + timeout_s, []
    with reaching(f"the image of {folder} cannot be built"), contextlib.ExitStack() as stack:
        try:
            output = engine.client.api.build(
                path=str(folder), tag=tag, rm=True, forcerm=True, decode=True, timeout=int(timeout_s) + 1
            )
        except (docker.errors.BuildError, TypeError, ValueError) as error:
            raise ContainerLost(f"the image of {folder} cannot be built: {error}") from error
        stack.callback(output.close)
        for part in output:
            lines += str(part.get("stream", "")).splitlines()
            if problem := part.get("error"):
                end = "\n".join(lines[-END_LINES:])
                raise ContainerLost(f"the image of {folder} cannot be built: {problem}\n{end}")
            if time.monotonic() > deadline:
                raise ContainerLost(f"the image of {folder} was not built within {timeout_s:g} s")
