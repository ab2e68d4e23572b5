"""One child process that all sessions of this process share, and take turns with."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from agentgym.errors import EnvironmentCrashed
from agentgym_environments.backends.json_process import JsonProcess


class SharedProcess:
    """A `JsonProcess` that is started when it is first asked, and again after it has ended.

    greeting: a first request, whose answer may take `start_s` seconds: what is imported takes some.
    """

    def __init__(self, command: Sequence[str], *, name: str, greeting: Any = None, start_s: float = 120.0) -> None:
        self.command, self.name, self.greeting, self.start_s = tuple(command), name, greeting, start_s
        self._lock = threading.Lock()
        self._process: JsonProcess | None = None

    def ask(self, request: Any, timeout_s: float) -> Any:
        """Return the answer to a request. Raises EnvironmentCrashed where there is none; the process is ended then."""
        with self._lock:
            if self._process is None:
                self._process = JsonProcess(self.command, name=self.name)
                if self.greeting is not None:
                    self._process.ask(self.greeting, timeout_s=self.start_s)
            try:
                return self._process.ask(request, timeout_s=timeout_s)
            except EnvironmentCrashed:
                self._end()
                raise

    def close(self) -> None:
        """End the process. The next request starts another."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None
