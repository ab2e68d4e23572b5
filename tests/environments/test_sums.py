"""Sums: what a right reply is, and when it is told."""

from __future__ import annotations

import pytest

import agentgym
from agentgym.errors import ConfigError


def play(replies: dict[int, str], **arguments) -> tuple[list[float], dict]:
    """Rewards of an episode with these replies at these turns and the solver's at the others."""
    env = agentgym.make("sums", **arguments)
    env.reset(seed=0, options={"split": "test", "task": 1})
    rewards, over = [], False
    while not over:
        _, reward, terminated, truncated, info = env.step(replies.get(len(rewards), env.solver()))
        rewards, over = [*rewards, reward], terminated or truncated
    return rewards, info


def test_a_reply_is_the_digits_from_the_last_one_on() -> None:
    env = agentgym.make("sums")
    shown, _ = env.reset(seed=0, options={"split": "train", "task": 7})
    first, second = (int(part.replace(" ", "")) for part in shown.split("+"))
    for reply, right in ((str(first + second)[::-1], 1), (str(first + second), 0)):
        env.reset(seed=0, options={"split": "train", "task": 7})
        env.step(reply)
        assert env.right == right


def test_the_score_is_the_share_of_right_sums() -> None:
    rewards, info = play({})
    assert (rewards, info["success"]) == ([0.0, 0.0, 1.0], True)
    rewards, info = play({0: "1 2 3", 2: "4"}, turns=4)
    assert (rewards, info["success"]) == ([0.0, 0.0, 0.0, 0.5], False)


@pytest.mark.parametrize("reply", ["", "twelve", "1 2 x", "-1 2", "½", "٣"])
def test_what_is_no_number_costs_a_turn(reply: str) -> None:
    rewards, info = play({0: reply})
    assert len(rewards) == 4
    assert info["success"]


def test_arguments_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="digits is at least 2"):
        agentgym.make("sums", digits=1)
