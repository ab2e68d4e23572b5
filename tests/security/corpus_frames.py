"""Hostile WebSocket handshakes and frames, drawn from a seed."""

from __future__ import annotations

import json
import random
import struct
import zlib
from collections.abc import Iterator
from functools import cache

from .corpus import VALUES, Attack, head


def frame(opcode: int, payload: bytes, *, fin: int = 1, reserved: int = 0, mask: bool = True, length: int = 0) -> bytes:
    """A frame, right or not: `length` 126 or 127 takes the longer forms of the length."""
    size, first = len(payload), bytes([fin << 7 | reserved << 4 | opcode])
    bit = 0x80 if mask else 0
    if length == 127 or (not length and size > 65535):
        sizes = bytes([bit | 127]) + struct.pack("!Q", size)
    elif length == 126 or (not length and size > 125):
        sizes = bytes([bit | 126]) + struct.pack("!H", size)
    else:
        sizes = bytes([bit | size])
    key = b"\x11\x22\x33\x44"
    if not mask:
        return first + sizes + payload
    pad = (key * (size // 4 + 1))[:size]
    hidden = (int.from_bytes(payload, "big") ^ int.from_bytes(pad, "big")).to_bytes(size, "big")
    return first + sizes + key + hidden


@cache
def deflated(unit: bytes, count: int) -> bytes:
    """A unit, so many times, as permessage-deflate packs it."""
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    return (packer.compress(unit * count) + packer.flush(zlib.Z_SYNC_FLUSH))[:-4]


def handshake(path: str, host: str, *lines: str) -> bytes:
    return head(
        "GET",
        path,
        host,
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        *lines,
    )


PAYLOADS = (
    b"",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\xc0\x80",
    b"{" * 5000,
    b"[" * 100_000,
    b"\0" * 1000,
    b"null",
    b'{"type":"step","type":"reset"}',
    b"1e999",
    b'"text"',
    b"\xef\xbb\xbf{}",
)
VERBS = (
    "reset",
    "step",
    "step_many",
    "close",
    "solver",
    "hint",
    "snapshot",
    "restore",
    "state",
    "mcp",
    "hello",
    "reply",
)
FIELDS = (
    "session_id",
    "action",
    "step",
    "steps",
    "wait_for",
    "wait_s",
    "seed",
    "split",
    "index",
    "episode_id",
    "queue_s",
    "timeout_s",
    "request_id",
    "snapshot",
    "text",
    "tool",
    "arguments",
    "method",
    "params",
    "jsonrpc",
    "id",
    "type",
    "data",
    "options",
    "unheard_of",
)


def message(rng: random.Random) -> bytes:
    """A frame's JSON with hostile values: of its id, its type, its data or their fields."""
    fields = rng.sample(FIELDS, rng.randint(0, 4))
    values = {name: rng.choice(VALUES) for name in fields}
    if rng.random() < 0.3:
        step = "{" + ",".join(f'"{name}":{rng.choice(VALUES)}' for name in rng.sample(FIELDS, 3)) + "}"
        values["steps"] = "[" + ",".join([step] * min(rng.choice((1, 2, 900)), 1 + 300_000 // len(step))) + "]"
    data = "{" + ",".join(f'"{name}":{value}' for name, value in values.items()) + "}"
    data = data if rng.random() < 0.85 else rng.choice(VALUES)
    name = json.dumps(rng.choice(VERBS)) if rng.random() < 0.85 else rng.choice(VALUES)
    number = str(rng.randrange(9)) if rng.random() < 0.7 else rng.choice(VALUES)
    parts = [f'"id":{number}', f'"type":{name}', f'"data":{data}']
    return ("{" + ",".join(rng.sample(parts, rng.randint(2, 3))) + "}").encode("utf-8", "surrogatepass")


KINDS = (
    "message",
    "message",
    "message",
    "payload",
    "opcode",
    "reserved",
    "unmasked",
    "length",
    "liar",
    "control",
    "close",
    "fragments",
    "bomb",
    "deflate",
)


def _one_frame(rng: random.Random) -> tuple[str, bytes]:
    kind = rng.choice(KINDS)
    payload = rng.choice((*PAYLOADS, message(rng)))
    if kind == "message":
        return kind, frame(1, message(rng))
    if kind == "payload":
        return kind, frame(rng.choice((1, 2)), payload)
    if kind == "opcode":
        return kind, frame(rng.randrange(16), payload[:120], fin=rng.randrange(2))
    if kind == "reserved":
        return kind, frame(rng.choice((1, 2, 9)), payload[:120], reserved=rng.randint(1, 7))
    if kind == "unmasked":
        return kind, frame(1, payload, mask=False)
    if kind == "length":
        return kind, frame(1, payload[:100], length=rng.choice((126, 127)))
    if kind == "liar":
        size = rng.choice((2**63, 2**64 - 1, 2**31, 17_000_000, 70_000))
        return kind, b"\x81\xff" + struct.pack("!Q", size) + b"abcd" + payload[:50]
    if kind == "control":
        return kind, frame(rng.choice((8, 9, 10)), payload[:400], fin=rng.randrange(2)) * rng.choice((1, 200))
    if kind == "close":
        code = struct.pack("!H", rng.choice((0, 999, 1000, 1005, 1006, 1015, 2999, 5000, 65535)))
        return kind, frame(8, rng.choice((code, code[:1], code + b"\xff\xff", code + b"r" * 123)))
    if kind == "fragments":
        first = frame(rng.choice((0, 1, 2)), payload[:50], fin=0)
        middle = frame(rng.choice((0, 0, 1)), b"x", fin=0) * rng.choice((1, 50, 1500))
        return kind, first + frame(9, b"p") + middle + frame(0, b"", fin=rng.randrange(2))
    size = rng.choice((1000, 1_000_000, 20_000_000 if kind == "bomb" else 1))
    unit = rng.choice((b"[", b" ", b'{"id":1,"type":"reset","data":{"seed":0}}'))
    packed = deflated(unit, size // len(unit)) if size > 1 else payload
    return kind, frame(1, packed[:300_000], reserved=4)


def frames(paths: list[str], host: str, count: int, rng: random.Random) -> Iterator[Attack]:
    """A handshake and one to six frames, some of which are cut."""
    for turn in range(count):
        extension = ("Sec-WebSocket-Extensions: permessage-deflate; client_no_context_takeover",)
        kinds, data = [], b""
        for _ in range(rng.randint(1, 6)):
            kind, one = _one_frame(rng)
            kinds.append(kind)
            data += one
        if rng.random() < 0.15:
            data = data[: rng.randrange(len(data) + 1)]
        path = rng.choice(paths)
        start = handshake(path, host, *(extension if rng.random() < 0.6 else ()))
        yield Attack(f"{turn}: {path} {'+'.join(kinds)}", start, half_close=rng.random() < 0.3, then=data)


HANDSHAKES = (
    ("Sec-WebSocket-Version: 12",),
    ("Sec-WebSocket-Key: short",),
    ("Sec-WebSocket-Key: " + "A" * 4000,),
    ("Sec-WebSocket-Protocol: " + "a," * 900,),
    ("Sec-WebSocket-Protocol: \xff",),
    ("Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=99",),
    ("Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits=7",),
    ("Sec-WebSocket-Extensions: " + "permessage-deflate," * 300,),
    ("Sec-WebSocket-Extensions: ;;;=,",),
    ("Content-Length: 5",),
    ("Transfer-Encoding: chunked",),
    ("Origin: http://evil.example",),
    ("Origin: null",),
    ("Upgrade: h2c",),
    ("Connection: close",),
    ("Expect: 100-continue",),
)


def handshakes(paths: list[str], host: str, rng: random.Random) -> Iterator[Attack]:
    """Handshakes with one more header that is wrong, followed by a frame; on paths that may have no WebSocket."""
    for lines in HANDSHAKES:
        path = rng.choice(paths)
        yield Attack(
            f"handshake {path} {lines[0][:50]}", handshake(path, host, *lines), answer=False, then=frame(1, b"{}")
        )
    for query in ("ext=1&ext=2", "ext=%00", "session_id=" + "x" * 3000, "session_id=%ff", "ext=\xe9", "=&&;"):
        path = paths[0].split("?")[0] + "?" + query
        yield Attack(f"handshake {path[:60]}", handshake(path, host), answer=False, then=frame(1, b"{}"))
