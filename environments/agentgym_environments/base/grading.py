"""Runs of files that an agent submitted: what they do to their sandbox is the agent's, not the machine's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from agentgym.errors import EnvironmentCrashed

Result = TypeVar("Result")


def run_submission(run: Callable[[], Result], control: Callable[[], object]) -> Result | None:
    """The result of `run`, which runs an agent's files in a new sandbox; None where they make an end of the sandbox.

    A run whose sandbox is lost is tried once more. When that is lost too, `control` decides: the same run without the
    agent's files. Raises EnvironmentCrashed where `control` does: then the machine is at fault, not the agent.
    """
    for _ in range(2):
        try:
            return run()
        except EnvironmentCrashed:
            continue
    control()
    return None
