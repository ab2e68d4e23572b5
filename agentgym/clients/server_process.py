"""Serving environments from a process of their own, for examples, tests and notebooks."""

from __future__ import annotations

import collections
import contextlib
import logging
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence

from agentgym.errors import AgentGymError, MissingDependency, Unreachable, UsageError

ANNOUNCED = re.compile(r"serving at (http\S+)")
"""The line that a server prints once it answers, with its URL."""
MIN_UPTIME_S = 60.0
"""A server that dies again within so many seconds will not do better the next time."""


@contextlib.contextmanager
def server_process(
    envs: Sequence[str], *, startup_s: float = 60.0, options: Sequence[str] = (), restart: bool = False
) -> Iterator[str]:
    """Serve environments from a process of their own; yields the URL. The process ends with the block, or with this
    process.

    `options` are further ones of `python -m agentgym_servers.env_server.app`. What can be imported here can be imported
    there. With `restart` a server that dies is started again at its port, unless it was so less than `MIN_UPTIME_S`
    seconds ago; its sessions are lost. Raises UsageError with the end of the server's log when it does not start within
    `startup_s` seconds, MissingDependency without the extra "serve", and Unreachable in place of an AgentGymError of
    the block once a restarted server is dead for good.
    """
    server = _Server(envs, startup_s, options)
    keeper = _Supervisor(server, startup_s) if restart else None
    try:
        yield server.url
    except AgentGymError as error:
        if keeper is not None and keeper.lost:
            raise Unreachable(keeper.lost) from error
        raise
    finally:
        if keeper is not None:
            keeper.stop()
        else:
            server.stop()


class _Server:
    """A server that answers."""

    def __init__(self, envs: Sequence[str], startup_s: float, options: Sequence[str]) -> None:
        """Raises UsageError when it does not start."""
        self.envs, self.options = envs, options
        command, environment = server_command(envs, options)
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
        )
        self.log: collections.deque[str] = collections.deque(maxlen=30)
        self._announced = threading.Event()
        self.url = ""
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        try:
            self._announced.wait(startup_s)
            if not self.url:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(1)  # its output has ended, so it is about to
                raise _not_started(envs, startup_s, self.process.poll(), self.log)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()  # asks it to stop
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        self.process.stdout.close()

    def _read_log(self) -> None:
        for line in self.process.stdout or ():
            self.log.append(line.decode(errors="replace").rstrip())
            if not self.url and (found := ANNOUNCED.search(self.log[-1])):
                self.url = found[1]
                self._announced.set()
        self._announced.set()


class _Supervisor:
    """Starts a server again when it dies."""

    def __init__(self, server: _Server, startup_s: float) -> None:
        self.lost = ""
        """The reason why the server is gone."""
        self._server, self._startup_s = server, startup_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        while self._thread.is_alive():  # one may be starting just now
            self._server.stop()
            self._thread.join(0.1)
        self._server.stop()

    def _watch(self) -> None:
        revived = -math.inf
        while True:
            status = self._server.process.wait()
            if self._over.is_set():
                return
            envs, port = ", ".join(self._server.envs), self._server.url.rpartition(":")[2]
            ended = f"the server of {envs} ended with status {status}"
            if time.monotonic() < revived + MIN_UPTIME_S:
                self.lost = f"{ended}, twice within {MIN_UPTIME_S:g} s. {end_of(self._server.log)}"
                return
            revived = time.monotonic()
            logging.getLogger(__name__).warning("%s: starting it again", ended)
            self._server.stop()
            try:
                self._server = _Server(self._server.envs, self._startup_s, [*self._server.options, "--port", port])
            except UsageError as error:
                self.lost = f"{ended}, and could not be started again: {error}"
                return


def server_command(envs: Sequence[str], options: Sequence[str] = ()) -> tuple[list[str], dict[str, str]]:
    """Command and environment variables of a server that takes a free port and ends with its standard input."""
    command = [sys.executable, "-m", "agentgym_servers.env_server.app", *envs, "--port", "0", "--die-with-stdin"]
    path = os.pathsep.join(folder for folder in sys.path if folder)
    return [*command, *options], {**os.environ, "PYTHONPATH": path}


def end_of(log: Iterable[str]) -> str:
    """The last lines of a server's log, for an error message."""
    return "The end of its log:\n{}".format("\n".join(log) or "(empty)")


def _not_started(envs: Sequence[str], startup_s: float, status: int | None, log: Iterable[str]) -> UsageError:
    packages = "fastapi|prometheus_client|pythonjsonlogger|starlette|uvicorn"
    if missing := re.search(rf"No module named '({packages})", "\n".join(log)):
        return MissingDependency(f"serving environments needs {missing[1]}: pip install 'turngym[serve]'")
    how = f"did not answer within {startup_s:g} s" if status is None else f"ended with status {status}"
    return UsageError(f"the server of {', '.join(envs)} {how}. {end_of(log)}")
