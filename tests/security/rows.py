"""Malformed requests and frames, as bytes: `POST` stands for a path that takes one, `HOST` for the server's address."""

from __future__ import annotations

import struct

LONG = b"a" * 9000
HEAD = b"Host: HOST\r\n"
JSON = HEAD + b"Content-Type: application/json\r\n"


def post(body: bytes, *headers: bytes, length: int | None = None) -> bytes:
    lines = b"".join(line + b"\r\n" for line in headers)
    return b"POST POST HTTP/1.1\r\n%s%sContent-Length: %d\r\n\r\n%s" % (JSON, lines, length or len(body), body)


def chunked(*parts: bytes) -> bytes:
    return b"POST POST HTTP/1.1\r\n" + JSON + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(parts)


def get(*headers: bytes, target: bytes = b"/health") -> bytes:
    return b"GET %s HTTP/1.1\r\n%s%s\r\n" % (target, HEAD, b"".join(line + b"\r\n" for line in headers))


LINES = [
    b"\x00\x00\x00\x00\r\n\r\n",
    b"\xff\xfe\xfd\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64,  # a TLS hello
    b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET\r\n\r\n",
    b"GET \r\n\r\n",
    b"GET  /health HTTP/1.1\r\nHost: HOST\r\n X: folded first\r\n\r\n",
    b"GET /health HTTP/9.9\r\nHost: HOST\r\n\r\n",
    b"GET /health HTP/1.1\r\nHost: HOST\r\n\r\n",
    b"GET /health HTTP/1.1 extra\r\nHost: HOST\r\n\r\n",
    b"GET /he alth HTTP/1.1\r\nHost: HOST\r\n\r\n",
    b"GET /he\rX: y HTTP/1.1\r\nHost: HOST\r\n\r\n",
    b"GET /he\x00alth HTTP/1.1\r\nHost: HOST\r\n\r\n",
    b"GET health HTTP/1.1\r\nHost: HOST\r\n\r\n",
    b"GET * HTTP/1.1\r\nHost: HOST\r\n\r\n",
    b"GET ://x HTTP/1.1\r\nHost: HOST\r\n\r\n",
    b"CONNECT evil.example:443 HTTP/1.1\r\nHost: HOST\r\n\r\n",
    b"FOO /health HTTP/1.1\r\nHost: HOST\r\n\r\n",
    b"G\x01T /health HTTP/1.1\r\nHost: HOST\r\n\r\n",
    b"GET /" + LONG + b" HTTP/1.1\r\nHost: HOST\r\n\r\n",
    b"GET /" + b"b" * 300_000 + b" HTTP/1.1\r\n",
    b"GET /?" + LONG * 3 + b" HTTP/1.1\r\nHost: HOST\r\n\r\n",
    b"GET /" + b"%2e%2e/" * 20 + b"etc/passwd HTTP/1.1\r\nHost: HOST\r\n\r\n",
    b"GET /nothing%00here HTTP/1.1\r\nHost: HOST\r\n\r\n",
    b"GET /%ff%fe%fd HTTP/1.1\r\nHost: HOST\r\n\r\n",
    b"GET /%zz HTTP/1.1\r\nHost: HOST\r\n\r\n",
    b"GET /\xc3\xa9 HTTP/1.1\r\nHost: HOST\r\n\r\n",
    b"TRACE /health HTTP/1.1\r\nHost: HOST\r\n\r\n",
    b"PUT /health HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0\r\n\r\n",
    b"DELETE /health HTTP/1.1\r\nHost: HOST\r\n\r\n",
    b"BREW /health HTTP/1.1\r\nHost: HOST\r\n\r\n",
    b"\r\n" * 40_000,
    b" " * 40_000,
    b"X" * 40_000,
]

HEADERS = [
    get(b"X: " + LONG),
    get(b"X" * 9000 + b": y"),
    get(*[b"X: " + b"y" * 1000] * 20),
    get(*[b"X: y"] * 200),
    get(*[b"X%d: y" % i for i in range(3000)]),
    get(b"Cookie: " + b"z" * 40_000),
    get(b"Host: other.example"),
    get(b"Host: HOST"),
    get(b"X y: z"),
    get(b"X : z"),
    get(b": empty"),
    get(b"\x00X: z"),
    get(b"X: a\x00b"),
    get(b"X: a\rb"),
    get(b"no colon at all"),
    get(b" leading: space"),
    get(b"X: y", b" folded"),
    get(b"Content-Length: -1"),
    get(b"Content-Length: 1e3"),
    get(b"Content-Length: 0x10"),
    get(b"Content-Length: 5, 5"),
    get(b"Content-Length: 99999999999999999999999"),
    get(b"Content-Length: 4", b"Content-Length: 5"),
    get(b"Content-Length: abc"),
    get(b"Content-Length: 5", b"Transfer-Encoding: chunked"),
    get(b"Transfer-Encoding: chunked", b"Content-Length: 5"),
    get(b"Transfer-Encoding: chunked, identity"),
    b"GET /health HTTP/1.1\r\n" + HEAD + b"X: " + b"y" * 300_000,
    b"GET /health HTTP/1.1\r\n" + HEAD + b"X: y\r\n" * 60_000,
    b"GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: evil.example:80\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost.evil.example\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: 127.0.0.1.nip.example\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: [x\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: user@localhost\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost/evil\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost:port\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: a.b, localhost\r\n\r\n",
    b"GET /openapi.json HTTP/1.1\r\nHost: rebound.example\r\n\r\n",
    post(b"{}", b"Origin: http://evil.example"),
    post(b"{}", b"Origin: null"),
    get(b"Upgrade: websocket", b"Connection: Upgrade"),
    get(b"Upgrade: websocket", b"Connection: Upgrade", b"Sec-WebSocket-Key: short", b"Sec-WebSocket-Version: 13"),
    get(b"Upgrade: websocket", b"Connection: Upgrade", b"Sec-WebSocket-Version: 99"),
    get(*[b"X: y"] * 99, b"Upgrade: websocket", b"Connection: Upgrade"),
    b"POST POST HTTP/1.1\r\n" + HEAD + b"Upgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 0\r\n\r\n",
]

DEEP = b"[" * 100_000 + b"]" * 100_000
BODIES = [
    post(b"nonsense"),
    post(b"\x00" * 100),
    post(b"\xff\xfe"),
    post(b"[]"),
    post(b"null"),
    post(b'"text"'),
    post(b"{"),
    post(b'{"seed": NaN, "messages": NaN}'),
    post(b'{"seed": 1e999, "messages": 1e999}'),
    post(b'{"seed": ' + b"9" * 5000 + b', "messages": 1}'),
    post(b'{"seed": -1, "messages": -1}'),
    post(b'{"seed": "x", "messages": "x"}'),
    post(b'{"seed": {}, "messages": {}}'),
    post(b'{"index": -5, "messages": [[]]}'),
    post(b'{"split": 3, "messages": [3]}'),
    post(b'{"split": "' + b"s" * 5000 + b'", "messages": [{}]}'),
    post(b'{"episode_id": "' + b"e" * 300 + b'", "messages": [{"role": 1}]}'),
    post(b'{"session_id": "' + b"s" * 300 + b'", "messages": []}'),
    post(b'{"queue_s": -1, "messages": [{"role": "user", "content": {}}]}'),
    post(b'{"queue_s": 1e9, "messages": [{"role": "user", "content": 5}]}'),
    post(b'{"seed": "\\ud800", "messages": "\\ud800"}'),
    post(DEEP),
    post(b'{"seed": ' + DEEP + b"}"),
    post(b'{"unknown": "' + b"u" * 70_000 + b'"}'),
    post(b'{"unknown": [' + b"0," * 40_000 + b"0]}"),
    post(b'{"unknown": [' + b"{}," * 700_000 + b"{}]}"),
    post(b"[" + b"[]," * 600_000 + b"[]]"),
    post(b"x" * 17 * 2**20),
    post(b"{}", b"Content-Encoding: gzip", length=1),
    chunked(b"zz\r\n"),
    chunked(b"-1\r\n\r\n"),
    chunked(b"ffffffffffffffffff\r\n"),
    chunked(b"2\r\n{}x\r\n0\r\n\r\n"),
    chunked(b"1;" + b"e" * 300_000),
    chunked(b"1\r\n", b"x\r\n", b"0\r\n", b"T: " + b"t" * 300_000),
    chunked(b"1\r\n", b"x\r\n", b"0\r\n", b"T: t\r\n" * 60_000),
    chunked(b"10000\r\n" + b"x" * 65536 + b"\r\n", b"0\r\n\r\n"),
]

HALVES = [
    b"G",
    b"GET /health HTTP/1.1\r\n",
    b"GET /health HTTP/1.1\r\nHost: HOST\r\n",
    b"GET /health HTTP/1.1\r\nHost: HOST\r\nX: y",
    b"\r\n",
    post(b"{", length=100),
    post(b"", length=10),
    chunked(),
    chunked(b"5\r\nab"),
    b"GET /health HTTP/1.1\r\nHost: HOST\r\nContent-Length: 0\r\n\r\nGET /hea",
]
"""Requests that never become complete."""

REQUESTS = [*LINES, *HEADERS, *BODIES]


def frame(payload: bytes = b"", opcode: int = 1, *, fin: int = 1, rsv: int = 0, mask: int = 1, size: int = -1) -> bytes:
    """A frame whose length may say `size` instead of the payload's; the mask is zero, so that the payload is plain."""
    length = len(payload) if size < 0 else size
    first = fin << 7 | rsv << 4 | opcode
    if length < 126:
        head = struct.pack("!BB", first, mask << 7 | length)
    elif length < 65536:
        head = struct.pack("!BBH", first, mask << 7 | 126, length)
    else:
        head = struct.pack("!BBQ", first, mask << 7 | 127, length)
    return head + (b"\0\0\0\0" if mask else b"") + payload


FRAMES = [
    frame(b""),
    frame(b"nonsense"),
    frame(b"\xff\xfe"),
    frame(b"[]"),
    frame(b"null"),
    frame(b"{}"),
    frame(b'{"id": 1}'),
    frame(b'{"type": "step"}'),
    frame(b'{"id": "x", "type": "step"}'),
    frame(b'{"id": 1e99, "type": "step"}'),
    frame(b'{"id": 99999999999999999999999, "type": "step"}'),
    frame(b'{"id": 1, "type": "nope"}'),
    frame(b'{"id": 1, "type": ["step"]}'),
    frame(b'{"id": 1, "type": "' + b"t" * 70_000 + b'"}'),
    frame(b'{"id": 1, "type": "step", "data": []}'),
    frame(b'{"id": 1, "type": "step", "data": {}}'),
    frame(b'{"id": 1, "type": "step", "data": {"session_id": "x", "action": {"text": "a"}}}'),
    frame(b'{"id": 1, "type": "reset", "data": {"seed": -1}}'),
    frame(b'{"id": 1, "type": "reset", "data": {"unknown": "' + b"u" * 70_000 + b'"}}'),
    frame(b'{"id": 1, "type": "reset", "data": {"unknown": [' + b"{}," * 600_000 + b"{}]}}"),
    frame(b'{"id": 1, "type": "restore", "data": {"snapshot": "***"}}'),
    frame(b'{"id": 1, "type": "step_many", "data": {"steps": []}}'),
    frame(b'{"id": 1, "type": "step_many", "data": {"steps": 1, "wait_for": -1}}'),
    frame(b'{"id": NaN, "type": "step"}'),
    frame(DEEP),
    frame(b"\x00" * 1000),
    frame(b"binary", 2),
    frame(b"x", 3),
    frame(b"x", 7),
    frame(b"x", 11),
    frame(b"x", 15),
    frame(b"x", rsv=1),
    frame(b"x", rsv=4),
    frame(b"x", rsv=7),
    frame(b"x", mask=0),
    frame(b"p" * 126, 9),
    frame(b"p", 9, fin=0),
    frame(b"", 8),
    frame(b"\x03", 8),
    frame(struct.pack("!H", 5), 8),
    frame(struct.pack("!H", 1005), 8),
    frame(struct.pack("!H", 1000) + b"\xff\xfe", 8),
    frame(b"go on", 0),
    frame(b"one", fin=0) + frame(b"two"),
    frame(b"", fin=0) + frame(b"", 0, fin=0) * 3000,
    frame(b"", size=2**63 - 1) + b"x" * 1000,
    frame(b"x" * 10, size=2**40),
    frame(b"x" * (17 * 2**20)),
]
HALF_FRAMES = [frame(b"{", size=100), frame(b"{", size=100_000), b"\x81", frame(b"{}", fin=0)[:3]]
"""Frames that never become complete."""
