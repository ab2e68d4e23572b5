"""A world that a server offers, and `perform`: one call of it, its answer checked and encoded for the wire."""

from __future__ import annotations

import json
import math
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from agentgym import load
from agentgym.env import Env
from agentgym.errors import BadRequest, ConfigError, EnvironmentCrashed, EnvironmentFailure, MissingDependency
from agentgym.spec import EnvSpec
from agentgym.wire import encode_observation

Factory = Callable[[], Env]


@dataclass(frozen=True)
class World:
    """One world of a server: its name in URLs, its description, and how an instance is made."""

    name: str
    spec: EnvSpec
    make: Factory

    def require(self, capability: str) -> None:
        """Raises BadRequest unless the world has the capability."""
        if capability not in self.spec.capabilities:
            raise BadRequest(
                f"{self.name} has no {capability}; its capabilities are {list(self.spec.capabilities) or 'none'}"
            )


def worlds_of(named: Sequence[str] | Mapping[str, Factory]) -> dict[str, World]:
    """The worlds by their names in URLs: an id keeps its own, a "package.module:Class" takes its spec's id.

    A mapping gives names to factories; each is called once here for its spec. Raises UsageError for a world that
    cannot be served.
    """
    if isinstance(named, str):
        named = [named]
    if not named:
        raise ConfigError("a server needs at least one world; `agentgym envs list` shows the installed ones")
    found = [_from_factory(*item) for item in named.items()] if isinstance(named, Mapping) else map(_from_name, named)
    worlds: dict[str, World] = {}
    for world in found:
        if world.name in worlds or "/" in world.name:
            raise ConfigError(f"two worlds of one server cannot both be called {world.name!r}, nor a name contain '/'")
        worlds[world.name] = world
    return worlds


def _from_name(name: str) -> World:
    spec = load.spec(name)
    try:  # now, not in the first session: a package that is missing should stop the server from starting
        pkgutil.resolve_name(load.names().get(name, name))
    except ImportError as error:
        raise MissingDependency(f"{name} cannot be imported: {error}") from error
    return World(spec.id if ":" in name else name, spec, partial(load.make, name))


def _from_factory(name: str, make: Factory) -> World:
    env = make()
    try:
        return World(name, env.env_spec, make)
    finally:
        env.close()


class Answer(NamedTuple):
    """What a world answered to reset or step."""

    body: bytes
    """The JSON object of a StepReply, without what the session adds."""
    done: bool


def perform(world: World, env: Env, method: str, *arguments: Any) -> Any:
    """Call one method of a world; reset and step give an Answer.

    Raises BadRequest when the world says so, EnvironmentCrashed when it raises anything else or answers what the
    contract forbids.
    """
    try:
        if method == "reset":
            seed, options = arguments
            return _answer(world, env, _reset_tuple(env.reset(seed=seed, options=options)), first=True)
        if method == "step":
            return _answer(world, env, env.step(*arguments), first=False)
        return getattr(env, method)(*arguments)
    except EnvironmentFailure:
        raise
    except (Exception, SystemExit) as error:  # a world's author may raise anything
        if method == "restore":
            raise BadRequest(f"{world.name} cannot be restored from this: {type(error).__name__}: {error}") from error
        raise EnvironmentCrashed(f"{world.name} raised {type(error).__name__} in {method}: {error}") from error


def open_env(world: World) -> Env:
    """A new instance. Raises EnvironmentCrashed when its constructor fails."""
    try:
        return world.make()
    except EnvironmentFailure:
        raise
    except (Exception, SystemExit) as error:  # a world's author may raise anything
        raise EnvironmentCrashed(f"{world.name} could not be opened: {type(error).__name__}: {error}") from error


def _reset_tuple(raw: Any) -> Any:
    if not (isinstance(raw, tuple) and len(raw) == 2):
        raise EnvironmentCrashed(f"reset must return (observation, info), it returned {_excerpt(raw)}")
    return raw[0], 0.0, False, False, raw[1]


def _answer(world: World, env: Env, raw: Any, first: bool) -> Answer:
    method = "reset" if first else "step"

    def wrong(what: str) -> EnvironmentCrashed:
        return EnvironmentCrashed(f"{world.name} broke its contract in {method}: {what}")

    if not (isinstance(raw, tuple) and len(raw) == 5):
        raise wrong(f"not (observation, reward, terminated, truncated, info) but {_excerpt(raw)}")
    observation, reward, terminated, truncated, info = raw
    if not env.observation_space.contains(observation):
        raise wrong(f"the observation should be {' and '.join(world.spec.observations)}, it is {_excerpt(observation)}")
    if isinstance(observation, dict) and observation["image"].shape[2] != 3:
        raise wrong(f"the image should be uint8[height, width, 3], it is {observation['image'].shape}")
    if not (isinstance(reward, Real | np.number | np.bool_) and math.isfinite(reward)):  # type: ignore[arg-type]
        raise wrong(f"the reward should be a finite number, it is {_excerpt(reward)}")
    if not (isinstance(terminated, bool | np.bool_) and isinstance(truncated, bool | np.bool_)):
        raise wrong(f"terminated and truncated should be bools, they are {_excerpt((terminated, truncated))}")
    if not isinstance(info, dict):
        raise wrong(f"info should be a dict, it is {_excerpt(info)}")
    done = bool(terminated or truncated)
    reply = {
        "observation": encode_observation(observation),  # type: ignore[arg-type]
        "reward": None if first else float(reward),  # type: ignore[arg-type]
        "done": done,
        "metadata": None,
        "terminated": bool(terminated),
        "truncated": bool(truncated),
        "info": info,
    }
    try:
        return Answer(_JSON.encode(reply).encode(), done)
    except (TypeError, ValueError, RecursionError) as error:  # UnicodeEncodeError is a ValueError
        raise wrong(f"its answer is not JSON: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{_excerpt(value)} ({type(value).__name__})")


_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)


def _excerpt(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
