"""The grader of Harbor tasks: an agent's changes over a clean image, in a container of its own, where the tests run."""

from __future__ import annotations

import contextlib
import io
import json
import math
import posixpath
import tarfile
import time
from pathlib import Path
from typing import NamedTuple

from agentgym.errors import EnvironmentCrashed
from agentgym.tasks import Task
from agentgym_environments.backends.containers import images
from agentgym_environments.backends.containers.box import ContainerBox
from agentgym_environments.backends.containers.changes import ChangeArchive
from agentgym_environments.backends.containers.container import TaskContainer, TaskLimits
from agentgym_environments.backends.containers.engine import ContainerGone, ContainerLost, DockerEngine, reaching
from agentgym_environments.backends.containers.images import TaskImage
from agentgym_environments.backends.sandbox.box import SandboxEnded, WorkRefused
from agentgym_environments.benchmarks.harbor.kept import keeper

BUILD_S = 600.0
ATTEMPTS = 2
"""Runs of the tests that may come to no reward before the run without the agent's files says whose fault that is."""
MAX_REWARD_BYTES = 64 << 10
OUTPUT_BYTES = 16 << 10

PREPARE = """umask 022
rm -rf -- /logs/verifier
mkdir -p /logs/verifier /logs/agent /logs/artifacts
[ -z "$1" ] || chown "$1" /logs/verifier /logs/agent /logs/artifacts
IFS=:
for folder in $PATH; do for program in "$folder"/*; do printf '%s\\0' "${program##*/}"; done; done
"""
TEST = 'cd -- "$1" 2>/dev/null || cd /; exec bash /tests/test.sh'


class RewardVerdict(NamedTuple):
    reward: float | None
    """None where the tests came to no reward because of the agent's files, or of what it did."""
    message: str
    output: str = ""
    """End of what the tests wrote. It may hold answers: no agent reads it."""


class OutOfTime(Exception):
    """The tests took longer than the task lets them."""


def image_of(engine: DockerEngine, task: Task) -> TaskImage:
    """Return the image of a task, pulled or built where it is not there. Raises ContainerLost."""
    if task.setup["image"]:
        return images.named(engine, task.setup["image"])
    folder = Path(task.source, "environment")
    return images.built(engine, folder, task.setup["files"], task.setup["build_s"] or BUILD_S)


def open_box(engine: DockerEngine, task: Task) -> ContainerBox:
    """Return a new container in which an agent can begin the task."""
    image = image_of(engine, task)
    user = _user(task.setup["user"])
    plain_user = (user or image.user) not in ("", "0", "root")
    return ContainerBox(
        engine,
        image,
        limits=_limits(task, network=task.setup["network"], privileges=plain_user),
        env={**task.setup["env"], **task.setup["agent_env"]},
        workdir=task.setup["workdir"] or image.workdir,
        user=user,
    )


def grade(engine: DockerEngine, task: Task, box: ContainerBox | None) -> RewardVerdict:
    """Return the reward of the files in an agent's container, whose processes are ended; of none where `box` is None.

    Raises EnvironmentCrashed where the machine is at fault.
    """
    if box is None:
        return _tested(engine, task, None)
    box.container.require_running()
    box.container.kill()
    try:
        for _ in range(ATTEMPTS):
            with contextlib.suppress(ContainerLost):
                return _once_more(engine, task, box)
    except WorkRefused as error:
        return RewardVerdict(None, str(error))
    except OutOfTime:
        why = "the tests were not done in time"
    else:
        why = "the tests came to no reward"
    try:
        _once_more(engine, task, None)  # the same without the agent's files: raises where the machine is at fault
    except OutOfTime as error:
        raise EnvironmentCrashed(f"the tests of {task.id} take too long, without an agent's files too") from error
    return RewardVerdict(None, why)


def _once_more(engine: DockerEngine, task: Task, box: ContainerBox | None) -> RewardVerdict:
    """Run the tests; once more where their container was ended from outside, which no agent can do.

    Raises EnvironmentCrashed where it was again, ContainerLost for what an agent's files may have brought about.
    """
    try:
        return _tested(engine, task, box)
    except ContainerGone:
        try:
            return _tested(engine, task, box)
        except ContainerGone as error:
            raise EnvironmentCrashed(f"the container of the tests was lost twice: {error}") from error


def _tested(engine: DockerEngine, task: Task, box: ContainerBox | None) -> RewardVerdict:
    """Run the tests over the agent's changes once. Raises ContainerLost where no reward is written, or OutOfTime."""
    image, user = image_of(engine, task) if box is None else box.image, _user(task.grader["user"])
    workdir = task.setup["workdir"] or image.workdir
    limits = _limits(task, network=task.grader["network"], privileges=(user or image.user) not in ("", "0", "root"))
    container = TaskContainer(engine, image, limits=limits, env=task.setup["env"], workdir=workdir)
    archive = ChangeArchive()
    try:
        done = container.execute(["bash", "-c", PREPARE, "bash", user or image.user], user="0", most=1 << 20)
        programs = frozenset(done.attached.output.text().split("\0"))
        if box is not None:
            keep = keeper(programs, image.path, workdir)
            archive.collect(box.container, keep, limits.storage_mb << 20)
        archive.add_folder(Path(task.source, "tests"), "tests")
        archive.apply(container)
        begun = time.monotonic()
        ran = container.execute(
            ["bash", "-c", TEST, "bash", workdir],
            user=user,
            env=task.grader["env"],
            timeout_s=task.grader["timeout_s"],
            most=OUTPUT_BYTES,
        )
        if not ran.in_time:
            raise OutOfTime
        container.kill()
        output = ran.attached.output.text() + ran.attached.errors.text()
        reward = _reward(container, output)
        return RewardVerdict(reward, f"the tests took {time.monotonic() - begun:.1f} s", output)
    except SandboxEnded as error:
        raise ContainerLost(f"the tests ended their container: {error}") from error
    finally:
        archive.close()
        container.remove()


def _reward(container: TaskContainer, output: str) -> float:
    """Return the reward that the tests wrote, as Harbor reads it; of several numbers `reward`, else their mean.

    Raises ContainerLost where there is none.
    """
    content = _file(container, "/logs/verifier/reward.json")
    try:
        if content is not None:
            return _of_json(json.loads(content))
        content = _file(container, "/logs/verifier/reward.txt")
        if content is not None:
            return _number(float(content))
    except (ValueError, TypeError) as error:
        raise ContainerLost(f"the tests wrote no reward that can be read: {error}") from error
    raise ContainerLost(f"the tests wrote no reward: {output[-2000:]}")


def _of_json(rewards: object) -> float:
    if not isinstance(rewards, dict) or not rewards:
        raise ValueError("reward.json holds no object with numbers")
    numbers = {name: _number(value) for name, value in rewards.items()}
    return numbers.get("reward", math.fsum(numbers.values()) / len(numbers))


def _number(value: object) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no finite number")
    return float(value)


def _file(container: TaskContainer, path: str) -> str | None:
    """Return the text of a small regular file of a container that may have ended."""
    import docker.errors

    with reaching(f"{path} cannot be read"):
        try:
            stream, facts = container.api.get_archive(container.id, path)
        except docker.errors.NotFound as error:
            if "No such container" in str(error):
                raise
            return None
        try:
            if facts["size"] > MAX_REWARD_BYTES:
                raise ContainerLost(f"{path} is too large")
            with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as found:
                content = found.extractfile(posixpath.basename(path))
                if content is None or not found.getmembers()[0].isreg():
                    raise ContainerLost(f"{path} is no file")
                return content.read().decode(errors="replace")
        except (tarfile.TarError, KeyError) as error:
            raise ContainerLost(f"{path} is no file: {error}") from error
        finally:
            stream.close()


def _limits(task: Task, *, network: bool, privileges: bool) -> TaskLimits:
    default, setup = TaskLimits(), task.setup
    return TaskLimits(
        cpus=setup["cpus"] or default.cpus,
        memory_mb=setup["memory_mb"] or default.memory_mb,
        storage_mb=setup["storage_mb"] or default.storage_mb,
        network=network,
        privileges=privileges,
    )


def _user(user: str | int | None) -> str:
    return "" if user is None else str(user)
