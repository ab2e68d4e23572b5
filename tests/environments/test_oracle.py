"""Oracle: the closed form, enumerated through the environment itself."""

from __future__ import annotations

import pytest

from agentgym import registry
from agentgym_environments.diagnostics.oracle.env import ACTIONS, ADVANTAGE, GRADIENT, VALUE


class Chance:
    """A generator of which the next draw is known."""

    def __init__(self, draw: float) -> None:
        self.draw = draw

    def random(self) -> float:
        return self.draw


def branches(env, state, action):
    """(probability, reward, snapshot or None at the end) of what an action may lead to; both halves of chance."""
    found = []
    for draw in (0.25, 0.75):
        env.restore(state)
        kept, env._np_random = env._np_random, Chance(draw)
        _, reward, terminated, truncated, _ = env.step(action)
        env._np_random = kept
        assert not truncated
        found.append((0.5, reward, None if terminated else env.snapshot()))
    return found


def enumerate_values(env, state, reached, table):
    """Returns V(state) under the uniform policy; fills table[room] with (V, A of the first word) and P(reached)."""
    env.restore(state)
    room = env.key()
    q = []
    for action in ACTIONS[room]:
        parts = branches(env, state, action)
        q.append(
            sum(
                p * (reward + (enumerate_values(env, after, reached * 0.5 * p, table) if after else 0.0))
                for p, reward, after in parts
            )
        )
    value = sum(q) / 2
    _, _, before = table.get(room, (0, 0, 0.0))
    table[room] = (value, q[0] - value, before + reached)
    return value


def test_values_advantages_and_gradient_are_the_closed_form():
    env = registry.make("oracle")
    env.reset(seed=0)
    table = {}
    enumerate_values(env, env.snapshot(), 1.0, table)
    assert {room: value for room, (value, _, _) in table.items()} == VALUE
    assert {room: advantage for room, (_, advantage, _) in table.items()} == ADVANTAGE
    # d pi(first)/dz = 1/4 at z = 0 and Q differs by 2 A: P(reached) * 1/4 * 2 A.
    assert {room: reached * 0.5 * advantage for room, (_, advantage, reached) in table.items()} == GRADIENT


def test_the_birch_room_is_a_fair_coin_that_follows_the_seed():
    env = registry.make("oracle")
    rooms = []
    for seed in range(400):
        env.reset(seed=seed)
        env.step("right")
        rooms.append(env.step("gold")[4]["state_key"])
    assert set(rooms) == {"cedar", "dark"}
    assert rooms.count("cedar") / 400 == pytest.approx(0.5, abs=0.08)


def test_episodes_have_three_turns_and_refuse_other_rooms_words():
    env = registry.make("oracle")
    env.reset(seed=0)
    observation, reward, *_, info = env.step("gold")
    assert observation == "not an action here; you are at the fork: left or right"
    assert (reward, info["valid_action"], info["state_key"]) == (0.0, False, "fork")
    env.step("left")
    assert env.step("gold")[2:4] == (False, True)  # the nonsense cost the third decision
