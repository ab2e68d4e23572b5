"""Learning beyond grids: the rows of its table, its page, and that a run which was stopped goes on."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def families() -> Any:
    """benchmarks/ is no package: its scripts import one another by their names."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield importlib.import_module("families")
    sys.path.remove(str(ROOT / "benchmarks"))


def part(method: str, *success: float, seed: int = 0, family: str = "maze") -> dict[str, Any]:
    return {"family": family, "method": method, "seed": seed, "success": list(success), "seconds": 10.0}


def test_gain_is_paired_by_task_and_averaged_over_seeds(families) -> None:
    parts = [part("warm-up", 0, 1, 0, 0), part("grpo", 1, 1, 1, 0), part("grpo", 1, 1, 1, 1, seed=1)]
    assert families.differences(parts, "grpo").tolist() == [100, 0, 100, 0]  # seed 1 has no warm-up beside it
    parts.append(part("warm-up", 1, 1, 1, 0, seed=1))
    assert families.differences(parts, "grpo").tolist() == [50, 0, 50, 50]
    estimate, low, high = families.gain(parts, "grpo")
    assert (estimate, 0 <= low <= estimate <= high <= 50) == (37.5, True)
    assert families.gain(parts, "gigpo") is None


def test_improvement_needs_the_size_and_the_interval(families) -> None:
    assert families.improves((15.0, 0.1, 30.0))
    assert not families.improves((14.9, 5.0, 30.0))
    assert not families.improves((20.0, 0.0, 40.0))
    assert not families.improves(None)


def test_table_leaves_no_family_out_and_marks_improvements(families) -> None:
    recipe = families.FAMILIES["maze"].recipe
    parts = [part("warm-up", *np.zeros(20)), part("grpo", *np.ones(20)), part(recipe, *np.zeros(20))]
    saved = {"maze": {"parts": parts, "machine": "2 cores", "date": "2026-11-24"}}
    table = families.tables(saved)
    assert "| 0 | 100 | **100 [100, 100]** | 0 | 0 [0, 0] |" in table
    assert all(f"| {name} | `{family.env}` |" in table for name, family in families.FAMILIES.items())
    assert "1 of 13 families improve" in table


def test_page_is_what_the_results_say(families) -> None:
    page = families.PAGE.read_text(encoding="utf-8")
    text = page.partition(families.BEGIN)[2].partition(families.END)[0]
    assert text == families.tables(families.saved_results()), "python benchmarks/families.py --page writes it anew"
    for saved in families.saved_results().values():
        assert set(saved) >= {"env", "seeds", "date", "commit", "machine", "versions", "overrides", "parts"}


def test_recipes_of_every_family_are_resolved(families, tmp_path) -> None:
    from agentgym_trainers.recipe import resolve

    for family in families.FAMILIES.values():
        for recipe in (families.BASELINE, family.recipe):
            path = tmp_path / "demonstrations.jsonl" if family.all_splits else None
            config = resolve(recipe, families.overrides_of(family, recipe, 7, path))
            assert config.env.serve
            assert config.run.seed == 7
            assert config.at(config.run.steps).optim.lr == pytest.approx(family.lr / 10)


def test_run_that_was_stopped_goes_on(families, tmp_path, monkeypatch) -> None:
    """What is done is not played again; a line that a kill cut short is played again."""
    path = tmp_path / "jobs.jsonl"
    path.write_text(json.dumps(part("warm-up", 0.0)) + "\n" + '{"family": "maze", "meth')
    parts = families.Parts(tmp_path, time.monotonic() + 60)
    assert path.read_text().count("\n") == 1
    played: list[str] = []

    async def train(family, config, connection, folder, method, progress) -> dict[str, Any]:
        played.append(method)
        return {"success": [1.0], "seconds": 1.0}

    monkeypatch.setattr(families, "train", train)
    asyncio.run(families.play(parts, "maze", 0, ["grpo"]))
    assert played == ["grpo"]
    steps = families.FAMILIES["maze"]
    added = {**part("grpo", 1.0), "seconds": 1.0, "episodes": steps.steps * steps.groups * 8}
    assert families.Parts(tmp_path, 0.0).of("maze") == [part("warm-up", 0.0), added]
    asyncio.run(families.play(parts, "maze", 0, ["grpo"]))
    assert played == ["grpo"]
    with pytest.raises(SystemExit, match="go on"):
        families.Parts(tmp_path, 0.0).missing("maze", "gigpo", 0)
