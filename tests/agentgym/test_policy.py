"""Policies: scripted, random, solver and human actors, and the random streams of episodes."""

from __future__ import annotations

import asyncio

import pytest

from agentgym.errors import UsageError
from agentgym.rollouts.policy import (
    EpisodeSpec,
    HumanPolicy,
    RandomPolicy,
    ScriptedPolicy,
    SolverPolicy,
    TextActor,
    Tokens,
    TurnContext,
)
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits, rollout
from agentgym.session import LocalSession, Step
from agentgym.testing import EchoEnv

EPISODE = EpisodeSpec("echo", "test", 1)


def play(policy, episode=EPISODE, prompt_format=None):
    actor = policy.actor(episode)
    return asyncio.run(rollout(LocalSession(EchoEnv()), actor, prompt_format or PromptFormat(), episode, Limits()))


def ask(actions=(), info=None, turn=0):
    session = LocalSession(EchoEnv())
    session.spec = session.spec.model_copy(update={"actions": tuple(actions)})
    return TurnContext([], turn, Step("look", 0.0, False, False, info or {}), "look", session, PromptFormat())


def response_of(policy, question, episode=EPISODE):
    return asyncio.run(policy.actor(episode).act(question)).text


def test_a_script_plays_in_order_and_repeats_its_last_line():
    policy = ScriptedPolicy(["a", "b"])
    assert [response_of(policy, ask(turn=turn)) for turn in range(4)] == ["a", "b", "b", "b"]
    assert response_of(ScriptedPolicy(lambda question: f"turn {question.turn}"), ask(turn=7)) == "turn 7"
    with pytest.raises(UsageError, match="at least one action"):
        ScriptedPolicy([]).actor(EPISODE)


@pytest.mark.parametrize("grammar", ["last_line", "tagged", "tool_call"])
def test_the_solver_wins_in_every_grammar(grammar):
    assert play(SolverPolicy(), prompt_format=PromptFormat(grammar=grammar)).success


def test_random_prefers_the_available_actions_and_is_uniform():
    draws = [response_of(RandomPolicy(), ask("ab", {"available_actions": ["c"]})) for _ in range(3)]
    assert draws == ["c"] * 3
    actor, question = RandomPolicy(seed=1).actor(EPISODE), ask("ab")
    counted = [asyncio.run(actor.act(question)).text for _ in range(400)]
    assert 150 < counted.count("a") < 250
    with pytest.raises(UsageError, match="echo lists no actions"):
        response_of(RandomPolicy(), ask())


def test_a_noisy_solver_draws_at_random_sometimes():
    question = ask("xy")

    async def go():
        await question.session.reset(seed=0)
        actor = SolverPolicy(noise=0.5, seed=2).actor(EPISODE)
        return [(await actor.act(question)).text for _ in range(200)]

    replies = asyncio.run(go())
    assert 60 < sum(reply in "xy" for reply in replies) < 140


def test_random_streams_differ_by_every_part_of_an_episode():
    episodes = [
        EPISODE,
        EPISODE._replace(env="other"),
        EPISODE._replace(split="train"),
        EPISODE._replace(task=2),
        EPISODE._replace(seed=1),
        EPISODE._replace(attempt=1),
    ]
    first = [episode.rng().integers(2**62) for episode in episodes]
    assert first == [episode.rng().integers(2**62) for episode in episodes]
    assert len({*first, EPISODE.rng(1).integers(2**62), EPISODE.rng(2).integers(2**62)}) == 8


@pytest.mark.parametrize("grammar", ["last_line", "tagged", "tool_call"])
def test_a_person_types_bare_actions_in_any_grammar(grammar):
    shown: list[str] = []
    env = EchoEnv()
    env.reset(seed=0, options={"split": "test", "task": 1})
    words = []
    for _ in range(3):
        words.append(env.solver())
        env.step(words[-1])
    lines = iter(words)
    played = play(
        HumanPolicy(read=lambda prompt: next(lines), write=shown.append), prompt_format=PromptFormat(grammar=grammar)
    )
    assert played.success
    assert shown[0].startswith("You are shown a word.")
    assert sum(text.startswith("\n[turn") for text in shown) == 3


def test_text_actors_have_no_tokens():
    assert TextActor().finish(None) == Tokens()
    with pytest.raises(NotImplementedError, match=r"act\(ask\) -> Reply"):
        asyncio.run(TextActor().act(ask()))
