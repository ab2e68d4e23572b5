"""The guard against leaks sees a process, a socket and a file that a test leaves behind."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import leaks


def new(before: set[str]) -> set[str]:
    return leaks.everything() - before


def test_a_process_is_reported_until_it_ends():
    before = leaks.everything()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert any(found.startswith(f"process {process.pid}: ") for found in new(before))
    assert new(before) == set()


def test_a_listening_socket_is_reported_until_it_is_closed():
    before = leaks.everything()
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert new(before) == {f"socket listens on 127.0.0.1:{server.getsockname()[1]}"}
    assert new(before) == set()


def test_stray_files_and_temporary_files_are_reported():
    before = leaks.everything()
    path = leaks.ROOT / "tests" / "left_behind.txt"
    try:
        path.touch()
        with tempfile.NamedTemporaryFile() as stray:
            assert new(before) == {f"file {path}", f"file {stray.name}"}
    finally:
        path.unlink()
    assert new(before) == set()


def test_every_run_has_a_temporary_folder_of_its_own():
    assert Path(tempfile.gettempdir()).name.startswith("gym-")
