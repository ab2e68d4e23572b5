"""Agents that know nothing but a base URL: what they ask is recorded as turns, to the token, and can be trained on."""

from __future__ import annotations

import asyncio
import copy
import gc
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentgym import registry
from agentgym.errors import PolicyFailure
from agentgym.rollouts.openai_policy import OpenAIPolicy
from agentgym.rollouts.policy import EpisodeSpec
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits, rollout
from agentgym.rollouts.trajectory import StopReason, Trajectory, read_jsonl
from agentgym.session import LocalSession
from agentgym_servers.inference.app import create_inference_app
from agentgym_servers.web.run import serve_in_thread
from agentgym_trainers.engines.base import Sampling
from agentgym_trainers.engines.inprocess import InProcessEngine
from agentgym_trainers.nn import tiny
from agentgym_trainers.rollout.external.recorder import Recorder
from agentgym_trainers.rollout.policy import TokenPolicy
from agentgym_trainers.rollout.served_model import ServedModel
from agentgym_trainers.rollout.tokens import ChatTemplate
from agentgym_trainers.testing import ScriptedEngine

TEMPLATES = Path(__file__).resolve().parent.parent / "trainers" / "templates"
LENGTH = 640
HELLO = {"role": "user", "content": "hello"}
TOOLS = [{"type": "function", "function": {"name": "act", "description": "", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    spec = registry.get_spec("keydoor")
    corpus = [
        PromptFormat().instructions(spec),
        *spec.actions,
        "user\n",
        "assistant\n",
        '{"name": "act", "arguments": {',
    ] * 3
    return tiny.make_tokenizer(corpus, 320, LENGTH)


@pytest.fixture(scope="module")
def model(tokenizer) -> Any:
    """Weights are drawn wide, so that predictions depend strongly on every token before."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        intermediate_size=48,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=False,
        initializer_range=0.25,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        pad_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Qwen3ForCausalLM(config).eval()


@contextmanager
def serving(engine: Any, tokenizer: Any, **options: Any) -> Iterator[tuple[str, Recorder]]:
    torch.set_num_threads(1)
    served = ServedModel(engine, ChatTemplate(tokenizer), name="tiny", max_sequences=8, max_tokens=24)
    recorder = Recorder(served.template, **options)
    with serve_in_thread(create_inference_app(served, recorder=recorder)) as url:
        yield url, recorder
    asyncio.run(engine.aclose())


@pytest.fixture
def scripted(tokenizer) -> Callable[..., Any]:
    """scripted(replies, template="chatml") -> a server whose engine says these, one a call, each ended."""

    @contextmanager
    def serve(replies: Sequence[str | list[int]], template: str = "", **options: Any) -> Iterator[tuple[str, Any]]:
        own = copy.deepcopy(tokenizer)
        if template:
            own.chat_template = (TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8")
        chat, end = ChatTemplate(own), own.eos_token_id
        responses = [one if isinstance(one, list) else [*chat.encode(one), end] for one in replies]
        engine = ScriptedEngine(lambda call, prompt: responses[len(engine.calls)])
        with serving(engine, own, **options) as (url, _):
            yield url, engine

    return serve


def chat(url: str, episode: str, messages: list[dict[str, Any]], **body: Any) -> httpx.Response:
    return httpx.post(f"{url}/episodes/{episode}/v1/chat/completions", json={"messages": messages, **body}, timeout=60)


def answered(reply: httpx.Response) -> tuple[dict[str, Any], str]:
    """(the message as a client sends it back, how the call went on)."""
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]["message"], reply.json()["agentgym"]["kind"]


def finish(url: str, episode: str, **ending: Any) -> Trajectory:
    done = httpx.post(f"{url}/episodes/{episode}/finish", json=ending)
    assert done.status_code == 200, done.text
    return Trajectory.from_json(httpx.get(f"{url}/episodes/{episode}").json())


def check_boundary(trajectory: Trajectory, engine: ScriptedEngine) -> None:
    """Every turn's branch holds the very prompt and reply that crossed the engine's boundary, and trains it once."""
    assert len(trajectory.turns) == len(engine.calls)
    for turn, (_, prompt, completion) in zip(trajectory.turns, engine.calls, strict=True):
        span = turn.span
        assert span is not None
        branch = trajectory.branches[span.branch]
        assert branch.ids[: span.start].tolist() == list(prompt)
        assert branch.ids[span.start : span.stop].tolist() == completion.ids
        assert branch.turn[span.start : span.stop].tolist() == [turn.index] * len(completion.ids)
        assert branch.logprobs[span.start : span.stop].tolist() == pytest.approx(completion.logprobs)
        assert branch.versions[span.start : span.stop].tolist() == completion.versions
    trained = sum(int((branch.turn >= 0).sum()) for branch in trajectory.branches)
    assert trained == sum(len(completion.ids) for _, _, completion in engine.calls)
    assert len(trajectory.forks) == len(trajectory.branches) - 1


def engine_of(model: Any) -> InProcessEngine:
    return InProcessEngine(copy.deepcopy(model), max_sequences=8, max_length=LENGTH)


async def play(policy: Any, episode: EpisodeSpec, turns: int = 3) -> Trajectory:
    session = LocalSession(registry.make(episode.env))
    return await rollout(session, policy.actor(episode), PromptFormat(), episode, Limits(turns))


async def play_url(base_url: str, episode: EpisodeSpec, turns: int = 3) -> Trajectory:
    async with OpenAIPolicy(base_url, "tiny", max_tokens=6) as policy:
        return await play(policy, episode, turns)


def test_an_episode_over_the_url_is_what_a_token_policy_plays(model, tokenizer):
    episode = EpisodeSpec("keydoor", "train", 3, 5)
    template = ChatTemplate(tokenizer)
    own = TokenPolicy(engine_of(model), template, Sampling(1.0, 6, template.stop_ids()), (7,))
    expected = asyncio.run(play(own, episode))
    with serving(engine_of(model), tokenizer) as (url, recorder):
        recorder.open("a", episode, episode.rng(7))
        played = asyncio.run(play_url(f"{url}/episodes/a/v1", episode))
        recorded = finish(url, "a", reward=[turn.reward for turn in played.turns], truncated=True)
        assert httpx.get(f"{url}/health").json()["episodes"] == {
            "open": 0, "finished": 1, "expired": 0, "clean": 3, "realign": 0, "fork": 0,
        }  # fmt: skip
    assert (recorded.stop, recorded.task, recorded.seed) == (StopReason.TRUNCATED, 3, 5)
    assert [turn.reply for turn in recorded.turns] == [turn.reply for turn in expected.turns]
    assert [turn.span for turn in recorded.turns] == [turn.span for turn in expected.turns]
    (branch,), (other,) = recorded.branches, expected.branches
    size = len(branch.ids)  # the other one has the final observation, too
    assert branch.ids.tolist() == other.ids[:size].tolist()
    assert branch.turn.tolist() == other.turn[:size].tolist()
    np.testing.assert_allclose(branch.logprobs, other.logprobs[:size], atol=1e-5)
    reference = copy.deepcopy(model)
    reference.set_attn_implementation("sdpa")
    with torch.inference_mode():
        logits = reference(input_ids=torch.tensor(branch.ids[None].astype(np.int64)), use_cache=False).logits[0, :-1]
    at = np.flatnonzero(branch.turn >= 0)
    learned = torch.log_softmax(logits, -1)[at - 1, branch.ids[at].astype(np.int64)]
    np.testing.assert_allclose(branch.logprobs[at], learned.numpy(), atol=1e-4)


def test_a_stream_is_recorded_like_a_plain_answer(model, tokenizer):
    with serving(engine_of(model), tokenizer) as (url, recorder):
        for name in ("whole", "streamed"):
            recorder.open(name, rng=np.random.default_rng(3))
        plain = chat(url, "whole", [HELLO], return_token_ids=True).json()
        streamed = chat(url, "streamed", [HELLO], stream=True).text
        assert '"agentgym":{"episode":"streamed","turn":0,"kind":"clean"}' in streamed
        a, b = finish(url, "whole"), finish(url, "streamed")
    assert a.branches[0].ids.tolist() == plain["prompt_token_ids"] + plain["choices"][0]["token_ids"]
    assert a.branches[0].ids.tolist() == b.branches[0].ids.tolist()


def test_what_the_agent_asks_of_sampling_is_the_servers(model, tokenizer):
    """Log-probabilities are those that the learner computes: one temperature; and a seed that every attempt sends
    would make them all alike."""
    with serving(engine_of(model), tokenizer) as (url, _):
        options = {"temperature": 0, "seed": 1, "return_token_ids": True}
        replies = [chat(url, name, [HELLO], **options).json()["choices"][0]["token_ids"] for name in "abc"]
    assert len({tuple(ids) for ids in replies}) == 3


@pytest.mark.parametrize(
    ("template", "replies", "change", "kind"),
    [
        ("", ["go north"], lambda m: m, "clean"),
        ("", ["go  north \n"], lambda m: {**m, "content": "go north"}, "realign"),
        ("", ["go north"], lambda m: {**m, "content": "\n go north"}, "realign"),
        ("", ["go north"], lambda m: {**m, "content": "go south"}, "fork"),
        ("", ["go north"], lambda m: {**m, "content": "go north!"}, "fork"),
        ("qwen3", ["<think>\nhm\n</think>\n\ntwo"], lambda m: m, "fork"),
        ("toolcalls", ['<tool_call>{"name": "act", "arguments": {"a": "x", "sure": false}}</tool_call>'],
         lambda m: m, "clean"),
        ("toolcalls", ['<tool_call>\n{"arguments": {"sure": false}, "name":"act"}\n</tool_call>'],
         lambda m: m, "realign"),
        ("toolcalls", ['<tool_call>{"name": "act", "arguments": {"sure": false}}</tool_call>'],
         lambda m: edited(m, '{"sure": "False"}'), "fork"),
        ("toolcalls", ['<tool_call>{"name": "act", "arguments": {"n": 1}}</tool_call>'],
         lambda m: edited(m, '{"n": 1.0}'), "fork"),
    ],
)  # fmt: skip
def test_how_a_conversation_goes_on(scripted, template, replies, change, kind):
    with scripted([*replies, "three", "four"], template) as (url, engine):
        messages, tools = [HELLO], {"tools": TOOLS} if template == "toolcalls" else {}
        for turn in range(3):
            message, went_on = answered(chat(url, "e", messages, **tools))
            assert went_on == ("clean" if turn != 1 else kind)
            message = change(message) if turn == 0 else message
            messages += [message, {"role": "user", "content": f"and {turn}"}]
        trajectory = finish(url, "e", reward=1)
    check_boundary(trajectory, engine)
    assert len(trajectory.branches) == (2 if kind == "fork" else 1)
    first = engine.calls[0][2].ids
    kept = list(engine.calls[1][1])[len(engine.calls[0][1]) :][: len(first)] == first
    assert kept == (kind != "fork")
    assert [turn.reward for turn in trajectory.turns] == [0, 0, 1]


def edited(message: dict[str, Any], arguments: str) -> dict[str, Any]:
    message = json.loads(json.dumps(message))
    message["tool_calls"][0]["function"]["arguments"] = arguments
    return message


def test_a_reply_is_never_tokenized_anew(scripted, tokenizer):
    """The reply is spelled letter by letter; whoever encodes its text gets other tokens."""
    letters = [*(token for letter in "go north" for token in tokenizer(letter)["input_ids"]), tokenizer.eos_token_id]
    assert tokenizer.decode(letters[:-1]) == "go north"
    assert letters[:-1] != tokenizer("go north")["input_ids"]
    with scripted([letters, letters, letters]) as (url, engine):
        message, _ = answered(chat(url, "e", [HELLO]))
        assert answered(chat(url, "e", [HELLO, message, HELLO]))[1] == "clean"
        assert (
            answered(chat(url, "e", [HELLO, {**message, "content": " go north"}, HELLO, message, HELLO]))[1]
            == "realign"
        )
        trajectory = finish(url, "e")
    check_boundary(trajectory, engine)
    assert len(trajectory.branches) == 1
    sampled = trajectory.branches[0].ids[trajectory.branches[0].turn >= 0].tolist()
    assert sampled == letters * 3


def test_training_data_is_what_crossed_the_boundary(scripted, tokenizer):
    """Random tokens, told again as they were, respaced, edited; conversations cut, gone on from twice, asked again."""
    rng, kinds = np.random.default_rng(0), set()
    for _ in range(6):
        replies = [[*rng.integers(3, len(tokenizer), 4).tolist(), tokenizer.eos_token_id] for _ in range(12)]
        with scripted(replies) as (url, engine):
            histories: list[list[dict[str, Any]]] = [[HELLO]]
            for _ in replies:
                messages = histories[rng.integers(len(histories))]
                message, kind = answered(chat(url, "e", messages))
                kinds.add(kind)
                content = message["content"]
                edited = [content, content, f" {content} ", f"{content}!", "nothing"][rng.integers(5)]
                more = [*messages, {"role": "assistant", "content": edited}, HELLO]
                histories.append(more[-3:] if rng.random() < 0.2 else more)
            trajectory = finish(url, "e")
        check_boundary(trajectory, engine)
    assert kinds == {"clean", "realign", "fork"}


def test_the_check_finds_a_reply_that_is_tokenized_anew(scripted, tokenizer):
    """What a proxy that keeps texts would train on: the check above does not let it pass."""
    letters = [token for letter in "go north" for token in tokenizer(letter)["input_ids"]] + [tokenizer.eos_token_id]
    with scripted([letters]) as (url, engine):
        answered(chat(url, "e", [HELLO]))
        trajectory = finish(url, "e")
    check_boundary(trajectory, engine)
    (branch,) = trajectory.branches
    ids = np.array(tokenizer(tokenizer.decode(branch.ids))["input_ids"], np.int32)
    assert tokenizer.decode(ids) == tokenizer.decode(branch.ids)
    drifted = replace(trajectory, branches=(replace(branch, ids=ids),))
    with pytest.raises(AssertionError):
        check_boundary(drifted, engine)


def test_token_prompts(scripted, tokenizer):
    """An agent that keeps tokens itself; one that tokenizes its text anew has its recorded tokens put back."""
    letters = [token for letter in "go north" for token in tokenizer(letter)["input_ids"]] + [tokenizer.eos_token_id]
    prompt = tokenizer("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")["input_ids"]
    more = tokenizer("\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n")["input_ids"]
    anew = tokenizer(tokenizer.decode([*prompt, *letters, *more]))["input_ids"]
    assert anew != [*prompt, *letters, *more]

    def complete(episode: str, ids: Any) -> str:
        answer = httpx.post(f"{url}/episodes/{episode}/v1/completions", json={"prompt": ids})
        assert answer.status_code == 200, answer.text
        return answer.json()["agentgym"]["kind"]

    with scripted([letters] * 8) as (url, engine):
        prompts = [prompt, [*prompt, *letters, *more], [*prompt, *letters, *more, *letters, *more], [*prompt, *more]]
        assert [complete("own", ids) for ids in prompts] == ["clean", "clean", "clean", "fork"]
        trajectory = finish(url, "own")
        check_boundary(trajectory, engine)
        assert len(trajectory.branches) == 2
        engine.calls.clear()
        assert [complete("anew", ids) for ids in (prompt, anew)] == ["clean", "realign"]
        assert complete("anew", tokenizer.decode([*prompts[2]])) == "clean"  # as text
        check_boundary(finish(url, "anew"), engine)


def test_sub_agents_share_what_they_have_in_common(scripted):
    """Two calls go on from the first turn, a third begins a conversation of its own: each token is trained once."""
    replies = ["plan", "left", "right", "left again", "alone"]
    with scripted(replies) as (url, engine):
        plan, _ = answered(chat(url, "e", [HELLO]))
        asks = [[HELLO, plan, {"role": "user", "content": which}] for which in ("go left", "go right")]
        left, kind = answered(chat(url, "e", asks[0]))
        assert (kind, answered(chat(url, "e", asks[1]))[1]) == ("clean", "clean")
        assert answered(chat(url, "e", [*asks[0], left, HELLO]))[1] == "clean"
        assert answered(chat(url, "e", [{"role": "user", "content": "another"}]))[1] == "fork"
        trajectory = finish(url, "e", reward=1)
    check_boundary(trajectory, engine)
    assert len(trajectory.branches) == 3
    assert "another" in trajectory.forks[-1]


def test_an_edited_earlier_reply_is_a_fork(scripted):
    """The first reply stays, as context; the second is edited, as by a template that strips the last thought alone."""
    with scripted(["one", "<think>hm</think> two", "three"]) as (url, engine):
        one, _ = answered(chat(url, "e", [HELLO]))
        messages = [HELLO, one, HELLO]
        answered(chat(url, "e", messages))
        assert answered(chat(url, "e", [*messages, {"role": "assistant", "content": "two"}, HELLO]))[1] == "fork"
        trajectory = finish(url, "e")
    check_boundary(trajectory, engine)
    assert len(trajectory.branches) == 2
    length = len(engine.calls[0][1])
    size = len(engine.calls[0][2].ids)
    assert trajectory.branches[1].ids[length : length + size].tolist() == engine.calls[0][2].ids
    assert set(trajectory.branches[1].turn.tolist()) == {-1, 2}


def test_a_call_that_fails_or_is_hung_up_on_is_no_turn(model, tokenizer, caplog):
    script = iter([PolicyFailure("the engine is out of order"), [5, 6, tokenizer.eos_token_id]])
    with serving(ScriptedEngine(lambda call, prompt: next(script)), tokenizer) as (url, _):
        failed = chat(url, "e", [HELLO])
        assert (failed.status_code, failed.json()["error"]["message"]) == (500, "the engine is out of order")
        assert answered(chat(url, "e", [HELLO]))[1] == "clean"
        assert len(finish(url, "e").turns) == 1
    with serving(engine_of(model), tokenizer) as (url, _):
        body = {"messages": [HELLO], "stream": True, "max_tokens": 600}
        asking = httpx.stream("POST", f"{url}/episodes/e/v1/chat/completions", json=body, timeout=60)
        with asking as reply:
            next(reply.iter_raw())
        while httpx.get(f"{url}/health").json()["running"]:
            pass
        (listed,) = httpx.get(f"{url}/episodes").json()["data"]
        refused = httpx.post(f"{url}/episodes/e/finish", json={"reward": 1})
    gc.collect()
    assert caplog.text == ""
    assert listed["turns"] == 0
    assert refused.json()["error"]["message"] == "the episode 'e' has no turns: nothing was asked in it"


def test_many_episodes_at_once_never_mix(model, tokenizer):
    async def together(url: str) -> list[Trajectory]:
        episodes = [EpisodeSpec("keydoor", "train", i, i) for i in range(6)]
        return await asyncio.gather(*(play_url(f"{url}/episodes/e{e.task}/v1", e) for e in episodes))

    with serving(engine_of(model), tokenizer) as (url, _):
        played = asyncio.run(together(url))
        for one in played:
            recorded = finish(url, f"e{one.task}", task=one.task)
            assert [turn.reply for turn in recorded.turns] == [turn.reply for turn in one.turns]
            (branch,) = recorded.branches
            text = tokenizer.decode(branch.ids)
            assert one.turns[1].observation in text
            others = {turn.observation for other in played for turn in other.turns} - {t.observation for t in one.turns}
            assert not any(other in text for other in others)


def test_concurrent_calls_of_one_episode(model, tokenizer):
    async def together(url: str) -> None:
        async with httpx.AsyncClient(timeout=60) as client:
            messages = [{"role": "user", "content": f"number {i}"} for i in range(6)]
            path = f"{url}/episodes/e/v1/chat/completions"
            first = await asyncio.gather(*(client.post(path, json={"messages": [one]}) for one in messages))
            again = (
                client.post(path, json={"messages": [one, reply.json()["choices"][0]["message"], HELLO]})
                for one, reply in zip(messages, first, strict=True)
            )
            kinds = [reply.json()["agentgym"]["kind"] for reply in await asyncio.gather(*again)]
            assert kinds == ["clean"] * 6

    with serving(engine_of(model), tokenizer) as (url, _):
        asyncio.run(together(url))
        trajectory = finish(url, "e")
    assert (len(trajectory.turns), len(trajectory.branches)) == (12, 6)
    for branch in trajectory.branches:
        assert len(set(branch.turn[branch.turn >= 0].tolist())) == 2


def test_a_stop_string_and_a_reply_that_was_cut(scripted, tokenizer):
    """What was sampled goes on after the stop string: the agent saw less. A cut reply is ended by the template."""
    cut = tokenizer("go no")["input_ids"]
    with scripted(["go north now", "two", cut, "three"]) as (url, engine):
        message, _ = answered(chat(url, "stop", [HELLO], stop=["nor"]))
        assert message["content"] == "go "
        assert answered(chat(url, "stop", [HELLO, message, HELLO]))[1] == "fork"
        stopped = finish(url, "stop")
        sampled = tokenizer.decode(stopped.branches[0].ids[stopped.branches[0].turn == 0])
        assert "nor" in sampled
        assert "now" not in sampled  # what the engine said after the stop is not the reply's
        engine.calls[:] = engine.calls[:2]
        message, _ = answered(chat(url, "cut", [HELLO]))
        assert answered(chat(url, "cut", [HELLO, {**message, "content": " go no"}, HELLO]))[1] == "realign"
        trajectory = finish(url, "cut")
        engine.calls[:] = engine.calls[2:]
    check_boundary(trajectory, engine)
    (branch,) = trajectory.branches
    after = int(np.flatnonzero(branch.turn == 0)[-1]) + 1
    assert (branch.ids[after], branch.turn[after]) == (tokenizer.eos_token_id, -1)


def test_strict(scripted):
    with scripted(["go north", "two"], strict=True) as (url, engine):
        answered(chat(url, "e", [HELLO]))
        edit = {"role": "assistant", "content": "go south"}
        refused = chat(url, "e", [HELLO, edit, HELLO])
        assert refused.status_code == 409
        message = refused.json()["error"]["message"]
        assert "go s" in message
        assert "go n" in message
        assert "fork" in message
        realigned = chat(url, "e", [HELLO, {**edit, "content": " go north"}, HELLO])
        assert (realigned.status_code, len(engine.calls)) == (409, 1)
        assert answered(chat(url, "e", [HELLO, {**edit, "content": "go north"}, HELLO]))[1] == "clean"


def test_turns_can_be_reported(scripted, tmp_path):
    with scripted(["a", "b"] * 2, folder=tmp_path / "kept") as (url, _):
        for name in ("x", "y"):
            headers = {"X-AgentGym-Episode": name}
            message = {"role": "assistant", "content": "a"}
            for messages in ([HELLO], [HELLO, message, HELLO]):
                body = {"messages": messages}
                assert httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers).status_code == 200
        report = {"turn": 0, "reward": 0.5, "state_key": "fork", "valid_action": False}
        assert httpx.post(f"{url}/episodes/x/turn", json=report).json() == {"episode": "x", "turn": 0}
        assert httpx.post(f"{url}/episodes/x/turn", json={"reward": 0.25}).json()["turn"] == 1
        x = finish(url, "x", reward=1, success=True, task=4, env="oracle", group=2)
        y = finish(url, "y", reward=[0, 2], success=False, task=4, env="oracle", group=2)
        listed = httpx.get(f"{url}/episodes").json()
        assert [(one["episode"], one["finished"], one["turns"]) for one in listed["data"]] == [
            ("x", True, 2), ("y", True, 2),
        ]  # fmt: skip
    assert [turn.reward for turn in x.turns] == [0.5, 1.25]
    assert (x.turns[0].state_key, x.turns[0].info, x.success) == ("fork", {"valid_action": False}, True)
    assert [turn.reward for turn in y.turns] == [0, 2]
    assert (y.success, y.attempt, y.seed, y.task) == (False, 1, 2, 4)
    written = list(read_jsonl(tmp_path / "kept" / "episodes.jsonl"))
    assert [one.to_json() for one in written] == [x.to_json(), y.to_json()]


def test_what_cannot_be_is_refused_in_a_sentence(scripted):
    with scripted(["a"] * 9) as (url, _):
        answered(chat(url, "e", [HELLO]))
        episodes = f"{url}/episodes"

        def refused(path: str, body: Any = None) -> tuple[int, str]:
            answer = httpx.get(episodes + path) if body is None else httpx.post(episodes + path, json=body)
            return answer.status_code, answer.json()["error"]["message"]

        assert refused("/none") == (
            404,
            "there is no episode 'none'; its first call begins it, and 900 s without any end it",
        )
        assert refused("/e")[0] == 409
        assert refused("/none/finish", {"reward": 1})[0] == 404
        assert refused("/e/finish", {"reward": [1, 2]})[1].startswith(
            "2 rewards were told, and the episode 'e' has 1 turns"
        )
        assert refused("/e/finish", {"rewards": 1})[0] == 400
        assert refused("/e/finish", {"reward": "much"})[0] == 400
        assert refused("/e/finish", [])[0] == 400
        assert refused("/e/turn", {"turn": 1, "reward": 1})[1] == "the episode 'e' has 1 turns, and none has number 1"
        assert refused("/e/v1/chat/completions", {"messages": [HELLO], "n": 2})[0] == 400
        assert refused("/e/v1/completions", {"prompt": ["a", "b"]})[0] == 400
        assert refused("/e%20f/v1/chat/completions", {"messages": [HELLO]})[0] == 400
        finish(url, "e")
        assert refused("/e/finish", {"reward": 1})[1] == "the episode 'e' was finished otherwise before; that stays"
        assert refused("/e/turn", {"reward": 1})[0] == 409
        message = "the episode 'e' is finished; begin another one under another name"
        assert refused("/e/v1/chat/completions", {"messages": [HELLO]}) == (409, message)


def test_a_server_without_a_recorder_and_one_with_a_key(tokenizer):
    served = ServedModel(ScriptedEngine([]), ChatTemplate(tokenizer), name="tiny", max_sequences=1)
    with serve_in_thread(create_inference_app(served)) as url:
        headers = {"X-AgentGym-Episode": "e"}
        answer = httpx.post(f"{url}/v1/chat/completions", json={"messages": [HELLO]}, headers=headers)
        assert "records no episodes" in answer.json()["error"]["message"]
        assert chat(url, "e", [HELLO]).status_code == 404
    with serve_in_thread(create_inference_app(served, api_key="k", recorder=Recorder(served.template))) as url:
        assert chat(url, "e", [HELLO]).status_code == 401
        for path in ("/episodes", "/episodes/e"):
            assert httpx.get(url + path).status_code == 401
        assert httpx.post(f"{url}/episodes/e/finish", json={}).status_code == 401


def test_idle_episodes_expire_and_finished_ones_make_room(scripted, tokenizer):
    now = [0.0]
    with scripted(["a"] * 9, lease_s=10, most=2, clock=lambda: now[0]) as (url, _):
        chat(url, "old", [HELLO])
        now[0] = 8
        chat(url, "new", [HELLO])
        assert chat(url, "more", [HELLO]).status_code == 503
        now[0] = 15
        assert httpx.get(f"{url}/episodes/old").status_code == 404
        counts = httpx.get(f"{url}/health").json()["episodes"]
        assert (counts["open"], counts["expired"]) == (1, 1)
        assert chat(url, "more", [HELLO]).status_code == 200
        finish(url, "new")
        assert chat(url, "last", [HELLO]).status_code == 200
        assert httpx.get(f"{url}/episodes/new").status_code == 404
