"""What clients send without end, and without reading the answers: `python floods.py PORT NAME` sends it from a process
of its own, over a few connections, until it is stopped."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time

SOCKET = (
    b"GET /envs/echo/ws?ext=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
CHUNKED = b"POST POST HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
STEP = b'{"session_id":"none","action":{"text":"a"}}'
KEYS = b'{"session_id":"none",' + b",".join(b'"a%d":0' % number for number in range(490_000)) + b"}"
VALUES = b'{"steps":[' + b"0," * 490_000 + b"0]}"
STEPS = b'{"steps":[' + b",".join([STEP] * 3000) + b"]}"
DEEP = b"[" * 400_000 + b"]" * 400_000


def post(path: str, body: bytes) -> bytes:
    return (
        b"POST /envs/echo/%s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(body))
        + body
    )


def call(verb: str, body: bytes, count: int = 1) -> bytes:
    """Frames of our socket, their mask nothing but zeros."""
    text = b'{"id":1,"type":"%s","data":%s}' % (verb.encode(), body)
    size = bytes([0xFE]) + len(text).to_bytes(2) if len(text) < 65536 else bytes([0xFF]) + len(text).to_bytes(8)
    return (b"\x81" + size + bytes(4) + text) * count


HTTP = {
    "short chunks": (16, CHUNKED, b"1\r\n \r\n" * 5000),
    "chunks": (8, CHUNKED, (b"40\r\n" + b" " * 64 + b"\r\n") * 5000),
    "requests": (4, b"", b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 500),
}
"""Connections of each, what they begin with, and what they repeat; on every server."""
VERBS = {
    "keys": (4, b"", post("step", KEYS)),
    "values": (4, b"", post("step_many", VALUES)),
    "steps": (4, b"", post("step_many", STEPS)),
    "frames": (4, SOCKET, call("step", STEP, 2000)),
    "frames of keys": (4, SOCKET, call("step", KEYS)),
    "frames of values": (4, SOCKET, call("step_many", VALUES)),
    "frames of steps": (4, SOCKET, call("step_many", STEPS)),
    "deep frames": (4, SOCKET, call("step", DEEP)),
    "resets": (4, SOCKET, call("reset", b'{"seed":0,"index":0}', 200)),
    "pings": (4, SOCKET, (b"\x89\xe4" + bytes(104)) * 2000),
}
"""The same, on a server of environments."""


def send(port: int, path: bytes, start: bytes, repeat: bytes) -> None:
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(start.replace(b"POST POST", b"POST " + path))
            if start == SOCKET:
                connection.recv(1000)
            while True:
                connection.sendall(repeat)
        time.sleep(0.01)


if __name__ == "__main__":
    count, start, repeat = {**HTTP, **VERBS}[sys.argv[3]]
    for _ in range(count):
        threading.Thread(target=send, args=(int(sys.argv[1]), sys.argv[2].encode(), start, repeat), daemon=True).start()
    time.sleep(0.3)
    print(flush=True)  # it has begun
    sys.stdin.read()
