"""An environment that a server offers, and `perform`: one call of it, its answer checked and encoded for the wire."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from agentgym import registry
from agentgym.env import Env, info_problem, reward_problem
from agentgym.errors import (
    BadRequest,
    ConfigError,
    EnvironmentCrashed,
    EnvironmentFailure,
    EnvironmentNotOpened,
    MissingDependency,
)
from agentgym.protocol import VERBS, encode_observation
from agentgym.spec import EnvSpec
from agentgym_servers.web.encoding import encode

Factory = Callable[[], Env]
MAX_MESSAGE = 2000
"""Characters kept of what an exception says."""


@dataclass(frozen=True)
class ServedEnv:
    """One environment of a server: its name in URLs, its description, and how an instance is made."""

    name: str
    spec: EnvSpec
    make: Factory
    source: str | None = None
    """The id or "package.module:Class" under which a worker process can make it too; None for a factory of this one."""

    @property
    def target(self) -> str | None:
        """The "package.module:Class" that `source` stands for."""
        return None if self.source is None else registry.target(self.source)

    def require(self, capability: str) -> None:
        """Raises BadRequest unless the environment has the capability."""
        if capability not in self.spec.capabilities:
            raise BadRequest(
                f"{self.name} has no {capability}; its capabilities are {list(self.spec.capabilities) or 'none'}"
            )


def envs_of(named: Sequence[str] | Mapping[str, Factory]) -> dict[str, ServedEnv]:
    """The environments by their names in URLs: an id keeps its own, a "package.module:Class" takes its spec's id.

    A mapping gives names to factories; each is called once here for its spec. Raises UsageError for an environment that
    cannot be served.
    """
    if isinstance(named, str):
        named = [named]
    if not named:
        raise ConfigError("a server needs at least one environment; `agentgym envs list` shows the installed ones")
    found = [_from_factory(*item) for item in named.items()] if isinstance(named, Mapping) else map(_from_name, named)
    envs: dict[str, ServedEnv] = {}
    for env in found:
        if env.name in envs or "/" in env.name:
            raise ConfigError(
                f"two environments of one server cannot both be called {env.name!r}, nor a name contain '/'"
            )
        envs[env.name] = env
    return envs


def _from_name(name: str) -> ServedEnv:
    try:  # now, not in the first session: a package that is missing should stop the server from starting
        pkgutil.resolve_name(registry.target(name))
    except ImportError as error:
        raise MissingDependency(f"{name} cannot be imported: {error}") from error
    spec = registry.get_spec(name)
    return ServedEnv(spec.id if ":" in name else name, spec, registry.env_factory(name), name)


def _from_factory(name: str, make: Factory) -> ServedEnv:
    env = make()
    try:
        return ServedEnv(name, env.env_spec, make)
    finally:
        env.close()


class StepResult(NamedTuple):
    """The result of an environment's reset or step."""

    body: bytes
    """The JSON object of a StepReply, without what the session adds."""
    done: bool


def perform(environment: ServedEnv, env: Env, method: str, *arguments: Any) -> Any:
    """Call one method of an environment. Reset and step return a StepResult, a query its value encoded for the wire.

    Raises BadRequest when the environment says so, EnvironmentCrashed when it raises anything else or answers what the
    contract forbids.
    """
    try:
        if method == "reset":
            seed, options = arguments
            return _answer(environment, env, _reset_tuple(env.reset(seed=seed, options=options)), first=True)
        if method == "step":
            return _answer(environment, env, env.step(*arguments), first=False)
        if method == "restore":
            state, seed = arguments
            env.restore(state)
            return env.reseed(seed) if seed is not None else None
        return _encoded(environment, method, getattr(env, method)())
    except EnvironmentFailure:
        raise
    except BaseException as error:
        if method == "restore" and isinstance(error, Exception) and not isinstance(error, MemoryError):
            raise BadRequest(f"{environment.name} cannot be restored from this: {describe(error)}") from error
        raise EnvironmentCrashed(f"{environment.name} failed in {method}: {describe(error)}") from error


def open_env(env: ServedEnv) -> Env:
    """A new instance. Raises EnvironmentNotOpened when its constructor fails."""
    try:
        return env.make()
    except EnvironmentFailure:
        raise
    except BaseException as error:
        raise EnvironmentNotOpened(f"{env.name} could not be opened: {describe(error)}") from error


def describe(error: BaseException) -> str:
    """An exception in one short line that can be encoded, even when its own text cannot be had."""
    try:
        text = f"{type(error).__name__}: {error}".removesuffix(": ")
    except BaseException:  # noqa: BLE001  (its __str__ is the environment's too)
        text = f"{type(error).__name__} (its text cannot be had)"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 3]}..."


def _encoded(env: ServedEnv, name: str, value: Any) -> Any:
    """Return a query's value for the wire. Raises EnvironmentCrashed when its contract forbids the value."""
    encode = VERBS[name].value.encode
    try:
        return encode(value)
    except (TypeError, ValueError, KeyError) as error:  # pydantic's ValidationError is a ValueError
        raise EnvironmentCrashed(f"{env.name} broke its contract: {name} returned {_excerpt(value)}") from error


def _reset_tuple(raw: Any) -> Any:
    if not (isinstance(raw, tuple) and len(raw) == 2):
        raise EnvironmentCrashed(f"reset must return (observation, info), it returned {_excerpt(raw)}")
    return raw[0], 0.0, False, False, raw[1]


def _answer(environment: ServedEnv, env: Env, raw: Any, first: bool) -> StepResult:
    method = "reset" if first else "step"

    def wrong(what: str) -> EnvironmentCrashed:
        return EnvironmentCrashed(f"{environment.name} broke its contract in {method}: {what}")

    if not (isinstance(raw, tuple) and len(raw) == 5):
        raise wrong(f"not (observation, reward, terminated, truncated, info) but {_excerpt(raw)}")
    observation, reward, terminated, truncated, info = raw
    if not env.observation_space.contains(observation):
        raise wrong(
            f"the observation should be {' and '.join(environment.spec.observations)}, it is {_excerpt(observation)}"
        )
    if isinstance(observation, dict) and observation["image"].shape[2] != 3:
        raise wrong(f"the image should be uint8[height, width, 3], it is {observation['image'].shape}")
    if problem := reward_problem(reward):
        raise wrong(problem)
    if not (isinstance(terminated, _BOOLS) and isinstance(truncated, _BOOLS)):
        raise wrong(f"terminated and truncated should be bools, they are {_excerpt((terminated, truncated))}")
    if not isinstance(info, dict):
        raise wrong(info_problem(info))
    done = bool(terminated or truncated)
    try:
        reply = {
            "observation": encode_observation(observation),  # type: ignore[arg-type]
            "reward": None if first else float(reward),  # type: ignore[arg-type]
            "done": done,
            "metadata": None,
            "terminated": bool(terminated),
            "truncated": bool(truncated),
            "info": info,
        }
        body = encode(reply, _plain)
    except (TypeError, ValueError, RecursionError) as error:  # UnicodeEncodeError is a ValueError
        raise wrong(f"its answer is not JSON: {error}") from error
    if problem := info_problem(info):
        raise wrong(problem)
    return StepResult(body, done)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{_excerpt(value)} ({type(value).__name__})")


_BOOLS = (bool, np.bool_)


def _excerpt(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
