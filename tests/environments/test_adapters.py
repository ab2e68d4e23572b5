"""What every environment around another's engine owes: packages that may be missing, arguments, snapshots, training."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import agentgym_environments.benchmarks
from agentgym import registry
from agentgym.errors import BadRequest, ConfigError, MissingDependency
from agentgym.rollouts.policy import EpisodeSpec, SolverPolicy
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits, Runner
from agentgym.session import LocalSession
from agentgym.spec import read_variants
from agentgym_environments.base import engine_env
from agentgym_environments.base.engine_env import COMPILED, EngineEnv
from agentgym_trainers.recipe import resolve
from agentgym_trainers.run import run

ROOT = Path(agentgym_environments.benchmarks.__file__).parent
FOLDERS = [path.parent for path in sorted(ROOT.glob("*/env.py")) if "(EngineEnv)" in path.read_text(encoding="utf-8")]
IDS = [name for folder in FOLDERS for name in read_variants(folder / "spec.toml")]
NETHACK = ("nle", "nle-descend", "nle-gold")
"""They run in an interpreter of their own: test_adapters_nle.py."""

QUICK = ("babyai", "babyai-pickup", "reasoning-gym", "textarena", "textarena-guess", "textarena-hanoi")
SLOW = ("kitchen-textworld", "scienceworld:offer=false", "textworld")
"""Of each slow class one."""

TRAINED = ("babyai", "reasoning-gym", "textarena")
"""Of each quick class one."""

ENVS = (*QUICK, *(pytest.param(name, marks=pytest.mark.envs) for name in SLOW))

PACKAGES = [
    ("kitchen-textworld", "textworld", "alfworld"),
    ("kitchen-textworld", "alfworld", "alfworld"),
    ("babyai", "minigrid", "babyai"),
    ("nle", "nle", "nle"),
    ("reasoning-gym", "reasoning_gym", "reasoning-gym"),
    ("scienceworld", "scienceworld", "scienceworld"),
    ("scienceworld", "py4j", "scienceworld"),
    ("textarena", "textarena", "textarena"),
    ("textarena", "nltk", "textarena"),
    ("textworld", "textworld", "textworld"),
]
"""Environment, a package of its, and the extra that installs it."""


@pytest.fixture(scope="session")
def games(tmp_path_factory) -> str:
    """Where TextWorld's games are compiled for these tests."""
    return str(tmp_path_factory.mktemp("textworld"))


def named(name: str, games: str) -> str:
    """The environment, with its compiled games in a folder of the tests'."""
    return f"{name}{',' if ':' in name else ':'}cache={games}" if name.startswith("textworld") else name


@pytest.mark.parametrize(("env", "package", "extra"), PACKAGES)
def test_a_missing_package_is_one_sentence(monkeypatch, env, package, extra):
    if package == "alfworld":
        engine_env.package("textworld", extra)  # it is looked for first
    for module in list(sys.modules):
        if module == package or module.startswith(f"{package}."):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependency) as caught:
        registry.make(env)
    compiler = "apt-get install cmake g++ make python3-dev, then " if extra in COMPILED else ""
    assert str(caught.value) == (
        f"this environment needs the package {package!r}, which is not installed: "
        f"{compiler}pip install 'turngym[{extra}]'"
    )
    assert registry.get_spec(env).id == env  # what it says of itself is there all the same


def test_a_missing_java_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependency, match=r"Java, which is not installed: apt-get install default-jre-headless$"):
        registry.make("scienceworld")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("kitchen-textworld:kind=cook", "no chores of kind 'cook'; it has put, clean, heat, cool, two and mixed"),
        ("kitchen-textworld:size=huge", "no kitchens of size 'huge'; it has small, large"),
        ("babyai:level=Nowhere", "no level 'Nowhere'; it has ActionObjDoor"),
        ("reasoning-gym:dataset=nothing", "no data set 'nothing'; it has ab, acre"),
        ("reasoning-gym:dataset=futoshiki", "no environment here: a question may take a minute"),
        ("reasoning-gym:dataset=acre,level=1", "acre has no levels"),
        ("reasoning-gym:level=-1", "level of chain_sum is a whole number from 0 to 10, not -1"),
        ("reasoning-gym:level=11", "from 0 to 10, not 11"),
        ("reasoning-gym:level=hard", "not 'hard'"),
        ("reasoning-gym:level=true", "not True"),
        ("reasoning-gym:dataset=caesar_cipher,level=3", "caesar_cipher cannot be made at level 3: rotation"),
        ("reasoning-gym:partial=False", "partial is true or false, not 'False'"),
        ("textarena:game=Chess", "'Chess' is no environment here; the games are 2048-v0"),
        ("textarena:game=Wordle-v0", "there is an environment `wordle`"),
        ("textarena:game=Set-v0", "one card three times is a Set"),
        ("textarena:game=2048-v0-3x3", "nine fields hold no tile above 1024"),
        ("textarena:game=5", "game is text, not 5"),
        ("textarena:turns=0", "turns is a whole number of at least 1, not 0"),
        ("textarena:turns=2.5", "not 2.5"),
        ("textarena:partial=1", "partial is true or false, not 1"),
        ("textworld:challenge=chess", "no challenge 'chess'; it has treasure_hunter, coin_collector, simple, cooking"),
        ("textworld:level=0", "treasure_hunter has the levels 1 to 30, not 0"),
        ("textworld:challenge=cooking,level=6", "cooking has the levels 1 to 5, not 6"),
        ("textworld:level=true", "not True"),
        ("scienceworld:offer=no", "offer is true or false, not 'no'"),
        ("scienceworld:heap_mb=1", "heap_mb is a whole number of at least 64, not 1"),
        ("scienceworld:heap_mb=lots", "not 'lots'"),
        ("babyai:size=3", "cannot be made with"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(name, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        registry.make(name)


@pytest.mark.parametrize("name", [name for name in IDS if name not in (*NETHACK, "scienceworld")])
def test_the_spec_says_what_the_class_does(name):
    env = registry.make(name)
    assert isinstance(env, EngineEnv)
    assert env.env_spec == registry.get_spec(name)
    assert not env.env_spec.inline
    env.close()


@pytest.mark.parametrize("name", ENVS)
def test_a_snapshot_of_any_moment_goes_on_alike(name, games):
    name = named(name, games)
    env, copy = registry.make(name), registry.make(name)
    env.reset(seed=1, options={"split": "train", "task": 0})
    turn = 0
    while not env.over and turn < 10:
        action = "dance on the moon" if turn % 4 == 1 else env.solver()
        state = env.snapshot()
        step = env.step(action)
        copy.restore(state)
        assert json.dumps(copy.step(action)) == json.dumps(step)
        turn += 1
    copy.restore(env.snapshot())
    assert (copy.over, copy.success, copy.turn) == (env.over, env.success, env.turn)
    assert copy.key() == env.key()
    env.close()
    copy.close()


def test_a_snapshot_of_another_env_is_refused():
    """All share an id, and differ by arguments."""
    env, other = registry.make("textarena"), registry.make("textarena:game=FrozenLake-v0-hardcore")
    env.reset(options={"task": 0})
    env.step(env.solver())
    with pytest.raises(BadRequest, match=r"comes out otherwise .* other arguments"):
        other.restore(env.snapshot())


@pytest.mark.parametrize(("split", "task"), [("nowhere", 0), ("train", 10**6), ("train", -1), ("train", "0")])
def test_a_snapshot_of_no_task_is_refused(split, task):
    """An environment that draws until a task belongs to its split would look for this one for ever."""
    env = registry.make("babyai")
    env.reset(options={"task": 0})
    state = json.loads(env.snapshot())
    state["state"]["opening"] = [split, task]
    with pytest.raises(BadRequest, match=r"has no split 'nowhere'|has tasks 0 to 9999"):
        env.restore(json.dumps(state).encode())


TOGETHER = (
    "babyai",
    "reasoning-gym",
    "textarena",
    "kitchen-textworld",
    pytest.param("textworld", marks=pytest.mark.envs),
)


@pytest.mark.parametrize("name", TOGETHER)
def test_envs_in_threads_do_not_disturb_each_other(name, games):
    """As a server's workers run them, and a trainer that serves nothing. Some engines have globals."""
    name = named(name, games)

    async def opened() -> LocalSession:
        return LocalSession(registry.make(name))

    episodes = [EpisodeSpec(name, "train", task) for task in range(4)]
    played = asyncio.run(Runner(opened, PromptFormat(), Limits(), 4).run(SolverPolicy(), episodes))
    assert [(trajectory.error, trajectory.success) for trajectory in played] == [("", True)] * 4


# READMEs.


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_readme_names_every_id_and_what_it_needs(folder):
    text = (folder / "README.md").read_text()
    for name in read_variants(folder / "spec.toml"):
        assert f"`{name}`" in text
    assert "pip install -e '.[" in text
    assert "| id | split | episodes | solver | random | format only |" in text


# Training.


def train(name: str, folder: Path) -> None:
    """Imitation of two episodes, then two steps of a recipe; raises AssertionError where something failed."""
    options = [
        "run.steps=2", "run.threads=1", "run.trajectories_every=1", f"env.name={name}", "env.max_turns=3",
        "rollout.groups=1", "rollout.group_size=2", "rollout.concurrency=4", "rollout.max_new_tokens=8",
        "rollout.max_length=4096", "model.tiny.max_length=4096", "model.tiny.hidden_size=32", "model.tiny.layers=2",
        "sft.demonstrations=2", "sft.batch=2", "sft.max_steps=2", "sft.stop_at_success=", "sft.noise=0",
        "eval.split=train", "eval.tasks=0",
    ]  # fmt: skip
    if "://" not in name:
        options += ["env.serve=false"]
    asyncio.run(run(resolve("rloo", options), folder))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["phase"] == "rl"] == [1, 2]
    for line in lines:
        if line["phase"] == "rl":
            assert line["rollout/failed"] == 0
            assert line["loss/policy"] is not None
            assert line["policy/engine_gap"] < 1e-4


@pytest.mark.parametrize("name", [*TRAINED, *(pytest.param(name, marks=pytest.mark.envs) for name in SLOW)])
def test_a_recipe_trains_on_it(name, games, tmp_path):
    train(named(name, games), tmp_path / "run")


@pytest.mark.envs
def test_a_recipe_trains_on_a_served_nethack(tmp_path):
    """The trainer's interpreter has no NLE: the server's has."""
    if not os.environ.get("AGENTGYM_NLE_PYTHON"):
        pytest.skip("AGENTGYM_NLE_PYTHON names no interpreter that has NLE: run `make envs`")
    command = ["-m", "agentgym_servers.env_server.app", "nle", "--port", "0", "--die-with-stdin"]
    with subprocess.Popen(
        [os.environ["AGENTGYM_NLE_PYTHON"], *command],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as server:  # fmt: skip
        assert server.stdout is not None
        matches = (re.search(r"serving at (http\S+)", line) for line in server.stdout)
        url = next(found[1] for found in matches if found)
        train(f"{url}/envs/nle", tmp_path / "run")
        server.communicate(timeout=60)  # its standard input ends
