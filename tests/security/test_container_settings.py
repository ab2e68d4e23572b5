"""What is written about containers keeps every one of them locked down: Dockerfiles, compose, manifests, documents."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agentgym_environments.backends.sandbox import calls

yaml = pytest.importorskip("yaml", reason="needs PyYAML: pip install pyyaml")

ROOT = Path(__file__).resolve().parents[2]
PYTHON = re.compile(r"python:3\.11-slim-bookworm(@sha256:[0-9a-f]{64})?")
LOCKS = (
    "--read-only",
    "--tmpfs /tmp",
    "--cap-drop ALL",
    "--security-opt no-new-privileges",
    "--memory ",
    "--pids-limit ",
)
SWE = "environments/agentgym_environments/synthetic/swe"
PROFILES = {f"{SWE}/README.md": f"seccomp={SWE}/seccomp.json"}
"""Documents whose container has another profile than Docker's own: bubblewrap makes name spaces there."""


def files(*patterns: str) -> list[Path]:
    """The repository's files, without what is installed into it."""
    folders = [
        ROOT / name for name in ("agentgym", "deploy", "docs", "environments", "examples", "servers", "trainers")
    ]
    found = {path for folder in folders for pattern in patterns for path in folder.rglob(pattern)}
    return sorted(found | {path for pattern in patterns for path in ROOT.glob(pattern)})


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


TASKS = "environments/agentgym_environments/benchmarks/harbor/data/"
"""Images of tasks, in which an agent works as its task says; tests/containers/test_harbor.py has how they are run."""
IMAGES = [path for path in files("Dockerfile", "Dockerfile.tmpl") if not name_of(path).startswith(TASKS)]


@pytest.mark.parametrize("path", IMAGES, ids=name_of)
def test_a_dockerfile_ends_as_a_user_on_a_base_we_name(path):
    lines = [line.split() for line in path.read_text().replace("$$", "$").splitlines() if line.strip()]
    defaults = dict(line[1].split("=", 1) for line in lines if line[0] == "ARG" and "=" in line[1])
    stages = {line[3] for line in lines if line[0] == "FROM" and line[2:3] == ["AS"]}
    for line in lines:
        if line[0] == "FROM" and line[1] not in stages:
            base = defaults[line[1].strip("${}")]
            assert base == "localhost/agentgym/base" or PYTHON.fullmatch(base), line
    assert [line[1] for line in lines if line[0] == "USER"][-1] == "agentgym"


def documented_runs() -> list[tuple[str, str]]:
    """Every `docker run` of a document, on one line, and the file that has it."""
    found = []
    for path in files("*.md", "*.md.tmpl", "Dockerfile", "Dockerfile.tmpl"):
        text = re.sub(r"\\\n#?\s*", "", path.read_text())
        found += [(name_of(path), run) for run in re.findall(r"docker run [^\n`]*(?:\n[^\n`]+`)?", text)]
    return found


@pytest.mark.parametrize(("name", "run"), documented_runs())
def test_a_documented_container_is_locked_down(name, run):
    assert [lock for lock in LOCKS if lock not in run] == []
    assert "127.0.0.1:" in run
    assert re.findall(r"seccomp=\S+", run) == ([PROFILES[name]] if name in PROFILES else [])


def test_the_profile_with_namespaces_allows_nothing_else():
    profile = json.loads((ROOT / SWE / "seccomp.json").read_text())
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    allowed = {name for rule in profile["syscalls"] for name in rule["names"]}
    needed = {"clone", "unshare", "mount", "umount2", "pivot_root", "sethostname"}
    assert needed < allowed
    machine = {*calls.OF_THE_MACHINE} - {"sethostname", "sched_setaffinity"}
    keys = {"keyctl", "add_key", "request_key"}
    entering = {"setns", "open_by_handle_at", "move_mount", "fsopen", "open_tree", "process_vm_writev", "pidfd_getfd"}
    assert allowed & {*machine, *keys, *entering, *calls.MUCH_ATTACKED} == set()


COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())


@pytest.mark.parametrize("service", COMPOSE["services"])
def test_a_service_of_compose_is_locked_down(service):
    given = COMPOSE["services"][service]
    assert given["read_only"] is True
    assert given["tmpfs"]
    assert (given["cap_drop"], given["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
    assert given["mem_limit"]
    assert given["pids_limit"] > 0
    assert not {"privileged", "cap_add", "devices", "user", "pid", "ipc", "network_mode"} & given.keys()
    assert all(port.startswith("127.0.0.1:") for port in given.get("ports", []))
    assert not [volume for volume in given.get("volumes", []) if volume.startswith((".", "/"))]


def pods() -> list[tuple[str, dict[str, Any]]]:
    """Every pod of the manifests that is a server: where it is, and its spec."""
    found = []
    for path in files("gateway.yaml", "environments.yaml"):
        for one in yaml.safe_load_all(path.read_text()):
            if one["kind"] == "Deployment":
                found.append((f"{path.name}: {one['metadata']['name']}", one["spec"]["template"]["spec"]))
    return found


@pytest.mark.parametrize(("name", "pod"), pods(), ids=lambda value: value if isinstance(value, str) else "")
def test_a_pod_is_locked_down(name, pod):
    general = pod["securityContext"]
    assert (general["runAsNonRoot"], general["seccompProfile"]) == (True, {"type": "RuntimeDefault"})
    assert pod["automountServiceAccountToken"] is False
    for container in pod["containers"]:
        own = container["securityContext"]
        assert (own["allowPrivilegeEscalation"], own["readOnlyRootFilesystem"]) == (False, True)
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert {"memory", "cpu"} <= container["resources"]["limits"].keys()
