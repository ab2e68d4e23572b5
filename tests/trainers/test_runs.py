"""`agentgym runs`: runs are found, grouped by configuration, compared and drawn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from agentgym.cli.runs import runs
from agentgym.errors import AgentGymError, ConfigError
from agentgym_trainers.monitoring.comparison.groups import name_of


def make_run(folder: Path, seed: int, lr: float, success: list[float], env: str = "keydoor", end: str = "") -> Path:
    folder.mkdir(parents=True)
    text = f'name = "grpo"\n[env]\nname = "{env}"\n[rollout]\ngroups = 2\ngroup_size = 4\n'
    text += f"[optim]\nlr = {lr}\n[run]\nseed = {seed}\nsteps = 4\n"
    (folder / "config.toml").write_text(text)
    lines = [{"phase": "rl", "step": i, "rollout/success": x} for i, x in enumerate(success, 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + end)
    return folder


@pytest.fixture
def folder(tmp_path) -> Path:
    for seed in range(3):
        make_run(tmp_path / f"slow-{seed}", seed, 0.1, [0.0, 0.1, 0.2, 0.2])
        make_run(tmp_path / f"z-fast-{seed}", seed, 0.2, [0.2, 0.8, 1.0, 1.0])
    return tmp_path


def call(*arguments: object) -> str:
    done = CliRunner().invoke(runs, [str(argument) for argument in arguments], catch_exceptions=True)
    if isinstance(done.exception, AgentGymError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def test_groups_are_compared_with_the_first(folder) -> None:
    found = json.loads(call("compare", folder, "--threshold", 0.6, "--json"))
    slow, fast = found["groups"]
    assert (slow["group"], fast["group"]) == ("grpo optim.lr=0.1", "grpo optim.lr=0.2")
    assert slow["final"]["estimate"] == pytest.approx(0.125)
    assert fast["final"]["estimate"] == pytest.approx(0.75)
    assert (slow["reached"], fast["reached"]) == (0, 3)
    assert slow["episodes"]["estimate"] == 32  # all that were played
    assert 16 < fast["episodes"]["estimate"] < 24
    assert (slow["better"], fast["better"]["estimate"]) == (None, 1.0)


def test_a_group_is_named_by_what_sets_it_apart() -> None:
    slow, fast = ({"name": "grpo", "optim.lr": rate, "run.steps": 4} for rate in (0.1, 0.2))
    other = {"name": "hgpo", "optim.lr": 0.5, "credit.gamma": 0.9}
    assert name_of(slow, [slow, fast]) == "grpo optim.lr=0.1"
    assert name_of(other, [other]) == "hgpo"


def test_a_list_has_every_run_even_a_broken_one(folder) -> None:
    make_run(folder / "half", 9, 0.1, [0.5], end='{"phase": "rl", "st')
    (folder / "slow-0" / "config.toml").write_text("name = ")
    lines = {Path(line["run"]).name: line for line in json.loads(call("list", folder, "--json"))}
    assert len(lines) == 7
    assert (lines["half"]["step"], lines["half"]["last"], lines["half"]["state"]) == (1, 0.5, "unfinished")
    assert lines["slow-0"]["state"] == "unreadable"
    assert lines["z-fast-1"]["best"] == 1.0


def test_a_plot_is_a_picture(folder) -> None:
    call("plot", folder, "--out", folder / "curves.png")
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_compared_is_refused(folder) -> None:
    make_run(folder / "other", 0, 0.1, [0.5], env="wordle")
    with pytest.raises(ConfigError, match="compare runs of one environment"):
        call("compare", folder)
    (folder / "empty").mkdir()
    with pytest.raises(ConfigError, match="holds no run"):
        call("compare", folder / "empty")
    make_run(folder / "new" / "run", 0, 0.1, [])
    with pytest.raises(ConfigError, match="no finished training step"):
        call("compare", folder / "new")
