"""A tool server that misbehaves as its tools and arguments say: `python odd_tool_server.py [MANNER] [FILE]`."""

from __future__ import annotations

import base64
import json
import os
import signal
import struct
import subprocess
import sys
import time
import zlib

MANNER = sys.argv[1] if len(sys.argv) > 1 else ""
TOOLS = [
    "add",
    "die",
    "hang",
    "huge",
    "endless",
    "print",
    "fail",
    "refuse",
    "picture",
    "value",
    "leave",
    "spawn",
    "odd",
]
STATE = {"sum": 0}


def send(message: dict) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(content: str, **more: object) -> dict:
    return {"content": [{"type": "text", "text": content}], **more}


def picture() -> dict:
    """A PNG of 2 by 1: red and blue."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    pixels = zlib.compress(b"\0\xff\0\0\0\0\xff")
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 2, 1, 8, 2, 0, 0, 0))
    png += chunk(b"IDAT", pixels) + chunk(b"IEND", b"")
    return {"type": "image", "mimeType": "image/png", "data": base64.b64encode(png).decode()}


def call(name: str, arguments: dict) -> dict:
    if name == "add":
        STATE["sum"] += int(arguments.get("number", 1))
        return text(json.dumps(STATE), structuredContent=STATE)
    if name == "die":
        sys.stderr.write("out of ideas\n")
        os._exit(3)
    if name == "hang":
        time.sleep(3600)
    if name == "huge":
        return text("x" * int(arguments.get("size", 1_000_000)))
    if name == "endless":
        while True:
            sys.stdout.write("x" * 1_000_000)
    if name == "print":
        print("DEBUG: thinking\n\n{}\n[1, 2\n" + '{"jsonrpc": "2.0"}', flush=True)
        return text("printed")
    if name == "fail":
        return text("no such thing", isError=True)
    if name == "picture":
        broken = {"type": "image", "mimeType": "image/png", "data": "AAAA"}
        return {"content": [{"type": "text", "text": "look"}, broken if arguments.get("broken") else picture()]}
    if name == "value":
        return {"content": [], "structuredContent": {"result": [1, 2.5, None]}}
    if name == "leave":
        TOOLS.remove("leave")
        TOOLS.append("arrive")
        send({"method": "notifications/tools/list_changed"})
        return text("gone")
    if name == "spawn":
        subprocess.Popen(["sleep", "3599"], start_new_session=bool(arguments.get("away")))
        return text("started")
    if name == "odd":
        return {
            "content": [{"type": "resource_link", "uri": "file:///a", "name": "a"}, {"type": "text", "text": "\x00é"}]
        }
    raise KeyError(name)


def main() -> None:
    if MANNER == "dies":
        sys.exit("it will not start")
    if MANNER == "mute":
        time.sleep(3600)
    if MANNER == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if MANNER == "chatty":
        print("Welcome to the server!\n" * 1000, flush=True)
    if MANNER == "once" and os.path.exists(sys.argv[2]):
        sys.exit("it starts once only")
    if MANNER == "once":
        open(sys.argv[2], "w").close()
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        if request["method"] == "initialize":
            result = {
                "protocolVersion": request["params"]["protocolVersion"],
                "capabilities": {"tools": {"listChanged": True}},
                "serverInfo": {"name": "odd", "version": "1"},
                "instructions": "Add with add.",
            }
        elif request["method"] == "tools/list":
            listed = [*TOOLS, "add"] if MANNER == "twice" else [*TOOLS, "finish"] if MANNER == "finish" else TOOLS
            result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in listed]}
        else:
            try:
                result = call(request["params"]["name"], request["params"].get("arguments") or {})
            except (KeyError, ValueError) as error:
                send({"id": request["id"], "error": {"code": -32602, "message": f"bad call: {error}"}})
                continue
        send({"id": request["id"], "result": result})
    if MANNER == "stubborn":
        time.sleep(3600)


main()
