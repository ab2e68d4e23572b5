"""The command line of the gateway."""

from __future__ import annotations

import http.server
import threading

import pytest

from agentgym.cli.main import main
from agentgym.testing import EchoEnv

from .conftest import ECHO, env_server, gateway_process


@pytest.fixture
def run(capsys, monkeypatch):
    """run(*arguments) -> (exit status, standard output, standard error)."""
    monkeypatch.delenv("AGENTGYM_KEY", raising=False)

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = 0
        try:
            main(arguments)
        except SystemExit as stop:
            status = int(stop.code or 0)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


def test_envs_and_keys_from_the_command_line(run, tmp_path, monkeypatch):
    database = f"sqlite:///{tmp_path / 'gateway.db'}"
    status, secret, output = run("gateway", "--database", database, "keys", "create", "ci", "--scope", "register")
    assert (status, secret.count("\n")) == (0, 1)
    assert secret.strip() not in output
    _, reader, _ = run("gateway", "--database", database, "keys", "create", "reader")
    _, listed, _ = run("gateway", "--database", database, "keys", "list")
    assert "ci" in listed
    assert "read, run" in listed
    with env_server(echo=EchoEnv) as server, gateway_process(database) as gateway:
        monkeypatch.setenv("AGENTGYM_GATEWAY", gateway.url)
        assert run("register", "words", "--url", server)[::2] == (
            1,
            "error: this gateway wants an API key: send it as `Authorization: Bearer KEY`\n",
        )
        monkeypatch.setenv("AGENTGYM_KEY", secret.strip())
        status, printed, _ = run("register", "words", "--url", server)
        assert (status, printed) == (0, f"words is live at {gateway.url}/envs/words\n")
        status, _, error = run("register", "more", "--entry-point", ECHO, "--memory-mb", "64")
        assert (status, "limits apply to containers" in error) == (1, True)
        assert run("registered")[0] == 1  # this key may not
        monkeypatch.setenv("AGENTGYM_KEY", reader.strip())
        status, table, _ = run("registered")
        assert status == 0
        assert f"url {server}" in table
        status, shown, error = run("envs", "show", f"{gateway.url}/envs/words")
        assert (status, "Repeat the word" in shown) == (0, True), error
        status, printed, _ = run("--key", secret.strip(), "unregister", "words", "--key", secret.strip())
        assert (status, printed) == (0, "words is removed; 0 sessions were lost\n")
    key_id = secret.split("_")[1]
    assert run("gateway", "--database", database, "keys", "revoke", key_id)[0] == 0
    status, _, error = run("gateway", "--database", database, "keys", "revoke", key_id)
    assert (status, "no valid key" in error) == (2, True)


def test_an_explicit_key_wins_over_the_variable(run, tmp_path, monkeypatch):
    database = f"sqlite:///{tmp_path / 'gateway.db'}"
    scopes = ("--scope", "register", "--scope", "run", "--scope", "read")
    secret = run("gateway", "--database", database, "keys", "create", "ci", *scopes)[1].strip()
    with env_server(echo=EchoEnv) as server, gateway_process(database) as gateway:
        monkeypatch.setenv("AGENTGYM_GATEWAY", gateway.url)
        for variable in (None, "agk_00000000_another"):
            if variable is not None:
                monkeypatch.setenv("AGENTGYM_KEY", variable)
            assert run("--key", secret, "register", "words", "--url", server)[0] == 0
            for arguments in (("--key", secret, "registered"), ("registered", "--key", secret)):
                status, table, error = run(*arguments)
                assert (status, "words" in table) == (0, True), error
            assert run("--key", "agk_00000000_third", "registered", "--key", secret)[0] == 0
            assert run("--key", secret, "unregister", "words")[0] == 0


def test_what_cannot_be_is_one_sentence(run, tmp_path):
    status, _, error = run("gateway", "--database", "nowhere")
    assert (status, "sqlite:///FILE" in error) == (2, True)
    status, _, error = run(
        "gateway", "--database", f"sqlite:///{tmp_path / 'g.db'}", "--host", "0.0.0.0", "--port", "0"
    )
    assert (status, "make a key first" in error) == (2, True)
    status, _, error = run("gateway", "--database", f"sqlite:///{tmp_path / 'g.db'}", "--rate", "often")
    assert (status, "is no rate" in error) == (2, True)
    status, _, error = run("registered", "--gateway", "http://127.0.0.1:9")
    assert (status, "no gateway answers" in error) == (1, True)


@pytest.mark.parametrize(
    ("status", "page"), [(200, b"<html></html>"), (200, b'{"a": 1}'), (200, b"[1]"), (404, b"null"), (404, b"no")]
)
def test_a_server_that_is_no_gateway_is_one_sentence(run, status, page):
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        do_POST = do_DELETE = do_GET

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        for verb in (("register", "a", "--url", address), ("unregister", "a"), ("registered",)):
            code, _, error = run(*verb, "--gateway", address)
            assert (code, error.count("\n")) == (1, 1)
            assert f"answered {status}, and not as a gateway does; name the gateway" in error
        server.shutdown()
