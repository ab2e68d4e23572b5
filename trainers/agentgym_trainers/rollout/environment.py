"""The environment that a run trains on: in this process, at a URL, or behind a server that is started for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rich.progress import Progress

from agentgym.clients.client import Connection, connect
from agentgym.clients.server_process import server_process
from agentgym.errors import ConfigError
from agentgym.registry import is_url
from agentgym.spec import EnvSpec
from agentgym_trainers.config.sections import Config
from agentgym_trainers.rollout.sources import SOURCES

REVIVAL_RETRIES = 9
"""Retries of a request through the socket: nine seconds, and an episode is tried twice. Then a server that died is
there again."""


@asynccontextmanager
async def open_env(config: Config, progress: Progress) -> AsyncIterator[tuple[Connection, str | None]]:
    """The environment to train on, and the URL of the server that was started for it, if one was."""
    name = config.env.name
    if is_url(name) or not config.env.serve:
        async with connect(name) as env:
            yield check_environment(config, env), None
        return
    with server_process([name], restart=True) as url:
        progress.console.print(f"serving {name} at {url}")
        async with connect(url, retries=REVIVAL_RETRIES) as env:  # the only environment there
            yield check_environment(config, env), url


def check_environment(config: Config, env: Connection) -> Connection:
    """The environment, checked by its spec (see `check_spec`)."""
    check_spec(config, env.spec)
    return env


def check_spec(config: Config, spec: EnvSpec) -> None:
    """Raise ConfigError where the recipe asks for what the environment does not have."""
    for split in (config.env.split, config.eval.split):
        if split not in spec.splits:
            raise ConfigError(f"{spec.id} has no split {split!r}; it has {', '.join(spec.splits)}")
    if config.eval.tasks > spec.splits[config.eval.split]:
        raise ConfigError(
            f"eval.tasks is {config.eval.tasks}; {spec.id} has {spec.splits[config.eval.split]} tasks in "
            f"{config.eval.split!r}: set eval.tasks={spec.splits[config.eval.split]}, or fewer"
        )
    for who, needs in config.needs.items():
        if "anchors" in needs and "state_key" not in spec.info_keys:
            raise ConfigError(f"{who} compares equal states, and {spec.id} names none (no state_key)")
        if "milestone_N" in needs and "milestone" not in spec.info_keys:
            raise ConfigError(f"{who} compares turns after the same milestone, and {spec.id} names none (no milestone)")
        if "snapshots" in needs and "snapshot" not in spec.capabilities:
            raise ConfigError(f"{who} goes back to states that were visited, and {spec.id} has no snapshots")
    for capability in sorted(SOURCES[config.source.kind].needs(config.source) - set(spec.capabilities)):
        raise ConfigError(
            f"source.kind = {config.source.kind!r} needs an environment with {capability!r}; {spec.id} has none"
        )
    if "two_player" in spec.capabilities and SOURCES[config.source.kind].players != 2:
        raise ConfigError(
            f"{spec.id} has two players, and source.kind = {config.source.kind!r} has one: set source.kind = "
            '"selfplay", or train against an opponent of the environment\'s own'
        )
    _check_warm_up(config, spec)


def _check_warm_up(config: Config, spec: EnvSpec) -> None:
    """Raise ConfigError where there is nothing to imitate, or no action to draw at random."""
    options = config.sft
    if options is None:
        return
    if options.path is not None:
        if not Path(options.path).is_file():
            raise ConfigError(f"sft.path: there is no file {options.path}")
        if options.noise:
            raise ConfigError(
                "sft.noise makes the scripted solver imperfect, and sft.path has no solver: set sft.noise=0"
            )
        return
    if "solver" not in spec.capabilities:
        raise ConfigError(
            f"{spec.id} has no scripted solver for the warm-up [sft] to imitate: set "
            "sft.path=FILE of demonstrations, or sft= to train without a warm-up, best with model.path=FOLDER of a "
            "trained model"
        )
    if options.noise and not lists_actions(spec):
        raise ConfigError(
            f"sft.noise = {options.noise:g} replaces the solver's actions by random ones, and {spec.id} lists no "
            "actions to draw from: set sft.noise=0"
        )


def lists_actions(spec: EnvSpec) -> bool:
    """True where there are actions to draw from at random."""
    return bool(spec.actions) or "available_actions" in spec.info_keys
