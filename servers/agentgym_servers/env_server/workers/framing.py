"""Messages between a server and its worker processes: frames of a small JSON list and raw bytes.

To a worker: `[call, session, method, arguments]`, the bytes being a snapshot for `restore` (its seed is an argument).
Session 0 is the process itself: `start`, `ping`. Back, once a call: `[call, "answer", done]` with the body of a reply,
`[call, "value", null]` with JSON, or `[call, "error", code]` with the message.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

from agentgym.errors import FAILURES, EnvironmentCrashed, EnvironmentFailure
from agentgym_servers.env_server.workers.env_call import StepResult

MAX_REPLY = 64 * 2**20
"""An environment whose answer has more bytes has failed."""

_SIZES = struct.Struct("!II")


def pack(header: list[Any], body: bytes = b"") -> bytes:
    encoded = json.dumps(header, separators=(",", ":")).encode()
    return b"%s%s%s" % (_SIZES.pack(len(encoded), len(body)), encoded, body)


class Unpacker:
    """Frames out of a stream of bytes. `limit` bounds one frame; 0 is no limit."""

    def __init__(self, limit: int = 0) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[list[Any], bytes]]:
        """The frames that are complete now. Raises ValueError for what is no frame."""
        self._buffer += data
        at = 0
        while len(self._buffer) - at >= _SIZES.size:
            header, body = _SIZES.unpack_from(self._buffer, at)
            if self._limit and header + body > self._limit:
                raise ValueError(f"a frame of {header + body} bytes")
            start = at + _SIZES.size
            end = start + header + body
            if len(self._buffer) < end:
                break
            found = json.loads(self._buffer[start : start + header])
            if not isinstance(found, list):
                raise ValueError(f"a header that is {type(found).__name__}")
            yield found, bytes(self._buffer[start + header : end])
            at = end
        del self._buffer[:at]


def pack_result(call: int, result: Any) -> bytes:
    """The reply for what an environment returned, or for the EnvironmentFailure that it ended in."""
    if isinstance(result, EnvironmentFailure):
        return pack([call, "error", result.code], str(result).encode("utf-8", "backslashreplace"))
    if isinstance(result, StepResult):
        kind, detail, body = "answer", result.done, result.body
    else:
        kind, detail, body = "value", None, json.dumps(result).encode()
    if len(body) > MAX_REPLY:
        return pack_result(call, EnvironmentCrashed(f"the answer has {len(body)} bytes; it may have {MAX_REPLY}"))
    return pack([call, kind, detail], body)


def unpack_result(kind: Any, detail: Any, body: bytes) -> Any:
    """Unpack what `pack_result` packed. Raises ValueError for anything else."""
    if kind == "answer" and isinstance(detail, bool):
        return StepResult(body, detail)
    if kind == "value":
        return json.loads(body)
    if kind == "error" and isinstance(detail, str):
        return FAILURES.get(detail, EnvironmentCrashed)(body.decode())
    raise ValueError(f"a reply of kind {kind!r}")
