"""Sokoban: what a push does, levels that can be solved, and the solver."""

from __future__ import annotations

import pytest

from agentgym import registry
from agentgym_environments.diagnostics.sokoban.level import SokobanLevel
from agentgym_environments.diagnostics.sokoban.solver import solve
from agentgym_environments.diagnostics.sokoban.tasks import level

ROOM = """
#######
#_____#
#_@$._#
#_$___#
#____.#
#_____#
#######""".strip()


def test_drawing_and_parsing_agree():
    assert SokobanLevel.parse(ROOM).draw() == ROOM
    on_goals = ROOM.replace("@$.", "_+*")
    assert SokobanLevel.parse(on_goals).draw() == on_goals


def test_a_push_moves_one_box_onto_a_free_square():
    pushed = SokobanLevel.parse(ROOM).move("right")
    assert pushed.draw().splitlines()[2] == "#__@*_#"
    assert pushed.move("right").draw().splitlines()[2] == "#___+$#"  # off the goal again; the player stands on it
    assert pushed.move("right").move("right") == pushed.move("right")  # not into the wall
    assert SokobanLevel.parse(ROOM).move("down").draw().splitlines()[3:5] == ["#_@___#", "#_$__.#"]


def test_a_box_does_not_push_a_box_and_the_player_does_not_pull():
    two = SokobanLevel.parse("#######\n#@$$..#\n#_____#\n#######")
    assert two.move("right") == two
    away = SokobanLevel.parse("######\n#_@$.#\n######").move("left")
    assert away.draw() == "######\n#@_$.#\n######"
    assert away.move("left") == away  # a wall


def test_solved_is_every_box_on_a_goal():
    assert SokobanLevel.parse("#####\n#@$.#\n#####").move("right").solved
    assert not SokobanLevel.parse(ROOM).move("right").solved


def test_the_solver_finds_a_shortest_way_and_knows_what_is_lost():
    assert solve(SokobanLevel.parse("######\n#@_$.#\n######")) == ["right", "right"]
    assert solve(SokobanLevel.parse("#####\n#$__#\n#_@.#\n#####")) is None  # the box is in a corner


@pytest.mark.parametrize(("size", "boxes", "longest"), [(5, 1, 20), (6, 2, 40)])
def test_levels_have_the_configured_size_and_are_solved_in_time(size, boxes, longest):
    drawn = set()
    for task in range(40):
        made = level(size, boxes, longest, "train", task)
        lines = made.draw().splitlines()
        assert len(lines) == size + 2
        assert {len(line) for line in lines} == {size + 2}
        assert len(made.boxes) == len(made.goals) == boxes
        assert not made.boxes & made.goals
        way = solve(made)
        assert way is not None
        assert 2 <= len(way) <= longest
        drawn.add(made.draw())
    assert len(drawn) == 40


def test_progress_and_available_actions():
    env = registry.make("sokoban-6x6")
    env.reset(options={"task": 0})
    env.level = SokobanLevel.parse(ROOM)
    info = env.step("right")[4]
    assert info["progress"] == 0.5
    assert info["available_actions"] == ["up", "down", "left", "right"]


def test_the_solver_acts_from_any_state_even_if_lost():
    env = registry.make("sokoban")
    env.reset(options={"task": 1})
    first = env.solver()
    env.step(next(way for way in env.describe()["available_actions"] if way != first))
    env.solver()
    env.level = SokobanLevel.parse("#####\n#$__#\n#_@.#\n#####")
    assert env.solver() == "up"
