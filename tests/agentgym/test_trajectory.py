"""Trajectory: JSON and back is the identity, arrays included; a broken line is named."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.errors import CheckpointError
from agentgym.rollouts.trajectory import (
    Branch,
    Group,
    ImageSpan,
    Span,
    StopReason,
    Trajectory,
    Turn,
    read_jsonl,
    write_jsonl,
)

text = st.text(st.characters(categories=["L", "N", "P", "Z", "C", "S"]), max_size=10)  # half surrogate pairs too
finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
actions = st.none() | text | st.fixed_dictionaries({"name": text, "arguments": st.dictionaries(text, st.integers())})
infos = st.dictionaries(text, st.booleans() | st.integers() | finite | text | st.lists(text, max_size=2), max_size=2)
infos |= st.fixed_dictionaries({"available_actions": st.lists(st.sampled_from("ab"), max_size=1)})
offered = st.lists(st.sampled_from("ab"), max_size=1).map(tuple)
spans = st.none() | st.builds(Span, *[st.integers(0, 99)] * 3)
rewards = st.floats(-(2.0**29), 2.0**29, width=32)
turns = st.builds(
    Turn,
    *[st.integers(0, 9), text, text, actions, rewards, finite, infos],
    span=spans,
    state_key=text,
    offered=offered,
)

images = st.builds(ImageSpan, st.binary(max_size=3), *[st.integers(0, 99)] * 2)


@st.composite
def branches(draw):
    length = draw(st.integers(0, 5))
    ints = st.lists(st.integers(-(2**31), 2**31 - 1), min_size=length, max_size=length)
    floats = st.lists(finite, min_size=length, max_size=length)
    kinds = [(ints, np.int32), (ints, np.int32), (floats, np.float32), (ints, np.int32)]
    columns = [np.array(draw(values), dtype) for values, dtype in kinds]
    return Branch(*columns, images=draw(st.lists(images, max_size=2).map(tuple)))


trajectories = st.builds(
    Trajectory,
    *[text, text, *[st.integers(0, 99)] * 3],
    turns=st.lists(turns, max_size=3).map(tuple),
    stop=st.sampled_from(StopReason),
    final_observation=text,
    error=text,
    branches=st.lists(branches(), max_size=2).map(tuple),
    forks=st.lists(text, max_size=2).map(tuple),
)


def same(a: Trajectory, b: Trajectory) -> bool:
    plain = [{name: getattr(t, name) for name in Trajectory.__slots__ if name != "branches"} for t in (a, b)]
    images = [[branch.images for branch in t.branches] for t in (a, b)]
    names = [name for name in Branch.__slots__ if name != "images"]
    arrays = [[getattr(branch, name) for branch in t.branches for name in names] for t in (a, b)]
    equal = all(x.dtype == y.dtype and x.tobytes() == y.tobytes() for x, y in zip(*arrays, strict=True))
    return plain[0] == plain[1] and images[0] == images[1] and equal


@given(trajectories)
def test_json_round_trip(trajectory):
    assert same(Trajectory.from_json(json.loads(json.dumps(trajectory.to_json()))), trajectory)
    bare = Trajectory.from_json(trajectory.to_json(tokens=False))
    assert bare.branches == ()
    assert bare.turns == trajectory.turns


@given(st.lists(trajectories, max_size=3))
def test_file_round_trip(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("jsonl") / "t.jsonl"
    write_jsonl(path, written[:1])
    write_jsonl(path, written[1:])
    read = list(read_jsonl(path))
    assert len(read) == len(written)
    assert all(map(same, read, written))


def attempt(stop=StopReason.TERMINATED, rewards=(0.0, 1.0), **info) -> Trajectory:
    played = tuple(Turn(i, "o", "r", "a", reward, info=info) for i, reward in enumerate(rewards))
    return Trajectory("w", "test", 0, 0, 0, played, stop)


def test_half_a_surrogate_pair_and_any_script_are_written(tmp_path):
    path = tmp_path / "t.jsonl"
    write_jsonl(path, [attempt(response="\ud800"), attempt(response="走 north")])
    assert [t.turns[0].info["response"] for t in read_jsonl(path)] == ["\ud800", "走 north"]
    assert "走".encode() in path.read_bytes(), "text stays readable where it can"


def test_what_the_turn_before_lists_is_written_once():
    turns = (
        Turn(0, "o", "r", "a", 0.0, info={"available_actions": ["b", "c"]}, offered=("a",)),
        Turn(1, "o", "r", "b", 0.0, info={}, offered=("b", "c")),
        Turn(2, "o", "r", "d", 0.0, info={}),
    )
    record = Trajectory("w", "test", 0, 0, 0, turns, StopReason.TERMINATED).to_json()
    assert [turn.get("offered") for turn in record["turns"]] == [["a"], None, None]
    assert Trajectory.from_json(record).turns == turns
    for turn in record["turns"]:  # as versions before 2026-11-29 wrote it
        turn.pop("offered", None)
    assert [turn.offered for turn in Trajectory.from_json(record).turns] == [(), ("b", "c"), ()]


def test_numpy_values_in_info_become_plain(tmp_path):
    path = tmp_path / "t.jsonl"
    write_jsonl(path, [attempt(flag=np.bool_(True), count=np.int64(3), grid=np.eye(2))])
    (read,) = read_jsonl(path)
    assert read.turns[0].info == {"flag": True, "count": 3, "grid": [[1.0, 0.0], [0.0, 1.0]]}
    with pytest.raises(TypeError, match="holds a object"):
        write_jsonl(path, [attempt(thing=object())])


@pytest.mark.parametrize("line", ['{"env": "w"', "[]", "null", '"x"', "{}", "\xff"])
def test_a_line_that_is_no_trajectory_is_named(tmp_path, line):
    path = tmp_path / "t.jsonl"
    write_jsonl(path, [attempt()])
    with path.open("ab") as file:
        file.write(line.encode("latin-1") + b"\n")
    with pytest.raises(CheckpointError, match=r"t\.jsonl, line 2 is not a trajectory"):
        list(read_jsonl(path))


def test_score_and_success():
    assert attempt().score == 1.0
    assert attempt().success
    assert not attempt(success=False).success
    assert attempt(success=True, rewards=(0.0,)).success
    assert not attempt(rewards=()).success


def test_limits_truncate_and_failures_do_not_count():
    truncated = {StopReason.TRUNCATED, StopReason.MAX_TURNS, StopReason.CONTEXT_FULL}
    failures = {StopReason.ENVIRONMENT_FAILED, StopReason.POLICY_FAILED, StopReason.DEADLINE}
    assert {stop for stop in StopReason if stop.is_truncated} == truncated
    assert {stop for stop in StopReason if stop.is_failure} == failures
    group = Group(tuple(attempt(stop) for stop in StopReason))
    assert {t.stop for t in group.without_failures().trajectories} == set(StopReason) - failures
