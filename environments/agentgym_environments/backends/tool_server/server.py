"""ToolServer: one running tool server, called from ordinary code, that is ended however it behaves."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import IO, Any

from agentgym.errors import ConfigError, EnvironmentCrashed
from agentgym.spec import ToolSpec
from agentgym_environments.backends.tool_server.box import server_command
from agentgym_environments.backends.tool_server.definition import ServerDefinition
from agentgym_environments.backends.tool_server.pipes import pipes
from agentgym_environments.backends.tool_server.results import ToolResult, result_of, shortened
from agentgym_environments.base.engine_env import package

START_S = 60.0
CALL_S = 20.0
END_S = 10.0
MAX_TOOLS = 512
CONNECTION_CLOSED = -32000
"""Code of MCP's error for a server that is gone."""


class ServerLost(EnvironmentCrashed):
    """A tool server that was running is gone."""


class ToolServer:
    """A server of tools, with an event loop in a thread of its own.

    sandbox: run the command in a sandbox; network: of which it may reach the network. images: decode pictures. start_s,
    call_s: seconds for the start and for each call.

    Raises ConfigError for a program that does not exist, MissingDependency without the package `mcp` or a sandbox, and
    EnvironmentCrashed where the server does not start.
    """

    def __init__(
        self,
        definition: ServerDefinition,
        *,
        sandbox: bool = True,
        network: bool = False,
        images: bool = False,
        start_s: float = START_S,
        call_s: float = CALL_S,
    ) -> None:
        self.definition, self.images, self.call_s = definition, images, call_s
        package("mcp", "mcp")
        if definition.url:
            self._where, command = definition.url, ([], {}, "")
        else:
            self._where = " ".join((definition.command, *definition.args))
            command = server_command(definition, sandbox=sandbox, network=network)
        self._link = link = _Link()
        transport = pipes(*command, link) if command[0] else _http(definition.url)
        self._end = weakref.finalize(self, _end, link)
        link.start(transport)
        try:
            link.ready.result(start_s)
        except FutureTimeout:
            problem, cause = f"did not start within {start_s:g} s", None
        except Exception as error:  # noqa: BLE001  (whatever a client raises for a server that is none)
            problem, cause = f"did not start: {_reason(error)}", error
        else:
            return
        problem += link.last_words()
        self.close()
        raise EnvironmentCrashed(f"{self._where} {problem}") from cause

    @property
    def pids(self) -> list[int]:
        """Number of the server's process; empty for a URL."""
        return self._link.pids

    @property
    def instructions(self) -> str:
        """Words of the server on how to use it; "" where it has none."""
        return shortened(self._link.client.instructions or "")

    def tools(self) -> tuple[ToolSpec, ...]:
        """Return the tools that the server lists, without the hidden ones. Raises ConfigError for a faulty list."""
        listed = self._wait(self._listed(), self.call_s)
        found = [
            ToolSpec(name=one.name, description=one.description or "", parameters=one.input_schema) for one in listed
        ]
        names = [one.name for one in found]
        if len(set(names)) < len(names):
            raise ConfigError(f"{self._where} lists two tools of one name: {', '.join(names)}")
        if absent := set(self.definition.hidden) - set(names):
            raise ConfigError(f"{self._where} has no tool {', '.join(sorted(absent))}, which `hidden` names")
        return tuple(one for one in found if one.name not in self.definition.hidden)

    def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Call a tool. An error of the tool or of the protocol, and no answer in time, are results that failed.

        Raises ServerLost where the server is gone.
        """
        error_type = package("mcp", "mcp").MCPError
        try:
            answer = self._wait(self._link.client.call_tool(name, arguments), self.call_s)
        except (FutureTimeout, TimeoutError):
            return ToolResult(f"error: {name} did not answer within {self.call_s:g} s", failed=True)
        except error_type as error:
            if self._link.over or error.error.code == CONNECTION_CLOSED:
                raise self._lost() from error
            return ToolResult(f"error: {shortened(str(error))}", failed=True)
        except (RuntimeError, ValueError) as error:  # a result that does not fit the tool's own schema
            if self._link.over:
                raise self._lost() from error
            return ToolResult(f"error: {shortened(_reason(error))}", failed=True)
        result = result_of(answer, self.images)
        return result._replace(text=f"error: {result.text}") if result.failed else result

    def close(self) -> None:
        """End the server and everything it started. May be called twice."""
        self._end()

    async def _listed(self) -> list[Any]:
        found: list[Any] = []
        cursor = None
        while len(found) < MAX_TOOLS:
            page = await self._link.client.list_tools(cursor=cursor)
            found += page.tools
            cursor = page.next_cursor
            if not cursor:
                return found
        raise ConfigError(f"{self._where} lists more than {MAX_TOOLS} tools")

    def _wait(self, work: Coroutine[Any, Any, Any], timeout_s: float) -> Any:
        if self._link.over or not self._end.alive:
            work.close()
            raise self._lost()
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._link.loop)
        except RuntimeError as error:  # the loop has just ended
            work.close()
            raise self._lost() from error
        try:
            return future.result(timeout_s)
        except FutureTimeout:
            future.cancel()
            raise
        except (asyncio.CancelledError, CancelledError):
            raise self._lost() from None

    def _lost(self) -> ServerLost:
        return ServerLost(f"{self._where} has ended{self._link.last_words()}")


class _Link:
    """Thread, event loop and client of a server. It does not hold the ToolServer, which may be collected."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.ready: Future[None] = Future()
        self.client: Any = None
        self.pids: list[int] = []
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the link)
        self.thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None
        self.gone = threading.Event()

    @property
    def over(self) -> bool:
        """True once the server has ended."""
        return self.gone.is_set()

    def start(self, transport: Any) -> None:
        self.thread = threading.Thread(target=self._run, args=(transport,), name="tool-server", daemon=True)
        self.thread.start()

    def last_words(self) -> str:
        """Return the end of the standard error, as the end of a sentence."""
        with contextlib.suppress(ValueError, OSError):
            size = self.log.seek(0, 2)
            self.log.seek(max(0, size - 1000))
            text = self.log.read().decode(errors="replace").strip()
            return f": {text}" if text else ""
        return ""

    def _run(self, transport: Any) -> None:
        with contextlib.closing(self.loop):
            asyncio.set_event_loop(self.loop)
            try:
                self.loop.run_until_complete(self._live(transport))
            except BaseException as error:  # noqa: BLE001  (groups of whatever the transport raised)
                if not self.ready.done():
                    self.ready.set_exception(error)
            finally:
                self.gone.set()
                if not self.ready.done():
                    self.ready.set_exception(ConnectionError("it ended"))
                rest = asyncio.all_tasks(self.loop)
                for task in rest:
                    task.cancel()
                if rest:  # calls that wait: they are cancelled, and their callers learn it
                    self.loop.run_until_complete(asyncio.wait(rest, timeout=1))
                self.loop.run_until_complete(self.loop.shutdown_asyncgens())

    async def _live(self, transport: Any) -> None:
        self._stop = asyncio.Event()
        if self.ready.cancelled():
            return
        make = package("mcp", "mcp").Client
        main = asyncio.ensure_future(self._serve(make(transport, mode="legacy", cache=None)))
        stop = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait((main, stop), return_when=asyncio.FIRST_COMPLETED)
        main.cancel()
        stop.cancel()
        await asyncio.gather(main, return_exceptions=True)
        if not self.ready.done() and not main.cancelled() and main.exception() is not None:
            self.ready.set_exception(main.exception())

    async def _serve(self, client: Any) -> None:
        async with client:
            self.client = client
            if self.ready.set_running_or_notify_cancel():
                self.ready.set_result(None)
            await asyncio.Event().wait()


def _end(link: _Link) -> None:
    if not link.ready.done():
        link.ready.cancel()
    if link.thread is not None and link.thread.is_alive():
        with contextlib.suppress(RuntimeError):  # its loop has just ended
            link.loop.call_soon_threadsafe(lambda: link._stop.set() if link._stop else None)
        link.thread.join(END_S)
    link.log.close()


def _http(url: str) -> Any:
    return package("mcp.client.streamable_http", "mcp").streamable_http_client(url)


def _reason(error: BaseException) -> str:
    """Return the first error of a group, as a sentence."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(str(error).split())[:500] or type(error).__name__
