"""Container images: a name is resolved to an image id once, and the user that an image names is never root.

A tag moves, an id does not: what was checked at registration is what every replica runs.
"""

from __future__ import annotations

import contextlib
import io
import logging
import tarfile
from typing import Any

from agentgym_servers.gateway.errors import BadImage

NOBODY = "65534:65534"
MAX_PASSWD = 2**20
"""Bytes read of an image's /etc/passwd, with its tar header."""

log = logging.getLogger(__name__)


def resolve_image(client: Any, name: str) -> str:
    """Return the id of the image that the name has now, pulled where it is not here. Raises BadImage."""
    import docker.errors

    try:
        return client.images.get(name).id
    except docker.errors.ImageNotFound:
        log.info("pulling %s", name)
    except docker.errors.APIError as error:
        raise BadImage(f"{name!r} is no image's name: {error.explanation or error}") from error
    try:
        client.images.pull(name, tag=None if ":" in name.rpartition("/")[2] or "@" in name else "latest")
        return client.images.get(name).id
    except docker.errors.APIError as error:
        raise BadImage(f"the image {name!r} is not here and cannot be pulled: {error.explanation or error}") from error


def require_image(client: Any, name: str, image_id: str) -> None:
    """Have the image here that was resolved before. Raises BadImage when the name leads to another one by now."""
    import docker.errors

    try:
        client.images.get(image_id)
        return
    except docker.errors.ImageNotFound:
        now = resolve_image(client, name)
    if now != image_id:
        raise BadImage(
            f"{name!r} was registered as {image_id}, which is no longer here, and is {now} now: remove the environment "
            "and register it again"
        )


def user_of(client: Any, image_id: str) -> str:
    """Return the user that an image names, or nobody where that is none, or root by number or name."""
    user = client.images.get(image_id).attrs["Config"].get("User") or ""
    name = user.partition(":")[0].strip()
    try:
        privileged = int(name) == 0  # "00" is root, too
    except ValueError:
        privileged = name in ("", "root")
    return NOBODY if privileged else user


def require_plain_user(container: Any, user: str) -> None:
    """Raise BadImage when the user's name is another name of root in the container that was created."""
    import docker.errors

    name = user.partition(":")[0]
    if name.isascii() and name.isdigit():
        return
    try:
        stream, _ = container.get_archive("/etc/passwd")
    except docker.errors.NotFound:
        return  # then the engine does not know the name either, and refuses to start
    content = bytearray()
    with contextlib.closing(stream):  # an engine that still sends can neither remove the container nor answer
        for chunk in stream:
            content += chunk
            if len(content) > MAX_PASSWD:
                raise BadImage(f"/etc/passwd of the image has more than {MAX_PASSWD} bytes: name its user by a number")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        first = archive.next()
        file = None if first is None or not first.isreg() else archive.extractfile(first)
        if file is None:
            raise BadImage("/etc/passwd of the image is no regular file: name its user by a number")
        rows = [line.strip().split(b":") for line in file.read().splitlines()]
    numbers = [row[2] if len(row) > 2 else b"" for row in rows if row[0] == name.encode()]
    if not all(number.isdigit() and int(number) for number in numbers):  # an engine reads what is no number as 0
        raise BadImage(f"the image's user {name!r} is root: give it another one (USER)")
