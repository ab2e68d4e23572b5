"""The bench from beginning to end on the oracle environment in words, and what it refuses."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from agentgym.cli.main import main
from agentgym.errors import ConfigError
from agentgym_trainers import run
from agentgym_trainers.credit import ASSIGNERS
from agentgym_trainers.credit_bench.contestants import contestants, unfit
from agentgym_trainers.credit_bench.picture import draw
from agentgym_trainers.credit_bench.report import summary, tables, to_json, write_json
from agentgym_trainers.credit_bench.run import BenchOptions, Result, bench
from agentgym_trainers.recipe import resolve
from agentgym_trainers.testing import toy_batch

SMALL = BenchOptions(groups=3, group_size=4, continuations=8, second=3, learn_groups=3, passes=1, width=128, draws=100)
WARM = (
    "sft.demonstrations=128", "sft.noise=0.6", "sft.lr=5e-3", "sft.batch=16", "sft.max_steps=60",
    "model.tiny.hidden_size=32", "model.tiny.layers=1", "model.tiny.heads=1", "rollout.max_length=256",
)  # fmt: skip


def config(env: str, *overrides: str) -> Any:
    plain = ("eval.tasks=0", "eval.split=train", "run.steps=0", "env.serve=false")
    return resolve("quickstart", [*plain, f"env.name={env}", *WARM, *overrides])


def measure(chosen: Any, folder: Path, options: BenchOptions) -> Result:
    with run.bars() as progress:
        progress.disable = True
        return asyncio.run(bench(chosen, folder, options, progress))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("bench") / "run"


@pytest.fixture(scope="module")
def oracle(folder) -> Result:
    return measure(config("oracle"), folder, SMALL)


@pytest.fixture(scope="module")
def policy(oracle, folder) -> Path:
    """The checkpoint after the warm-up."""
    return folder / "checkpoints" / "step-000000"


def test_every_assigner_is_measured_or_has_a_reason(oracle):
    names = {s.contestant.assigner for s in oracle.scored} | {name.partition(",")[0] for name in oracle.refused}
    assert names >= set(ASSIGNERS)
    assert "turn_gae, measured V" in {s.contestant.name for s in oracle.scored}
    for reason in oracle.refused.values():
        assert reason
        assert "\n" not in reason
    assert oracle.branched.chance
    assert oracle.branched.lost == 0
    ranked = [s.figures["pearson"].value for s in oracle.scored]
    assert ranked == sorted(ranked, key=lambda r: -np.nan_to_num(r, nan=-2.0))


def test_bench_without_a_judge_says_so(oracle):
    for name in ("judge-direct", "judge-ranking"):
        assert oracle.refused[name] == (
            "it asks a language model, and none is configured: give --judge URL and --judge-model NAME"
        )


def test_learned_values_come_from_other_episodes(oracle):
    assert np.isfinite(oracle.signals["value"]["explained_variance"])
    assert oracle.signals["value"]["loss"] > 0


def test_results_become_tables_a_file_and_a_picture(oracle, tmp_path):
    out = io.StringIO()
    for table in tables(oracle):
        Console(file=out, width=120).print(table)
    for scored in oracle.scored:
        assert out.getvalue().count(scored.contestant.name) >= 2
    assert "…" not in out.getvalue()
    assert summary(oracle).startswith("oracle: 12 episodes of 3 tasks, ")
    write_json(oracle, tmp_path / "bench.json")
    read = json.loads((tmp_path / "bench.json").read_text())
    assert [a["name"] for a in read["assigners"]] == [s.contestant.name for s in oracle.scored]
    assert len(read["trajectories"]) == 12
    first = read["trajectories"][0]
    assert len(first["actions"]) == len(first["advantage"]) == len(first["credit"]["rloo"]) == 3
    assert read == json.loads(json.dumps(to_json(oracle), default=float))
    draw(oracle, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_same_seed_gives_the_same_truth(oracle, folder):
    """The warm-up in the folder is used again."""
    again = measure(config("oracle"), folder, replace(SMALL, only=("rloo",), width=0))
    np.testing.assert_array_equal(again.truth.advantage_N, oracle.truth.advantage_N)
    assert [s.contestant.name for s in again.scored] == ["rloo"]
    assert "cosine" not in again.scored[0].figures
    before = next(s for s in oracle.scored if s.contestant.name == "rloo")
    assert again.scored[0].figures["pearson"].value == before.figures["pearson"].value


BRITTLE = """
from agentgym_environments.diagnostics.oracle.env import Oracle


class Brittle(Oracle):
    def reseed(self, seed):
        super().reseed(seed)
        if seed % 5 == 0:
            raise RuntimeError("a fifth of all continuations")
"""


def test_a_crash_while_branching_costs_only_its_continuations(policy, tmp_path, monkeypatch):
    (tmp_path / "brittle_env.py").write_text(BRITTLE)
    monkeypatch.syspath_prepend(tmp_path)
    chosen = config("brittle_env:Brittle", "sft=", f"model.path={policy}")
    found = measure(chosen, tmp_path / "run", replace(SMALL, only=("rloo", "gigpo"), width=0))
    assert found.branched.lost > 5
    assert f"{found.branched.lost} were lost to failures" in summary(found)
    assert found.truth.known_N.all()
    assert len(found.scored) == 2


def test_a_policy_that_never_wins_is_refused_at_once(tmp_path):
    with pytest.raises(ConfigError, match=r"no turn of these \d+ made a difference .* \(0% of the episodes were won\)"):
        measure(config("oracle", "sft.max_steps=1"), tmp_path / "run", SMALL)


def test_an_env_without_snapshots_is_refused_in_a_sentence(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["credit", "bench", "agentgym.testing:ChaosEnv", "sft=", "--out", str(tmp_path / "run")])
    assert ended.value.code == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: chaos has no snapshots, so no state of it can be played from twice")
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["oracle", "wordle"], "give one environment, not oracle and wordle"),
        (["--policy", "x", "--recipe", "gigpo"], "give --policy or --recipe, not both"),
        (["--groups", "1"], "are at least 2"),
        (["--seed", "-1"], "-1 is not in the range x>=0"),
        (["oracle", "--policy", "runs/nowhere"], "runs/nowhere is no checkpoint's folder"),
        (["keydoor:size=5", "--assigner", "magic"], "there is no assigner 'magic'"),
        (["keydoor:size=5", "wordle"], "give one environment, not keydoor:size=5 and wordle"),
        (["oracle", "--assigner", "magic"], "there is no assigner 'magic'"),
        (["oracle", "sft.nose=1"], "unknown option 'sft.nose'"),
    ],
)
def test_what_the_command_refuses(arguments, sentence, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["credit", "bench", *arguments, "--out", str(tmp_path / "run")])
    assert ended.value.code == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()


def test_the_command_says_where_everything_is(policy, tmp_path, capsys):
    given = ["--groups", "3", "--group-size", "4", "--continuations", "8", "--learn-groups", "2", "--no-gradient"]
    out = tmp_path / "run"
    chosen = ["--policy", str(policy), "--assigner", "rloo", "--assigner", "gigpo", "--out", str(out)]
    main(["credit", "bench", "oracle", *given, *chosen])
    output = capsys.readouterr().out
    assert "rloo" in output
    assert "Credit of turns: oracle, against 8 continuations of every state" in output
    assert (out / "bench.json").is_file()
    assert (out / "bench.png").is_file()
    with pytest.raises(SystemExit):
        main(["credit", "bench", "oracle", *given, *chosen, "optim.lr=1e-3"])
    assert "another configuration" in capsys.readouterr().err


def test_unfit_assigner_has_a_reason_in_words():
    entered = {c.name: c for c in contestants(("rloo", "gigpo", "rae", "turn_gae"))}
    assert list(entered) == ["rloo", "gigpo", "turn_gae", "turn_gae, measured V", "rae"]
    assert [c.name for c in contestants(("prime", "spa-rl"))] == ["prime", "prime (recipe)", "spa-rl"]
    alone = toy_batch([[0, 1], [1, 0]], groups=[0, 1], role_N=[0, 0, 0, 0])
    reasons = {name: unfit(contestant, alone) for name, contestant in entered.items()}
    assert reasons["rloo"] == reasons["gigpo"] == "it compares attempts at one task, and there is one attempt at each"
    assert reasons["rae"] == "it compares roles, and the environment has one player"
    assert not reasons["turn_gae"]
    nameless = toy_batch([[0, 1], [1, 0]], groups=[0, 0])
    assert unfit(entered["gigpo"], nameless) == "it compares equal states, and the environment names none"
    assert not unfit(entered["rloo"], nameless)


def test_an_assigner_of_ones_own_is_measured_by_its_path(oracle, folder, monkeypatch, tmp_path):
    """Its own errors, and NaN, cost its row alone."""
    (tmp_path / "mine_credit.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    only = tuple(f"mine_credit:{name}" for name in ("late", "failing", "unknown", "turns"))
    found = measure(config("oracle"), folder, replace(SMALL, only=only, width=0))
    assert [s.contestant.name for s in found.scored] == ["mine_credit:late"]
    reasons = {name.partition(":")[2]: reason for name, reason in found.refused.items() if ":" in name}
    assert reasons["failing"] == "RuntimeError: on two lines"
    assert reasons["unknown"].endswith("tokens a credit that is NaN or infinite")
    assert "'mine_credit:turns' returned an advantage_A of shape" in reasons["turns"]


OWN = """
import numpy as np

from agentgym_credit.batch import Credit


def late(batch):
    return Credit(batch.return_M[batch.traj_A] * batch.last_N[batch.turn_A])


def failing(batch):
    raise RuntimeError("on\\ntwo lines")


def unknown(batch):
    return Credit(np.full(len(batch.turn_A), np.nan))


def turns(batch):
    return Credit(batch.reward_N)
"""
