"""Tests whose system part is missing skip, and the run ends with what they need.

A part that AgentGym misses raises MissingDependency with the command that installs it; a test that meets the error is
skipped with that command. `--skipped-list FILE` writes the tests that were skipped for want of a system package, one a
line, so that `pytest @FILE` runs them where the packages are. `--skip-nothing` fails a run in which one was skipped.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from agentgym.errors import MissingDependency

settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")  # a busy machine is no failure

sys.path.append(str(Path(__file__).parent))  # modules that tests share
pytest_plugins = ["leaks"]

PACKAGES = re.compile(r"apt-get install (?:--\S+ )*([a-z0-9][a-z0-9.+-]*(?: [a-z0-9][a-z0-9.+-]*)*)")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("system packages")
    group.addoption("--skipped-list", metavar="FILE", help="write the tests that miss a system package to FILE")
    group.addoption("--skip-nothing", action="store_true", help="fail when a test misses a system package")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    try:
        return (yield)
    except MissingDependency as missing:
        pytest.skip(str(missing))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    try:
        return (yield)
    except MissingDependency as missing:
        pytest.skip(str(missing))


def missing_packages(terminal: pytest.TerminalReporter) -> dict[str, str]:
    """The missing system packages of each skipped test (of a module skipped as a whole), by its id."""
    skipped: dict[str, str] = {}
    for report in terminal.stats.get("skipped", []):
        found = PACKAGES.search(str(report.longrepr))
        if found:
            skipped[report.nodeid] = found[1]
    return skipped


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    skipped = missing_packages(terminalreporter)
    if skipped:
        counts = sorted(Counter(skipped.values()).items())
        terminalreporter.write_sep("=", "system packages are missing", yellow=True)
        for packages, tests in counts:
            terminalreporter.write_line(f"{tests} skipped for want of {packages}")
        terminalreporter.write_line(f"{len(skipped)} in all: `make system` installs what they need on Debian")
    if config.getoption("--skipped-list"):
        Path(config.getoption("--skipped-list")).write_text("".join(f"{nodeid}\n" for nodeid in skipped))


def pytest_sessionfinish(session: pytest.Session) -> None:
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and session.config.getoption("--skip-nothing") and missing_packages(terminal):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
