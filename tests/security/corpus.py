"""Hostile requests, drawn from a seed: the same seed draws the same corpus.

The generators give named byte strings, which a test writes to a socket as they are. `bodies` reads the fields to
spoil from a server's own /openapi.json.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

SEED = 20261125

NUMBERS = (
    "0",
    "-0",
    "-1",
    "1e999",
    "-1e999",
    "1e-400",
    "NaN",
    "Infinity",
    "-Infinity",
    "1.5",
    "true",
    "2147483648",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551616",
    "-9223372036854775809",
    "1E400",
    "0e0",
    "-0.0",
)
TEXTS = (
    '""',
    '"\\u0000"',
    '"\\ud800"',
    '"\\udfff\\ud800"',
    '"\\u202e\\u2066"',
    '"../../etc/passwd"',
    '"%2e%2e%2f"',
    '"\\r\\nX-Injected: y"',
    '"{{7*7}}{% for i in range(9) %}x{% endfor %}"',
    '"' + "a" * 65 + '"',
    '"' + "\\u0301" * 3000 + '"',
    '"' + "x" * 70_000 + '"',
    '"0x10"',
    '"1_000"',
    '"\\u0661\\u0662"',
    '"NaN"',
    '"/dev/zero"',
    '"\U0001f9e8"',
)
SHAPES = (
    "null",
    "[]",
    "{}",
    "[[]]",
    "[null]",
    '{"":null}',
    '{"a":1,"a":2}',
    '{"__class__":"x","__proto__":{"a":1}}',
    '{"$ref":"#"}',
    "[" * 60 + "]" * 60,
    "[" * 1500 + "]" * 1500,
    "[" * 60_000,
    '{"a":' * 1200 + "1" + "}" * 1200,
    "[" + "0," * 20_000 + "0]",
    "9" * 4301,
    "1" + "0" * 60_000,
    "-" + "7" * 5000 + ".5",
    "0." + "3" * 30_000,
)
VALUES = (*NUMBERS, *TEXTS, *SHAPES)
"""JSON as text, and some that is none."""


@dataclass(frozen=True)
class Attack:
    """Bytes to send; `then` is sent once something was answered. `answer` says whether a reply is due."""

    name: str
    data: bytes
    answer: bool = True
    half_close: bool = False
    then: bytes = b""


@dataclass(frozen=True)
class Endpoint:
    method: str
    path: str
    fields: tuple[str, ...]


def endpoints(openapi: dict[str, Any], names: dict[str, str]) -> list[Endpoint]:
    """Every method and path of a server with the fields of its body; `names` fills the variables of paths."""
    result = []
    for path, methods in openapi["paths"].items():
        for variable, value in names.items():
            path = path.replace("{" + variable + "}", value)
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {"": {}})
            schema = next(iter(content.values())).get("schema", {})
            result.append(Endpoint(method.upper(), path, tuple(_fields(schema, openapi))))
    return result


def _fields(schema: dict[str, Any], document: dict[str, Any]) -> Iterator[str]:
    if reference := schema.get("$ref"):
        schema = document["components"]["schemas"][reference.rsplit("/", 1)[1]]
    yield from schema.get("properties", {})


def head(method: str, path: str, host: str, *lines: str) -> bytes:
    """A request's head, with the lines that are given after the Host."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: {host}", *lines, "", ""]).encode("latin-1", "replace")


def entire(method: str, path: str, host: str, body: bytes, *lines: str) -> bytes:
    lines = ("Content-Type: application/json", f"Content-Length: {len(body)}", *lines)
    return head(method, path, host, *lines) + body


def bodies(points: list[Endpoint], host: str, base: dict[str, str], count: int, rng: random.Random) -> Iterator[Attack]:
    """Bodies that are right but for one or two fields. `base` has, as JSON, values that the server takes."""
    posts = [(point, field) for point in points if point.method == "POST" for field in point.fields]
    turns = 0
    while turns < count:
        rng.shuffle(posts)
        for point, field in posts[: count - turns]:
            filled = {name: base[name] for name in point.fields if name in base}
            filled[field] = rng.choice(VALUES)
            if rng.random() < 0.3:
                filled[rng.choice([*point.fields, "unheard_of"])] = rng.choice(VALUES)
            text = "{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in filled.items()) + "}"
            data = text.encode("utf-8", "surrogatepass")
            yield Attack(f"{point.path} {field}={filled[field][:24]}", entire("POST", point.path, host, data))
            turns += 1


def spoiled(points: list[Endpoint], host: str, body: bytes, count: int, rng: random.Random) -> Iterator[Attack]:
    """Requests whose bytes were changed at random: flipped, cut, doubled, put in another place."""
    for turn in range(count):
        point = rng.choice(points)
        data = bytearray(entire(point.method, point.path, host, body))
        kinds = []
        for _ in range(rng.randint(1, 4)):
            kind, at = rng.choice(("flip", "drop", "double", "insert", "swap")), rng.randrange(len(data))
            kinds.append(kind)
            if kind == "flip":
                data[at] ^= 1 << rng.randrange(8)
            elif kind == "drop":
                del data[at : at + rng.randint(1, 9)]
            elif kind == "double":
                data[at:at] = data[at : at + rng.randint(1, 40)]
            elif kind == "insert":
                data[at:at] = rng.choice((b"\0", b"\r", b"\n", b"\r\n", b"\xff", b":", b" ", b"\t", b"%00", b"\x85"))
            else:
                end = min(len(data), at + 12)
                data[at:end] = data[at:end][::-1]
        name = f"{turn}: {point.method} {point.path} {'+'.join(kinds)}"
        yield Attack(name, bytes(data), answer=False, half_close=rng.random() < 0.5)


TARGETS = (
    "*",
    "/",
    "//",
    "/%00",
    "/%ff%fe",
    "/%",
    "/%zz",
    "/..%2f..%2fetc/passwd",
    "/./health",
    "/health/../health",
    "/health%0d%0aX: y",
    "/health;a=b",
    "/health?" + "a=b&" * 1500,
    "/health?session_id=" + "%F0%9F%92%A9" * 200,
    "/state?session_id=%00",
    "/state?session_id=a&session_id=b",
    "/" + "a/" * 3000,
    "/" + "%41" * 2500,
    "http://other.example/health",
    "http://127.0.0.1/health",
    "health",
    "/envs//health",
    "/envs/%2e%2e/health",
    "/sessions/" + "x" * 5000,
    "/sessions/%2e%2e%2fhealth",
    "/docs",
    "/openapi.json",
    "/v1/models/%2e%2e%2f%2e%2e",
    "/v1/models/" + "y" * 6000,
    "/episodes/a%00b",
    "/episodes/..%2f..",
    "?",
    "#",
    "/health#x",
    "/health HTTP/1.1 HTTP/1.1",
)
METHODS = (
    "GET",
    "HEAD",
    "OPTIONS",
    "TRACE",
    "CONNECT",
    "PUT",
    "PATCH",
    "DELETE",
    "PRI",
    "get",
    "G\tET",
    "POST",
    "A" * 300,
)
HEADERS = (
    ("Content-Length: 3", "Content-Length: 30"),
    ("Content-Length: -1",),
    ("Content-Length: +2",),
    ("Content-Length: 0x2",),
    ("Content-Length: 2, 2",),
    ("Content-Length: 99999999999999999999",),
    ("Content-Length: 18446744073709551615",),
    ("Content-Length: 2 ", "Transfer-Encoding: chunked"),
    ("Content-Length : 2",),
    ("Transfer-Encoding: xchunked",),
    ("Transfer-Encoding: chunked, identity",),
    ("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
    ("Transfer-Encoding:\x0bchunked",),
    ("Transfer-Encoding: gzip, chunked",),
    ("Host: other.example",),
    ("Origin: null",),
    ("Origin: http://127.0.0.1.evil.example",),
    ("Expect: 100-continue",),
    ("Expect: 200-maybe",),
    ("Connection: upgrade", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"),
    ("Connection: upgrade", "Upgrade: websocket"),
    ("Content-Type: application/json; charset=utf-7",),
    ("Content-Type: multipart/form-data; boundary=" + "b" * 500,),
    ("Content-Encoding: gzip",),
    ("Content-Encoding: deflate, gzip, br",),
    ("Accept: " + "*/*," * 900,),
    ("Accept-Encoding: gzip;q=1e999, *;q=NaN",),
    ("Range: bytes=0-0,1-1,2-2,9999999999999-",),
    ("Cookie: " + "a=b;" * 1500,),
    (" folded: line", "\tmore"),
    (": empty",),
    ("no colon",),
    ("X\0Y: z",),
    ("X-Nul: a\0b",),
    ("Authorization: Bearer " + "é" * 300,),
    ("Authorization: \xff\xfe",),
    ("X-API-Key: agk_" + "0" * 4000,),
    ("X-Forwarded-For: 127.0.0.1", "X-Forwarded-Host: evil.example", "X-Forwarded-Proto: wss"),
    ("X-AgentGym-Episode: ../../x",),
    ("X-AgentGym-Episode: " + "e" * 3000,),
    ("X-AgentGym-Episode: a", "X-AgentGym-Episode: b"),
    ("Mcp-Session-Id: \x01\x02",),
    ("Mcp-Protocol-Version: 9999-99-99", "Accept: text/event-stream"),
    tuple(f"X-{index}: {index}" for index in range(140)),
    ("X-Long: " + "l" * 9000,),
    ("Last-Event-ID: -1",),
    ("Keep-Alive: timeout=-1, max=99999999999999999999",),
    ("TE: trailers", "Trailer: Content-Length"),
)
CHUNKS = (
    b"2\r\n{}\r\n0\r\n\r\n",
    b"2;" + b"e" * 9000 + b"\r\n{}\r\n0\r\n\r\n",
    b"2;a=b\r\n{}\r\n0\r\nX: y\r\n\r\n",
    b"0x2\r\n{}\r\n0\r\n\r\n",
    b"-2\r\n{}\r\n0\r\n\r\n",
    b"+2\r\n{}\r\n0\r\n\r\n",
    b"ffffffffffffffff\r\n{}",
    b"10000000000000002\r\n{}\r\n0\r\n\r\n",
    b"7fffffff\r\n{}",
    b" 2\r\n{}\r\n0\r\n\r\n",
    b"2\n{}\n0\n\n",
    b"2\r\n{}0\r\n\r\n",
    b"00000000000000000000000000000000002\r\n{}\r\n0\r\n\r\n",
    b"1\r\n{\r\n1\r\n}\r\n" + b"0\r\n" + b"X: y\r\n" * 300 + b"\r\n",
    b"1\r\n{\r\n" * 400 + b"0\r\n\r\n",
    b"\r\n\r\n",
    b"g\r\n{}\r\n",
    b"2\r\n{}\r\n0\r\n\r\nGET /health HTTP/1.1\r\nHost: h\r\n\r\n",
)
LINES = (
    b"GET /health HTTP/1.0\r\n\r\n",
    b"GET /health HTTP/2.0\r\nHost: %s\r\n\r\n",
    b"GET /health HTTP/1.1\r\n\r\n",
    b"GET /health HTTP/9999999999.1\r\nHost: %s\r\n\r\n",
    b"GET /health\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\x00" * 4000,
    b"\r\n" * 500 + b"GET /health HTTP/1.1\r\nHost: %s\r\n\r\n",
    b"\n\n\n",
    b"GET /health HTTP/1.1\nHost: %s\n\n",
    b"GET\x0b/health\x0bHTTP/1.1\r\nHost: %s\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: %s\r\nHost: %s\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: %s:99999\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: a b\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: [::1\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost:\r\n\r\n",
    b"GET /\xc3\xa9\xff HTTP/1.1\r\nHost: %s\r\n\r\n",
)


def heads(points: list[Endpoint], host: str, count: int, rng: random.Random) -> Iterator[Attack]:
    """Targets, methods, headers, chunks and first lines that are wrong; none is drawn again before all were."""
    posts = [point.path for point in points if point.method == "POST"]
    ways = [
        *(("target", target) for target in TARGETS),
        *(("headers", lines) for lines in HEADERS),
        *(("chunks", chunks) for chunks in CHUNKS),
        *(("line", line) for line in LINES),
        *(("method", method) for method in METHODS),
    ]
    turns = 0
    while turns < count:
        rng.shuffle(ways)
        for kind, value in ways[: count - turns]:
            path, method = rng.choice(points).path, rng.choice(METHODS[:8])
            if kind == "target":
                data = head(method if turns % 3 else "GET", value, host)
            elif kind == "headers":
                data = head("POST", rng.choice(posts), host, *value) + b"{}"
            elif kind == "chunks":
                data = head("POST", rng.choice(posts), host, "Transfer-Encoding: chunked") + value
            elif kind == "line":
                data = value.replace(b"%s", host.encode())
            else:
                data = head(value, path, host, "Content-Length: 2") + b"{}"
            yield Attack(f"{turns}: {kind} {str(value)[:40]}", data, answer=False, half_close=rng.random() < 0.3)
            turns += 1


def streams(points: list[Endpoint], host: str, body: bytes, count: int, rng: random.Random) -> Iterator[Attack]:
    """Several requests on one connection: pipelined, after a broken one, cut in the middle, with a half close."""
    for turn in range(count):
        parts = []
        for _ in range(rng.randint(2, 40)):
            point = rng.choice(points)
            parts.append(entire(point.method, point.path, host, body))
        if rng.random() < 0.5:
            parts.insert(rng.randrange(len(parts)), rng.choice(LINES).replace(b"%s", host.encode()))
        data = b"".join(parts)
        if rng.random() < 0.5:
            data = data[: rng.randrange(len(data))]
        yield Attack(f"{turn}: {len(parts)} pipelined", data, answer=False, half_close=rng.random() < 0.6)
