"""Graders in containers of their own: an agent's changes over a clean image, where tests run and a reward is read."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from agentgym.errors import EnvironmentCrashed
from agentgym_environments.backends.containers.box import ContainerBox
from agentgym_environments.backends.containers.changes import ChangeArchive, Keep
from agentgym_environments.backends.containers.container import TaskContainer, TaskLimits
from agentgym_environments.backends.containers.engine import ContainerGone, ContainerLost, DockerEngine
from agentgym_environments.backends.containers.images import TaskImage
from agentgym_environments.backends.sandbox.box import SandboxEnded, WorkRefused

ATTEMPTS = 2
"""Runs of the tests that may come to no reward before the run without the agent's files says whose fault that is."""

PREPARE = """umask 022
rm -rf -- /logs/verifier
mkdir -p /logs/verifier /logs/agent /logs/artifacts
[ -z "$1" ] || chown "$1" /logs/verifier /logs/agent /logs/artifacts
IFS=:
for folder in $PATH; do for program in "$folder"/*; do printf '%s\\0' "${program##*/}"; done; done
"""


class RewardVerdict(NamedTuple):
    reward: float | None
    """None where the tests came to no reward because of the agent's files, or of what it did."""
    message: str
    output: str = ""
    """End of what the tests wrote. It may hold answers: no agent reads it."""


class GradingPlan(NamedTuple):
    """One run of a task's tests: in which image, over what, by which command."""

    task: str
    """Name of the task, for messages."""
    image: TaskImage
    limits: TaskLimits
    env: dict[str, str]
    """Variables of the container."""
    workdir: str
    keep: Callable[[frozenset[str]], Keep]
    """Decides which of an agent's changes count, given the names of the image's programs."""
    folders: tuple[tuple[Path, str], ...]
    """Folders of this machine that are laid over the agent's changes, and where."""
    command: tuple[str, ...]
    user: str
    variables: dict[str, str]
    """Variables of the command."""
    timeout_s: float
    output_bytes: int
    """Size of what is kept of the output, its beginning and its end."""
    reward: Callable[[TaskContainer, str], float]
    """Reads the reward from the stopped container and the output. Raises ContainerLost where there is none."""


class OutOfTime(Exception):
    """The tests took longer than the task lets them."""


def grade(engine: DockerEngine, plan: GradingPlan, box: ContainerBox | None) -> RewardVerdict:
    """Return the reward of the files in an agent's container, whose processes are ended; of none where `box` is None.

    Raises EnvironmentCrashed where the machine is at fault.
    """
    if box is None:
        return _tested(engine, plan, None)
    box.container.require_running()
    box.container.kill()
    try:
        for _ in range(ATTEMPTS):
            with contextlib.suppress(ContainerLost):
                return _once_more(engine, plan, box)
    except WorkRefused as error:
        return RewardVerdict(None, str(error))
    except OutOfTime:
        why = "the tests were not done in time"
    else:
        why = "the tests came to no reward"
    try:
        _once_more(engine, plan, None)  # the same without the agent's files: raises where the machine is at fault
    except OutOfTime as error:
        raise EnvironmentCrashed(f"the tests of {plan.task} take too long, without an agent's files too") from error
    return RewardVerdict(None, why)


def _once_more(engine: DockerEngine, plan: GradingPlan, box: ContainerBox | None) -> RewardVerdict:
    """Run the tests; once more where their container was ended from outside, which no agent can do.

    Raises EnvironmentCrashed where it was again, ContainerLost for what an agent's files may have brought about.
    """
    try:
        return _tested(engine, plan, box)
    except ContainerGone:
        try:
            return _tested(engine, plan, box)
        except ContainerGone as error:
            raise EnvironmentCrashed(f"the container of the tests was lost twice: {error}") from error


def _tested(engine: DockerEngine, plan: GradingPlan, box: ContainerBox | None) -> RewardVerdict:
    """Run the tests over the agent's changes once. Raises ContainerLost where no reward is written, or OutOfTime."""
    container = TaskContainer(engine, plan.image, limits=plan.limits, env=plan.env, workdir=plan.workdir)
    archive = ChangeArchive()
    try:
        owner = plan.user or plan.image.user
        done = container.execute(["bash", "-c", PREPARE, "bash", owner], user="0", most=1 << 20)
        programs = frozenset(done.attached.output.text().split("\0"))
        if box is not None:
            archive.collect(box.container, plan.keep(programs), plan.limits.storage_mb << 20)
        for folder, inside in plan.folders:
            archive.add_folder(folder, inside)
        archive.apply(container)
        begun = time.monotonic()
        ran = container.execute(
            list(plan.command),
            user=plan.user,
            env=plan.variables,
            timeout_s=plan.timeout_s,
            most=plan.output_bytes,
        )
        if not ran.in_time:
            raise OutOfTime
        container.kill()
        output = ran.attached.output.text() + ran.attached.errors.text()
        reward = plan.reward(container, output)
        return RewardVerdict(reward, f"the tests took {time.monotonic() - begun:.1f} s", output)
    except SandboxEnded as error:
        raise ContainerLost(f"the tests ended their container: {error}") from error
    finally:
        archive.close()
        container.remove()
