"""Options of the source whose episodes are played by an agent that we did not write, a program of its own."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from pydantic import field_validator

from agentgym.rollouts.program import command_words
from agentgym.rollouts.runner import Runner
from agentgym_trainers.config.registry import KindOptions
from agentgym_trainers.rollout.external.runner import ExternalAgentRunner


class ExternalAgentOptions(KindOptions):
    """Every step a program of yours plays each proposed task `rollout.group_size` times, through an OpenAI base URL."""

    kind: Literal["external_agent"] = "external_agent"
    command: str
    """The program and its arguments, without a shell. `rollout.concurrency` of them run at once, each for at most
    `env.episode_s` seconds."""

    @field_validator("command")
    @classmethod
    def _words(cls, command: str) -> str:
        command_words(command)
        return command


def external_agent_runner(config: Any, runner: Runner, folder: Path) -> ExternalAgentRunner:
    """A runner as `runner` is, whose episodes are programs. See `SourceKind.runner`."""
    plain = {part.name: getattr(runner, part.name) for part in fields(Runner)}
    return ExternalAgentRunner(**plain, command=config.source.command, env=config.env.name, logs=folder / "agents")
