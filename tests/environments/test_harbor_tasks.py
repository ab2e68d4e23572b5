"""The loader of Harbor task folders: fields of all schemas, refusals with their reason, and hashes."""

from __future__ import annotations

import json
import os

import pytest
from harbor_folders import harbor_folder

from agentgym.errors import ConfigError
from agentgym.tasks import TaskSet
from agentgym_environments.tasks.harbor import harbor_tasks, tree_digest


def loaded(folder):
    (task,), others = harbor_tasks(folder)
    assert not others
    return task


def test_a_folder_becomes_a_task(tmp_path):
    task = loaded(
        harbor_folder(tmp_path / "a", agent='user = 7\nenv = { A = "${HOME:-/x}" }', verifier='env = { B = "b" }')
    )
    assert (task.id, task.prompt, task.source) == ("test/a", "Write the answer to /app/answer.", str(tmp_path / "a"))
    assert task.setup["memory_mb"] == 256
    assert (task.setup["network"], task.setup["image"], task.setup["workdir"]) == (False, None, None)
    assert (task.setup["user"], task.setup["agent_s"], task.setup["agent_env"]) == (7, 600, {"A": "/x"})
    assert (task.grader["timeout_s"], task.grader["env"]) == (60, {"B": "b"})
    json.dumps(task.model_dump(), allow_nan=False)


def test_older_fields_are_read(tmp_path):
    folder = harbor_folder(tmp_path / "old")
    (folder / "task.toml").write_text("""version = "1.0"
[metadata]
author = "x"
written = 2025-11-02
at = 2025-11-02T10:00:00Z
scores = [inf, 1.5]
[environment]
memory = "2G"
storage = "512M"
allow_internet = false
os = "Linux"
""")
    task = loaded(folder)
    assert (task.setup["memory_mb"], task.setup["storage_mb"], task.setup["network"]) == (2048, 512, False)
    assert task.id == "old"
    assert task.metadata["written"] == "2025-11-02"
    assert task.metadata["scores"] == ["inf", 1.5]
    assert TaskSet({"test": [task]}).content_hash.startswith("sha256:")
    (folder / "task.toml").write_text("")
    task = loaded(folder)
    assert task.setup["network"] is True
    assert (task.setup["agent_s"], task.grader["timeout_s"]) == (None, 600)


REFUSED = {
    "it has several steps": '[[steps]]\nname = "a"',
    "it is for windows": '[environment]\nos = "windows"',
    "it needs an accelerator": "[environment]\ngpus = 1",
    "it has MCP servers": '[[environment.mcp_servers]]\nname = "x"',
    "it allows some hosts only": '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["x"]',
    "its verifier has an image of its own": "[verifier.environment]\ncpus = 1",
    "it needs variables of this machine": '[verifier]\nenv = { KEY = "${KEY}" }',
}


@pytest.mark.parametrize(("reason", "toml"), REFUSED.items())
def test_tasks_that_we_do_not_run_are_left_out(tmp_path, reason, toml):
    folder = harbor_folder(tmp_path / "tasks" / "one")
    (folder / "task.toml").write_text(toml)
    with pytest.raises(ConfigError, match=f"none of the tasks of .* is run here: {reason}"):
        harbor_tasks(tmp_path / "tasks")
    harbor_folder(tmp_path / "tasks" / "two")
    tasks, others = harbor_tasks(tmp_path / "tasks")
    assert ([task.id for task in tasks], others) == (["test/two"], {"one": reason})


def test_composed_and_imageless_tasks_are_left_out(tmp_path):
    composed, bare = harbor_folder(tmp_path / "t" / "a"), harbor_folder(tmp_path / "t" / "b")
    harbor_folder(tmp_path / "t" / "c")
    (composed / "environment" / "docker-compose.yaml").write_text("services: {}")
    (bare / "environment" / "Dockerfile").unlink()
    _, others = harbor_tasks(tmp_path / "t")
    assert others == {"a": "it is made of several containers", "b": "it names no image and has no Dockerfile"}


def test_links_that_lead_out_of_the_folder_are_refused(tmp_path):
    folder = harbor_folder(tmp_path / "t" / "a")
    (folder / "tests" / "inside").symlink_to("test.sh")
    loaded(folder)
    (folder / "environment" / "outside").symlink_to("/etc/passwd")
    with pytest.raises(ConfigError, match="a link of it leads out of its folder"):
        harbor_tasks(folder)


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("x = ", "is no Harbor task"),
        ('schema_version = "2.0"', r"of schema 2\.0"),
        ('[environment]\nmemory = "much"', "is no size"),
        ("[agent]\ntimeout_sec = -1", "greater than 0"),
        ('[environment]\ncpus = "many"', "cpus"),
    ],
)
def test_what_is_no_task_is_refused_in_words(tmp_path, toml, message):
    folder = harbor_folder(tmp_path / "a")
    (folder / "task.toml").write_text(toml)
    with pytest.raises(ConfigError, match=message):
        harbor_tasks(folder)


def test_missing_folders_and_files_are_named(tmp_path):
    with pytest.raises(ConfigError, match="there is no folder"):
        harbor_tasks(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="holds no Harbor task"):
        harbor_tasks(tmp_path)
    folder = harbor_folder(tmp_path / "a")
    (folder / "tests" / "test.sh").unlink()
    with pytest.raises(ConfigError, match=r"has no tests/test\.sh"):
        harbor_tasks(folder)
    harbor_folder(tmp_path / "a")
    (folder / "instruction.md").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=r"instruction\.md is no text"):
        harbor_tasks(folder)


def test_the_digest_is_of_names_contents_and_modes(tmp_path):
    names = ["b", "a/c", "a-b", "z/y"]
    for folder, order in (("one", names), ("two", names[::-1])):
        for name in order:
            path = tmp_path / folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)
    one, two = tmp_path / "one", tmp_path / "two"
    assert tree_digest(one) == tree_digest(two)
    os.chmod(two / "b", 0o755)
    assert tree_digest(one) != (executable := tree_digest(two))
    (two / "b").unlink()
    (two / "b").symlink_to("a-b")
    assert tree_digest(two) not in (executable, tree_digest(one))
    assert tree_digest(tmp_path / "nowhere") == ""
