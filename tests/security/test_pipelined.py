"""Requests that are sent ahead of their answers: the server keeps a bounded number of them."""

from __future__ import annotations

import contextlib
import itertools
import socket
import time

import pytest

from agentgym_servers.web.bounds import BOUNDS

SENT_S = 3.0


def ask(server, count: int, path: str = "/metrics", body: str = "") -> bytes:
    head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    return head.encode() * count


def test_pipelined_requests_are_all_answered(server):
    with socket.create_connection(server.address, timeout=20) as connection:
        connection.sendall(ask(server, BOUNDS.pipelined, "/health"))
        content = b""
        while content.count(b"HTTP/1.1 200 ") < BOUNDS.pipelined:
            part = connection.recv(65536)
            assert part, content[-300:]
            content += part


@pytest.mark.parametrize("body", ["", "x" * 20_000], ids=["heads", "bodies"])
def test_requests_without_end_take_no_memory(server, resident_mb, body):
    before, piece = resident_mb(), ask(server, 200, body=body)
    with socket.create_connection(server.address, timeout=SENT_S) as connection:
        end = time.monotonic() + SENT_S
        with contextlib.suppress(OSError):  # closed, or not read any further
            while time.monotonic() < end:
                connection.sendall(piece)
        assert resident_mb() - before < 48


@pytest.mark.parametrize("pieces", [1, 2, 3])
def test_a_long_head_behind_another_request_is_refused(server, pieces):
    """Each of its pieces may be short."""
    line = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: " + b"x" * (BOUNDS.line_bytes + 1)
    content = ask(server, 1, "/health") + line + b"\r\n\r\n"
    cuts = [len(content) * piece // pieces for piece in range(pieces + 1)]
    with socket.create_connection(server.address, timeout=20) as connection:
        for start, end in itertools.pairwise(cuts):
            connection.sendall(content[start:end])
            time.sleep(0.1)
        reply = b""
        while part := connection.recv(65536):
            reply += part
    assert b"HEAD_TOO_LARGE" in reply, reply
