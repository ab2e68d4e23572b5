"""Naming environments: ids, "package.module:Class", and what every wrong name is told."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import gymnasium
import pytest

from agentgym import registry
from agentgym.clients.client import connect
from agentgym.errors import ConfigError, MissingDependency, UnknownEnvironment
from agentgym.spec import EnvSpec
from agentgym.testing import EchoEnv

SPEC = """
entry_point = "ag_load_pkg.env:Env"
description = "d"
instructions = "i"
max_turns = 3

[variants.tiny-env]
kwargs = {size = 5}

[variants.tiny-env-hard]
max_turns = 2

[variants.wrong]
sise = 1
more = {x = 1}
"""
CODE = """
from agentgym.env import Env
from agentgym.spec import EnvSpec

not_a_class = 1

class Env(Env):
    def __init__(self, spec=None, size=1):
        super().__init__(spec or EnvSpec(id="w", description="d", instructions="i", max_turns=1))
        self.size = size

class Plain:
    pass
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package `ag_load_pkg` with an environment, its specs, and broken neighbours."""
    folder = tmp_path / "ag_load_pkg"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "env.py").write_text(CODE)
    (folder / "needs.py").write_text("import ag_no_such_dependency\n")
    (folder / "spec.toml").write_text(SPEC)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_registered", {})
    yield "ag_load_pkg"
    for name in [name for name in sys.modules if name.startswith("ag_load_pkg")]:
        del sys.modules[name]


def test_an_id_reads_its_toml_and_imports_nothing(package):
    registry.register("tiny-env", f"{package}.env:Env")
    assert registry.list_envs()["tiny-env"] == f"{package}.env:Env"
    assert registry.get_spec("tiny-env").max_turns == 3
    assert f"{package}.env" not in sys.modules
    env = registry.make("tiny-env")
    assert (env.size, env.env_spec.id) == (5, "tiny-env")
    assert registry.make("tiny-env", size=7).size == 7


def test_a_class_by_its_path(package):
    assert registry.make(f"{package}.env:Env").size == 1
    assert registry.make(f"{package}.env:Env", size=2).size == 2
    assert registry.get_spec("agentgym.testing:EchoEnv") == EchoEnv.env_spec
    assert isinstance(registry.make("agentgym.testing:EchoEnv"), EchoEnv)


def test_a_near_miss_is_guessed(package):
    registry.register("tiny-env", f"{package}.env:Env")
    with pytest.raises(UnknownEnvironment, match=r"no environment is called 'tiny-evn'\. Did you mean tiny-env"):
        registry.get_spec("tiny-evn")
    with pytest.raises(UnknownEnvironment, match=r"'qqqq'\. `agentgym envs list` shows"):
        registry.make("qqqq")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("ag_no_such_module:Env", UnknownEnvironment, "there is no module 'ag_no_such_module'"),
        ("ag_load_pkg.missing:Env", UnknownEnvironment, r"there is no module 'ag_load_pkg\.missing'"),
        ("ag_load_pkg.env:Wrold", UnknownEnvironment, "has no 'Wrold'"),
        ("ag_load_pkg.env:Plain", UnknownEnvironment, "is not a subclass of agentgym.Env"),
        ("ag_load_pkg.env:not_a_class", UnknownEnvironment, "is not a subclass of agentgym.Env"),
        ("ag_load_pkg.needs:Env", MissingDependency, "needs the package 'ag_no_such_dependency'"),
        (":Env", UnknownEnvironment, 'named "package.module:Class", not'),
        ("ag_load_pkg.env:", UnknownEnvironment, 'named "package.module:Class", not'),
        (".env:Env", UnknownEnvironment, 'named "package.module:Class", not'),
        ("a b:Environment", UnknownEnvironment, 'named "package.module:Class", not'),
    ],
)
def test_every_wrong_path_has_its_message(package, name, error, message):
    with pytest.raises(error, match=message):
        registry.make(name)
    with pytest.raises(error, match=message):
        registry.get_spec(name)


def test_a_class_without_a_spec_is_refused(package):
    with pytest.raises(UnknownEnvironment, match="has no EnvSpec: set `env_spec"):
        registry.get_spec(f"{package}.env:Env")


def test_arguments_that_an_env_does_not_take_are_named(package):
    with pytest.raises(ConfigError, match="sise"):
        registry.make(f"{package}.env:Env", sise=3)


def test_a_broken_spec_file_is_named_with_its_field(package):
    registry.register("wrong", f"{package}.env:Env")
    with pytest.raises(ConfigError, match=r"(?s)spec\.toml is not a valid environment spec.*more"):
        registry.get_spec("wrong")


@pytest.fixture
def offered(package, tmp_path, monkeypatch):
    """The folder of a second distribution, whose entry point names the package `ag_load_pkg`."""
    about = tmp_path / "ag_load_pkg-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: ag-load-pkg\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[agentgym.environments]\nmine = ag_load_pkg\n")
    registry._installed.cache_clear()
    yield tmp_path / "ag_load_pkg"
    registry._installed.cache_clear()


def test_another_distribution_offers_its_folders(offered):
    (offered / "more").mkdir()
    (offered / "more" / "spec.toml").write_text(SPEC.partition("[")[0] + 'id = "own-env"')
    assert {"keydoor", "tiny-env", "tiny-env-hard", "own-env"} <= registry.list_envs().keys()
    assert [registry.get_spec(f"tiny-env{end}").max_turns for end in ("", "-hard")] == [3, 2]
    assert not [name for name in sys.modules if name.startswith("ag_load_pkg")]
    assert [registry.make(name).size for name in ("tiny-env", "tiny-env-hard", "own-env")] == [5, 1, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id = ", "is not a valid environment spec"),
        ('description = "d"', "neither an `id` at its top nor only tables"),
        ('id = "a"\n[variants.b]\nmax_turns = 1', "neither an `id` at its top nor only tables"),
        ('id = "a"', 'a has no entry_point = "package.module:Class"'),
        ('id = "keydoor"\nentry_point = "m:C"', "keydoor is described by .*spec.toml already"),
    ],
)
def test_a_broken_file_leaves_the_others_usable(offered, text, message):
    (offered / "spec.toml").write_text(text)
    with pytest.warns(UserWarning, match=message):
        names = registry.list_envs()
    assert {"keydoor", "sokoban"} <= names.keys()
    assert "a" not in names


def test_a_file_is_loaded_when_it_is_needed(package):
    path = Path(sys.path[0]) / package / "spec.toml"
    assert EnvSpec.load(path).id == "tiny-env"
    assert EnvSpec.load(path, "tiny-env-hard").id == "tiny-env-hard"
    with pytest.raises(ConfigError, match="describes no environment 'tiny', only tiny-env, tiny-env-hard, wrong"):
        EnvSpec.load(path, "tiny")


def test_register_wants_a_path(package):
    with pytest.raises(UnknownEnvironment, match=r'named as "package\.module:Class", not'):
        registry.register("x", "package.module.Class")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("keydoor:size=abc", "keydoor: size is a whole number, not 'abc'"),
        ("keydoor:size=true", "keydoor: size is a whole number, not True"),
        ("keydoor:corridor=3,reveal=False", "keydoor: reveal is true or false, not 'False'"),
        ("keydoor:distractors=[1]", r"keydoor: distractors is a number, not \[1\]"),
        ("tic-tac-toe:side=[1]", r"tic-tac-toe: side is a whole number or text, not \[1\]"),
        ("osworld:folder=1", "osworld: folder is text, not 1"),
        ("blackjack:make_kwargs=abc", "blackjack: make_kwargs is a table, not 'abc'"),
    ],
)
def test_arguments_of_another_type_are_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        registry.make(name)


def test_a_name_may_carry_arguments_of_the_class(package):
    registry.register("tiny-env", f"{package}.env:Env")
    assert registry.make("tiny-env:size=7").size == 7
    assert registry.make(f"{package}.env:Env:size=8").size == 8
    assert registry.get_spec("tiny-env:size=7").id == "tiny-env"
    assert registry.target("tiny-env:size=7") == f"{package}.env:Env"
    assert registry.split_arguments("w:page=click-test,strict=true,size=3") == (
        "w",
        {"page": "click-test", "strict": True, "size": 3},
    )
    assert registry.split_arguments("m.x:W:user=http://h:8/v1,n=2") == ("m.x:W", {"user": "http://h:8/v1", "n": 2})
    assert registry.split_arguments("http://127.0.0.1:8000/envs/w?a=b") == ("http://127.0.0.1:8000/envs/w?a=b", {})


def test_an_argument_that_is_a_url_names_no_server():
    async def opened() -> str:
        async with connect("tools-dialogue:user=http://127.0.0.1:9/v1,model=customer") as env:
            return env.spec.id

    assert asyncio.run(opened()) == "tools-dialogue"
    assert not registry.is_url("m.x:W:user=http://h:8/v1")
    assert registry.is_url("agentenv+http://h:1?env=babyai")


def test_a_wrong_argument_in_a_name_is_refused(package):
    registry.register("tiny-env", f"{package}.env:Env")
    with pytest.raises(ConfigError, match="cannot be made with"):
        registry.make("tiny-env:siez=7")
    with pytest.raises(UnknownEnvironment, match="write NAME:key=value"):
        registry.make("tiny-env:size=7,9")


def test_gymnasium_makes_installed_environments():
    env = gymnasium.make("agentgym/keydoor-v0")
    observation, _ = env.reset(seed=0, options={"split": "test", "task": 1})
    assert observation == registry.make("keydoor").reset(seed=0, options={"split": "test", "task": 1})[0]
    assert env.step("go north")[1] == 0.0
    assert env.spec.id == "agentgym/keydoor-v0"
    assert gymnasium.make("agentgym/keydoor-v0", size=4).reset(seed=0)[0] != env.reset(seed=0)[0]


def test_a_version_names_packages_that_tasks_are_from(tmp_path):
    path = tmp_path / "spec.toml"
    path.write_text(f'id = "e"\ntasks_from = ["pytest", "no-such-package"]\n{SPEC.partition("[variants")[0]}')
    assert EnvSpec.load(path).version == f"1.0.0+pytest-{pytest.__version__}"
    path.write_text(path.read_text().replace('["pytest", "no-such-package"]', '"pytest"'))
    with pytest.raises(ConfigError, match="tasks_from is a list of installed packages' names, not 'pytest'"):
        EnvSpec.load(path)
