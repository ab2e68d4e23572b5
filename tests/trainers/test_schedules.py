"""Schedules: published values, and nothing but the step decides."""

from __future__ import annotations

import math

import pytest
from pydantic import TypeAdapter, ValidationError

from agentgym_trainers.config.schedules import (
    Cosine,
    EpoPhases,
    Linear,
    ScheduleOptions,
    Stages,
    applied,
    steps_to_validate,
)

READ = TypeAdapter(ScheduleOptions)


def test_scaling_inter_stages() -> None:
    horizon = Stages(values=(10, 20, 30), every=100)
    values = [horizon.at(step) for step in (0, 99, 100, 199, 200, 500)]
    assert values == [10, 10, 20, 20, 30, 30]
    assert all(isinstance(value, int) for value in values)


def test_scaling_inter_is_monotone_and_survives_resume() -> None:
    """The released trainer counts stages as it steps and by division on resume, and is one step off."""
    horizon = Stages(values=(8, 12, 15), every=80)
    fresh = [horizon.at(step) for step in range(400)]
    assert fresh == sorted(fresh)
    for start in (79, 80, 81, 160):
        resumed = READ.validate_python(READ.dump_python(horizon))
        assert [resumed.at(step) for step in range(start, 400)] == fresh[start:]


def released_stage(start: int, stop: int, every: int) -> list[int]:
    """The defective variant: a counter that moves when step % every == 0, restored by floor(step / every)."""
    stage, stages = start // every, []
    for step in range(start + 1, stop + 1):
        if step % every == 0:
            stage += 1
        stages.append(stage)
    return stages


def test_a_counted_stage_is_caught() -> None:
    assert released_stage(0, 300, 100)[100:] == released_stage(100, 300, 100)
    counted = released_stage(0, 300, 100)
    ours = [Stages(values=(0, 1, 2), every=100).at(step) for step in range(300)]
    assert counted[99] == 1  # its 100th step is already in the next stage
    assert ours[99] == 0
    assert counted != ours


@pytest.mark.parametrize(("step", "expected"), [(0, 0), (50, 0.1464), (100, 0.5), (200, 1), (900, 1)])
def test_spear_warm_up(step, expected) -> None:
    assert Cosine(start=0, end=1, steps=200).at(step) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("step", "expected"), [(0, 1), (50, 0.8536), (100, 0.5), (200, 0), (900, 0)])
def test_spear_decay(step, expected) -> None:
    assert Cosine(start=1, end=0, steps=200).at(step) == pytest.approx(expected, abs=1e-4)


def test_cosines_reach_their_final_value() -> None:
    """EPO's runs let the learning rate fall along a cosine to a fifth."""
    fall = Cosine(start=1e-5, end=2e-6, steps=10)
    assert [fall.at(step) for step in (0, 5, 10, 11)] == pytest.approx([1e-5, 6e-6, 2e-6, 2e-6])
    rise = Cosine(start=1, end=3, steps=10)
    assert [rise.at(step) for step in (0, 5, 10, 11)] == pytest.approx([1, 2, 3, 3])


def test_epo_phases() -> None:
    weight = EpoPhases(steps=2_000_000)
    values = [weight.at(step) for step in (0, 500_000, 1_000_000, 1_000_001, 1_500_000, 2_000_000, 9_000_000)]
    assert values == pytest.approx([1, 0.8736, 0.8271, 0.8, 0.1785, 0.0398, 0.0398], abs=1e-4)
    weight = EpoPhases(steps=5)  # as released: the first half has 2 epochs, the second 3, and epoch 2 is of the first
    assert [weight.at(step) for step in (2, 3)] == pytest.approx([0.8271, 0.8 * math.exp(-1)], abs=1e-4)
    assert EpoPhases(steps=150, scale=0.5).at(75) == pytest.approx(0.4135, abs=1e-4)


def test_linear() -> None:
    line = Linear(start=1.0, end=0.0, steps=10, begin=5)
    assert [line.at(step) for step in (0, 5, 10, 15, 99)] == pytest.approx([1, 1, 0.5, 0, 0])


@pytest.mark.parametrize("options", [{"start": 1, "end": 101, "steps": 100}, {"start": 0, "end": 49, "steps": 49}])
def test_a_line_between_integers_gives_integers(options) -> None:
    """1 + 100 · .14 is a little more than 15, which no horizon can be: the run ended in its fifteenth step."""
    line = Linear(**options)
    assert [line.at(step) for step in range(102)] == [
        min(options["start"] + step, options["end"]) for step in range(102)
    ]


def test_a_line_that_begins_late_is_checked_at_the_start() -> None:
    """Its first value that is no whole number comes in step 5, which no step that is tried shows."""
    line = Linear(start=10, end=20, steps=4, begin=3)
    assert [line.at(step) for step in (0, 1, 5, 10)] == [10, 10, 15, 20]
    assert line.at(4) == 12.5
    assert 4 in steps_to_validate([line], 10)


def test_what_is_built_once_has_no_schedule() -> None:
    tree = {"replay": {"history": 9, "max_age": 5}}
    assert applied(tree, {"replay.max_age": Stages(values=(1,))}, 0)["replay"]["max_age"] == 1
    with pytest.raises(ValueError, match=r"'replay.history' is read only when a run begins"):
        applied(tree, {"replay.history": Stages(values=(1,))}, 0)


def test_schedules_are_read_by_kind() -> None:
    read = READ.validate_python
    assert read({"kind": "stages", "values": [1, 2.5], "every": 3}) == Stages(values=(1, 2.5), every=3)
    assert read({"kind": "cosine", "start": 0, "end": 1, "steps": 3}) == Cosine(start=0, end=1, steps=3)
    for wrong in (
        {"kind": "stage", "values": [1]},
        {"values": [1]},
        {"kind": "stages", "values": []},
        {"kind": "linear", "start": 1, "end": 0, "steps": 0},
        {"kind": "epo", "step": 3},
    ):
        with pytest.raises(ValidationError):
            read(wrong)


def test_every_kind_is_finite_at_every_step() -> None:
    for schedule in (
        Stages(values=(1, 2)),
        Linear(start=0, end=1, steps=3),
        Cosine(start=1, end=0, steps=3),
        EpoPhases(),
    ):
        assert all(math.isfinite(schedule.at(step)) for step in range(500))
