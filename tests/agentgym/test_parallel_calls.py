"""Several tool calls in one reply: carried out in order, one turn, and recorded as such."""

from __future__ import annotations

import asyncio
import json

import pytest

from agentgym.env import Env
from agentgym.evaluation.atif import write_atif
from agentgym.evaluation.evaluate import evaluate
from agentgym.evaluation.export import write_openai
from agentgym.evaluation.suite import Suite
from agentgym.evaluation.verify import verify
from agentgym.rollouts.policy import EpisodeSpec, ModelResponse, TextActor
from agentgym.rollouts.prompt_format import UNDONE, PromptFormat, render_call, results_of
from agentgym.rollouts.runner import EpisodePrefix, Limits, rollout
from agentgym.rollouts.trajectory import StopReason, Trajectory
from agentgym.session import LocalSession, Step
from agentgym.spec import EnvSpec

EPISODE = EpisodeSpec("till", "train", 0)


class Till(Env):
    """A till: `add` a number; `pay` ends, with the sum as the reward. An `add` earns a hundredth; 13 is no price."""

    env_spec = EnvSpec(
        id="till",
        description="Adds.",
        instructions="Add, and pay.",
        tools=[{"name": "add", "parameters": {"required": ["n"]}}, {"name": "pay"}],
        splits={"train": 1},
        reward_range=(0.0, 100.0),
        max_turns=5,
        capabilities=("snapshot",),
        inline=True,
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.select_task(options)
        self.added = []
        return "empty", {"success": False, "valid_action": True}

    def step(self, action):
        if action["name"] == "pay":
            return "paid", float(sum(self.added)), True, False, {"success": True, "valid_action": True}
        good = action["arguments"]["n"] != 13
        self.added.append(action["arguments"]["n"] if good else 0)
        full = len(self.added) >= self.env_spec.max_turns
        return f"added {self.added[-1]}", 0.01 * good, False, full, {"success": False, "valid_action": good}

    def snapshot(self):
        return json.dumps(self.added).encode()

    def restore(self, state):
        self.added = json.loads(state)


def add(n):
    return {"name": "add", "arguments": {"n": n}}


PAY = {"name": "pay", "arguments": {}}


class Script(TextActor):
    def __init__(self, replies):
        self.replies = iter(replies)

    async def act(self, ask):
        return ModelResponse(next(self.replies))


def till(*replies):
    texts = ["\n".join(map(render_call, calls)) for calls in replies]
    return asyncio.run(rollout(LocalSession(Till()), Script(texts), PromptFormat(), EPISODE, Limits()))


def test_several_calls_are_carried_out_in_order_as_one_turn():
    played = till([add(1), add(13), add(5)], [add(7), PAY, add(9)])
    first, second = played.turns
    assert first.action == [add(1), add(13), add(5)]
    assert first.results == ("added 1", "added 0", "added 5")
    assert first.info["valid_action"] is False, "one of them was not"
    assert second.observation == "Result of call 1: added 1\nResult of call 2: added 0\nResult of call 3: added 5"
    assert second.results == ("added 7", "paid"), "what comes after the end is not carried out"
    assert [first.reward, second.reward] == pytest.approx([0.02, 13.01])
    assert (played.stop, played.success) == (StopReason.TERMINATED, True)
    assert Trajectory.from_json(json.loads(json.dumps(played.to_json()))) == played


def test_several_calls_end_at_the_limit_of_the_environment():
    played = till([add(n) for n in range(9)])
    assert played.turns[0].results == tuple(f"added {n}" for n in range(5))
    assert played.stop is StopReason.TURN_LIMIT


def test_calls_of_which_one_cannot_be_read_change_nothing():
    played = till([add(1), {"name": "add", "arguments": {}}], [add(2), PAY])
    assert played.turns[0].action is None
    assert played.score == pytest.approx(2.01)


def test_an_episode_goes_on_after_several_calls():
    """What a continuation is shown is what the agent was shown."""
    session, prompt_format = LocalSession(Till()), PromptFormat(system="")
    display = results_of(["added 1", "added 2"])
    past = EpisodePrefix(b"[1, 2]", Step("added 2", 0.0, False, False, {"valid_action": True}), display, display)
    prompts = []

    class Listener(TextActor):
        async def act(self, ask):
            prompts.append(ask.messages[-1]["content"])
            return ModelResponse(render_call(PAY))

    played = asyncio.run(rollout(session, Listener(), prompt_format, EPISODE, Limits(), past))
    assert prompts == ["Result of call 1: added 1\nResult of call 2: added 2"]
    assert played.score == 3.0


def test_exports_have_each_result_at_its_call(tmp_path):
    replies = [[add(1), add(2)], [PAY, add(3)]]

    class Native(TextActor):
        """Speaks as a server with parallel calls does."""

        def actor(self, episode):
            return self

        async def act(self, ask):
            calls = replies[ask.turn]
            entries = [
                {
                    "id": f"c{ask.turn}{i}",
                    "type": "function",
                    "function": {**call, "arguments": json.dumps(call["arguments"])},
                }
                for i, call in enumerate(calls)
            ]
            message = {"role": "assistant", "content": None, "tool_calls": entries}
            return ModelResponse("\n".join(map(render_call, calls)), tuple(calls), message=message)

    suite = Suite.model_validate({"name": "s", "env": [{"name": f"{__name__}:Till", "split": "train", "tasks": 1}]})
    asyncio.run(evaluate(suite, Native(), tmp_path, identity="native"))
    write_openai(tmp_path, tmp_path / "chats.jsonl")
    chat = json.loads((tmp_path / "chats.jsonl").read_text())["messages"]
    assert [(m["role"], m.get("tool_call_id"), m["content"]) for m in chat[1:]] == [
        ("user", None, "empty"),
        ("assistant", None, None),
        ("tool", "c00", "added 1"),
        ("tool", "c01", "added 2"),
        ("assistant", None, None),
    ]
    write_atif(tmp_path, tmp_path / "atif")
    (file,) = (tmp_path / "atif").glob("*.json")
    steps = json.loads(file.read_text())["steps"][2:]
    assert [[(r["source_call_id"], r["content"]) for r in step["observation"]["results"]] for step in steps] == [
        [("c00", "added 1"), ("c01", "added 2")],
        [("c10", "paid"), ("c11", UNDONE)],
    ]
    assert [[call["tool_call_id"] for call in step["tool_calls"]] for step in steps] == [["c00", "c01"], ["c10", "c11"]]
    found = asyncio.run(verify(tmp_path))
    assert (found.same, found.differences) == (1, [])
