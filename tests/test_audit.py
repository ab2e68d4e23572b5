"""tests/audit.py: what a report of pip-audit means."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

here = importlib.util.spec_from_file_location("audit", Path(__file__).with_name("audit.py"))
assert here is not None
assert here.loader is not None
audit = importlib.util.module_from_spec(here)
here.loader.exec_module(audit)

VULNERABLE = {
    "name": "jinja2",
    "version": "2.4.1",
    "vulns": [{"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["2.8.1"], "description": "An escape."}],
}
CLEAN = {"name": "click", "version": "8.4.2", "vulns": []}
UNKNOWN = {"name": "jinja2", "skip_reason": "Dependency not found on PyPI and could not be audited"}


@pytest.mark.parametrize(
    ("canary", "packages", "status", "says"),
    [
        (None, None, 0, "skipped, because no service"),
        ([UNKNOWN], [CLEAN], 0, "skipped, because no service"),
        ([VULNERABLE], None, 0, "skipped, because no service"),
        ([VULNERABLE], [CLEAN, UNKNOWN], 0, "2 packages, 0 known vulnerabilities; not known to pypi: jinja2"),
        ([VULNERABLE], [CLEAN, VULNERABLE], 1, "jinja2 2.4.1: PYSEC-1, fixed in 2.8.1"),
    ],
)
def test_a_report_fails_for_vulnerabilities_alone(monkeypatch, capsys, canary, packages, status, says):
    def ask(service: str, requirements: str) -> dict[str, Any] | None:
        found = canary if requirements == "jinja2==2.4.1\n" else packages
        return None if found is None else {"dependencies": found}

    monkeypatch.setattr(audit, "ask", ask)
    assert audit.main("click==8.4.2\n") == status
    assert says in capsys.readouterr().out


def test_accepted_vulnerabilities_are_left_out(monkeypatch):
    monkeypatch.setitem(audit.ACCEPTED, "CVE-1", "its template loader is not used")
    assert audit.vulnerabilities({"dependencies": [VULNERABLE]}) == []


def test_versions_are_those_of_the_index():
    frozen = "-e /here\nclick==8.4.2\ntorch==2.13.0+cpu\nown @ file:///here\n"
    assert audit.known_versions(frozen) == "click==8.4.2\ntorch==2.13.0\n"
