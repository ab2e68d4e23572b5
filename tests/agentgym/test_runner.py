"""Rollout and Runner: every way an episode can end, retries, order, cancellation, and nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import math
import time
from contextlib import aclosing

import numpy as np
import pytest

from agentgym.env import Env
from agentgym.errors import AtCapacity, EnvironmentCrashed, PolicyFailure, UsageError
from agentgym.rollouts.policy import ContextFull, EpisodeSpec, ModelResponse, RandomPolicy, TextActor, Tokens
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits, Runner, rollout
from agentgym.rollouts.trajectory import Branch, StopReason
from agentgym.session import LocalSession, Step
from agentgym.spec import EnvSpec

EPISODE = EpisodeSpec("count", "train", 0, seed=3, attempt=1)


class Count(Env):
    """Say a number; "end" wins with reward 1. The seed decides the first observation."""

    env_spec = EnvSpec(
        id="count",
        description="Counts.",
        instructions="Say a number, or end.",
        actions=("1", "2", "end"),
        splits={"train": 100},
        max_turns=4,
        info_keys=("success", "state_key"),
        inline=True,
    )

    def __init__(self, spec: EnvSpec | None = None) -> None:
        super().__init__(spec)
        self.closed = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.select_task(options)
        self.total = int(self.np_random.integers(1000))
        self.steps = 0
        return f"total {self.total}", {"success": False, "state_key": f"{self.total}"}

    def step(self, action):
        self.steps += 1
        done = action == "end"
        self.total += 0 if done else int(action)  # raises for anything else
        info = {"success": done, "state_key": f"{self.total}"}
        return f"total {self.total}", float(done), done, not done and self.steps >= self.env_spec.max_turns, info

    def close(self):
        self.closed += 1


class Cut(Count):
    """Its limit is not part of the task."""

    env_spec = Count.env_spec.model_copy(update={"turn_limit": "truncates"})


class Recorded:
    """A policy of one reply after another that counts its actors' beginnings and ends."""

    def __init__(self, *replies: str | Exception) -> None:
        self.replies, self.begun, self.finished, self.asks = replies, 0, [], []

    def actor(self, episode):
        self.begun += 1
        return _Recorded(self)


class _Recorded(TextActor):
    def __init__(self, policy: Recorded) -> None:
        self.policy = policy

    async def act(self, ask):
        self.policy.asks.append(ask)
        reply = self.policy.replies[min(ask.turn, len(self.policy.replies) - 1)]
        if isinstance(reply, BaseException):
            raise reply
        return ModelResponse(reply)

    def finish(self, messages):
        self.policy.finished.append(messages)
        return Tokens(forks=("seen",))


def play(policy, env=None, prompt_format=None, limits=None):
    session = env if env is not None and not isinstance(env, Env) else LocalSession(env or Count())
    actor = policy.actor(EPISODE)
    return asyncio.run(rollout(session, actor, prompt_format or PromptFormat(), EPISODE, limits or Limits()))


@pytest.mark.parametrize(
    ("replies", "options", "stop", "turns", "gets_final"),
    [
        (["1", "end"], {}, StopReason.TERMINATED, 2, False),
        (["1"], {}, StopReason.TURN_LIMIT, 4, False),
        (["1"], {"env": Cut()}, StopReason.TRUNCATED, 4, True),
        (["1"], {"limits": Limits(max_turns=2)}, StopReason.MAX_TURNS, 2, True),
        (["1"], {"limits": Limits(max_turns=4)}, StopReason.TURN_LIMIT, 4, False),
        ([""], {}, StopReason.TURN_LIMIT, 4, False),
        ([""], {"env": Cut()}, StopReason.TRUNCATED, 4, True),
        ([""], {"prompt_format": PromptFormat(on_invalid="end")}, StopReason.INVALID_ACTION, 1, False),
        (["1", ContextFull("long")], {}, StopReason.CONTEXT_FULL, 1, False),
        (["1", PolicyFailure("the engine fell")], {}, StopReason.POLICY_FAILED, 1, False),
        (["1", "what?"], {}, StopReason.ENVIRONMENT_FAILED, 1, False),
    ],
)
def test_every_end(replies, options, stop, turns, gets_final):
    policy = Recorded(*replies)
    played = play(policy, **options)
    assert played.stop is stop
    assert len(played.turns) == turns
    assert bool(played.error) == stop.is_failure
    assert played.forks == ("seen",)
    assert len(policy.finished) == 1, "finish is called exactly once"
    assert (policy.finished[0] is not None) == gets_final, "a cut episode bootstraps from the final observation"
    if gets_final:
        assert policy.finished[0][-1] == {"role": "user", "content": played.final_observation}


def test_errors_say_what_failed():
    assert play(Recorded("what?")).error.startswith("ENVIRONMENT_CRASHED: count raised ValueError")
    assert play(Recorded(PolicyFailure("the engine fell"))).error == "the engine fell"


class Slow(Count):
    env_spec = Count.env_spec.model_copy(update={"inline": False, "step_deadline_s": 0.05})

    def step(self, action):
        time.sleep(0.3)
        return super().step(action)


def test_an_env_that_hangs_fails_at_its_deadline():
    played = play(Recorded("1"), Slow())
    assert played.stop is StopReason.ENVIRONMENT_FAILED
    assert played.error.startswith("DEADLINE_EXCEEDED: count gave no answer in 0.05 s")


class Sleeper(Recorded):
    def actor(self, episode):
        actor = super().actor(episode)
        quick = actor.act

        async def act(ask):
            if ask.turn == 1:
                await asyncio.sleep(60)
            return await quick(ask)

        actor.act = act
        return actor


def test_an_episode_past_its_deadline_fails_with_its_turns():
    policy = Sleeper("1")
    played = play(policy, limits=Limits(episode_s=0.05))
    assert (played.stop, len(played.turns), len(policy.finished)) == (StopReason.DEADLINE, 1, 1)
    assert played.error == "the episode took longer than 0.05 s"


@pytest.mark.parametrize("bug", [RuntimeError("bug"), TimeoutError("a policy's own"), UsageError("no key")])
def test_a_bug_or_misuse_stops_the_run_after_finish(bug):
    policy = Recorded("1", bug)
    with pytest.raises(type(bug), match=str(bug)):
        play(policy)
    assert policy.finished == [None]


class Garbled:
    """A session that answers what the contract forbids."""

    spec = Count.env_spec

    def __init__(self, step):
        self.garbage = step

    async def reset(self, *, seed=None, options=None):
        return Step("begin", 0.0, False, False, {})

    async def step(self, action):
        return self.garbage


@pytest.mark.parametrize(
    "step",
    [
        Step(42, 0.0, False, False, {}),
        Step(None, 0.0, False, False, {}),
        Step({"image": np.zeros((1, 1, 3), np.uint8)}, 0.0, False, False, {}),
        Step("fine", math.nan, False, False, {}),
        Step("fine", math.inf, False, False, {}),
    ],
)
def test_what_cannot_be_shown_or_scored_is_the_envs_failure(step):
    played = play(Recorded("1"), Garbled(step))
    assert played.stop is StopReason.ENVIRONMENT_FAILED
    assert played.error.startswith("ENVIRONMENT_CRASHED: count")
    assert played.turns == ()


def test_turns_record_observation_response_and_answer():
    policy = Recorded("thinking\n1", "", "end")
    played = play(policy, prompt_format=PromptFormat(invalid_penalty=0.5))
    first, second, third = played.turns
    assert (first.reply, first.action, first.reward) == ("thinking\n1", "1", 0.0)
    assert first.observation == policy.asks[0].messages[-1]["content"]
    assert first.state_key == first.observation.removeprefix("total ")
    assert (second.action, second.penalty, second.info["valid_action"]) == (None, 0.5, False)
    assert third.observation.startswith("No action taken: the reply was empty. Reply with one action")
    assert second.state_key == third.state_key, "a reply without an action leaves the environment as it is"
    assert (third.reward, played.score, played.success) == (1.0, 1.0, True)
    assert policy.asks[2].messages[-2:] == [
        {"role": "assistant", "content": ""},
        {"role": "user", "content": third.observation},
    ]


def test_under_a_window_a_complaint_tells_the_env_again():
    policy = Recorded("", "", "end")
    played = play(policy, prompt_format=PromptFormat(window=0))
    first = played.turns[0].observation
    assert [ask.messages[-1]["content"].endswith(f"\n\n{first}") for ask in policy.asks] == [False, True, True]
    assert policy.asks[2].messages[-1]["content"].count(first) == 1


def test_tokens_are_kept():
    class TokenActor(_Recorded):
        def finish(self, messages):
            zeros = np.zeros(2, np.int32)
            return Tokens((Branch(zeros, zeros, zeros.astype(np.float32), zeros),))

    policy = Recorded("end")
    policy.actor = lambda episode: TokenActor(policy)
    assert len(play(policy).branches) == 1


def run(policy, episodes, open_session=None, **options):
    """(trajectories, the environments that were opened); no task is left behind."""
    envs: list[Env] = []

    async def open_one():
        envs.append(Count())
        return LocalSession(envs[-1])

    async def go():
        try:
            return await Runner(open_session or open_one, PromptFormat(), Limits(), **options).run(policy, episodes)
        finally:
            assert asyncio.all_tasks() == {asyncio.current_task()}, "a task was left behind"

    return asyncio.run(go()), envs


def episodes(count: int) -> list[EpisodeSpec]:
    return [EpisodeSpec("count", "train", index, seed=index) for index in range(count)]


def jittery(seed: int):
    """End after a random wait, so that episodes finish out of order."""
    rng = np.random.default_rng(seed)

    class Actor(TextActor):
        async def act(self, ask):
            await asyncio.sleep(float(rng.uniform(0, 0.01)))
            return ModelResponse("end")

    class Policy:
        def actor(self, episode):
            return Actor()

    return Policy()


def test_the_runner_keeps_order_reuses_sessions_and_closes_them():
    played, envs = run(jittery(0), episodes(30), concurrency=4)
    assert [t.task for t in played] == list(range(30))
    assert len(envs) == 4
    assert [env.closed for env in envs] == [1] * 4
    assert run(jittery(0), [], concurrency=4)[0] == []


def test_concurrency_does_not_change_what_is_played():
    def replies(concurrency):
        played, _ = run(RandomPolicy(seed=5), episodes(20), concurrency=concurrency)
        return [[(turn.observation, turn.reply) for turn in t.turns] for t in played]

    assert replies(1) == replies(7)


def test_a_failed_episode_is_retried_with_the_same_seed():
    states: list[str] = []

    class Flaky(Count):
        def step(self, action):
            states.append(self.np_random.bit_generator.state["state"]["state"])
            if len(states) == 1:
                raise OSError("the disk")
            return super().step(action)

    opened: list[Flaky] = []

    async def open_one():
        opened.append(Flaky())
        return LocalSession(opened[-1])

    policy = Recorded("end")
    (played,), _ = run(policy, episodes(1), open_one, retries=1)
    assert played.stop is StopReason.TERMINATED
    assert states[0] == states[1]
    assert [env.closed for env in opened] == [1, 1]
    assert (policy.begun, len(policy.finished)) == (2, 2)


@pytest.mark.parametrize("retries", [0, 2])
def test_when_retries_run_out_the_failure_is_the_record(retries):
    policy = Recorded("what?")
    played, envs = run(policy, episodes(3), retries=retries, concurrency=2)
    assert [t.stop for t in played] == [StopReason.ENVIRONMENT_FAILED] * 3
    assert len(envs) == policy.begun == len(policy.finished) == 3 * (retries + 1)


def test_results_come_as_they_are_made_even_when_nothing_waits():
    policy = Recorded("end")

    async def open_one():
        return LocalSession(Count())

    async def go():
        ahead = []
        async with aclosing(
            Runner(open_one, PromptFormat(), Limits(), concurrency=2).stream(policy, episodes(50))
        ) as stream:
            async for _ in stream:
                ahead.append(policy.begun - len(ahead) - 1)
        return ahead

    assert max(asyncio.run(go())) <= 4


def test_an_env_that_cannot_open_is_a_failure_without_turns():
    async def full():
        raise AtCapacity("no room")

    policy = Recorded("end")
    (played,), _ = run(policy, episodes(1), full)
    assert (played.stop, played.turns, played.error) == (
        StopReason.ENVIRONMENT_FAILED,
        (),
        "CAPACITY_REACHED: no room",
    )
    assert policy.begun == len(policy.finished)


def test_a_session_that_cannot_be_closed_does_not_stop_the_run():
    class Stubborn(LocalSession):
        async def close(self):
            raise EnvironmentCrashed("it will not close")

    async def open_one():
        return Stubborn(Count())

    assert len(run(Recorded("end"), episodes(3), open_one)[0]) == 3


def test_a_bug_stops_the_run_and_leaves_nothing_behind():
    policy = Recorded(RuntimeError("bug"))
    with pytest.raises(RuntimeError, match="bug"):
        run(policy, episodes(50), concurrency=8)
    assert len(policy.finished) == policy.begun
    gc.collect()  # a future that was never awaited would warn, and warnings are errors


def test_leaving_or_cancelling_the_stream_leaves_nothing():
    policy, envs = Sleeper("1"), []

    async def open_one():
        envs.append(Count())
        return LocalSession(envs[-1])

    async def go():
        runner = Runner(open_one, PromptFormat(), Limits(max_turns=1), concurrency=4)
        async with aclosing(runner.stream(policy, episodes(20))) as stream:
            async for _ in stream:
                break
        assert asyncio.all_tasks() == {asyncio.current_task()}
        running = asyncio.create_task(
            Runner(open_one, PromptFormat(), Limits(), concurrency=4).run(policy, episodes(20))
        )
        await asyncio.sleep(0.05)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(go())
    assert [env.closed for env in envs] == [1] * len(envs)
    assert policy.begun == len(policy.finished)
    gc.collect()
