"""KeyDoor: the room's rules, and the decision that only the last turn of the corridor judges."""

from __future__ import annotations

import pytest

from agentgym import registry
from agentgym.errors import ConfigError
from agentgym_environments.diagnostics.keydoor.corridor import Corridor
from agentgym_environments.diagnostics.keydoor.grid import Grid, GridState


def walk(state, *actions, rules):
    for action in actions:
        state, outcome = rules.act(state, action)
    return state, outcome


def test_the_room_step_by_step():
    room = Grid(3)
    state = GridState(agent=(1, 0), key=(0, 1), door=(2, 2))
    assert room.observe(state) == "key south west door south east"
    assert room.act(state, "go north")[0] == state  # a wall
    assert room.act(state, "take")[0] == state  # nothing here
    state, _ = walk(state, "go south", "go west", rules=room)
    assert room.observe(state) == "key here door south east"
    state, outcome = walk(state, "take", "go east", "go east", "go south", rules=room)
    assert (room.observe(state), outcome.reward) == ("have key door here", 0.0)
    state, outcome = room.act(state, "open")
    assert outcome == (1.0, True, True, False)


def test_the_door_stays_shut_without_the_key():
    room = Grid(3)
    state, outcome = room.act(GridState(agent=(2, 2), key=(0, 0), door=(2, 2)), "open")
    assert (outcome.reward, outcome.ended, state.opened) == (0.0, False, False)


def test_small_rooms_are_distinct_and_solvable_in_ten_turns():
    env = registry.make("keydoor")
    starts = set()
    for split, size in env.env_spec.splits.items():
        for task in range(size):
            env.reset(options={"split": split, "task": task})
            starts.add(env.key())
            turns, over = 0, False
            while not over:
                _, reward, terminated, over, _ = env.step(env.solver())
                turns, over = turns + 1, terminated or over
            assert (reward, turns <= 10) == (1.0, True)
    assert len(starts) == 9 * 9 * 8 == sum(env.env_spec.splits.values())


@pytest.mark.parametrize(
    ("name", "last"), [("keydoor", "key"), ("keydoor-delayed", "green key"), ("keydoor-meadow", "red key")]
)
def test_milestones_are_the_key_and_the_open_door(name, last):
    env = registry.make(name)
    _, info = env.reset(options={"split": "test", "task": 1})
    named, over = [info["milestone"]], False
    while not over:
        *_, terminated, truncated, info = env.step(env.solver())
        named, over = [*named, info["milestone"]], terminated or truncated
    assert list(dict.fromkeys(named)) == ["", last, "door"]


def test_a_wrong_key_is_a_milestone_of_its_own_and_opens_nothing():
    env = registry.make("keydoor-meadow", corridor=2)
    env.reset(options={"task": 0})
    named = [env.step(action)[-1]["milestone"] for action in ("take blue", "go north", "go north", "open")]
    assert named == ["blue key"] * 4


def test_a_room_without_enough_layouts_is_refused():
    with pytest.raises(ConfigError, match="48 layouts"):
        registry.make("keydoor", size=2)


def finish(env, key: str) -> tuple[list[str], float, bool]:
    """Take a key, then walk the corridor without a fault. Returns (observations, last reward, success)."""
    observations, over = [env.step(f"take {key}")[0]], False
    while not over:
        observation, reward, terminated, truncated, info = env.step(env.solver())
        observations, over = [*observations, observation], terminated or truncated
    return observations, reward, info["success"]


@pytest.mark.parametrize(("name", "turns"), [("keydoor-delayed", 12), ("keydoor-delayed-long", 30)])
def test_only_the_right_key_opens_and_only_the_last_turn_tells(name, turns):
    env = registry.make(name)
    assert env.env_spec.max_turns == turns + 4
    for task in range(10):
        walks = {}
        for key in ("red", "blue", "green"):
            opening, _ = env.reset(seed=0, options={"task": task})
            colour = opening.split()[-1]
            observations, reward, success = finish(env, key)
            assert len(observations) == turns
            assert (reward, success) == ((1.0, True) if key == colour else (0.0, False))
            walks[key] = observations
        # Until the door is tried, the right and the wrong key look the same.
        assert len({tuple(observations[:-1]) for observations in walks.values()}) == 1
        assert {observations[-1] for observations in walks.values()} == {"door open", "wrong key"}


def test_a_random_key_succeeds_one_time_in_colours():
    for colours in (2, 3, 5):
        env = registry.make("keydoor-delayed", colours=colours)
        keys = [action.split()[1] for action in env.env_spec.actions if action.startswith("take")]
        assert len(keys) == colours
        for task in range(5):
            won = []
            for key in keys:
                env.reset(options={"task": task})
                won.append(finish(env, key)[2])
            assert sum(won) == 1
        doors = [env.reset(options={"task": task})[0].split()[-1] for task in range(300)]
        assert all(doors.count(key) / 300 == pytest.approx(1 / colours, abs=0.1) for key in keys)


def test_a_key_cannot_be_changed_and_a_wrong_way_costs_a_turn():
    corridor = Corridor(length=10, colours=3, distractors=0.5)
    state = corridor.start("train", 0, {"train": 1})
    assert corridor.act(state, "go north")[0] == state  # not before a key is taken
    assert corridor.act(state, "open")[0] == state
    state, _ = corridor.act(state, "take red")
    assert corridor.act(state, "take blue")[0] == state
    wrong = next(way for way in ("north", "south", "east", "west") if way != state.bends[0])
    assert corridor.act(state, f"go {wrong}")[0] == state
    assert corridor.act(state, f"go {state.bends[0]}")[0].place == 1


def test_the_corridor_hides_the_doors_colour_and_notes_lie():
    env = registry.make("keydoor-delayed")
    notes, right = 0, 0
    for task in range(200):
        colour = env.reset(options={"task": task})[0].split()[-1]
        observations, _, _ = finish(env, colour)
        assert not any(colour in line and "note says" not in line for line in observations)
        assert max(len(line.split()) for line in observations) <= 15
        mentions = [line.split()[-1] for line in observations if "note says" in line]
        notes, right = notes + len(mentions), right + mentions.count(colour)
    assert right / notes == pytest.approx(1 / 3, abs=0.07)  # what a note says is no news of the door


def test_one_hidden_colour_opens_every_untold_door():
    env = registry.make("keydoor-untold")
    for task in range(20):
        won = []
        for key in ("red", "blue", "green"):
            assert env.reset(options={"task": task})[0] == "keys here"
            if finish(env, key)[2]:
                won.append(key)
        assert won == ["red"]


def test_on_the_meadow_only_the_key_decides():
    env = registry.make("keydoor-meadow")
    for way in ("north", "south", "east", "west"):
        for key in ("red", "blue", "green"):
            env.reset(options={"task": 3})
            steps = [env.step(action) for action in (f"take {key}", *[f"go {way}"] * 10, "open")]
            assert all(step[0].startswith("meadow") for step in steps[:10])
            assert (steps[-1][1], steps[-1][2]) == (float(key == "red"), True)


def test_more_corridor_means_more_turns():
    env = registry.make("keydoor-delayed", corridor=40, distractors=0.0)
    assert env.env_spec.max_turns == 46
    with pytest.raises(ConfigError, match="2 to 6"):
        registry.make("keydoor-delayed", colours=7)
