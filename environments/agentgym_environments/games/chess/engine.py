"""Stockfish over UCI: one process, one thread, and a search follows from position and nodes alone.

python-chess has an engine client too; its thread keeps a process alive whose owner forgot to close, and nothing ends
the engine when the process is killed.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import weakref
from collections.abc import Sequence

from agentgym.errors import EnvironmentCrashed, MissingDependency

USUAL = "/usr/games/stockfish"
"""Debian's place for it, which is not on everybody's PATH."""


def program(name: str) -> str:
    """The path of an engine. Raises MissingDependency."""
    found = shutil.which(name) or (USUAL if name == "stockfish" and shutil.which(USUAL) else None)
    if found is None:
        raise MissingDependency(
            f"the chess environments need the engine {name!r}, which is not here: apt-get install stockfish"
        )
    return found


class ChessEngine:
    """Started by the first search; started again, once a search, when it has died."""

    def __init__(self, path: str, memory_mb: int = 1) -> None:
        self.path, self.memory_mb = path, memory_mb
        self.process: subprocess.Popen[str] | None = None
        self._end = weakref.finalize(self, lambda: None)

    def best(self, fen: str, moves: Sequence[str], nodes: int) -> str:
        """The move (UCI) it finds within `nodes` nodes from the position after `moves`; "0000" when there is none.

        Everything it remembers of earlier searches is cleared first: a restored episode gets the same answers.
        """
        for attempt in range(2):
            try:
                process = self._running()
                self._say(process, "ucinewgame", f"position fen {fen} moves {' '.join(moves)}", f"go nodes {nodes}")
                return self._until(process, "bestmove").split()[1]
            except (OSError, EOFError) as error:
                self.close()
                if attempt:
                    raise EnvironmentCrashed(f"{self.path} ends when it is asked for a move: {error}") from error
        raise AssertionError

    def close(self) -> None:
        self._end()
        self.process = None

    def _running(self) -> subprocess.Popen[str]:
        if self.process is None:
            # The pipe's end ends the engine; the signal does where another process still holds the pipe.
            guard = ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []
            pipe = subprocess.PIPE
            process = subprocess.Popen([*guard, self.path], stdin=pipe, stdout=pipe, text=True, bufsize=1)
            self.process, self._end = process, weakref.finalize(self, _end, process)
            # Its network does not know how to drive a lone king to the edge; its older evaluation does, and is faster.
            self._say(
                process, "uci", "setoption name Use NNUE value false", f"setoption name Hash value {self.memory_mb}"
            )
            self._say(process, "isready")
            self._until(process, "readyok")
        return self.process

    def _say(self, process: subprocess.Popen[str], *lines: str) -> None:
        assert process.stdin is not None
        process.stdin.write("".join(f"{line}\n" for line in lines))
        process.stdin.flush()

    def _until(self, process: subprocess.Popen[str], word: str) -> str:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(word):
                return line
        raise EOFError(f"no {word}")


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
