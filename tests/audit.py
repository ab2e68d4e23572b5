"""Audit installed packages for known vulnerabilities: `make audit`, under an interpreter that has pip-audit.

    python tests/audit.py REQUIREMENTS      a file of NAME==VERSION lines, as of `pip freeze`

Fails when a package has a known vulnerability. When no service that knows vulnerabilities answers, it says so and
succeeds. pip-audit alone does not tell the two apart: a package index without such data counts as "none found".
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SERVICES = ("pypi", "osv")
VULNERABLE = "jinja2==2.4.1"
"""Has known vulnerabilities: a service that finds none in it knows nothing."""
SERVICE_S, AUDIT_S = 10, 300
"""Seconds that one question to a service may take, and all of them together."""
ACCEPTED: dict[str, str] = {}
"""Vulnerabilities that do not concern AgentGym (id: why)."""


def ask(service: str, requirements: str) -> dict[str, Any] | None:
    """Return pip-audit's report; None when the service did not answer."""
    with tempfile.TemporaryDirectory() as folder:
        wanted, report = Path(folder, "requirements.txt"), Path(folder, "report.json")
        wanted.write_text(requirements, encoding="utf-8")
        command = [sys.executable, "-m", "pip_audit", "--requirement", str(wanted), "--no-deps", "--disable-pip"]
        command += ["--format", "json", "--output", str(report), "--progress-spinner", "off"]
        command += ["--vulnerability-service", service, "--timeout", str(SERVICE_S)]
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=AUDIT_S, check=False)
        return json.loads(report.read_text(encoding="utf-8")) if report.exists() else None


def known_versions(frozen: str) -> str:
    """Return the NAME==VERSION lines as an index has them: without the local part of a version (2.13.0+cpu)."""
    lines = [line.split(" ")[0].partition("+")[0] for line in frozen.splitlines() if "==" in line]
    return "".join(f"{line}\n" for line in lines)


def vulnerabilities(report: dict[str, Any]) -> list[str]:
    """Return a line for each known vulnerability that is not accepted."""
    found = []
    for package in report["dependencies"]:
        for one in package.get("vulns", []):
            if not ACCEPTED.keys() & {one["id"], *one.get("aliases", [])}:
                fixed = ", ".join(one["fix_versions"]) or "no version yet"
                found.append(f"{package['name']} {package['version']}: {one['id']}, fixed in {fixed}")
    return found


def main(frozen: str) -> int:
    for service in SERVICES:
        known = ask(service, f"{VULNERABLE}\n")
        if known is None or not vulnerabilities(known):
            continue
        if (report := ask(service, known_versions(frozen))) is None:
            continue
        found = vulnerabilities(report)
        unknown = [package["name"] for package in report["dependencies"] if "skip_reason" in package]
        print(*found, sep="\n", end="\n" if found else "")
        counts = f"{len(report['dependencies'])} packages, {len(found)} known vulnerabilities"
        print(f"audit: {counts}; not known to {service}: {', '.join(unknown) or 'none'}")
        return 1 if found else 0
    print("audit: skipped, because no service that knows vulnerabilities can be reached from here")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).read_text(encoding="utf-8")))
