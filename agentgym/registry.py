"""Naming a world: by id, by `package.module:Class`, or (in `agentgym.clients.client`) by URL.

An id is an entry point of the group `agentgym.environments` of an installed package, or a name given to `register`.
The id's EnvSpec is the file `ID.toml` beside the class's module, so that reading it imports no world. Either may end
with arguments of the class: `miniwob:page=click-test,observation=html`. `gymnasium:CartPole-v1` is a plain Gymnasium
environment in the adapter `agentgym.GymnasiumEnv`.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import re
import tomllib
from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import gymnasium

from agentgym.env import Env
from agentgym.errors import ConfigError, MissingDependency, UnknownEnvironment
from agentgym.gymnasium_env import GymnasiumEnv
from agentgym.spec import EnvSpec

GROUP = "agentgym.environments"
ARGUMENTS = re.compile(r"(?P<base>[^=]*?):(?P<arguments>[A-Za-z_]\w*=.*)")
"""A name with arguments; of a URL what follows a colon is no `key=`."""

GYMNASIUM = "gymnasium:"
"""Prefix of the name of a plain Gymnasium environment."""

_registered: dict[str, str] = {}


def register(name: str, target: str) -> None:
    """Give the class at `target` ("package.module:Class") a name for this process."""
    if ":" not in target:
        raise UnknownEnvironment(f'a world is named as "package.module:Class", not {target!r}')
    _registered[name] = target


def register_with_gymnasium() -> None:
    """Make every installed id ID known to `gymnasium.make` as "agentgym/ID-v0". Imports no environment."""
    for point in entry_points(group=GROUP):
        name = f"agentgym/{point.name}-v0"
        if re.fullmatch(r"[\w.-]+", point.name) and name not in gymnasium.registry:  # Gymnasium takes no other ids
            gymnasium.register(
                name,
                entry_point="agentgym.registry:make",
                kwargs={"name": point.name},
                disable_env_checker=True,  # it warns of observations that are text
            )


def list_envs() -> dict[str, str]:
    """Every known id and the "package.module:Class" that it stands for."""
    return dict(sorted({**_installed(), **_registered}.items()))


def get_spec(name: str) -> EnvSpec:
    """The EnvSpec of a world. By id with a TOML beside its module, nothing is imported.

    With arguments in the name an instance is made, since they may change what the world says of itself.
    """
    name, arguments = split_arguments(name)
    if arguments:
        world = make(name, **arguments)
        world.close()
        return world.env_spec
    target = _target(name)
    path = _spec_file(name, target)
    if path is not None:
        return EnvSpec.load(path)
    cls = _import(target)
    found = getattr(cls, "env_spec", None)
    if found is None and issubclass(cls, GymnasiumEnv):  # described by the environment that an instance makes
        world = make(name)
        world.close()
        return world.env_spec
    if not isinstance(found, EnvSpec):
        raise UnknownEnvironment(f"{target} has no EnvSpec: set `env_spec = EnvSpec(...)` in the class")
    return found


def target(name: str) -> str:
    """The "package.module:Class" that a name stands for, its arguments left out."""
    return _target(split_arguments(name)[0])


def make(name: str, **kwargs: Any) -> Env:
    """A new instance of a world in this process. `kwargs` override the spec's own."""
    return env_factory(name, **kwargs)()


def env_factory(name: str, **kwargs: Any) -> Callable[[], Env]:
    """Return a factory of new instances: `make`, with the class and its spec read once for all of them."""
    name, arguments = split_arguments(name)
    kwargs = {**arguments, **kwargs}
    target = _target(name)
    path = _spec_file(name, target)
    cls = _import(target)
    if path is not None:
        found = EnvSpec.load(path)
        kwargs = {"spec": found, **found.kwargs, **kwargs}
    try:
        inspect.signature(cls).bind(**kwargs)
    except TypeError as error:
        raise ConfigError(f"{name} cannot be made with {', '.join(kwargs) or 'no arguments'}: {error}") from error
    return partial(cls, **kwargs)


def split_arguments(name: str) -> tuple[str, dict[str, Any]]:
    """`world:size=5,mode=text` as ("world", {"size": 5, "mode": "text"}); values are TOML, or else the text itself."""
    found = ARGUMENTS.fullmatch(name)
    base = found["base"] if found else name
    arguments: dict[str, Any] = {}
    if base.startswith(GYMNASIUM):
        base, arguments = f"{GymnasiumEnv.__module__}:GymnasiumEnv", {"env": base.removeprefix(GYMNASIUM)}
    if not found:
        return base, arguments
    for part in found["arguments"].split(","):
        key, equals, value = part.partition("=")
        if not equals or not key.isidentifier():
            raise UnknownEnvironment(f"{part!r} in {name!r} is not an argument: write NAME:key=value,key=value")
        try:
            arguments[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            arguments[key] = value
    return base, arguments


@cache
def _installed() -> dict[str, str]:
    return {point.name: point.value for point in entry_points(group=GROUP)}


def _target(name: str) -> str:
    if ":" in name and "://" not in name:
        module, _, cls = name.partition(":")
        if not all(part.isidentifier() for part in [*module.split("."), *cls.split(".")]):
            raise UnknownEnvironment(f'a world of your own is named "package.module:Class", not {name!r}')
        return name
    known = list_envs()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3)
        guess = f" Did you mean {', '.join(close)}?" if close else ""
        raise UnknownEnvironment(
            f"no world is called {name!r}.{guess} `agentgym envs list` shows the installed ones; a world of your own "
            'is named "package.module:Class"'
        )
    return known[name]


def _spec_file(name: str, target: str) -> Path | None:
    if ":" in name:
        return None
    package = target.partition(":")[0].rpartition(".")[0]
    try:
        found = importlib.util.find_spec(package) if package else None
    except ModuleNotFoundError:
        return None
    for folder in (found.submodule_search_locations or []) if found else []:
        path = Path(folder) / f"{name}.toml"
        if path.is_file():
            return path
    return None


def _import(target: str) -> type[Env]:
    module_name, _, class_name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(error.name + ".")):
            raise UnknownEnvironment(f"{target!r}: there is no module {error.name!r} to import") from error
        raise MissingDependency(f"{target!r} needs the package {error.name!r}, which is not installed") from error
    cls = getattr(module, class_name, None)
    if cls is None:
        raise UnknownEnvironment(f"module {module_name} has no {class_name!r}")
    if isinstance(cls, type) and issubclass(cls, gymnasium.Env) and not issubclass(cls, Env):
        raise UnknownEnvironment(
            f"{target} is a gymnasium.Env, whose observations and actions are not text: name a subclass of "
            f"agentgym.GymnasiumEnv that calls super().__init__({class_name}, max_turns=...)"
        )
    if not (isinstance(cls, type) and issubclass(cls, Env)):
        raise UnknownEnvironment(f"{target} is not a subclass of agentgym.Env")
    return cls
