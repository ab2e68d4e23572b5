"""Tasks of SWE-bench, out of its records: an image, a script that runs the tests, and which of them decide.

Records are those of SWE-bench's data sets since version 5 of its package, which carry image and script themselves:
Verified, Lite, the full set, Multilingual, and sets of your own in that form. Records of SWE-Gym, SWE-smith and R2E-Gym
are read too: `swe_training`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentgym.errors import ConfigError
from agentgym.tasks import Task
from agentgym_environments.tasks.records import Record, plain
from agentgym_environments.tasks.swe_training import training_task

GRADING = (
    "instance_id", "image", "repo", "version", "FAIL_TO_PASS", "PASS_TO_PASS", "log_parser", "eval_type", "eval_script"
)  # fmt: skip
"""Fields that the package's report is made of."""
WORKDIR = "/testbed"
BUILD_S, AGENT_S, TESTS_S = 1800.0, 7200.0, 1800.0
"""Seconds for pulling the image, for the agent, and for the tests (the limit of SWE-bench's own harness)."""


def swebench_tasks(records: Sequence[Record], source: str) -> list[Task]:
    """Return a task for each record. Raises ConfigError naming the record and what it lacks."""
    places = [f"{source}, record {number}" for number in range(1, len(records) + 1)]
    return [training_task(record, place) or _task(record, place) for record, place in zip(records, places)]


def _task(record: Record, place: str) -> Task:
    missing = [name for name in (*GRADING, "problem_statement") if record.get(name) in (None, "")]
    if missing:
        raise ConfigError(
            f"{place} has no {', '.join(missing)}: records of SWE-bench carry them since version 5 of its package; "
            "fetch the data set anew"
        )
    without = (*GRADING, "problem_statement", "patch", "test_patch")
    return Task(
        id=str(record["instance_id"]),
        prompt=str(record["problem_statement"]).strip(),
        setup={"image": str(record["image"]), "workdir": WORKDIR, "build_s": BUILD_S, "agent_s": AGENT_S},
        grader={
            "kind": "swebench",
            "timeout_s": TESTS_S,
            "record": _graded(record),
            "patch": str(record.get("patch") or ""),
        },
        metadata=plain({name: value for name, value in record.items() if name not in without}),
    )


def _graded(record: Record) -> dict[str, Any]:
    return plain({name: record[name] for name in GRADING} | {"image_assets": record.get("image_assets")})
