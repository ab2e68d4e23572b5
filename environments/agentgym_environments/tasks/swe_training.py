"""Tasks of SWE-Gym, SWE-smith and R2E-Gym, out of their records: sets for training, graded by pytest's own summary.

Sources: github.com/SWE-Gym/SWE-Gym, SWE-bench/SWE-smith, R2E-Gym/R2E-Gym, as of 2026. The three are told apart by the
fields that they alone have.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from typing import Any

from agentgym.errors import ConfigError
from agentgym.tasks import Task
from agentgym_environments.tasks.records import Record, plain

WORKDIR = "/testbed"
BUILD_S, AGENT_S, TESTS_S = 1800.0, 7200.0, 1800.0
ACTIVATE = "[ ! -f /opt/miniconda3/bin/activate ] || source /opt/miniconda3/bin/activate testbed"
PATCHED = re.compile(r"^\+\+\+ b/(\S+)", re.MULTILINE)
FORGET = "rm -rf .git && git init -q && git add -A && git -c user.name=a -c user.email=a@b commit -qm base"
"""Makes a repository anew: the history of an image may have the code without the bug."""


def training_task(record: Record, place: str) -> Task | None:
    """Return the task of a record, None where it is of none of the three. Raises ConfigError for fields that lack."""
    if "expected_output_json" in record:
        return _read(_r2e_gym, record, place, ("docker_image", "repo_name", "commit_hash", "expected_output_json"))
    fields = ("instance_id", "FAIL_TO_PASS", "PASS_TO_PASS", "patch")
    if "image_name" in record:
        return _read(_swe_smith, record, place, ("image_name", *fields))
    if "test_patch" in record and not record.get("eval_script") and isinstance(record.get("FAIL_TO_PASS"), list):
        return _read(_swe_gym, record, place, ("test_patch", *fields))
    return None


def _read(make: Callable[[Record], Task], record: Record, place: str, fields: tuple[str, ...]) -> Task:
    missing = [name for name in (*fields, "problem_statement") if record.get(name) in (None, "")]
    if missing:
        raise ConfigError(f"{place} has no {', '.join(missing)}")
    return make(record)


def _swe_gym(record: Record) -> Task:
    image = f"xingyaoww/sweb.eval.x86_64.{record['instance_id'].replace('__', '_s_')}:latest".lower()
    patch = record["test_patch"].rstrip("\n")
    apply = f"git apply -v - <<'END_OF_PATCH'\n{patch}\nEND_OF_PATCH"
    return _task(
        record, record["instance_id"], image, apply=apply, hidden=PATCHED.findall(patch), patch=record["patch"]
    )


def _swe_smith(record: Record) -> Task:
    """The record's patch makes the bug; its reverse is the solution. Images are of the account that SWE-smith names."""
    image = record["image_name"]
    if "/" not in image:
        image = f"jyangballin/{image.replace('__', '_1776_')}:latest"
    patch = record["patch"].rstrip("\n")
    prepare = f"git apply - <<'END_OF_PATCH' && {FORGET}\n{patch}\nEND_OF_PATCH"
    return _task(record, record["instance_id"], image, prepare=prepare, patch=patch, reverse=True)


def _r2e_gym(record: Record) -> Task:
    """The image holds tests and their script, which the agent's container does not keep."""
    script = f"cd {WORKDIR}\nrm -rf r2e_tests\nln -s /r2e_tests r2e_tests\nbash run_tests.sh\n"
    try:
        expected = json.loads(record["expected_output_json"])
    except ValueError as error:
        raise ConfigError(f"{record['docker_image']}: expected_output_json is not JSON: {error}") from error
    return Task(
        id=f"{record['repo_name']}-{record['commit_hash'][:12]}",
        prompt=str(record["problem_statement"]).strip(),
        setup=_setup(record["docker_image"], f"rm -rf /r2e_tests r2e_tests run_tests.sh && {FORGET}"),
        grader={
            "kind": "outcomes",
            "timeout_s": TESTS_S,
            "script": f"#!/bin/bash\n{script}",
            "expected": expected,
            "hidden": ["r2e_tests", "run_tests.sh"],
            "patch": "",
        },
        metadata=plain({"repo_name": record["repo_name"], "commit_hash": record["commit_hash"]}),
    )


def _task(
    record: Record,
    name: str,
    image: str,
    *,
    patch: str,
    prepare: str = FORGET,
    apply: str = "",
    hidden: list[str] | None = None,
    reverse: bool = False,
) -> Task:
    wanted = [str(test) for field in ("FAIL_TO_PASS", "PASS_TO_PASS") for test in record[field]]
    files = list(dict.fromkeys(test.partition("::")[0] for test in wanted))
    run = f"python -m pytest -rA --tb=no -p no:cacheprovider {shlex.join(files)}"
    script = "\n".join(["#!/bin/bash", ACTIVATE, f"cd {WORKDIR}", *([apply] if apply else []), run, ""])
    return Task(
        id=str(name),
        prompt=str(record["problem_statement"]).strip(),
        setup=_setup(image, prepare),
        grader={
            "kind": "outcomes",
            "timeout_s": TESTS_S,
            "script": script,
            "wanted": wanted,
            "hidden": list(dict.fromkeys([*files, *(hidden or [])])),
            "patch": patch,
            "reverse": reverse,
        },
        metadata=plain({key: record.get(key) for key in ("repo", "base_commit", "version") if record.get(key)}),
    )


def _setup(image: str, prepare: str) -> dict[str, Any]:
    prepare = f"cd {WORKDIR} && {prepare}"
    return {"image": image, "workdir": WORKDIR, "build_s": BUILD_S, "agent_s": AGENT_S, "prepare": prepare}
