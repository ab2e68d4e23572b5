"""Matches: each role's trajectory is an episode of its own, whatever happens at the other side of the table."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from agentgym import connect, registry
from agentgym.clients.server_process import server_process
from agentgym.errors import EnvironmentCrashed, PolicyFailure, UsageError
from agentgym.rollouts.policy import (
    ContextFull,
    EpisodeSpec,
    ModelResponse,
    RandomPolicy,
    SolverPolicy,
    TextActor,
    TurnContext,
)
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits, rollout
from agentgym.rollouts.trajectory import StopReason, Trajectory
from agentgym.rollouts.two_player import match
from agentgym.session import LocalSession


def episodes(name: str, task: int = 0) -> list[EpisodeSpec]:
    return [EpisodeSpec(name, "train", task, 0, role) for role in (0, 1)]


@dataclass
class Says(TextActor):
    """Says what a function of the turn returns, and remembers its prompts."""

    what: Callable[[int], str]
    texts: list[str] = field(default_factory=list)

    async def act(self, ask: TurnContext) -> ModelResponse:
        self.texts.append("\n".join(str(message["content"]) for message in ask.messages[1:]))
        return ModelResponse(self.what(ask.turn))


def play(name: str, first: TextActor, second: TextActor, task: int = 0, **limits) -> tuple[Trajectory, Trajectory]:
    session = LocalSession(registry.make(name))
    return asyncio.run(match(session, (first, second), PromptFormat(), episodes(name, task), Limits(**limits)))


def test_a_turn_has_what_was_offered_to_its_own_role() -> None:
    env = registry.make("tic-tac-toe-self")
    step = env.reset(options={"split": "train", "task": 0})
    lists = [step[1]["available_actions"]]
    for action in lists[0][:2]:
        lists.append(env.step(action)[-1]["available_actions"])
    say = [Says(lambda turn, at=at: lists[0][at] if turn == 0 else lists[2][0]) for at in (0, 1)]
    mover, other = (say, say[::-1])[step[1]["role"]]
    both = play("tic-tac-toe-self", mover, other)
    first, second = both[:: 1 - 2 * step[1]["role"]]
    assert [first.turns[0].offered, second.turns[0].offered, first.turns[1].offered] == [*map(tuple, lists)]


def test_each_role_has_its_own_turns_return_and_cards() -> None:
    one, two = Says(lambda turn: "pass" if turn == 0 else "bet"), Says(lambda turn: "bet")
    first, second = play("kuhn-poker-self:hands=1", one, two)  # task 0: J and Q
    assert [turn.action for turn in first.turns] == ["pass", "bet"]
    assert [turn.action for turn in second.turns] == ["bet"]
    assert (first.score, second.score) == (-2, 2)
    assert ([turn.reward for turn in first.turns], first.success, second.success) == ([0, -2], False, True)
    assert [[turn.role for turn in t.turns] for t in (first, second)] == [[0, 0], [1]]
    assert first.stop is second.stop is StopReason.TERMINATED
    assert first.turns[1].observation == "player 0 card J so far pass bet"
    assert second.turns[0].observation == "player 1 card Q so far pass"
    assert all("card Q" not in text for text in one.texts)
    assert all("card J" not in text for text in two.texts)
    assert one.texts[1].startswith("player 0 card J so far nothing\npass\n")
    assert first.turns[-1].info["role"] == 0
    assert second.turns[-1].info["role"] == 1


def test_reward_during_the_others_turn_comes_with_the_next_step() -> None:
    """Five hands: the returns of the roles are opposite however the hands ended."""
    for task in range(12):
        policy, names = RandomPolicy(1), episodes("kuhn-poker-self", task)
        first, second = play("kuhn-poker-self", policy.actor(names[0]), policy.actor(names[1]), task)
        assert first.score == -second.score
        assert first.success == (first.score > 0)
        assert second.success == (second.score > 0)


def test_an_illegal_move_is_answered_to_its_author() -> None:
    first, second = play("kuhn-poker-self:hands=1", Says(lambda turn: "fold"), Says(lambda turn: "pass"))
    assert [turn.info["valid_action"] for turn in first.turns] == [False] * 3
    assert (first.score, first.stop) == (-2, StopReason.TERMINATED)
    assert (second.turns, second.stop) == ((), StopReason.TERMINATED)  # it was never asked
    first, second = play("kuhn-poker-self:hands=1", Says(lambda turn: "bet"), Says(lambda turn: "fold"))
    assert [turn.info["valid_action"] for turn in first.turns] == [True]
    assert (first.score, second.score) == (2, -2)


def test_where_one_role_is_cut_the_other_is() -> None:
    def full(turn: int) -> str:
        raise ContextFull("no room")

    first, second = play("tic-tac-toe-self", Says(lambda turn: ""), SolverPolicy().actor(episodes("")[1]), max_turns=2)
    assert StopReason.MAX_TURNS in (first.stop, second.stop)
    assert first.stop.is_truncated
    assert second.stop.is_truncated
    cut, other = play("kuhn-poker-self", Says(lambda turn: "pass"), Says(full))
    assert other.stop is StopReason.CONTEXT_FULL
    assert cut.stop is StopReason.TRUNCATED
    assert cut.final_observation == "the other player has left"


def test_a_failed_side_fails_both_and_a_bug_stops_all() -> None:
    def broken(error: Exception) -> Callable[[int], str]:
        def say(turn: int) -> str:
            raise error

        return say

    first, second = play("kuhn-poker-self", Says(lambda turn: "pass"), Says(broken(PolicyFailure("gone"))))
    assert (second.stop, first.stop) == (StopReason.POLICY_FAILED, StopReason.ENVIRONMENT_FAILED)
    assert "the other player's side" in first.error
    with pytest.raises(ZeroDivisionError):
        play("kuhn-poker-self", Says(lambda turn: "pass"), Says(broken(ZeroDivisionError())))

    class Falls(LocalSession):
        async def step(self, action):
            raise EnvironmentCrashed("fell")

    names = episodes("kuhn-poker-self")
    session = Falls(registry.make("kuhn-poker-self"))
    played = asyncio.run(match(session, [RandomPolicy().actor(e) for e in names], PromptFormat(), names, Limits()))
    assert all(trajectory.stop is StopReason.ENVIRONMENT_FAILED for trajectory in played)


def test_an_env_of_one_player_is_refused() -> None:
    with pytest.raises(UsageError, match="has one player"):
        play("keydoor", Says(lambda turn: "take"), Says(lambda turn: "take"))


def test_over_http_it_is_the_same_match() -> None:
    names = episodes("connect-four-self", 1)

    async def over_http(url: str) -> tuple[Trajectory, Trajectory]:
        async with connect(f"{url}/envs/connect-four-self") as connection:
            actors = [RandomPolicy(3).actor(episode) for episode in names]
            return await match(connection.session(), actors, PromptFormat(), names, Limits())

    with server_process(["connect-four-self"]) as url:
        served = asyncio.run(over_http(url))
    here = play("connect-four-self", *(RandomPolicy(3).actor(episode) for episode in names), task=1)
    for one, other in zip(served, here, strict=True):
        assert [(t.observation, t.reply, t.reward, t.role, t.info) for t in one.turns] == [
            (t.observation, t.reply, t.reward, t.role, t.info) for t in other.turns
        ]
        assert len(one.turns) > 2


def test_one_actor_at_both_roles_is_not_shown_the_others_cards() -> None:
    """An ordinary rollout of a two-player environment: a person, or one model, plays both."""
    actor = Says(lambda turn: ["pass", "bet", "bet"][turn])
    session = LocalSession(registry.make("kuhn-poker-self:hands=1"))
    played = asyncio.run(rollout(session, actor, PromptFormat(), episodes("kuhn-poker-self")[0], Limits()))
    assert [turn.role for turn in played.turns] == [0, 1, 0]
    assert [text.count("card J") for text in actor.texts] == [1, 0, 2]
    assert [text.count("card Q") for text in actor.texts] == [0, 1, 0]
    assert played.success  # the game was played by its rules
