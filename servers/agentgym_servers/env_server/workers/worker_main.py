"""The program of a worker process: one environment, many sessions of it, a thread each. Started by `process.py`.

A session's calls all come from its own thread, as browsers and databases ask. The main thread only reads calls, so it
answers a ping whatever the environments do, unless one of them holds the interpreter's lock.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import resource
import select
import signal
import socket
import sys
import threading
from typing import Any

from agentgym import registry
from agentgym.env import Env
from agentgym.errors import EnvironmentCrashed, EnvironmentFailure
from agentgym_servers.env_server.workers.env_call import ServedEnv, describe, envs_of, open_env, perform
from agentgym_servers.env_server.workers.framing import Unpacker, pack_result

STACK = 2**20
"""Bytes of address space for a session's thread; what is not used costs no memory."""
SWITCH_S = 50e-6
"""Seconds of the interpreter's switch interval for each thread. A thread that waits for the interpreter's lock wakes up
once an interval to ask for it: on a busy processor, two thousand of them do little else at Python's own 5 ms."""


class WorkerMain:
    """Reads calls until the server goes away, and hands each to its session's thread."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._sending = threading.Lock()
        self._sessions: dict[int, _Session] = {}
        self._memory = 0
        self._env: ServedEnv | None = None

    def serve(self) -> None:
        unpacker = Unpacker()
        while data := self._channel.recv(2**18):
            for (call, session, method, arguments), body in unpacker.feed(data):
                if session:
                    self._hand_over(call, session, method, [body, *arguments] if method == "restore" else arguments)
                elif method == "start":
                    self._start(call, **arguments)
                else:
                    self.reply(call, None)

    def reply(self, call: int, result: Any) -> None:
        frame = pack_result(call, result)
        with self._sending:
            self._channel.sendall(frame)

    def _start(self, call: int, path: list[str], name: str, target: str, memory: int) -> None:
        sys.path[:] = path
        self._memory = memory
        threading.stack_size(STACK)
        try:
            plain, _ = registry.split_arguments(name)
            if ":" not in plain and plain not in registry.list_envs():
                registry.register(plain, target)
            (self._env,) = envs_of([name]).values()
        except BaseException as error:  # noqa: BLE001  (importing an environment can raise anything)
            self.reply(call, EnvironmentCrashed(describe(error)))
            sys.exit(1)
        self._limit_memory()
        self.reply(call, None)

    def _hand_over(self, call: int, session: int, method: str, arguments: list[Any]) -> None:
        assert self._env is not None
        if session not in self._sessions:
            if method == "close":  # its thread could not be started
                return self.reply(call, None)
            self._sessions[session] = _Session(self._env, self)
            self._limit_memory()
            sys.setswitchinterval(max(0.005, SWITCH_S * threading.active_count()))
            try:
                self._sessions[session].start()
            except (RuntimeError, MemoryError) as error:
                del self._sessions[session]
                return self.reply(call, EnvironmentCrashed(f"there is no room for another thread: {error}"))
        self._sessions[session].calls.put((call, method, arguments))
        if method == "close":
            del self._sessions[session]
        return None

    def _limit_memory(self) -> None:
        """Limit what the process may allocate, apart from the stacks: beyond it, the environment that asks gets a
        MemoryError."""
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = self._memory + STACK * threading.active_count()
        with contextlib.suppress(ValueError):  # whoever started us allows less
            resource.setrlimit(resource.RLIMIT_DATA, (wanted, most))


class _Session(threading.Thread):
    def __init__(self, env: ServedEnv, child: WorkerMain) -> None:
        super().__init__(daemon=True)
        self.calls: queue.SimpleQueue[tuple[int, str, list[Any]]] = queue.SimpleQueue()
        self._env, self._child = env, child

    def run(self) -> None:
        env: Env | None = None
        while True:
            call, method, arguments = self.calls.get()
            if method == "close":
                return self._close(call, env)
            try:
                if env is None:
                    env = open_env(self._env)
                result = perform(self._env, env, method, *arguments)
            except EnvironmentFailure as error:
                result = error.with_traceback(None)
            self._child.reply(call, result)
            del result, arguments

    def _close(self, call: int, env: Env | None) -> None:
        try:
            if env is not None:
                env.close()
        except BaseException as error:  # noqa: BLE001  (the session is over anyway)
            logging.getLogger(__name__).warning("%s raised while closing: %s", self._env.name, describe(error))
        self._child.reply(call, None)


def guard_the_group() -> None:
    """Fork a process that waits for the server to end, then ends this process group.

    The end of the socket says so as well, but not to a process in which an environment holds the interpreter's lock. A
    parent-death signal would end this process before it has ended what its environments have started.
    """
    try:
        server = os.pidfd_open(os.getppid())
    except (AttributeError, OSError):  # no such thing here, or the server is gone already
        return
    if os.fork():
        os.close(server)
        return
    os.closerange(0, server)  # the server must see the end of the socket when the worker ends
    os.closerange(server + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    ended = select.poll()
    ended.register(server, select.POLLIN)
    ended.poll()
    os.killpg(0, signal.SIGKILL)


def main(fd: int) -> None:
    if os.getpgrp() == os.getpid():
        guard_the_group()
    os.set_inheritable(fd, False)
    with socket.socket(fileno=fd) as channel, contextlib.suppress(ConnectionError):
        WorkerMain(channel).serve()
    if os.getpgrp() == os.getpid():  # the server is gone: take along whatever the environments have started
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
