"""What `agentgym envs new` writes, read by OpenEnv's own parser of packages."""

from __future__ import annotations

import json
import subprocess

from agentgym import EnvSpec
from agentgym.cli.new_env import new_env

READ = """
import sys
from pathlib import Path
from openenv.cli._validation import get_deployment_modes
from openenv.validation.parsers.openenv_yaml import OpenEnvYamlParser

assert get_deployment_modes(Path(sys.argv[1]))["docker"]
print(OpenEnvYamlParser().parse(Path(sys.argv[1])).model_dump_json())
"""


def test_a_new_envs_manifest_is_valid_and_matches_its_spec(upstream, tmp_path):
    new_env("row-sort", tmp_path / "row-sort")
    done = subprocess.run([upstream, "-c", READ, str(tmp_path / "row-sort")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    manifest = json.loads(done.stdout)
    spec = EnvSpec.load(tmp_path / "row-sort" / "row_sort" / "spec.toml")
    assert manifest["name"] == "row_sort"
    assert tuple(manifest["reward"]["range"]) == spec.reward_range
    assert manifest["capabilities"]["declared_task_count"] == spec.splits
