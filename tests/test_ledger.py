"""The evidence ledger: its figures, its page, and that a ledger which was stopped goes on."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agentgym import registry
from agentgym.errors import EnvironmentCrashed
from agentgym.rollouts.policy import EpisodeSpec, ScriptedPolicy, SolverPolicy
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits, Runner
from agentgym.rollouts.trajectory import Group
from agentgym.session import LocalSession
from agentgym_environments.diagnostics.choices.env import COLORS, RIGHT, goods_of
from agentgym_trainers.data.sequences import collate
from agentgym_trainers.nn import tiny
from agentgym_trainers.rollout.tokens import ChatTemplate, tokenize
from agentgym_trainers.signals.base import SignalContext

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def scripts() -> Any:
    """benchmarks/ is no package: its scripts import one another by their names."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield lambda name: importlib.import_module(name)
    sys.path.remove(str(ROOT / "benchmarks"))


def run_of(*measured: float, every: int = 100, seconds: float = 10.0, seed: int = 0) -> dict[str, Any]:
    return {"curve": [(i * every, x) for i, x in enumerate(measured)], "seconds": seconds, "seed": seed}


def test_episodes_until_a_target_are_between_two_evaluations(scripts) -> None:
    until = scripts("ledger_report").until
    assert until(0.7, run_of(0.2, 0.6, 0.8), 200) == (pytest.approx(150), True)
    assert until(0.7, run_of(0.9, 0.1), 100) == (1.0, True)
    assert until(0.7, run_of(0.2, 0.69, 0.3), 200) == (200.0, False)
    assert until(0.7, run_of(0.0, 0.7, every=120), 100) == (100.0, True)  # the last step may play past the budget


def test_figures_count_censored_runs_and_compare_with_controls(scripts) -> None:
    report, regimes = scripts("ledger_report"), scripts("regimes")
    budget = regimes.REGIMES["oracle"].budget
    slow, fast, never = (
        run_of(0.2, 0.7, 1.0, every=1024),
        run_of(0.2, 1.0, 1.0, every=1024),
        run_of(0.2, 0.3, every=budget),
    )
    found = report.figures(
        "oracle", {"GRPO": [slow] * 4, "PRIME": [fast, fast, fast, never], "PRIME's control": [slow] * 4}
    )
    assert found["GRPO"]["episodes"] == (1024.0, 1024.0, 1024.0)
    assert found["PRIME"]["censored"] == 1
    assert found["GRPO"]["ratio"] is None
    assert found["PRIME"]["ratio"][0] == pytest.approx(1024 / 640)  # the two in the middle: 1,024 · (.7 − .2) / .8
    assert found["PRIME"]["gain"][0] == pytest.approx((3 * 80 + 10) / 4)
    mean_fast, mean_slow, mean_never = (0.6 + 1.0) / 2, (0.45 + 0.85) / 2, 0.25
    expected = 100 * ((3 * mean_fast + mean_never) / 4 - mean_slow)
    assert found["PRIME"]["control"][0] == pytest.approx(expected)
    assert found["PRIME's control"]["control"] is None


def test_a_ratio_compares_runs_of_the_same_seed(scripts) -> None:
    """Seeds differ by more than methods do; a row of other seeds has no ratio."""
    report, lasting = scripts("ledger_report"), (10, 20, 40, 80, 160, 320, 640, 1000)
    grpo = [run_of(0.0, 0.7, every=2 * n, seed=i) for i, n in enumerate(lasting)]
    half = [run_of(0.0, 0.7, every=n, seed=i) for i, n in enumerate(lasting)]
    found = report.figures("oracle", {"GRPO": grpo, "PRIME": half, "iStar": half[::-1]})
    assert found["PRIME"]["ratio"] == pytest.approx((2, 2, 2))
    assert found["PRIME"]["unpaired"] == set()
    assert found["iStar"]["ratio"] is None


def test_runs_that_never_reach_the_target_have_no_ratio(scripts) -> None:
    report = scripts("ledger_report")
    never, once = [run_of(0.1, 0.2, seed=i) for i in range(3)], [run_of(0.1, 0.9, seed=i) for i in range(3)]
    assert report.figures("oracle", {"GRPO": never, "PRIME": never})["PRIME"]["ratio"] is None
    assert report.figures("oracle", {"GRPO": never, "PRIME": once})["PRIME"]["ratio"][0] > 1


def test_rows_of_other_warm_ups_are_not_paired_by_seed(scripts) -> None:
    """Their seeds are resampled apart, for ratio and control, and the table marks them."""
    report, lasting = scripts("ledger_report"), (100, 200, 400, 800)
    grpo = [run_of(0.2, 0.7, every=n, seed=i) for i, n in enumerate(lasting)]
    elsewhere = [run_of(0.25, 0.7, every=n, seed=i) for i, n in enumerate(lasting)]
    raced = {"GRPO": grpo, "PRIME": elsewhere, "PRIME's control": grpo, "iStar": grpo, "iStar's control": grpo}
    found = report.figures("oracle", raced)
    assert found["iStar"]["ratio"] == (1, 1, 1)
    assert found["iStar"]["control"] == (0, 0, 0)
    ratio, low, high = found["PRIME"]["ratio"]
    assert (ratio, low < 0.6, high > 1.6) == (1, True, True)
    table = report.rows("oracle", found, dict.fromkeys(raced, "64x1@0.001"))
    cells = {row[0]: row[-3:-1] for row in table[1:]}
    assert [cell.endswith("†") for cell in cells["PRIME"]] == [True, True]
    assert not any("†" in cell for m, row in cells.items() for cell in row if m != "PRIME")


def test_runs_that_a_guard_ended_stand_below_the_table(scripts) -> None:
    report = scripts("ledger_report")
    ended = run_of(0.2, 0.1, seed=3) | {"played": 64, "stopped": "most episodes did not fit"}
    enough = run_of(0.2, 0.9) | {"played": 32, "stopped": "enough"}
    text = report.ended_early({"raced": {"GRPO": [run_of(0.2, 0.7)], "HGPO": [ended, enough]}})
    assert text == "\n\nEnded by a guard, and level from there: HGPO on seed 3 after 64 episodes."
    assert report.ended_early({"raced": {"GRPO": [enough]}}) == ""


def test_growth_is_the_exponent_of_the_horizon(scripts) -> None:
    """Episodes as T¹ for one method and the same at every T for another; a method at one horizon has none."""
    report = scripts("ledger_report")
    names = {6: "choices-6", 12: "choices-12", 24: "choices-24"}
    raced = {
        h: {"grows": [run_of(0.0, 0.7, every=10 * h)] * 8, "flat": [run_of(0.0, 0.7, every=90)] * 8} for h in names
    }
    raced[6]["alone"] = raced[6]["flat"]
    found = report.growth(raced, names)
    assert found["grows"] == pytest.approx((1.0, 1.0, 1.0))
    assert found["flat"] == pytest.approx((0.0, 0.0, 0.0), abs=1e-9)
    assert set(found) == {"grows", "flat"}


def test_the_suite_s_table_is_of_methods_that_stand_everywhere(scripts) -> None:
    report = scripts("ledger_report")
    bad, good = [run_of(0.0, 0.2)] * 4, [run_of(0.4, 1.0)] * 4
    saved = [
        {"seeds": [0, 1, 2, 3], "raced": {"GRPO": bad, "HGPO": good}},
        {"seeds": [0, 1, 2], "raced": {"GRPO": bad[:3], "HGPO": good[:3], "RLOO": bad[:3]}},
    ]
    table = report.suite_table(dict(zip(report.CPU_1, saved, strict=False)))
    assert "| GRPO | 10 [10, 10] |  |\n" in table
    assert "| HGPO | 70 [70, 70] | 1.00 [1.00, 1.00] |" in table
    assert "RLOO" not in table
    assert "3 seeds each; not raced yet: " + ", ".join(report.CPU_1[2:]) in table
    assert report.suite_table({report.CPU_1[0]: saved[0]}) == ""


def test_the_choice_of_a_method_names_what_is_surely_ahead(scripts) -> None:
    report = scripts("ledger_report")
    slow, fast = [run_of(0.0, 0.7, every=1000)] * 5, [run_of(0.0, 0.7, every=100)] * 5
    unsure = [run_of(0.0, 0.7, every=every) for every in (100, 2000, 2000, 900, 900)]
    raced = {"GRPO": slow, "HGPO": fast, "RLOO": unsure, "PRIME's control": fast}
    row = report.choice_table({"oracle": {"raced": raced}}).splitlines()[-1]
    assert row.endswith("| `oracle` | GRPO | HGPO (10.0) | none |")


def test_intervals_hold_the_truth_about_as_often_as_they_say(scripts) -> None:
    report, rng = scripts("ledger_report"), np.random.default_rng(0)
    held = 0
    for _ in range(60):
        middle, low, high = report.bootstrap(report.mean_rows, rng.normal(50, 10, 8))
        assert low <= middle <= high
        held += low <= 50 <= high
    assert held >= 48  # of eight seeds, a percentile interval of 95 % holds it some 9 times in 10


def test_the_page_and_the_evidence_are_what_the_results_say(scripts) -> None:
    report = scripts("ledger_report")
    results, page = report.kept(), report.PAGE.read_text(encoding="utf-8")
    text = page.partition(report.BEGIN)[2].partition(report.END)[0]
    assert text == report.tables(results), "python benchmarks/ledger_report.py writes it anew"
    assert json.loads(report.EVIDENCE.read_text(encoding="utf-8")) == json.loads(json.dumps(report.evidence(results)))
    for name, saved in results.items():
        assert (report.PLOTS / f"{name}.png").is_file()
        assert set(saved) >= {"measured", "seeds", "settings", "raced", "tuning"}
        assert set(saved["measured"]) == set(saved["raced"])
        assert all(set(row) == {"date", "commit", "machine", "versions"} for row in saved["measured"].values())


def test_every_method_has_as_many_settings_to_choose_from(scripts) -> None:
    regimes = scripts("regimes")
    for regime in regimes.REGIMES.values():
        assert {len(set(regimes.settings_of(method, regime))) for method in regimes.methods_of(regime)} == {6}
        assert not {0, 1, 2, 3, 4} & set(scripts("ledger").TUNING_SEEDS)


def test_a_recipe_of_every_method_is_resolved_in_every_regime(scripts) -> None:
    from agentgym_trainers.recipe import resolve

    regimes = scripts("regimes")
    for regime in regimes.REGIMES.values():
        for name in regimes.methods_of(regime):
            for setting in regimes.settings_of(name, regime):
                method = regimes.method_of(name)
                config = resolve(method.recipe, regimes.overrides_of(method, regime, setting))
                assert config.rollout.groups * config.rollout.group_size == setting.episodes


def test_a_ledger_that_was_stopped_goes_on(scripts, tmp_path, monkeypatch) -> None:
    """What is done is not played again; a line that a kill cut short is played again."""
    ledger = scripts("ledger")
    done = {"regime": "oracle", "method": "GRPO", "setting": "64x1@0.001", "seed": 0, "budget": 64}
    path = tmp_path / "jobs.jsonl"
    monkeypatch.setattr(ledger, "UNFINISHED", tmp_path / "unfinished.jsonl")
    path.write_text(json.dumps({**done, **run_of(0.2, 0.9)}) + "\n" + '{"regime": "oracle", "met')
    played: list[dict[str, Any]] = []
    again = ledger.Ledger(tmp_path, 1, time.monotonic() + 60)
    monkeypatch.setattr(again, "_run", lambda jobs: played.extend(jobs))
    assert path.read_text().count("\n") == 1
    again.run([done, {**done, "seed": 1}])
    assert [(job["method"], job["seed"]) for job in played] == [("warm-up", 1), ("GRPO", 1)]


def test_rows_that_are_saved_later_leave_the_others_as_they_were(scripts, tmp_path, monkeypatch) -> None:
    """Each row keeps the date and commit at which it was measured."""
    ledger = scripts("ledger")
    monkeypatch.setattr(ledger, "RESULTS", tmp_path)
    setting = scripts("regimes").LARGE[0]
    here = ledger.Ledger(tmp_path / "out", 1, 0.0)
    ledger.save("oracle", [0], {"GRPO": [run_of(0.2)]}, {"GRPO": setting}, here)
    path = tmp_path / "oracle.json"
    before = json.loads(path.read_text())
    before["measured"]["GRPO"]["commit"] = "earlier"
    path.write_text(json.dumps(before))
    ledger.save("oracle", [0], {"DAPO": [run_of(0.3)]}, {"DAPO": setting}, here)
    after = json.loads(path.read_text())
    assert after["measured"]["GRPO"]["commit"] == "earlier"
    assert after["measured"]["DAPO"]["commit"] != "earlier"
    assert list(after["raced"]) == ["GRPO", "DAPO"]


def test_jobs_that_stand_in_no_results_go_on_elsewhere(scripts, tmp_path, monkeypatch) -> None:
    ledger = scripts("ledger")
    monkeypatch.setattr(ledger, "RESULTS", tmp_path)
    monkeypatch.setattr(ledger, "UNFINISHED", tmp_path / "unfinished.jsonl")
    saved, left = ({"regime": "oracle", "method": m, "setting": "", "seed": 0, "budget": 64} for m in ("GRPO", "RLOO"))
    (tmp_path / "oracle.json").write_text(json.dumps({"tuning": [], "raced": {"GRPO": [{**saved, **run_of(0.2)}]}}))
    here = ledger.Ledger(tmp_path / "out", 1, time.monotonic() + 60)
    here.done = {ledger.key(job): {**job, **run_of(0.2)} for job in (saved, left)}
    ledger.keep_unfinished(here)
    assert [*ledger.Ledger(tmp_path / "elsewhere", 1, 0.0).done] == [ledger.key(left)]
    here.done.popitem()
    ledger.keep_unfinished(here)
    assert not (tmp_path / "unfinished.jsonl").exists()


def test_a_run_counts_all_that_it_plays(scripts) -> None:
    """Trunks and continuations count, and what a recorded set gives counts as often as it is drawn."""

    async def of_set() -> list[Any]:
        return [SimpleNamespace(trajectories=[None] * 5)]

    async def play(runner: Any, trainer: Any, episodes: int) -> None:
        await trainer.collect()
        await runner.run(None, [None] * episodes)

    ledger, run = scripts("ledger"), Runner.run
    for episodes, expected in ((8, 8), (2, 5)):
        trainer = SimpleNamespace(collect=of_set)
        runner = object.__new__(Runner)
        with pytest.MonkeyPatch.context() as patch:

            async def nothing(*args: Any) -> list[Any]:
                return []

            patch.setattr(Runner, "run", nothing)
            with ledger.counted(trainer) as played:
                asyncio.run(play(runner, trainer, episodes))
            assert played() == expected
    assert Runner.run is run


def test_an_episode_that_fails_is_no_loss(scripts) -> None:
    """An evaluation that failed altogether counted as 0."""
    ledger, spec = scripts("ledger"), registry.get_spec("choices-together")
    regime = replace(scripts("regimes").REGIMES["choices-together"], held_out=4, split="test")

    class Failing(LocalSession):
        async def reset(self, **options: Any) -> Any:
            if failures:
                failures.pop()
                raise EnvironmentCrashed("the machine was paused")
            return await super().reset(**options)

    runner = Runner(lambda: None, PromptFormat(), Limits(8), 4)  # type: ignore[arg-type]
    trainer = SimpleNamespace(runner=runner, policy=lambda seed, step: SolverPolicy())
    env = SimpleNamespace(spec=spec, session=lambda: Failing(registry.make(spec.id)))
    failures = [None] * 6
    assert asyncio.run(ledger.measured(trainer, env, regime, 0)) == 1.0
    assert not failures
    failures = [None] * 100
    with pytest.raises(SystemExit, match=r"4 held-out episodes failed 3 times, one of them because .*was paused"):
        asyncio.run(ledger.measured(trainer, env, regime, 0))


def test_the_worth_of_tokens_is_that_of_their_colors(scripts) -> None:
    """Of three colors the first is right; a reply that is no action is worth nothing; then all three are right."""
    process, spec = scripts("process"), registry.get_spec("choices-together")
    right = [RIGHT[good] for good in goods_of(6, "train", 0)]
    wrong = [next(color for color in COLORS if color != one) for one in right]
    replies = [" ".join([right[0], *wrong[1:3]]), right[3], " ".join(right[3:])]

    async def open_session() -> LocalSession:
        return LocalSession(registry.make(spec.id))

    runner = Runner(open_session, PromptFormat(), Limits(8), 1)
    (played,) = asyncio.run(runner.run(ScriptedPolicy(replies), [EpisodeSpec(spec.id, "train", 0, 0)]))
    assert [turn.reply for turn in played.turns] == replies
    template = ChatTemplate(tiny.make_tokenizer([*spec.actions, "user\n", "assistant\n"], 320, 1024))
    batch, rows, trajectories = collate([Group((tokenize(played, spec, PromptFormat(), template),))])
    worth = process.worth_A(SignalContext(batch, rows, trajectories, 0, np.random.default_rng(0)), template)
    by_turn = [set(worth[batch.turn_A == turn].tolist()) for turn in range(len(played.turns))]
    assert by_turn[0] >= {1.0, -1.0}
    assert by_turn[1] == {0.0}
    assert by_turn[2] >= {1.0}
    assert -1.0 not in by_turn[2]
    assert process.ordered(worth, worth) == 1.0
    assert process.ordered(-worth, worth) == 0.0
    assert process.ordered(np.zeros(len(worth)), worth) == 0.5
