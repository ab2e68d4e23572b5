"""A module of tests leaves nothing behind: no process, no listening socket, no file, nothing that warns when collected.

The run has a temporary directory of its own (`TMPDIR`), so that what other programs write is not blamed on a test.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parent.parent
NOT_OURS = {"__pycache__", "node_modules", "runs"}
"""Folders that may grow; so may those whose names start with a dot."""
SETTLE_S = 5.0
"""What is on its way out gets this long."""
ALLOWED_PROCESSES = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
"""Python's own helpers, which end with the process."""
ALLOWED_TEMPORARY = re.compile(r"torchinductor_|pytest-of-|matplotlib-|playwright|vllm_dist_|ray$|[0-9a-f-]{36}$")
"""Caches and channels of libraries, vLLM's and Ray's among them; and profiles of browsers whose worker process was
killed with its server, a known gap."""
TEMPORARY = pytest.StashKey[str]()
OF_THE_SESSION: set[str] = set()
"""What fixtures of the whole session brought: it may outlive the module that asked first."""


def pytest_configure(config: pytest.Config) -> None:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # pytest's own folders stay where they are
    config.stash[TEMPORARY] = tempfile.mkdtemp(prefix="gym-")
    os.environ["TMPDIR"] = tempfile.tempdir = config.stash[TEMPORARY]


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(config.stash[TEMPORARY], ignore_errors=True)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # libraries and collected tests live to the end: a collection after each module skips them


def processes() -> set[str]:
    """The living descendants of this process."""
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            line = " ".join(child.cmdline())[:200]
            if child.status() != psutil.STATUS_ZOMBIE and not any(name in line for name in ALLOWED_PROCESSES):
                found.add(f"process {child.pid}: {line}")
        except psutil.NoSuchProcess:
            continue
    return found


def sockets() -> set[str]:
    connections = psutil.Process().net_connections(kind="inet")
    return {f"socket listens on {c.laddr.ip}:{c.laddr.port}" for c in connections if c.status == psutil.CONN_LISTEN}


def files() -> set[str]:
    """Files of the repository and entries of the temporary directory."""
    found = {f"file {entry.path}" for entry in os.scandir(tempfile.gettempdir())
             if not ALLOWED_TEMPORARY.match(entry.name)}  # fmt: skip
    for folder, below, names in os.walk(ROOT):
        below[:] = [name for name in below if name not in NOT_OURS and not name.startswith(".")]
        found.update(f"file {folder}/{name}" for name in names)
    return found


def everything() -> set[str]:
    return processes() | sockets() | files()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[object]:
    if fixturedef.scope != "session":
        return (yield)
    before = everything()
    try:
        return (yield)
    finally:
        OF_THE_SESSION.update(everything() - before)


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the module whose tests leave a living process, a listening socket or a file behind.

    `LIBRARY_SOCKETS` of a module is how many sockets a library keeps for as long as the process lives.
    """
    before = everything()
    yield
    gc.collect()  # what was not closed warns here, and not in a module that has nothing to do with it
    deadline = time.monotonic() + SETTLE_S
    while (left := everything() - before - OF_THE_SESSION) and time.monotonic() < deadline:
        time.sleep(0.05)
    if all(name.startswith("socket") for name in left) and len(left) <= getattr(request.module, "LIBRARY_SOCKETS", 0):
        return
    assert not left, "\n".join(["this module's tests left behind:", *sorted(left)])


@pytest.fixture(scope="module", autouse=True)
def shared_parts_end(nothing_is_left_behind: None) -> Iterator[None]:
    """End what all environments of a process share, browsers, the shop's server and the verifier of mathematics, before
    anything is missed.

    A browser stays for 15 s after its last tab, which is longer than `SETTLE_S`.
    """
    yield
    if browser := sys.modules.get("agentgym_environments.backends.browser.browser"):
        browser.browsers().close()
    if site := sys.modules.get("agentgym_environments.synthetic.shop.site"):
        site.close_site()
    if graders := sys.modules.get("agentgym_environments.backends.answers.graders"):
        graders.MATHEMATICS.close()
