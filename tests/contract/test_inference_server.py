"""The inference server over a real engine and a real socket: what it answers is what the model says."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentgym import registry
from agentgym.cli.main import main
from agentgym.errors import PolicyFailure
from agentgym.rollouts.openai_policy import OpenAIPolicy
from agentgym.rollouts.policy import EpisodeSpec
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits, rollout
from agentgym.rollouts.trajectory import StopReason, read_jsonl
from agentgym.session import LocalSession
from agentgym.testing import EchoEnv
from agentgym_servers.inference.app import create_inference_app
from agentgym_servers.web.run import serve_in_thread
from agentgym_trainers.engines.inprocess import InProcessEngine
from agentgym_trainers.nn import checkpoint, tiny
from agentgym_trainers.rollout.served_model import ServedModel
from agentgym_trainers.rollout.tokens import ChatTemplate

HELLO = [{"role": "user", "content": "hello"}]
LENGTH = 256


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    spec = registry.get_spec("keydoor")
    return tiny.make_tokenizer(
        [PromptFormat().instructions(spec), *spec.actions, "user\n", "assistant\n"] * 3, 320, LENGTH
    )


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


def served(model: Any, tokenizer: Any, max_sequences: int = 32) -> ServedModel:
    torch.set_num_threads(1)
    engine = InProcessEngine(copy.deepcopy(model), max_sequences=max_sequences, max_length=LENGTH)
    return ServedModel(engine, ChatTemplate(tokenizer), name="tiny", max_sequences=max_sequences, max_tokens=24)


@pytest.fixture(scope="module")
def engine_and_url(model, tokenizer):
    made = served(model, tokenizer)
    with serve_in_thread(create_inference_app(made)) as url:
        yield made.engine, url
    made.engine.shutdown()


@pytest.fixture(scope="module")
def url(engine_and_url) -> str:
    return engine_and_url[1]


def post(url: str, path: str = "chat/completions", **body: Any) -> httpx.Response:
    given = body if path != "chat/completions" else {"messages": HELLO, **body}
    return httpx.post(f"{url}/v1/{path}", json=given, timeout=60)


def chat(url: str, **body: Any) -> dict[str, Any]:
    reply = post(url, **body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def stream(url: str, path: str = "chat/completions", **body: Any) -> list[dict[str, Any]]:
    """The chunks of a streamed answer, which ends as it should."""
    given = {"messages": HELLO, **body} if path == "chat/completions" else body
    with httpx.stream("POST", f"{url}/v1/{path}", json={**given, "stream": True}, timeout=60) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        *events, done = [line.removeprefix("data: ") for line in reply.iter_lines() if line]
    assert done == "[DONE]"
    return [json.loads(event) for event in events]


def plain_logprobs(model: Any, prompt: Sequence[int], ids: Sequence[int]) -> torch.Tensor:
    """float32[T, V] of the reply's positions, by transformers' own forward."""
    reference = copy.deepcopy(model)
    reference.set_attn_implementation("sdpa")
    with torch.inference_mode():
        logits = reference(input_ids=torch.tensor([[*prompt, *ids]]), use_cache=False).logits[0]
    return torch.log_softmax(logits[len(prompt) - 1 : -1], dim=-1)


def test_tokens_and_log_probabilities_are_the_models(url, model, tokenizer):
    answer = chat(url, n=4, seed=3, max_tokens=40, temperature=1, logprobs=True, return_token_ids=True)
    prompt = answer["prompt_token_ids"]
    assert tokenizer.decode(prompt) == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    for choice in answer["choices"]:
        ids, content = choice["token_ids"], choice["logprobs"]["content"]
        answered = torch.tensor([token["logprob"] for token in content])
        expected = plain_logprobs(model, prompt, ids).gather(1, torch.tensor(ids)[:, None])[:, 0]
        torch.testing.assert_close(answered, expected, atol=1e-4, rtol=0)
        assert [token["token"] for token in content] == [tokenizer.decode([token]) for token in ids]
        assert choice["message"]["content"] == tokenizer.decode([t for t in ids if t != tokenizer.eos_token_id])
        assert choice["finish_reason"] == ("stop" if ids[-1] == tokenizer.eos_token_id else "length")
    sampled = sum(len(choice["token_ids"]) for choice in answer["choices"])
    tokens = {"prompt_tokens": len(prompt), "completion_tokens": sampled, "total_tokens": len(prompt) + sampled}
    assert answer["usage"] == tokens
    assert (answer["object"], answer["model"]) == ("chat.completion", "tiny")


def test_a_developer_message_is_the_systems(url, tokenizer):
    messages = [{"role": "developer", "content": "be brief"}, *HELLO]
    prompt = tokenizer.decode(chat(url, messages=messages, max_tokens=1, return_token_ids=True)["prompt_token_ids"])
    assert prompt.startswith("<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhello")


def test_temperature_zero_is_greedy(url, model):
    answer = chat(url, temperature=0, return_token_ids=True, max_tokens=20)
    ids = answer["choices"][0]["token_ids"]
    assert ids == plain_logprobs(model, answer["prompt_token_ids"], ids).argmax(dim=-1).tolist()


def test_a_seed_decides_the_reply(url):
    def texts(**body: Any) -> list[str]:
        return [choice["message"]["content"] for choice in chat(url, **body)["choices"]]

    assert texts(seed=5, n=3) == texts(seed=5, n=3)
    assert len({*texts(seed=5, n=3), *texts(seed=-6, n=3)}) == 6
    assert len({*texts(n=4), *texts(n=4)}) == 8


def test_text_completions(url, model, tokenizer):
    body = {"seed": 1, "n": 2, "logprobs": 0, "return_token_ids": True}
    answer = post(url, "completions", prompt=["go", "take it"], **body).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    prompts = [tokenizer("go")["input_ids"], tokenizer("take it")["input_ids"]]
    for other in (prompts, prompts[0]):
        again = post(url, "completions", prompt=other, **body).json()["choices"]
        assert [choice["token_ids"] for choice in again] == [choice["token_ids"] for choice in answer["choices"]][
            : len(again)
        ]
    for choice in answer["choices"]:
        prompt, ids = prompts[choice["index"] // 2], choice["token_ids"]
        assert choice["prompt_token_ids"] == prompt
        assert len(ids) == 16 or choice["finish_reason"] == "stop"
        expected = plain_logprobs(model, prompt, ids).gather(1, torch.tensor(ids)[:, None])[:, 0]
        logprobs = torch.tensor(choice["logprobs"]["token_logprobs"])
        torch.testing.assert_close(logprobs, expected, atol=1e-4, rtol=0)
        assert choice["logprobs"]["text_offset"][0] == 0
    assert answer["usage"]["prompt_tokens"] == sum(map(len, prompts))


def test_a_stream_gives_the_plain_answer(url):
    for seed in range(5):
        body = {"seed": seed, "max_tokens": 40, "n": 2, "return_token_ids": True, "logprobs": True}
        plain = chat(url, **body)
        *chunks, last = stream(url, **body, stream_options={"include_usage": True})
        assert (last["choices"], last["usage"]) == ([], plain["usage"])
        assert chunks[0]["prompt_token_ids"] == plain["prompt_token_ids"]
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        for index, choice in enumerate(plain["choices"]):
            mine = [part for chunk in chunks for part in chunk["choices"] if part["index"] == index]
            assert "".join(part["delta"].get("content", "") for part in mine) == choice["message"]["content"]
            assert [token for part in mine for token in part.get("token_ids", [])] == choice["token_ids"]
            logged = [token for part in mine for token in (part.get("logprobs") or {}).get("content", [])]
            assert [token["token"] for token in logged] == [t["token"] for t in choice["logprobs"]["content"]]
            assert [part["finish_reason"] for part in mine if part["finish_reason"]] == [choice["finish_reason"]]
    parts = [part for chunk in stream(url, "completions", prompt="go", seed=1) for part in chunk["choices"]]
    plain = post(url, "completions", prompt="go", seed=1).json()["choices"][0]
    assert "".join(part["text"] for part in parts) == plain["text"]


def test_a_stop_string_ends_the_reply_before_it(url):
    body = {"seed": 8, "max_tokens": 60, "return_token_ids": True}
    free = chat(url, **body)["choices"][0]
    text = free["message"]["content"]
    stop = text[10:13]
    cut = chat(url, **body, stop=["never said by anyone", stop])["choices"][0]
    assert cut["message"]["content"] == text[: text.index(stop)]
    assert cut["finish_reason"] == "stop"
    assert cut["token_ids"] == free["token_ids"][: len(cut["token_ids"])]
    assert len(cut["token_ids"]) < len(free["token_ids"])
    parts = [part["delta"].get("content", "") for chunk in stream(url, **body, stop=stop) for part in chunk["choices"]]
    assert "".join(parts) == text[: text.index(stop)]


def test_many_at_once_are_computed_together_and_each_is_right(engine_and_url):
    engine, url = engine_and_url
    bodies = [
        {"messages": [{"role": "user", "content": f"number {i} " * (i % 5 + 1)}], "seed": i, "max_tokens": 8 + i % 17}
        for i in range(48)
    ]
    options = {"temperature": 1, "logprobs": True, "return_token_ids": True}

    async def together() -> list[dict[str, Any]]:
        async with httpx.AsyncClient(timeout=120, limits=httpx.Limits(max_connections=None)) as client:
            posts = [client.post(f"{url}/v1/chat/completions", json={**body, **options}) for body in bodies]
            return [reply.json() for reply in await asyncio.gather(*posts)]

    before = engine.forwards
    answers = asyncio.run(together())
    forwards = engine.forwards - before
    sampled = sum(answer["usage"]["completion_tokens"] for answer in answers)
    assert forwards < sampled / 4
    for body, answer in zip(bodies[::4], answers[::4]):
        alone = chat(url, **body, **options)["choices"][0]
        (choice,) = answer["choices"]
        assert choice["token_ids"] == alone["token_ids"]
        logprobs, expected = ([t["logprob"] for t in one["logprobs"]["content"]] for one in (choice, alone))
        np.testing.assert_allclose(logprobs, expected, atol=1e-4)


def test_a_conversation_goes_on_from_what_is_computed(model, tokenizer):
    made = served(model, tokenizer, max_sequences=2)
    with serve_in_thread(create_inference_app(made)) as url:
        messages = [{"role": "user", "content": "first " * 12}]
        for turn in range(3):
            before = made.engine.computed_tokens
            answer = chat(url, messages=messages, seed=turn, max_tokens=4, temperature=0)
            computed = made.engine.computed_tokens - before
            prompt = answer["usage"]["prompt_tokens"]
            assert computed < 60 if turn else computed >= prompt, (turn, computed, prompt)
            content = answer["choices"][0]["message"]["content"]
            messages += [{"role": "assistant", "content": content}, {"role": "user", "content": "and on"}]
        for other in ("x", "y", "z"):  # more conversations than sequences
            assert chat(url, messages=[{"role": "user", "content": other * 9}], max_tokens=3)["choices"]


REFUSED = {
    "no messages": ({"messages": []}, 400, "invalid_value", "messages"),
    "a message without a role": ({"messages": [{"content": "x"}]}, 400, "invalid_value", "role"),
    "an image": ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "invalid_value", "text"),
    "another model": ({"model": "gpt"}, 404, "model_not_found", "'tiny' is"),
    "a negative temperature": ({"temperature": -1}, 400, "invalid_value", "temperature"),
    "no tokens": ({"max_tokens": 0}, 400, "invalid_value", "max_tokens"),
    "too many tokens": ({"max_tokens": 300}, 400, "context_length_exceeded", "maximum context length is 256"),
    "too long a prompt": (
        {"messages": [{"role": "user", "content": "long " * 200}]},
        400,
        "context_length_exceeded",
        "maximum context length is 256 tokens; the prompt has",
    ),
    "a body beyond all measure": (
        {"messages": [{"role": "user", "content": "x" * 200_000}]},
        413,
        "context_length_exceeded",
        "maximum context length",
    ),
    "top_p": ({"top_p": 0.9}, 400, "invalid_value", "top_p is not supported by this server; leave it out, or send 1"),
    "top_logprobs": ({"logprobs": True, "top_logprobs": 3}, 400, "invalid_value", "top_logprobs is not supported"),
    "a penalty": ({"presence_penalty": 0.5}, 400, "invalid_value", "presence_penalty"),
    "a schema": ({"response_format": {"type": "json_object"}}, 400, "invalid_value", "response_format"),
    "a forced tool": ({"tool_choice": "required"}, 400, "invalid_value", "tool_choice"),
    "a tool that is none": ({"tools": [{"type": "function"}]}, 400, "invalid_value", "a tool is"),
    "an empty stop": ({"stop": ""}, 400, "invalid_value", "empty string"),
    "too many replies": ({"n": 65}, 400, "invalid_value", "n"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_what_is_wrong(url, name):
    body, status, code, message = REFUSED[name]
    reply = post(url, **body)
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["code"], error["type"] != "") == (code, True)
    assert message in error["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": ""}, "at least one token"),
        ({"prompt": []}, "at least one token"),
        ({"prompt": [9999]}, "a token's id is 0 to"),
        ({"prompt": "x", "logprobs": 2}, "send 0"),
        ({"prompt": "x", "echo": True}, "echo is not supported"),
        ({"prompt": ["x"] * 40, "n": 2}, "at most 64 replies"),
        ({"prompt": {"no": 1}}, "prompt"),
        ({}, "prompt: Field required"),
    ],
)
def test_a_text_completion_is_refused_alike(url, body, message):
    reply = post(url, "completions", **body)
    assert (reply.status_code, message in reply.json()["error"]["message"]) == (400, True), reply.text


def test_neutral_and_unknown_fields_are_ignored(url):
    answer = chat(url, seed=1, top_p=1, user="me", n=1, stop=None, logit_bias={}, metadata={"a": 1}, max_tokens=None)
    assert len(answer["choices"]) == 1
    assert answer["usage"]["completion_tokens"] <= 24, "the model's own limit"
    assert httpx.post(f"{url}/v1/chat/completions", content=b"{").status_code == 400
    assert httpx.get(f"{url}/v1/nothing").json()["error"]["type"] == "not_found_error"


def test_a_foreign_page_cannot_use_it(url):
    reply = httpx.post(
        f"{url}/v1/chat/completions", json={"messages": HELLO}, headers={"Origin": "http://evil.example"}
    )
    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "forbidden")


def test_models_and_health(url):
    (card,) = httpx.get(f"{url}/v1/models").json()["data"]
    assert (card["id"], card["object"], card["max_model_len"]) == ("tiny", "model", LENGTH)
    assert httpx.get(f"{url}/v1/models/tiny").json() == card
    assert httpx.get(f"{url}/v1/models/other").status_code == 404
    assert httpx.get(f"{url}/health").json()["status"] == "healthy"


@pytest.mark.parametrize("streamed", [False, True])
def test_who_hangs_up_is_not_computed_for(url, streamed):
    body = {"messages": HELLO, "max_tokens": 230, "n": 32, "stream": streamed, "temperature": 8}
    asking = httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=0.2)
    with contextlib.suppress(httpx.ReadTimeout), asking as reply:
        next(reply.iter_raw())
    for _ in range(200):
        if httpx.get(f"{url}/health").json()["running"] == 0:
            break
        time.sleep(0.02)
    else:
        pytest.fail("the replies of a client that is gone go on")
    assert chat(url, seed=1)["choices"]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_hangs_up_leaves_no_traceback(url, streamed, caplog):
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps({"messages": HELLO, "max_tokens": 200, "n": 8, "stream": streamed, "temperature": 8}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    for sent in (head, head + body[:-1], head + body):
        with socket.create_connection((host, int(port))) as client:
            client.sendall(sent)
            time.sleep(0.1)
    assert chat(url, seed=1)["choices"]
    assert not [record for record in caplog.records if record.exc_info]


class Says:
    """A model that says a given text, or fails: the server's view of one."""

    name, max_length, temperature, max_tokens, fingerprint = "says", 4096, 1.0, None, ""

    def __init__(self, tokenizer: Any, text: str | Exception) -> None:
        self.template, self.text = ChatTemplate(tokenizer), text
        self.stop_ids, self.vocabulary = self.template.stop_ids(), len(tokenizer)
        self.requests: list[Any] = []
        self.let_go = threading.Event()

    def render(self, messages, tools, options):
        self.requests.append((messages, tools, options))
        return "prompt"

    def encode(self, text, special):
        return list(self.template.encode(text))

    def decode(self, ids):
        return self.template.decode(ids)

    async def generate(self, prompt, *, temperature, max_tokens, seed, on_token):
        if isinstance(self.text, Exception):
            raise self.text
        versions = []
        for token in (*self.encode(self.text, False), *self.stop_ids):
            await asyncio.sleep(0)
            versions.append(0)
            if on_token(token, -1.0):
                break
        return versions


TOOLS = [{"type": "function", "function": {"name": "act", "strict": True, "parameters": {"type": "object"}}}]


def test_tool_calls_come_as_such_when_tools_are_offered(tokenizer):
    text = 'I act. <tool_call>{"name": "act", "arguments": {"action": "go"}}</tool_call>'
    model = Says(tokenizer, text)
    with serve_in_thread(create_inference_app(model)) as url:
        choice = chat(url, tools=TOOLS)["choices"][0]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "I act.")
        (call,) = choice["message"]["tool_calls"]
        assert (call["type"], call["function"]["name"]) == ("function", "act")
        assert json.loads(call["function"]["arguments"]) == {"action": "go"}
        ((messages, tools, _),) = model.requests
        assert (messages, [tool.name for tool in tools]) == (HELLO, ["act"])
        *_, last = stream(url, tools=TOOLS)
        assert last["choices"][0]["delta"]["tool_calls"][0]["function"] == call["function"]
        assert chat(url)["choices"][0]["message"]["content"] == text
        assert chat(url, tools=TOOLS, tool_choice="none")["choices"][0]["message"]["content"] == text
        history = [*HELLO, choice["message"], {"role": "tool", "tool_call_id": call["id"], "content": "done"}]
        chat(url, messages=history, chat_template_kwargs={"enable_thinking": False})
        messages, _, options = model.requests[-1]
        assert messages[1]["tool_calls"][0]["function"]["arguments"] == {"action": "go"}
        assert options == {"enable_thinking": False}


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": 1}</tool_call>',
        '<tool_call>{"name"}</tool_call>',
        '<tool_call>{"name": "act", "arguments": {"action": NaN}}</tool_call>',
        '<tool_call>{"name": "act", "arguments": {"action": 1e999}}</tool_call>',
        '<tool_call>{"name": "act", "arguments": {"action": "\\ud83d"}}</tool_call>',
        "no call",
    ],
)
def test_what_is_no_tool_call_stays_text(tokenizer, text):
    with serve_in_thread(create_inference_app(Says(tokenizer, text))) as url:
        choice = chat(url, tools=TOOLS)["choices"][0]
        assert (choice["message"], choice["finish_reason"]) == ({"role": "assistant", "content": text}, "stop")
        tools = [{"name": "act", "input_schema": {"type": "object"}}]
        answer = httpx.post(f"{url}/v1/messages", json={"messages": HELLO, "max_tokens": 200, "tools": tools}).json()
        assert answer["content"] == [{"type": "text", "text": text}]


def test_a_model_that_fails_is_an_error_and_not_a_reply(tokenizer):
    with serve_in_thread(create_inference_app(Says(tokenizer, PolicyFailure("weights have diverged")))) as url:
        reply = post(url)
        assert (reply.status_code, reply.json()["error"]["type"]) == (500, "server_error")
        assert "weights have diverged" in reply.json()["error"]["message"]
        assert "weights have diverged" in stream(url)[-1]["error"]["message"]
        assert httpx.get(f"{url}/health").json()["running"] == 0


def test_characters_of_several_tokens_and_stops_across_tokens(tokenizer):
    text = "naïve – 日本語 🙂 and END of it"
    with serve_in_thread(create_inference_app(Says(tokenizer, text))) as url:
        assert chat(url)["choices"][0]["message"]["content"] == text
        for stop, expected in ((None, text), ("END", "naïve – 日本語 🙂 and "), ("本", "naïve – 日"), ("ENDE", text)):
            parts = [part["delta"].get("content", "") for one in stream(url, stop=stop) for part in one["choices"]]
            assert "".join(parts) == expected
            assert not any("\ufffd" in part for part in parts)


def test_a_full_server_says_when_to_come_again(tokenizer):
    with serve_in_thread(create_inference_app(Says(tokenizer, "x"), max_requests=2)) as url:
        reply = post(url, n=3)
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
        assert chat(url, n=2)["choices"]


def test_with_a_key_nobody_else_is_answered(tokenizer):
    with serve_in_thread(create_inference_app(Says(tokenizer, "x"), api_key="secret")) as url:
        assert post(url).json()["error"]["code"] == "invalid_api_key"
        assert httpx.get(f"{url}/v1/models").status_code == 401
        assert httpx.get(f"{url}/health").status_code == 200
        headers = {"Authorization": "Bearer secret"}
        assert httpx.get(f"{url}/v1/models", headers=headers).status_code == 200


def test_our_client_plays_and_prompts_may_grow_too_long(url):
    async def play(env: str, turns: int) -> Any:
        session = LocalSession(EchoEnv() if env == "echo" else registry.make(env))
        episode = EpisodeSpec(env, "test", 0)
        async with OpenAIPolicy(f"{url}/v1", "tiny", temperature=1.0, extra_body={"seed": 1}) as policy:
            return await rollout(session, policy.actor(episode), PromptFormat(), episode, Limits(turns))

    played = asyncio.run(play("echo", 1))
    assert (len(played.turns), played.error) == (1, "")
    assert asyncio.run(play("keydoor", 10)).stop == StopReason.CONTEXT_FULL


def test_a_checkpoint_is_served_and_evaluated_by_the_cli(model, tokenizer, tmp_path, capsys):
    checkpoint.save(tmp_path / "tiny", model, tokenizer, {})
    command = [sys.executable, "-m", "agentgym", "infer", "serve", str(tmp_path / "tiny"), "--port", "0"]
    command += ["--name", "mine", "--record", str(tmp_path / "kept")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            url = re.search(r"http://\S+", server.stdout.readline())[0]
            out = str(tmp_path / "eval")
            main(["eval", f"{url}/v1", "--model", "mine", "--suite", "smoke", "--max-new-tokens", "6", "--out", out])
            assert "keydoor" in capsys.readouterr().out
            attempts = [json.loads(line) for line in (tmp_path / "eval" / "attempts.jsonl").read_text().splitlines()]
            assert len(attempts) == 24
            assert not any(attempt.get("error") for attempt in attempts)
            episode = f"{url}/episodes/mine"
            assert httpx.post(f"{episode}/v1/chat/completions", json={"messages": HELLO}, timeout=60).status_code == 200
            assert httpx.post(f"{episode}/finish", json={"reward": 2}).json()["score"] == 2
            (recorded,) = read_jsonl(tmp_path / "kept" / "episodes.jsonl")
            assert [turn.reward for turn in recorded.turns] == [2]
        finally:
            server.terminate()
    with pytest.raises(SystemExit):
        main(["infer", "serve", str(tmp_path / "nothing")])
    assert "is no checkpoint's folder" in capsys.readouterr().err
