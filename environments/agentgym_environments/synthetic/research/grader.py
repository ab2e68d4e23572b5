"""The held-out score: the agent's files run in a fresh sandbox, on inputs without answers; only numbers come back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from agentgym_environments.backends.sandbox import Sandbox, SandboxLimits
from agentgym_environments.backends.sandbox.packages import FOLDER, installed
from agentgym_environments.base.grading import run_submission
from agentgym_environments.synthetic.research.tasks import SOLVE, ResearchTask, csv

THREADS = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
OUT_BYTES = 1_000_000
GREATEST = 1e9
"""No prediction or level is larger: what is, is garbage."""
MOST_BYTES, MOST_FILES = 16 << 20, 1000
"""Limits of what the agent may submit."""


class ScoreVerdict(NamedTuple):
    score: float | None
    """None where there is none."""
    why: str = ""


def sandbox(files: Mapping[str, bytes], backend: str) -> Sandbox:
    """Return a sandbox with numpy, and half a gigabyte of memory."""
    limits = SandboxLimits(memory_mb=512, output_kb=16)  # pyright: ignore[reportCallIssue]
    env = {"PYTHONPATH": FOLDER, **THREADS}
    return Sandbox(files, limits=limits, readonly=installed("numpy"), env=env, backend=backend)


def too_much(files: Mapping[str, bytes]) -> str:
    """Return why the files cannot be submitted; "" when they can."""
    if sum(map(len, files.values())) > MOST_BYTES or len(files) > MOST_FILES:
        return f"the files you made are more than {MOST_BYTES >> 20} MB or {MOST_FILES}: remove some"
    return ""


def judge(task: ResearchTask, files: Mapping[str, bytes], backend: str, timeout_s: float) -> ScoreVerdict:
    """Score `files`: path -> content of what the agent made or changed. What the environment brings itself stays as it
    is. Raises SandboxLost where the baseline cannot be run either."""
    fixed = {*task.files(), "inputs.csv", "out.csv"} - {"solve.py"}
    theirs = {path: content for path, content in files.items() if path.partition("/")[0] not in fixed}
    out = run_submission(
        lambda: predictions(task, theirs, backend, timeout_s), lambda: predictions(task, {}, backend, timeout_s)
    )
    if out is None:
        return ScoreVerdict(None, "the program made an end of its sandbox")
    if isinstance(out, str):
        return ScoreVerdict(None, out)
    return ScoreVerdict(SOLVE[task.kind][2](np.array(out), np.array(task.held_out), task.terms))


def predictions(task: ResearchTask, files: Mapping[str, bytes], backend: str, timeout_s: float) -> list[float] | str:
    """Predictions of the program for the held-out inputs, or why there are none."""
    with sandbox({**task.files(), "inputs.csv": csv(task.inputs), **files}, backend) as box:
        ran = box.run("cd /work; python run.py", timeout_s)
        if ran.stopped:
            return f"the program was stopped ({ran.stopped})"
        if ran.code:
            return f"the program failed: {(ran.output.strip().splitlines() or ['no word'])[-1][:300]}"
        return numbers(box.read("out.csv"), len(task.held_out))


def numbers(content: bytes | None, count: int) -> list[float] | str:
    """The numbers of out.csv, or what is wrong with them."""
    if content is None or len(content) > OUT_BYTES:
        return "out.csv is not there, or too large"
    try:
        found = [float(line) for line in content.decode("ascii").split("\n") if line.strip()]
    except ValueError:
        return "out.csv is not a number a line"
    if len(found) != count:
        return f"out.csv has {len(found)} numbers, not {count}"
    if not all(math.isfinite(x) and abs(x) <= GREATEST for x in found):
        return "out.csv has numbers that are not finite, or far too large"
    return found
