"""`pytest tests/chaos --episodes 2000` plays that many episodes in all and prints what became of them."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1]))  # `chaos.worlds` must be importable here and in worker processes

from chaos.ledger import Tally
from chaos.processes import Server, wait_for

SHORT = 256
"""About how many episodes the default run plays, over all tests."""
RUNS = 2
"""Trainings under kills."""
SETTLE_S = 40.0
"""More than any lease here, with the time until the server looks."""
TALLIES: pytest.StashKey[dict[str, Tally]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--episodes", type=int, help="episodes to play under chaos, over all tests")
    parser.addoption("--runs", type=int, help=f"trainings to carry out under kills (default: {RUNS})")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TALLIES] = {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "training_number" in metafunc.fixturenames:
        runs = metafunc.config.getoption("--runs", default=None) or RUNS
        metafunc.parametrize("training_number", range(runs))


class Chaos:
    """What a test needs: its share of the episodes, servers, and what must hold when the dust has settled."""

    def __init__(self, name: str, times: float, folder: Path, tallies: dict[str, Tally]) -> None:
        self._name, self._times, self._folder, self._tallies = name, times, folder, tallies

    def seeds(self, short: int) -> range:
        """A seed for each episode; `short` is how many the default run plays."""
        return range(round(short * self._times))

    def every(self, steps: int) -> float:
        """How many steps pass between two kills: in long runs, fewer kills in proportion, for each takes seconds."""
        return steps * math.sqrt(self._times)

    def server(self, module: str, *arguments: str, **options: Any) -> Server:
        return Server(self._folder / f"{module}.log", module, *arguments, **options)

    def settled(self, server: Server, tally: Tally, health: str = "/health") -> None:
        """The ledger is right, the server answers, no session is left once the leases have run out, and it ends."""
        total = self._tallies.setdefault(self._name, Tally())
        total += tally
        tally.check()

        def idle() -> bool:
            found = server.get(health)
            return found["status"] == "healthy" and found["sessions"] + found.get("stuck", 0) == 0

        wait_for(idle, SETTLE_S, lambda: f"no sessions: {server.get(health)}\n{server.tail()}")
        assert not server.tracebacks(), server.tracebacks()[0]
        server.stop()
        wait_for(lambda: not server.left_behind(), SETTLE_S, lambda: f"no processes: {server.left_behind()}")


@pytest.fixture
def chaos(request: pytest.FixtureRequest, tmp_path: Path) -> Chaos:
    episodes = request.config.getoption("--episodes", default=None) or SHORT
    return Chaos(request.node.name, episodes / SHORT, tmp_path, request.config.stash[TALLIES])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    tallies = config.stash.get(TALLIES, {})
    if not tallies or config.getoption("--episodes", default=None) is None:
        return
    total = Tally()
    for tally in tallies.values():
        total += tally
    line = terminalreporter.line
    terminalreporter.section("chaos")
    line(f"{'':<46}{'episodes':>9}{'completed':>10}{'twice':>6}{'wrong':>6}  typed failures")
    for name, tally in {**tallies, "all": total}.items():
        codes = ", ".join(f"{n} {code}" for code, n in sorted(tally.failed.items())) or "none"
        counts = f"{tally.episodes:>9}{tally.completed:>10}{len(tally.twice):>6}{len(tally.wrong):>6}"
        line(f"{name:<46}{counts}  {codes}")
    line("twice: steps applied more than once. wrong: neither the run without faults nor a typed failure.")
    for code, message in sorted(total.said.items()):
        line(f"{code}: {message[:300]}")
