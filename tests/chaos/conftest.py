"""`pytest tests/chaos --episodes 2000` plays that many episodes in all and prints what became of them."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1]))  # `chaos.envs` must be importable here and in worker processes

from chaos.ledger import Tally
from chaos.processes import Server, wait_for

SHORT = 256
"""About how many episodes the default run plays, over all tests."""
RUNS = 1
"""Trainings under kills, of each kind."""
SETTLE_S = 40.0
"""More than any lease here, with the time until the server looks."""
TALLY = "chaos tally"
"""The property of a test's report that holds its tally."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--episodes", type=int, help="episodes to play under chaos, over all tests")
    parser.addoption("--runs", type=int, help=f"trainings to carry out under kills (default: {RUNS})")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "training_number" in metafunc.fixturenames:
        runs = metafunc.config.getoption("--runs", default=None) or RUNS
        metafunc.parametrize("training_number", range(runs))


class Chaos:
    """What a test needs: its share of the episodes, servers, and what must hold when the dust has settled."""

    def __init__(self, times: float, folder: Path, record: Callable[[str, object], None]) -> None:
        self._times, self._folder, self._record = times, folder, record

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
        self._record(TALLY, vars(tally) | {"failed": dict(tally.failed)})
        tally.check()

        def idle() -> bool:
            found = server.get(health)
            return found["status"] == "healthy" and found["sessions"] + found.get("stuck", 0) == 0

        wait_for(idle, SETTLE_S, lambda: f"no sessions: {server.get(health)}\n{server.tail()}")
        assert not server.tracebacks(), server.tracebacks()[0]
        server.stop()
        wait_for(lambda: not server.left_behind(), SETTLE_S, lambda: f"no processes: {server.left_behind()}")


@pytest.fixture
def chaos(request: pytest.FixtureRequest, tmp_path: Path, record_property: Callable[[str, object], None]) -> Chaos:
    episodes = request.config.getoption("--episodes", default=None) or SHORT
    return Chaos(episodes / SHORT, tmp_path, record_property)


def tallies_of(reports: Iterable[pytest.TestReport]) -> dict[str, Tally]:
    """Tallies by test. Reports also come from the worker processes of pytest-xdist."""
    tallies: dict[str, Tally] = {}
    for report in reports:
        for name, value in report.user_properties:
            if name == TALLY and report.when == "call":
                assert isinstance(value, dict)
                total = tallies.setdefault(report.nodeid.rpartition("::")[2], Tally())
                total += Tally(**value | {"failed": Counter(value["failed"])})
    return tallies


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.getoption("--episodes", default=None) is None:
        return
    stats = terminalreporter.stats
    tallies = tallies_of([*stats.get("passed", []), *stats.get("failed", [])])
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
    for code, message in sorted(total.messages.items()):
        line(f"{code}: {message[:300]}")
