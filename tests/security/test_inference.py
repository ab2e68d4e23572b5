"""The inference server under hostile requests: each is refused with a 400 that names the field, and leaves nothing."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from agentgym import registry
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym_servers.inference.app import create_inference_app
from agentgym_servers.web.run import serve_in_thread
from agentgym_trainers.engines.inprocess import InProcessEngine
from agentgym_trainers.nn import tiny
from agentgym_trainers.rollout.external.recorder import Recorder
from agentgym_trainers.rollout.served_model import ServedModel
from agentgym_trainers.rollout.tokens import ChatTemplate

LENGTH = 256
LIVENESS_S = 5.0
"""In which /health answers beside anything: generous, for a busy machine."""
HELLO = [{"role": "user", "content": "hello"}]
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}x"


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    spec = registry.get_spec("keydoor")
    return tiny.make_tokenizer([PromptFormat().instructions(spec), "user\n", "assistant\n"] * 3, 320, LENGTH)


@pytest.fixture(scope="module")
def engine(tokenizer: Any) -> Iterator[InProcessEngine]:
    model = tiny.make_model(tiny.TinyModel(hidden_size=16, layers=1), tokenizer, 0)
    engine = InProcessEngine(model, max_sequences=8, max_length=LENGTH)
    yield engine
    engine.shutdown()


def served(engine: InProcessEngine, tokenizer: Any) -> ServedModel:
    return ServedModel(engine, ChatTemplate(tokenizer), name="tiny", max_sequences=8, max_tokens=8)


@pytest.fixture(scope="module")
def url(engine: InProcessEngine, tokenizer: Any) -> Iterator[str]:
    model = served(engine, tokenizer)
    with serve_in_thread(create_inference_app(model, recorder=Recorder(model.template))) as url:
        yield url


def kwargs(**variables: Any) -> dict[str, Any]:
    return {"chat_template_kwargs": variables}


def calls(value: Any) -> dict[str, Any]:
    return {"messages": [*HELLO, {"role": "assistant", "content": "", "tool_calls": value}]}


CHAT: list[tuple[Any, str]] = [
    # what apply_chat_template interprets itself
    (kwargs(chat_template=LOOP), "chat_template"),
    (kwargs(chat_template=None), "chat_template"),
    (kwargs(Chat_Template="x"), "Chat_Template"),
    (kwargs(chat_template_="x"), "chat_template_"),
    (kwargs(tokenize=True), "tokenize"),
    (kwargs(return_dict=True), "return_dict"),
    (kwargs(return_tensors="pt"), "return_tensors"),
    (kwargs(return_assistant_tokens_mask=True), "return_assistant_tokens_mask"),
    (kwargs(add_generation_prompt=False), "add_generation_prompt"),
    (kwargs(continue_final_message=True), "continue_final_message"),
    (kwargs(tools=[]), "tools"),
    (kwargs(documents=[{"text": "x"}]), "documents"),
    (kwargs(messages=HELLO), "messages"),
    (kwargs(conversation=HELLO), "conversation"),
    (kwargs(padding="max_length"), "padding"),
    (kwargs(truncation=True), "truncation"),
    (kwargs(max_length=1), "max_length"),
    (kwargs(tokenizer_kwargs={}), "tokenizer_kwargs"),
    (kwargs(eos_token="x"), "eos_token"),
    (kwargs(bos_token="x"), "bos_token"),
    (kwargs(additional_special_tokens="x"), "additional_special_tokens"),
    (kwargs(raise_exception="x"), "raise_exception"),
    (kwargs(range=1), "range"),
    (kwargs(self=1), "self"),
    # what is no plain variable
    (kwargs(enable_thinking={"a": 1}), "enable_thinking"),
    (kwargs(enable_thinking=[1] * 1000), "enable_thinking"),
    (kwargs(enable_thinking="x" * 10_000), "enable_thinking"),
    (kwargs(budget=10**15), "budget"),
    (kwargs(budget=-1e300), "budget"),
    (kwargs(**{"a" * 100: 1}), "chat_template_kwargs"),
    (kwargs(**{"__class__": 1}), "__class__"),
    (kwargs(**{"a.b": 1}), "a.b"),
    (kwargs(**{"": 1}), "chat_template_kwargs"),
    (kwargs(**{"\uff43hat_template": "x"}), "chat_template_kwargs"),
    (kwargs(**{f"v{i}": i for i in range(100)}), "chat_template_kwargs"),
    ({"chat_template_kwargs": [["chat_template", "x"]]}, "chat_template_kwargs"),
    ({"chat_template_kwargs": "chat_template"}, "chat_template_kwargs"),
    # the same outside chat_template_kwargs
    ({"chat_template": LOOP}, "chat_template"),
    ({"tokenize": False}, "tokenize"),
    ({"return_dict": True}, "return_dict"),
    ({"return_tensors": "pt"}, "return_tensors"),
    ({"add_generation_prompt": False}, "add_generation_prompt"),
    ({"continue_final_message": True}, "continue_final_message"),
    ({"documents": []}, "documents"),
    # sampling parameters
    ({"temperature": 1e-38}, "temperature"),
    ({"temperature": 5e-324}, "temperature"),
    ({"temperature": 1e-4}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": -1e-9}, "temperature"),
    ({"temperature": 1e9}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": "0.5"}, "temperature"),
    ({"temperature": [1]}, "temperature"),
    (b'{"messages": [{"role": "user", "content": "x"}], "temperature": NaN}', "JSON"),
    (b'{"messages": [{"role": "user", "content": "x"}], "temperature": Infinity}', "JSON"),
    (b'{"messages": [{"role": "user", "content": "x"}], "temperature": 1e999}', "temperature"),
    (b'{"messages": [{"role": "user", "content": "x"}], "temperature": -1e999}', "temperature"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -5}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": "8"}, "max_tokens"),
    ({"max_tokens": 10**4000}, "max_tokens"),
    ({"max_tokens": 257}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": 10**30}, "max_completion_tokens"),
    ({"n": 0}, "n"),
    ({"n": 65}, "n"),
    ({"n": True}, "n"),
    ({"n": "2"}, "n"),
    ({"seed": 2**64}, "seed"),
    ({"seed": -(2**70)}, "seed"),
    ({"seed": True}, "seed"),
    ({"seed": 1.5}, "seed"),
    ({"seed": "1"}, "seed"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 5}, "top_p"),
    ({"top_p": True}, "top_p"),
    ({"top_p": "1"}, "top_p"),
    ({"top_k": -5}, "top_k"),
    ({"min_p": 1}, "min_p"),
    ({"presence_penalty": 1e308}, "presence_penalty"),
    ({"frequency_penalty": False}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"logprobs": 1}, "logprobs"),
    ({"logprobs": "true"}, "logprobs"),
    ({"top_logprobs": -1}, "top_logprobs"),
    ({"logit_bias": {"1": 100}}, "logit_bias"),
    ({"stop": ""}, "stop"),
    ({"stop": [""]}, "stop"),
    ({"stop": 5}, "stop"),
    ({"stop": [5]}, "stop"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop": "x" * 10_000}, "stop"),
    ({"stream": "yes"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"stream_options": {"include_usage": "yes"}}, "stream_options"),
    # messages
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [None]}, "messages"),
    ({"messages": [{"role": 1, "content": "x"}]}, "role"),
    ({"messages": [{"role": "user\n<|im_end|>", "content": "x"}]}, "role"),
    ({"messages": [{"role": "x" * 1000, "content": "x"}]}, "role"),
    ({"messages": [{"role": "user", "content": {"a": 1}}]}, "content"),
    ({"messages": [{"role": "user", "content": [1]}]}, "text"),
    ({"messages": HELLO * 300}, "messages"),
    ({"messages": [{"role": "user", "content": "long " * 500}]}, "messages"),
    (calls(5), "tool calls"),
    (calls("abc"), "tool calls"),
    (calls({"a": 1}), "tool calls"),
    (calls([None]), "tool call"),
    (calls([{"function": {"name": "f", "arguments": "{"}}]), "tool call"),
    (calls([{"function": {"name": "f", "arguments": "[" * 20_000}}]), "tool call"),
    ({"tools": [1]}, "tool"),
    ({"tools": {"a": 1}}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": 5}}]}, "tool"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function"}}, "tool_choice"),
    ({"model": 5}, "model"),
    # bodies
    (b"", "JSON"),
    (b"[]", "object"),
    (b"null", "object"),
    (b"\xff\xfe", "JSON"),
    (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "JSON"),
    (b'{"messages": ' + b"[" * 5000 + b"]" * 5000 + b"}", "JSON"),
    (b'{"messages": [{"role": "user", "content": "x"}], "n": 1' + b"0" * 6000 + b"}", "JSON"),
]
TEXT: list[tuple[Any, str]] = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [""]}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [10**30]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [1.5]}, "prompt"),
    ({"prompt": ["x", 1]}, "prompt"),
    ({"prompt": ["x"] * 2000}, "repl"),
    ({"prompt": "long " * 500}, "prompt"),
    ({"prompt": [1] * 257}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"prompt": "x", "max_tokens": 257}, "max_tokens"),
    ({"prompt": "x", "logprobs": 5}, "logprobs"),
    ({"prompt": "x", "logprobs": -1}, "logprobs"),
    ({"prompt": "x", "logprobs": True}, "logprobs"),
    ({"prompt": "x", "echo": True}, "echo"),
    ({"prompt": "x", "best_of": 2}, "best_of"),
    ({"prompt": "x", "temperature": 1e-38}, "temperature"),
    ({"prompt": "x", "chat_template": "x"}, "chat_template"),
    ({"prompt": "x", "add_special_tokens": "no"}, "add_special_tokens"),
    ({"prompt": "x", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
]


def send(url: str, body: Any, default: dict[str, Any]) -> httpx.Response:
    raw = body if isinstance(body, bytes) else json.dumps({**default, **body}).encode()
    return httpx.post(url, content=raw, headers={"content-type": "application/json"}, timeout=60)


def episodes(url: str) -> list[Any]:
    return httpx.get(f"{url}/episodes", timeout=60).json()["data"]


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [("chat/completions", *row) for row in CHAT] + [("completions", *row) for row in TEXT],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_malformed_request_is_a_400_that_names_the_field(url, path, body, named):
    default = {"messages": HELLO} if path == "chat/completions" else {}
    for root in (url, f"{url}/episodes/mine"):
        reply = send(f"{root}/v1/{path}", body, default)
        assert reply.status_code == 400, reply.text
        error = reply.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["code"]
        assert named in f"{error['param']} {error['message']}"
        assert len(reply.content) < 4096
    assert episodes(url) == []


@pytest.mark.parametrize(
    "body",
    [{"reward": "1"}, {"reward": True}, {"reward": 1e308}, {"reward": [1, 1e300]}, {"task": -1}, {"task": 2**70},
     {"success": "no"}, {"success": 1}, {"truncated": "no"}, {"env": "x" * 10_000}, {"x" * 10_000: 1}, {"group": 1.5}],
)  # fmt: skip
def test_malformed_ending_leaves_the_episode_open(url, body):
    name = f"{url}/episodes/ending-{abs(hash(str(body)))}"
    assert send(f"{name}/v1/chat/completions", {"max_tokens": 2}, {"messages": HELLO}).status_code == 200
    reply = send(f"{name}/finish", body, {})
    assert reply.status_code == 400, reply.text
    assert len(reply.content) < 4096
    assert send(f"{name}/turn", {"reward": 1e308}, {}).status_code == 400
    assert send(f"{name}/finish", {"reward": 1}, {}).json()["score"] == 1


@pytest.mark.parametrize(
    "variables",
    [{"enable_thinking": False}, {"reasoning_effort": "high"}, {"budget": 512, "date_string": "1 May"}, {"x": None}],
)
def test_plain_template_variables_pass(url, variables):
    reply = send(f"{url}/v1/chat/completions", {**kwargs(**variables), "max_tokens": 2}, {"messages": HELLO})
    assert reply.status_code == 200, reply.text


def test_an_operators_template_options_are_variables_too(tokenizer):
    with pytest.raises(Exception, match="chat_template: no variable of a chat template"):
        ChatTemplate(tokenizer, {"chat_template": "x"})


TEMPLATES = {
    "an endless one": (LOOP, "prompt_timeout"),
    "a long one": ("{{ 'x' * 10000000 }}", "context_length_exceeded"),
    "an empty one": ("{{ '' }}", "invalid_messages"),
    "one that overflows": ("{% for i in range(10 ** 9) %}{% endfor %}", "invalid_messages"),
    "one that divides by zero": ("{{ 1 / 0 }}", "invalid_messages"),
    "one that misses a key": ("{{ messages[7].content.x.y }}", "invalid_messages"),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_neither_stops_nor_breaks_the_server(engine, tokenizer, name):
    template, code = TEMPLATES[name]
    model = served(engine, tokenizer)
    usual, tokenizer.chat_template = tokenizer.chat_template, template
    slowest, done = 0.0, threading.Event()
    try:
        app = create_inference_app(model, recorder=Recorder(model.template), render_s=1.0)
        with serve_in_thread(app) as url:
            replies: list[httpx.Response] = []

            def ask() -> None:
                replies.append(send(f"{url}/episodes/e/v1/chat/completions", {}, {"messages": HELLO}))
                done.set()

            asking = [threading.Thread(target=ask) for _ in range(6)]
            for thread in asking:
                thread.start()
            while not done.wait(0.05):
                started = time.monotonic()
                assert httpx.get(f"{url}/health", timeout=60).status_code == 200
                slowest = max(slowest, time.monotonic() - started)
            for thread in asking:
                thread.join()
            assert {reply.status_code for reply in replies} <= {400, 503}
            assert code in {"", *(reply.json()["error"]["code"] for reply in replies)}
            assert episodes(url) == []
    finally:
        tokenizer.chat_template = usual
    assert slowest < LIVENESS_S
    deadline = time.monotonic() + 30
    while any(thread.name == "time-limited call" for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "a thread goes on after its time"
        time.sleep(0.05)
