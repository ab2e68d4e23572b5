"""A new environment is one folder: it is listed, made, checked and tested with no other file changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import agentgym_environments

ROOT = Path(__file__).resolve().parents[2]
SPEC = """
entry_point = "agentgym_environments.new.coins.env:Coins"
family = "text"
instructions = "A number of coins lies here. Say take 1 or take 2 each turn; whoever leaves exactly one wins."
actions = ["take 1", "take 2"]
info_keys = ["success", "valid_action", "state_key"]
capabilities = ["snapshot", "solver"]
inline = true

[variants.coins]
description = "Leave one coin of a few."
max_turns = 10

[variants.coins-many]
description = "Leave one coin of many."
max_turns = 20
kwargs = { least = 6 }
"""
ENV = """
from pathlib import Path

from agentgym.spec import EnvSpec
from agentgym_environments.base.text_env import Outcome, TurnEnv


class Coins(TurnEnv):
    def __init__(self, spec: EnvSpec | None = None, *, least: int = 3) -> None:
        super().__init__(spec or EnvSpec.load(Path(__file__).with_name("spec.toml")))
        self.least, self.coins = least, least

    def begin(self, split, task):
        self.coins = self.least + task

    def observe(self):
        return f"{self.coins} coins; say take 1 or take 2"

    def act(self, action):
        if action not in self.env_spec.actions:
            return None
        self.coins -= int(action[-1])
        return Outcome(float(self.coins == 1), ended=self.coins <= 1, success=self.coins == 1)

    def key(self):
        return str(self.coins)

    def solver(self):
        self.require_episode("solver")
        return "take 1" if self.coins == 2 else "take 2"

    def save(self):
        return self.coins

    def load(self, state):
        self.coins = state
"""
README = """# coins

<!-- episode: coins train 0 -->
```text
3 coins; say take 1 or take 2
> take 2
1 coins; say take 1 or take 2
reward 1
```
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    """Where a copy of the package lies that has one folder more."""
    path = tmp_path_factory.mktemp("copied")
    package = path / "agentgym_environments"
    shutil.copytree(Path(agentgym_environments.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    folder = package / "new" / "coins"
    folder.mkdir(parents=True)
    for name, text in (("spec.toml", SPEC), ("env.py", ENV), ("README.md", README)):
        (folder / name).write_text(text, encoding="utf-8")
    return path


def run(path: Path, *words: str) -> str:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), str(ROOT)])}
    done = subprocess.run([sys.executable, "-m", *words], env=env, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_is_listed_and_keeps_the_contract(path):
    listed = [" ".join(line.split()) for line in run(path, "agentgym", "envs", "list", "coin").splitlines()]
    assert {"coins Leave one coin of a few.", "coins-many Leave one coin of many."} <= set(listed)
    assert "keeps all" in run(path, "agentgym", "envs", "check", "coins-many")


def test_the_table_of_the_documents_has_it(path):
    code = f"import runpy; print(runpy.run_path({str(ROOT / 'tests' / 'test_environment_docs.py')!r})['table']())"
    (path / "table_of_specs.py").write_text(code, encoding="utf-8")
    link = "[new/coins](../environments/agentgym_environments/new/coins/README.md)"
    assert f"| `coins-many` | Leave one coin of many. | 20 | yes | {link} |" in run(path, "table_of_specs")


def test_the_tests_of_all_environments_take_it_up(path):
    tests = ("environments/test_envs.py", "environments/test_readme_episodes.py", "agentgym/test_check_env.py")
    pytest_run = ["pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(ROOT), "-k", "coins"]
    output = run(path, *pytest_run, "-c", str(ROOT / "pyproject.toml"), *(str(ROOT / "tests" / test) for test in tests))
    assert int(output.split(" passed")[0].split()[-1]) > 15
