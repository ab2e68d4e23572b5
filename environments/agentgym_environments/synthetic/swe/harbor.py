"""Tasks of swe as Harbor folders."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

from agentgym_environments.backends.sandbox import backends
from agentgym_environments.backends.sandbox.box import ENV
from agentgym_environments.synthetic.swe import source
from agentgym_environments.synthetic.swe.grading.make_reference import reference
from agentgym_environments.synthetic.swe.grading.reference import as_json
from agentgym_environments.synthetic.swe.source import PackageSource
from agentgym_environments.synthetic.swe.tasks import PackageSpec, SweTask
from agentgym_environments.tasks.harbor_folder import BASE, WORKDIR, HarborFolder

HERE = Path(__file__).parent
CHECKS = HERE / "harbor_checks.py"
MODULES = ("checks", "observations", "observer", "paths", "reference", "session", "template", "vary", "verdict")
"""Modules of `grading` that the verifier runs: they need nothing but Python."""
GRADING = "agentgym_environments/synthetic/swe/grading"
DOCKERFILE = """FROM {base}
COPY tools.zip /opt/tools.zip
RUN python3 -m zipfile -e /opt/tools.zip /opt/tools && rm /opt/tools.zip
ENV PYTHONPATH=/opt/tools:{root}
WORKDIR {workdir}
COPY package .
"""
INSTRUCTION = """{name} {version}, a Python package, lies in {workdir} with {bugs}.

{issue}
{where}

You have a shell; `python -m pytest` is there, the network and the package's own tests are not. Find and fix what is
wrong. Your changes to `.py` files of {module} count, nothing else. When you are done, hidden tests are run, once: the
reward is 1 when those that fail now pass and no other fails.
"""
SOLVE = """cd {workdir}
python3 - <<'END_OF_EDITS'
from pathlib import Path

for path, line, fixed in {edits!r}:
    lines = Path(path).read_bytes().decode().split("\\n")
    lines[line - 1] = fixed
    Path(path).write_bytes("\\n".join(lines).encode())
END_OF_EDITS"""


def harbor_folder(
    name: str, task: SweTask, suite: PackageSpec, package: PackageSource, cache: Path, backend: str
) -> HarborFolder:
    """Return a task's folder. The first task of a package takes as long as its first verdict: its tests are run."""
    expected = reference(package, cache, backends.choose(backend))
    tools = _zipped(source.tools(cache))
    broken = task.broken(package)
    timeout_s = min(40 + 10 * suite.seconds, 150)
    one = len(task.edits) == 1
    facts = {
        "fail_to_pass": sorted(task.fail_to_pass),
        "unstable": sorted(suite.unstable),
        "root": package.root,
        "module": package.module,
        "timeout_s": timeout_s,
        "environment": ENV,
    }
    tests = {
        "checks.py": CHECKS.read_bytes(),
        "task.json": json.dumps(facts).encode(),
        "reference.json": json.dumps(as_json(expected)).encode(),
        "tools.zip": tools,
        **{f"package/{path}": content for path, content in package.visible.items()},
        **{f"modules/{GRADING}/{module}.py": (HERE / "grading" / f"{module}.py").read_bytes() for module in MODULES},
    }
    return HarborFolder(
        name=name,
        description=f"Fix {'one bug' if one else 'two bugs'} in {suite.package.name}; hidden tests decide",
        instruction=INSTRUCTION.format(
            name=suite.package.name,
            version=suite.package.version,
            workdir=WORKDIR,
            bugs="a bug" if one else "two bugs, in different functions",
            issue=task.issue,
            where=f"\nThe fault is in {task.edits[0].path}." if one else "",
            module=package.module,
        ),
        keywords=("swe", suite.package.name, "python"),
        environment={
            "Dockerfile": DOCKERFILE.format(
                base=BASE, root=f"{WORKDIR}/{package.root}".rstrip("/"), workdir=WORKDIR
            ).encode(),
            "tools.zip": tools,
            **{f"package/{path}": content for path, content in {**package.visible, **broken}.items()},
        },
        tests=tests,
        solve=SOLVE.format(workdir=WORKDIR, edits=[(edit.path, edit.line, edit.fixed) for edit in task.edits]),
        memory_mb=2048,
        agent_s=3600,
        tests_s=3 * timeout_s + 120,  # the fix, the package without the bug, the fix again
    )


def _zipped(folder: Path) -> bytes:
    """The folder's files, the same bytes for the same content."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and path.suffix != ".pyc":
                info = zipfile.ZipInfo(path.relative_to(folder).as_posix())
                archive.writestr(info, path.read_bytes(), zipfile.ZIP_DEFLATED)
    return out.getvalue()
