"""Choices: what each decision earns, when, and that nothing else matters."""

from __future__ import annotations

import pytest

import agentgym
from agentgym.errors import ConfigError
from agentgym_environments.diagnostics.choices.env import DECISIVE, GOODS, RIGHT, goods_of


def rewards_of(name: str, right: set[int], **arguments) -> tuple[list[float], dict]:
    """Rewards of an episode that is right at these places and wrong at all others."""
    env = agentgym.make(name, **arguments)
    env.reset(seed=0, options={"split": "test", "task": 3})
    rewards, over = [], False
    while not over:
        best = env.solver()
        other = next(action for action in env.env_spec.actions if action != best)
        _, reward, terminated, truncated, info = env.step(best if len(rewards) in right else other)
        rewards, over = [*rewards, reward], terminated or truncated
    return rewards, info


def test_a_right_color_is_paid_at_once_or_at_the_end() -> None:
    rewards, info = rewards_of("choices", {0, 3}, length=4)
    assert (rewards, info["success"]) == ([0.25, 0.0, 0.0, 0.25], False)
    rewards, info = rewards_of("choices-late", {0, 3}, length=4)
    assert (rewards, info["success"]) == ([0.0, 0.0, 0.0, 0.5], False)
    rewards, info = rewards_of("choices-late", set(range(48)), length=48)
    assert (rewards[-1], info["success"]) == (1.0, True)


def test_feedback_shows_the_last_choice_and_pays_at_the_end() -> None:
    assert rewards_of("choices-feedback", {0, 3}, length=4)[0] == [0.0, 0.0, 0.0, 0.5]
    env = agentgym.make("choices-feedback", length=4)
    shown, _ = env.reset(seed=0, options={"split": "test", "task": 3})
    assert not shown.startswith(("right", "wrong"))
    best = env.solver()
    shown, _, _, _, info = env.step(best)
    assert shown.startswith("right, ")
    assert info["progress"] == 0.25
    state = env.snapshot()
    shown, _, _, _, info = env.step(next(action for action in env.env_spec.actions if action != env.solver()))
    assert shown.startswith("wrong, ")
    assert info["progress"] == 0.25
    env.restore(state)
    assert env.observe().startswith("right, ")


def test_a_response_of_three_colors_counts_each_of_them() -> None:
    env = agentgym.make("choices-together")
    env.reset(seed=0, options={"split": "test", "task": 3})
    first, *rest = env.solver().split()
    other = next(color for color in ("red", "green", "blue") if color != first)
    _, _, _, _, info = env.step("red blue")
    assert not info["valid_action"]
    env.step(" ".join([other, *rest]))
    observation, reward, terminated, _, info = env.step(env.solver())
    assert (observation, terminated, info["success"]) == ("5 right", True, False)
    assert reward == pytest.approx(5 / 6)


def test_colors_may_be_separated_by_commas() -> None:
    env = agentgym.make("choices-together")
    for action in ("red, green, blue", "Red, Green, Blue.", "red,green,blue"):
        env.reset(seed=0, options={"split": "test", "task": 3})
        step = env.step(action)
        env.reset(seed=0, options={"split": "test", "task": 3})
        assert step == env.step("red green blue")
        assert step[4]["valid_action"]


@pytest.mark.parametrize("together", [0, 5])
def test_goods_that_fill_no_places_are_refused(together: int) -> None:
    with pytest.raises(ConfigError, match="divides length, 12; not"):
        agentgym.make("choices", together=together)


@pytest.mark.parametrize("right", [True, False])
def test_of_many_places_only_the_one_with_silk_counts(right: bool) -> None:
    silk = goods_of(12, "test", 3, one=True).index(DECISIVE)
    others = set(range(12)) - {silk}
    rewards, info = rewards_of("choices-one", {silk} if right else others)
    assert (rewards, info["success"]) == ([0.0] * 11 + [float(right)], right)


def test_a_bonus_or_a_fee_comes_at_the_end_of_every_other_task() -> None:
    rewards, info = rewards_of("choices-bonus", {0, 3}, length=4)
    assert (rewards, info["success"]) == ([0.25, 0.0, 0.0, 0.25 - 0.5], False)
    env = agentgym.make("choices-bonus")
    for task, named in ((2, "bonus"), (3, "fee")):
        shown, _ = env.reset(seed=0, options={"split": "test", "task": task})
        assert shown.endswith(f" here, {named}")
        shown, *_ = env.step("red")
        assert shown.endswith(" here")


def test_a_fee_is_not_saved_by_saying_nothing() -> None:
    env = agentgym.make("choices-bonus", length=4)
    env.reset(seed=0, options={"split": "test", "task": 3})
    rewards, truncated = [], False
    while not truncated:
        _, reward, _, truncated, _ = env.step("hm")
        rewards.append(reward)
    assert rewards == [0.0] * (len(rewards) - 1) + [-0.5]


def test_nonsense_costs_a_turn_and_no_place() -> None:
    env = agentgym.make("choices", length=4)
    shown, _ = env.reset(seed=0)
    assert env.env_spec.max_turns == 10
    for _ in range(10):
        observation, reward, _, truncated, info = env.step("perhaps red")
        assert (observation.splitlines()[-1], reward, info["valid_action"]) == (shown, 0.0, False)
    assert truncated


def test_every_color_is_right_for_some_good() -> None:
    assert set(RIGHT) == set(GOODS)
    assert set(RIGHT.values()) == {"red", "green", "blue"}


def test_splits_share_no_task() -> None:
    tasks = {split: {tuple(goods_of(12, split, i)) for i in range(300)} for split in ("train", "validation", "test")}
    assert not tasks["train"] & tasks["test"]
    assert not tasks["train"] & tasks["validation"]


def test_too_short_a_length_is_refused() -> None:
    with pytest.raises(ConfigError, match="length is at least 4"):
        agentgym.make("choices", length=3)
