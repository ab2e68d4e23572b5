"""The token policy through the real rollout: however an episode ends, its record is whole."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from agentgym.errors import PolicyFailure
from agentgym.rollouts.policy import EpisodeSpec
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits, Runner, rollout
from agentgym.rollouts.trajectory import Branch, StopReason, Trajectory
from agentgym.session import LocalSession
from agentgym.testing import EchoEnv
from agentgym_trainers.engines.base import Sampling
from agentgym_trainers.engines.inprocess import InProcessEngine
from agentgym_trainers.nn.tiny import TinyModel, make_model, make_tokenizer
from agentgym_trainers.rollout.policy import TokenPolicy
from agentgym_trainers.rollout.tokens import ChatTemplate
from agentgym_trainers.testing import ScriptedEngine

TEMPLATE = ChatTemplate(make_tokenizer(["user\nSay: apple", "assistant\napple", "You said: brook"] * 3, 300, 1024))
STOP = TEMPLATE.stop_ids()
END = TEMPLATE.end_id
EPISODE = EpisodeSpec("echo", "train", 0)
CUT = EchoEnv.env_spec.model_copy(update={"turn_limit": "truncates"})


def responses(*texts: str) -> list[list[int]]:
    return [[*TEMPLATE.encode(text), END] for text in texts]


def play(
    engine,
    prompt_format: PromptFormat | None = None,
    limits: Limits | None = None,
    sampling: Sampling | None = None,
    **env,
) -> Trajectory:
    async def once() -> Trajectory:
        session = LocalSession(EchoEnv(**env))
        policy = TokenPolicy(engine, TEMPLATE, sampling or Sampling(stop_ids=STOP))
        return await rollout(
            session, policy.actor(EPISODE), prompt_format or PromptFormat(), EPISODE, limits or Limits()
        )

    return asyncio.run(once())


def sampled_turns(trajectory: Trajectory) -> list[int]:
    return [turn for branch in trajectory.branches for turn in np.unique(branch.turn[branch.turn >= 0]).tolist()]


def tail(branch: Branch) -> str:
    """What follows the last sampled token."""
    sampled = np.flatnonzero(branch.turn >= 0)
    return TEMPLATE.decode(branch.ids[sampled[-1] + 1 if len(sampled) else 0 :])


@pytest.mark.parametrize("window", [None, 0])
@pytest.mark.parametrize(("stop", "replies", "options"), [
    (StopReason.TERMINATED, responses("apple", "brook", "cloud"), {}),
    (StopReason.TURN_LIMIT, responses("x", "x"), {"max_turns": 2}),
    (StopReason.TRUNCATED, responses("x", "x"), {"max_turns": 2, "spec": CUT}),
    (StopReason.MAX_TURNS, responses("x", "x"), {"limits": Limits(max_turns=2)}),
    (StopReason.INVALID_ACTION, responses("<action>x</action>", "x"), {"grammar": "tagged"}),
    (StopReason.ENVIRONMENT_FAILED, responses("apple", "brook"), {"crash_at": 1}),
    (StopReason.POLICY_FAILED, [*responses("apple"), PolicyFailure("the engine is gone")], {}),
    (StopReason.POLICY_FAILED, [*responses("apple"), []], {}),
    (StopReason.DEADLINE, responses("apple", "brook"), {"hang_at": 1, "hang_s": 0.3, "limits": Limits(episode_s=0.15)}),
])  # fmt: skip
def test_however_an_episode_ends(stop: StopReason, replies: list, options: dict, window: int | None) -> None:
    prompt_format = PromptFormat(window=window, grammar=options.get("grammar", "last_line"), on_invalid="end")
    engine = ScriptedEngine(replies)
    env = {name: value for name, value in options.items() if name not in ("grammar", "limits")}
    trajectory = play(engine, prompt_format, options.get("limits"), **env)
    assert trajectory.stop is stop
    assert (engine.opened, engine.closed) == (1, 1)
    assert len(trajectory.forks) == max(0, len(trajectory.branches) - 1)
    for i, turn in enumerate(trajectory.turns):
        branch, completion = trajectory.branches[turn.span.branch], engine.calls[i][2]
        assert branch.ids[turn.span.start : turn.span.stop].tolist() == completion.ids
        assert branch.ids[: turn.span.start].tolist() == list(engine.calls[i][1])
    turn_numbers = [*range(len(trajectory.turns))]
    # A reply whose step failed was sampled, but is no turn.
    lost = len(engine.calls) - len(trajectory.turns) if replies[-1] else 0
    assert sampled_turns(trajectory) == [*turn_numbers, *range(len(turn_numbers), len(turn_numbers) + lost)]
    if stop.is_truncated:
        assert trajectory.final_observation in tail(trajectory.branches[-1])
        assert tail(trajectory.branches[-1]).endswith("<|im_start|>assistant\n")
    elif not stop.is_failure:
        assert tail(trajectory.branches[-1]) == ""
    again = Trajectory.from_json(trajectory.to_json())
    assert again.to_json() == trajectory.to_json()


@pytest.mark.parametrize("window", [None, 0])
def test_the_context_is_full(window: int | None) -> None:
    """The prompt that did not fit is recorded, unsampled: the value of the final observation can be read."""
    prompt_format = PromptFormat(window=window, system="")
    probe = ScriptedEngine(responses("x", "x", "x"))
    play(probe, prompt_format, Limits(max_turns=3))
    # The window drops what was said, so that the prompt stops growing; it is full at once or never.
    room = len(probe.calls[1][1])
    engine = ScriptedEngine(responses("x", "x", "x"), max_length=room)
    trajectory = play(engine, prompt_format, Limits(max_turns=3))
    assert trajectory.stop is StopReason.CONTEXT_FULL
    assert len(trajectory.turns) == 1
    assert engine.closed == 1
    assert trajectory.final_observation in tail(trajectory.branches[-1])
    assert len(trajectory.branches) == (1 if window is None else 2)


def test_the_first_prompt_does_not_fit() -> None:
    trajectory = play(ScriptedEngine([], max_length=4))
    assert trajectory.stop is StopReason.CONTEXT_FULL
    assert trajectory.turns == ()
    assert (trajectory.branches[0].turn == -1).all()


def test_an_episode_without_a_turn_leaves_no_tokens() -> None:
    engine = ScriptedEngine([])
    trajectory = play(engine, limits=Limits(max_turns=0))
    assert (trajectory.branches, trajectory.forks, engine.closed) == ((), (), 1)


def test_a_bug_stops_the_run_and_still_closes_the_conversation() -> None:
    engine = ScriptedEngine([*responses("apple"), ValueError("a bug")])
    with pytest.raises(ValueError, match="a bug"):
        play(engine)
    assert engine.closed == 1


def test_an_empty_reply_is_one_stop_token() -> None:
    trajectory = play(ScriptedEngine([[END]] * 2), limits=Limits(max_turns=2))
    assert [turn.reply for turn in trajectory.turns] == ["", ""]
    assert [turn.span.stop - turn.span.start for turn in trajectory.turns] == [1, 1]
    assert [turn.action for turn in trajectory.turns] == [None, None]
    assert not trajectory.forks


def test_finish_says_whether_a_reply_was_cut() -> None:
    ids = responses("apple")[0]
    trajectory = play(ScriptedEngine([ids, ids[:-1], [*ids[:-1], END]]), limits=Limits(max_turns=3))
    assert [turn.finish for turn in trajectory.turns] == ["stop", "length", "stop"]


def test_episodes_at_once_are_kept_apart() -> None:
    def script(call: int, prompt: Sequence[int]) -> list[int]:
        word = TEMPLATE.decode(prompt).rsplit("Say: ")[-1].split("<|im_end|>")[0]
        return responses(word)[0]

    async def once() -> list[Trajectory]:
        async def open_session() -> LocalSession:
            return LocalSession(EchoEnv())

        runner = Runner(open_session, PromptFormat(), Limits(), concurrency=4)
        policy = TokenPolicy(engine, TEMPLATE, Sampling(stop_ids=STOP))
        return await runner.run(policy, [EpisodeSpec("echo", "train", task) for task in range(8)])

    engine = ScriptedEngine(script)
    trajectories = asyncio.run(once())
    assert all(trajectory.success for trajectory in trajectories)
    assert (engine.opened, engine.closed) == (8, 8)
    contexts = {tuple(prompt) + tuple(completion.ids) for _, prompt, completion in engine.calls}
    for trajectory in trajectories:
        for turn in trajectory.turns:
            assert tuple(trajectory.branches[0].ids[: turn.span.stop].tolist()) in contexts


def test_streams_belong_to_the_episode_and_the_salt() -> None:
    class Engine(ScriptedEngine):
        def open(self, rng):
            drawn.append(rng.random())
            return super().open(rng)

    drawn: list[float] = []
    engine = Engine([])
    for salt, attempt in [((0, 1), 0), ((0, 1), 0), ((0, 2), 0), ((0, 1), 1)]:
        TokenPolicy(engine, TEMPLATE, Sampling(), salt).actor(EPISODE._replace(attempt=attempt))
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 3


@pytest.mark.parametrize(
    "prompt_format", [PromptFormat(), PromptFormat(window=1), PromptFormat(grammar="tagged", window=0)]
)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_model_gives_the_same_log_probabilities_to_the_record(
    prompt_format: PromptFormat, temperature: float
) -> None:
    """T-R5: one forward over each branch says what the engine said when it sampled."""
    shape = TinyModel(hidden_size=32, layers=2, heads=1, intermediate_size=32, max_length=512)
    model = make_model(shape, TEMPLATE.tokenizer, 3).eval()
    reference = make_model(shape, TEMPLATE.tokenizer, 3).eval()  # the engine changes how its model attends
    engine = InProcessEngine(model, max_sequences=1, max_length=512)
    sampling = Sampling(temperature, 6, STOP)
    trajectory = play(engine, prompt_format, Limits(max_turns=4), sampling)
    engine.shutdown()
    assert len(trajectory.turns) == 4
    assert bool(trajectory.forks) == (prompt_format.window is not None)
    for branch in trajectory.branches:
        at = np.flatnonzero(branch.turn >= 0)
        with torch.inference_mode():
            logits = reference(torch.from_numpy(branch.ids[None].astype(np.int64))).logits[0] / temperature
        learned = torch.log_softmax(logits.float(), -1)[at - 1, branch.ids[at].astype(np.int64)]
        assert np.allclose(learned.numpy(), branch.logprobs[at], atol=1e-4)


@pytest.mark.parametrize("window", [None, 0])
def test_a_final_observation_fits_where_the_learner_must_hold_it(window: int | None) -> None:
    """The last observation of a cut episode is never sampled from, so nothing else has bounded it."""
    replies, prompt_format, limits = responses("x", "x" * 40), PromptFormat(window=window), Limits(max_turns=2)
    free = play(ScriptedEngine(replies), prompt_format, limits).branches
    room = len(free[-1].ids) - 5
    sampled = np.flatnonzero(free[-1].turn >= 0).max(initial=-1) + 1
    assert sampled < room
    held = play(ScriptedEngine(replies, room), prompt_format, limits)
    assert held.stop is StopReason.MAX_TURNS
    assert held.branches[-1].ids.tolist() == free[-1].ids[:room].tolist()
    assert [branch.ids.tolist() for branch in held.branches[:-1]] == [branch.ids.tolist() for branch in free[:-1]]


def test_a_prompt_that_was_refused_is_not_kept_in_full() -> None:
    replies = responses("x" * 40, "x")
    room = len(play(ScriptedEngine(replies), limits=Limits(max_turns=2)).branches[0].ids) - 30
    held = play(ScriptedEngine(replies, room))
    assert held.stop is StopReason.CONTEXT_FULL
    assert [len(branch.ids) for branch in held.branches] == [room]
