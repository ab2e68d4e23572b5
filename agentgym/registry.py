"""Naming an environment: by id, by `package.module:Class`, or (in `agentgym.clients.client`) by URL.

An entry point of the group `agentgym.environments` names a package, and every `spec.toml` in that package's folders
describes environments: their ids, EnvSpecs and classes, found and read without importing any of them. An entry point
or `register` may also give one class an id; its EnvSpec is then in the `spec.toml` beside the class's module, or in the
class. A name may end with arguments of the class: `miniwob:page=click-test,observation=html`.
`gymnasium:CartPole-v1` is a plain Gymnasium environment in the adapter `agentgym.GymnasiumEnv`.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import inspect
import re
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium

from agentgym.env import Env, LazyPolicy
from agentgym.errors import ConfigError, MissingDependency, UnknownEnvironment
from agentgym.gymnasium_env import GymnasiumEnv
from agentgym.spec import EnvSpec, read_variants

GROUP = "agentgym.environments"
ARGUMENTS = re.compile(r"(?P<base>[^=]*?):(?P<arguments>[A-Za-z_]\w*=.*)")
"""A name with arguments; of a URL what follows a colon is no `key=`."""

URL = re.compile(r"[a-z][a-z+.-]*://", re.IGNORECASE)

GYMNASIUM = "gymnasium:"
"""Prefix of the name of a plain Gymnasium environment."""

SPEC_FILE = "spec.toml"


class ArgumentType(NamedTuple):
    """Type of a class's parameter: the types of TOML values that it takes, and how it is called."""

    types: tuple[type, ...]
    words: str


TYPES = {
    "bool": ArgumentType((bool,), "true or false"),
    "dict": ArgumentType((dict,), "a table"),
    "float": ArgumentType((int, float), "a number"),
    "int": ArgumentType((int,), "a whole number"),
    "list": ArgumentType((list,), "a list"),
    "str": ArgumentType((str,), "text"),
}
"""Types of parameters that arguments in a name are checked against: the others are left to the class."""

_registered: dict[str, str] = {}


class Installed(NamedTuple):
    """Installed environment: what an id stands for."""

    target: str
    """"package.module:Class"."""
    path: Path | None
    """The file that describes it; None where the id is an entry point of its own."""


def register(name: str, target: str) -> None:
    """Give the class at `target` ("package.module:Class") a name for this process."""
    if ":" not in target:
        raise UnknownEnvironment(f'an environment is named as "package.module:Class", not {target!r}')
    _registered[name] = target


def register_with_gymnasium() -> None:
    """Make every installed id ID known to `gymnasium.make` as "agentgym/ID-v0". Imports no environment."""
    for installed in _installed():
        name = f"agentgym/{installed}-v0"
        if re.fullmatch(r"[\w.-]+", installed) and name not in gymnasium.registry:  # Gymnasium takes no other ids
            gymnasium.register(
                name,
                entry_point="agentgym.registry:make",
                kwargs={"name": installed},
                disable_env_checker=True,  # it warns of observations that are text
            )


def list_envs() -> dict[str, str]:
    """Every known id and the "package.module:Class" that it stands for."""
    installed = {name: one.target for name, one in _installed().items()}
    return dict(sorted({**installed, **_registered}.items()))


def get_spec(name: str) -> EnvSpec:
    """The EnvSpec of an environment. By id with a `spec.toml`, nothing is imported.

    With arguments in the name an instance is made, since they may change what the environment says of itself.
    """
    name, arguments = split_arguments(name)
    if arguments:
        env = make(name, **arguments)
        env.close()
        return env.env_spec
    target = _target(name)
    path = _spec_file(name, target)
    if path is not None:
        return EnvSpec.load(path, name)
    cls = _import(target)
    found = getattr(cls, "env_spec", None)
    if found is None and issubclass(cls, GymnasiumEnv):  # described by the environment that an instance makes
        env = make(name)
        env.close()
        return env.env_spec
    if not isinstance(found, EnvSpec):
        raise UnknownEnvironment(f"{target} has no EnvSpec: set `env_spec = EnvSpec(...)` in the class")
    return found


def target(name: str) -> str:
    """The "package.module:Class" that a name stands for, its arguments left out."""
    return _target(split_arguments(name)[0])


def lazy_policies(name: str) -> Mapping[str, LazyPolicy]:
    """The lazy policies that an environment's class brings along. None of a URL: they are code, not served."""
    return {} if is_url(name) else _import(target(name)).lazy_policies


def make(name: str, **kwargs: Any) -> Env:
    """A new instance of an environment in this process. `kwargs` override the spec's own."""
    return env_factory(name, **kwargs)()


def env_factory(name: str, **kwargs: Any) -> Callable[[], Env]:
    """Return a factory of new instances: `make`, with the class and its spec read once for all of them."""
    name, arguments = split_arguments(name)
    kwargs = {**arguments, **kwargs}
    target = _target(name)
    path = _spec_file(name, target)
    cls = _import(target)
    if path is not None:
        found = EnvSpec.load(path, name)
        kwargs = {"spec": found, **found.kwargs, **kwargs}
    signature = inspect.signature(cls)
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        raise ConfigError(f"{name} cannot be made with {', '.join(kwargs) or 'no arguments'}: {error}") from error
    _check_types(name, signature, arguments)
    return partial(cls, **kwargs)


def _check_types(name: str, signature: inspect.Signature, arguments: dict[str, Any]) -> None:
    """Raises ConfigError for an argument in a name that is not of its parameter's type, where that is a plain one."""
    for key, value in arguments.items():
        if key not in signature.parameters:
            continue  # a class that takes any
        annotation = signature.parameters[key].annotation
        text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        kinds = _kinds(ast.parse(text, mode="eval").body)
        if all(kind in TYPES for kind in kinds) and not any(type(value) in TYPES[kind].types for kind in kinds):
            meant = " or ".join(TYPES[kind].words for kind in kinds)
            raise ConfigError(f"{name}: {key} is {meant}, not {value!r}")


def _kinds(annotation: ast.expr) -> list[str]:
    """Return the names of the types in a union, without None, and without what a table or a list holds."""
    match annotation:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return [*_kinds(left), *_kinds(right)]
        case ast.Subscript(value=value):
            return _kinds(value)
        case ast.Constant(value=None):
            return []
    return [ast.unparse(annotation)]


def is_url(name: str) -> bool:
    """Return whether an environment is named by its server's address; an argument of one may be a URL too."""
    return URL.match(name) is not None


def split_arguments(name: str) -> tuple[str, dict[str, Any]]:
    """`env:size=5,mode=text` as ("env", {"size": 5, "mode": "text"}); values are TOML, or else the text
    itself."""
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
def _installed() -> dict[str, Installed]:
    found: dict[str, Installed] = {}
    for point in entry_points(group=GROUP):
        if ":" in point.value:
            found[point.name] = Installed(point.value, None)
            continue
        for path in _spec_files(point.value):
            found |= _described(path, found)
    return found


def _spec_files(package: str) -> Iterator[Path]:
    """Every `spec.toml` of a package that need not be imported."""
    for folder in _folders(package):
        yield from sorted(folder.rglob(SPEC_FILE))


def _described(path: Path, known: Mapping[str, Installed]) -> dict[str, Installed]:
    """The environments of a `spec.toml`. One that is broken is left out with a warning: the others stay usable."""
    try:
        variants = read_variants(path)
    except ConfigError as error:
        warnings.warn(f"{error}. Its environments are left out", stacklevel=2)
        return {}
    found: dict[str, Installed] = {}
    for name, fields in variants.items():
        target = fields.get("entry_point")
        if not isinstance(target, str) or ":" not in target:
            problem = 'has no entry_point = "package.module:Class"'
        elif name in known:
            problem = f"is described by {known[name].path or known[name].target} already"
        else:
            found[name] = Installed(target, path)
            continue
        warnings.warn(f"{path}: {name} {problem}. It is left out", stacklevel=2)
    return found


def _folders(package: str) -> list[Path]:
    """Find a package's folder; None where there is none. Imports at most the packages around it."""
    try:
        found = importlib.util.find_spec(package) if package else None
    except ModuleNotFoundError:
        return []
    return [Path(folder) for folder in (found.submodule_search_locations or [])] if found else []


def _target(name: str) -> str:
    if ":" in name and not is_url(name):
        module, _, cls = name.partition(":")
        if not all(part.isidentifier() for part in [*module.split("."), *cls.split(".")]):
            raise UnknownEnvironment(f'an environment of your own is named "package.module:Class", not {name!r}')
        return name
    known = list_envs()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3)
        guess = f" Did you mean {', '.join(close)}?" if close else ""
        raise UnknownEnvironment(
            f"no environment is called {name!r}.{guess} `agentgym envs list` shows the installed ones; "
            'an environment of your own is named "package.module:Class"'
        )
    return known[name]


def _spec_file(name: str, target: str) -> Path | None:
    if ":" in name:
        return None
    if name not in _registered and (path := _installed()[name].path):
        return path
    for folder in _folders(target.partition(":")[0].rpartition(".")[0]):
        path = folder / SPEC_FILE
        if path.is_file() and name in read_variants(path):
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
