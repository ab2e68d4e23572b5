"""Tasks of Harbor: a folder each, with an instruction, an image, tests that write a reward, and a solution.

    instruction.md  task.toml  environment/Dockerfile  tests/test.sh  solution/solve.sh

Read are folders of schema 1.0 to 1.4 (harbor 0.26), as Terminal-Bench 2 has them. A folder that asks for what we do not
run (several steps, Compose, Windows, accelerators, MCP servers) is left out, with the reason.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from agentgym.errors import ConfigError
from agentgym.tasks import Task
from agentgym_environments.tasks.records import plain

NetworkMode = Literal["no-network", "public", "allowlist"]
UNITS_MB = {"K": 1 / 1024, "M": 1, "G": 1024}
TEMPLATE = re.compile(r"\$\{[^}:]+(?::-(?P<default>.*))?\}")
"""A variable of the machine in a value of `env`, perhaps with what stands in where it has none."""


class _Part(BaseModel):
    """A table of task.toml. Fields that we do not need are ignored: newer minor schemas add some."""

    model_config = ConfigDict(extra="ignore")


class Environment(_Part):
    """The container in which the agent works."""

    docker_image: str | None = None
    build_timeout_sec: float = 600.0
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    network_mode: NetworkMode = "public"
    allowed_hosts: list[str] | None = None
    workdir: str | None = None
    env: dict[str, str] = {}
    os: str = "linux"
    gpus: int | None = None
    tpu: Any = None
    mcp_servers: list[Any] = []
    healthcheck: Any = None

    @model_validator(mode="before")
    @classmethod
    def _older_fields(cls, fields: Any) -> Any:
        """Fields of schema 1.0: `memory = "2G"`, `storage`, `allow_internet`."""
        if not isinstance(fields, dict):
            return fields
        fields = dict(fields)
        for old in ("memory", "storage"):
            if isinstance(size := fields.pop(old, None), str):
                fields.setdefault(f"{old}_mb", _megabytes(size))
        if (internet := fields.pop("allow_internet", None)) is not None:
            fields.setdefault("network_mode", "public" if internet else "no-network")
        return fields

    @field_validator("os", mode="before")
    @classmethod
    def _lower(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value


class Phase(_Part):
    """The agent's part, or the verifier's."""

    timeout_sec: float | None = Field(default=None, gt=0)
    user: str | int | None = None
    env: dict[str, str] = {}
    network_mode: NetworkMode | None = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: Environment | None = None
    collect: list[Any] = []


class HarborConfig(_Part):
    """task.toml."""

    schema_version: str = "1.0"
    task: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    environment: Environment = Environment()
    agent: Phase = Phase()
    verifier: Phase = Phase()
    solution: Phase = Phase()
    steps: list[Any] | None = None
    artifacts: list[Any] = []

    @model_validator(mode="before")
    @classmethod
    def _older_version(cls, fields: Any) -> Any:
        if isinstance(fields, dict) and "version" in fields:
            fields = {"schema_version": fields["version"], **fields}
        return fields


def harbor_tasks(folder: Path) -> tuple[list[Task], dict[str, str]]:
    """Return the tasks of a folder, and why others are left out, by name.

    The folder is one task's, or holds one for each task. Raises ConfigError where it holds none, or none that we run.
    """
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}")
    places = (
        [folder] if (folder / "task.toml").is_file() else sorted(place.parent for place in folder.glob("*/task.toml"))
    )
    if not places:
        raise ConfigError(f"{folder} holds no Harbor task: a task is a folder with instruction.md and task.toml")
    tasks, others = [], {}
    for place in places:
        config = read_config(place)
        if reason := _what_we_lack(place, config):
            others[place.name] = reason
        else:
            tasks.append(_task(place, config))
    if not tasks:
        raise ConfigError(f"none of the tasks of {folder} is run here: {next(iter(others.values()))}")
    return tasks, others


def read_config(place: Path) -> HarborConfig:
    """Return a task's task.toml. Raises ConfigError naming the file and the field."""
    path = place / "task.toml"
    try:
        config = HarborConfig.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise ConfigError(f"{path} is no Harbor task: {error}") from error
    if config.schema_version.partition(".")[0] != "1":
        raise ConfigError(f"{path} is of schema {config.schema_version}; 1.0 to 1.4 are known")
    for name in ("instruction.md", "tests/test.sh"):
        if not config.steps and config.environment.os == "linux" and not (place / name).is_file():
            raise ConfigError(f"{place} has no {name}")
    return config


def tree_digest(folder: Path) -> str:
    """Hash of a folder's files: names, contents, and which may be executed. "" where there is no such folder."""
    if not folder.is_dir():
        return ""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*"), key=lambda path: path.relative_to(folder).as_posix()):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            digest.update(f"link {name}\0{path.readlink()}\0".encode())
        elif path.is_file():
            content = path.read_bytes()
            digest.update(f"file {name}\0{bool(path.stat().st_mode & 0o100)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _what_we_lack(place: Path, config: HarborConfig) -> str:
    """Return why a task is not run here; "" for one that is."""
    environment = config.environment
    image = environment.docker_image or (place / "environment" / "Dockerfile").is_file()
    reasons = {
        "it has several steps": bool(config.steps),
        f"it is for {environment.os}": environment.os != "linux",
        "it needs an accelerator": bool(environment.gpus or environment.tpu),
        "it has MCP servers": bool(environment.mcp_servers),
        "it is made of several containers": any((place / "environment").glob("docker-compose.y*ml")),
        "it allows some hosts only": environment.network_mode == "allowlist",
        "its verifier has an image of its own": config.verifier.environment is not None,
        "it collects what services have": bool(config.verifier.collect),
        "it names no image and has no Dockerfile": not image,
        "it needs variables of this machine": any(
            (found := TEMPLATE.fullmatch(value)) and found["default"] is None
            for env in (environment.env, config.agent.env, config.verifier.env, config.solution.env)
            for value in env.values()
        ),
        "a link of it leads out of its folder": any(
            path.is_symlink() and not path.resolve().is_relative_to(place.resolve()) for path in place.rglob("*")
        ),
    }
    return next((reason for reason, true in reasons.items() if true), "")


def _task(place: Path, config: HarborConfig) -> Task:
    environment, agent, verifier = config.environment, config.agent, config.verifier
    return Task(
        id=str(config.task.get("name", place.name)),
        prompt=_text(place / "instruction.md").strip(),
        setup={
            "image": environment.docker_image,
            "build_s": environment.build_timeout_sec,
            "cpus": environment.cpus,
            "memory_mb": environment.memory_mb,
            "storage_mb": environment.storage_mb,
            "network": (agent.network_mode or environment.network_mode) == "public",
            "workdir": environment.workdir,
            "env": _filled(environment.env),
            "user": agent.user,
            "agent_env": _filled(agent.env),
            "agent_s": agent.timeout_sec,
            "files": tree_digest(place / "environment"),
        },
        grader={
            "kind": "harbor",
            "timeout_s": verifier.timeout_sec or 600.0,
            "env": _filled(verifier.env),
            "network": (verifier.network_mode or environment.network_mode) == "public",
            "user": verifier.user,
            "tests": tree_digest(place / "tests"),
            "solution": tree_digest(place / "solution"),
            "solution_env": _filled(config.solution.env),
        },
        metadata=plain({**config.metadata, "keywords": config.task.get("keywords", [])}),
        source=str(place),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no text: {error}") from error


def _filled(env: dict[str, str]) -> dict[str, str]:
    """Return variables with what stands in for those of the machine, none of which is read."""
    return {
        name: (found["default"] or "") if (found := TEMPLATE.fullmatch(value)) else value for name, value in env.items()
    }


def _megabytes(size: str) -> int:
    number, unit = size.strip().upper()[:-1], size.strip().upper()[-1:]
    try:
        return int(float(number) * UNITS_MB[unit])
    except (KeyError, ValueError) as error:
        raise ValueError(f'{size!r} is no size: write "512M" or "2G"') from error
