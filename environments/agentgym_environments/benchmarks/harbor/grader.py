"""The grader of Harbor tasks: tests/test.sh, which writes a reward to /logs/verifier."""

from __future__ import annotations

import io
import json
import math
import posixpath
import tarfile
from functools import partial
from pathlib import Path

from agentgym.tasks import Task
from agentgym_environments.backends.containers import grading, images
from agentgym_environments.backends.containers.box import ContainerBox
from agentgym_environments.backends.containers.container import TaskContainer, TaskLimits
from agentgym_environments.backends.containers.engine import ContainerLost, DockerEngine, reaching
from agentgym_environments.backends.containers.grading import GradingPlan, RewardVerdict
from agentgym_environments.backends.containers.images import TaskImage
from agentgym_environments.benchmarks.harbor.kept import keeper

BUILD_S = 600.0
MAX_REWARD_BYTES = 64 << 10
OUTPUT_BYTES = 16 << 10
TEST = 'cd -- "$1" 2>/dev/null || cd /; exec bash /tests/test.sh'


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
    return grading.grade(engine, plan_of(task, image_of(engine, task) if box is None else box.image), box)


def plan_of(task: Task, image: TaskImage) -> GradingPlan:
    """Return how the tests of a task are run."""
    workdir, user = task.setup["workdir"] or image.workdir, _user(task.grader["user"])
    return GradingPlan(
        task=task.id,
        image=image,
        limits=_limits(task, network=task.grader["network"], privileges=(user or image.user) not in ("", "0", "root")),
        env=task.setup["env"],
        workdir=workdir,
        keep=partial(keeper, path=image.path, workdir=workdir),
        folders=((Path(task.source, "tests"), "tests"),),
        command=("bash", "-c", TEST, "bash", workdir),
        user=user,
        variables=task.grader["env"],
        timeout_s=task.grader["timeout_s"],
        output_bytes=OUTPUT_BYTES,
        reward=_reward,
    )


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
