"""A server that speaks what the Hugging Face hub's client asks of data sets: a revision's files, and their content."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextlib.contextmanager
def hub(repositories: Mapping[str, Mapping[str, bytes]]) -> Iterator[str]:
    """Serve data sets, {"OWNER/NAME": {"path": content}}, until the block ends. Yields the server's URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, *, body: bool) -> None:
            path = self.path.partition("?")[0].strip("/").removeprefix("api/")
            _, owner, name, verb, _, *rest = [*path.split("/"), "", "", "", ""]
            files = repositories.get(f"{owner}/{name}")
            file = "/".join(part for part in rest if part)
            if files is None or (verb == "resolve" and file not in files):
                missing = "RepoNotFound" if files is None else "EntryNotFound"
                self._send(404, b"", {"X-Error-Code": missing}, body)
            elif verb == "resolve":
                etag = hashlib.sha256(files[file]).hexdigest()
                self._send(200, files[file], {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, body)
            else:
                siblings = [{"rfilename": path} for path in files]
                about = {"id": f"{owner}/{name}", "sha": COMMIT, "siblings": siblings, "private": False}
                tree = [{"type": "file", "path": path, "size": len(files[path]), "oid": "0"} for path in files]
                content = json.dumps(tree if verb == "tree" else about).encode()
                self._send(200, content, {"Content-Type": "application/json"}, body)

        def _send(self, status: int, content: bytes, headers: dict[str, str], body: bool) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
