"""OpenAIPolicy against a real HTTP server that speaks the format, well and badly."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from agentgym.errors import PolicyFailure, UsageError
from agentgym.rollouts.openai_policy import OpenAIPolicy, parse_reply, retry_after_s
from agentgym.rollouts.policy import ContextFull, EpisodeSpec, TurnContext
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits, rollout
from agentgym.rollouts.trajectory import StopReason
from agentgym.session import LocalSession, Step
from agentgym.spec import ToolSpec
from agentgym.testing import EchoEnv

EPISODE = EpisodeSpec("echo", "test", 0)
CLICK = ToolSpec(name="click", description="Click.", parameters={"type": "object", "properties": {"x": {}}})


def completion(text="hello", finish="stop", **message):
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text, **message}}
    return {"id": "1", "object": "chat.completion", "choices": [choice]}


def tool_call(name, arguments):
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}


class Server(ThreadingHTTPServer):
    """Answers in order, the last for ever: (status, body, headers), "hang", "drop", or a function of the request."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *answers):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.requests, self.headers_log, self.times = answers, [], [], []
        self.let_go = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/v1"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.let_go.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        """A client that hung up is part of the test."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        server: Server = self.server
        server.times.append(time.monotonic())
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.requests.append((self.path, body))
        server.headers_log.append(dict(self.headers))
        answer = server.answers[min(len(server.requests), len(server.answers)) - 1]
        if answer == "hang":
            server.let_go.wait(10)
            return
        if answer == "drop":
            self.close_connection = True
            self.connection.close()
            return
        if callable(answer):
            answer = answer(body)
        status, content, headers = (*answer, {})[:3]
        data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


def question(messages=None, prompt_format=None, tools=()):
    session = LocalSession(EchoEnv())
    session.spec = session.spec.model_copy(update={"tools": tuple(tools)})
    messages = messages or [{"role": "user", "content": "hi"}]
    return TurnContext(messages, 0, Step("hi", 0.0, False, False, {}), "hi", session, prompt_format or PromptFormat())


def policy_of(server, **options):
    return OpenAIPolicy(server.url, "m", **{"backoff_s": 0.01, "retries": 2, **options})


def ask(server, what=None, **options):
    async def go():
        async with policy_of(server, **options) as policy:
            return await policy.actor(EPISODE).act(what or question())

    return asyncio.run(go())


def test_the_request_and_the_reply():
    image = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]
    with Server((200, completion("go north", "length"))) as server:
        reply = ask(
            server,
            question([{"role": "user", "content": image}, {"role": "assistant", "content": "\ud800"}]),
            api_key=" secret\n",
            temperature=0.0,
            max_tokens=7,
            extra_body={"top_p": 0.9},
        )
    assert (reply.text, reply.finish, reply.calls, reply.span) == ("go north", "length", (), None)
    ((path, body),) = server.requests
    assert path == "/v1/chat/completions"
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": image}, {"role": "assistant", "content": "\ud800"}],
        "temperature": 0.0,
        "max_tokens": 7,
        "top_p": 0.9,
    }
    assert server.headers_log[0]["Authorization"] == "Bearer secret"


def test_without_options_nothing_is_sent_but_the_question():
    with Server((200, completion())) as server:
        ask(server)
    assert server.requests[0][1].keys() == {"model", "messages"}
    assert "Authorization" not in server.headers_log[0]


def test_tools_are_offered_and_calls_are_parsed():
    prompt_format = PromptFormat(grammar="tool_call")
    answer = completion(None, "tool_calls", tool_calls=[tool_call("click", '{"x": 3}')])
    with Server((200, answer)) as server:
        what = question(prompt_format=prompt_format, tools=[CLICK])
        reply = ask(server, what)
    assert server.requests[0][1]["tools"] == [{"type": "function", "function": CLICK.model_dump()}]
    assert reply.calls == ({"name": "click", "arguments": {"x": 3}},)
    spec = what.session.spec
    assert prompt_format.parse(reply.text, spec, reply.calls).action == reply.calls[0]
    assert prompt_format.parse(reply.text, spec).action == reply.calls[0], "the history's text tells the call"


@pytest.mark.parametrize(
    ("message", "text", "calls"),
    [
        ({"content": "a", "tool_calls": None}, "a", 0),
        ({"content": None}, "", 0),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "ab", 0),
        (
            {"content": "so", "tool_calls": [tool_call("f", "{}")]},
            'so\n<tool_call>{"name": "f", "arguments": {}}</tool_call>',
            1,
        ),
        ({"tool_calls": [tool_call("f", "")]}, '<tool_call>{"name": "f", "arguments": {}}</tool_call>', 1),
        ({"tool_calls": [tool_call("f", {"x": 1})]}, '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>', 1),
        ({"tool_calls": [tool_call("f", "{x:")]}, '<tool_call>{"name": "f", "arguments": {x:}</tool_call>', 0),
        ({"tool_calls": [tool_call("f", "[1]")]}, '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', 0),
    ],
)
def test_what_servers_say(message, text, calls):
    reply = parse_reply({"choices": [{"finish_reason": "stop", "message": message}]})
    assert (reply.text, len(reply.calls)) == (text, calls)


def test_a_call_with_bad_arguments_is_reported_after_a_good_one():
    prompt_format, spec = PromptFormat(grammar="tool_call"), question(tools=[CLICK]).session.spec
    good, bad = tool_call("click", '{"x": 1}'), tool_call("click", "{x")
    for calls, problem in (
        ([bad], "not a JSON tool call"),
        ([good, bad], "none was carried out; in call 2"),
        ([bad, good], "none was carried out; in call 1"),
    ):
        reply = parse_reply(completion("", tool_calls=calls))
        assert problem in prompt_format.parse(reply.text, spec, reply.calls).problem
        assert reply.message is None, "a server refuses arguments that are no JSON in a history"


def test_429_then_ok_waits_as_long_as_the_header_says():
    with Server((429, "slow down", {"Retry-After": "0.3"}), (503, ""), (200, completion("ok"))) as server:
        assert ask(server).text == "ok"
    assert server.times[1] - server.times[0] >= 0.3
    assert server.times[2] - server.times[1] < 0.3


def test_a_wait_that_is_too_long_is_a_failure_at_once():
    with (
        Server((429, "come back tomorrow", {"Retry-After": "86400"})) as server,
        pytest.raises(PolicyFailure, match=r"answered 429: come back tomorrow$"),
    ):
        ask(server)
    assert len(server.requests) == 1


def test_retry_after_is_seconds_or_a_date():
    assert retry_after_s("2") == 2.0
    assert 55 < retry_after_s(formatdate(time.time() + 60, usegmt=True)) <= 60
    assert retry_after_s(formatdate(time.time() - 60, usegmt=True)) == 0.0
    assert retry_after_s("soon") == retry_after_s(None) == retry_after_s("-1") == 0.0


@pytest.mark.parametrize(
    ("answer", "message", "attempts"),
    [
        ((500, "x" * 1000), r"answered 500: x{300}\.\.\. \(asked 3 times\)$", 3),
        ((200, "<html>oops</html>"), "something that is not a chat completion: <html>oops</html>", 3),
        ((200, {"error": {"message": "overloaded"}}), "overloaded", 3),
        ((200, {"choices": []}), "not a chat completion", 3),
        ((200, [1]), "not a chat completion", 3),
        ((200, "[" * 50_000), "not a chat completion", 3),
        ("drop", "cannot be asked", 3),
        ("hang", r"gave no answer in 0\.2 s \(asked 3 times\)", 3),
        ((400, {"error": "bad field secret-key"}), r'answered 400: {"error": "bad field \*\*\*"}$', 1),
    ],
)
def test_failures_tell_url_status_and_body(answer, message, attempts):
    with Server(answer) as server:
        with pytest.raises(PolicyFailure, match=message) as failure:
            ask(server, timeout_s=0.2 if answer == "hang" else 30, api_key="secret-key")
        assert str(failure.value).startswith(f"{server.url}/chat/completions ")
    if answer != "hang":  # a busy server may not have heard of a request that was given up
        assert len(server.requests) == attempts


def test_a_server_that_is_not_there():
    with Server() as server:
        pass
    with pytest.raises(PolicyFailure, match="cannot be asked"):
        ask(server)


@pytest.mark.parametrize("answer", ["hang", "drop", (200, "garbage")])
def test_a_passing_fault_is_overcome(answer):
    with Server(answer, (200, completion("ok"))) as server:
        assert ask(server, timeout_s=1 if answer == "hang" else 30).text == "ok"


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_the_users_to_mend(status):
    with Server((status, {"error": "Incorrect API key: sk-long-1234"})) as server:
        with pytest.raises(UsageError, match=r"refused the API key that ends in '1234'.*give a valid one") as refusal:
            ask(server, api_key="sk-long-1234")
        assert "sk-long" not in str(refusal.value)
        with pytest.raises(UsageError, match="wants an API key, and none was given"):
            ask(server)
    assert len(server.requests) == 2


def test_an_unknown_model_is_the_users_to_mend():
    with Server((404, {"error": "no model m"})) as server, pytest.raises(UsageError, match=r"the model's name, 'm'"):
        ask(server)


@pytest.mark.parametrize("sign", ["context_length_exceeded", "This model's maximum context length is 4096 tokens."])
def test_a_prompt_that_does_not_fit_cuts_the_episode(sign):
    with Server((400, {"error": {"message": sign}})) as server, pytest.raises(ContextFull):
        ask(server)


def test_urls_keys_and_identity():
    policy = OpenAIPolicy("http://h/v1/chat/completions", "m", api_key="secret", temperature=0.5, max_tokens=9)
    assert policy.url == "http://h/v1/chat/completions"
    assert policy.identity == "http://h/v1 m max_tokens=9 temperature=0.5"
    assert "secret" not in repr(policy) + policy.identity
    with pytest.raises(UsageError, match="begins with http"):
        OpenAIPolicy("localhost:8000/v1", "m")


def test_episodes_share_and_reopen_connections():
    def say(body):
        return 200, completion(body["messages"][-1]["content"].rpartition("Say: ")[2])

    with Server(say) as server:
        policy = policy_of(server)

        async def go():
            sessions = [LocalSession(EchoEnv()) for _ in range(4)]
            async with policy:
                return await asyncio.gather(
                    *(rollout(s, policy.actor(EPISODE), PromptFormat(), EPISODE, Limits()) for s in sessions)
                )

        played = asyncio.run(go()) + asyncio.run(go())
    assert [t.stop for t in played] == [StopReason.TERMINATED] * 8
    assert all(t.success for t in played)
    assert [len(body["messages"]) for _, body in server.requests].count(6) == 8, "system, two turns, the third question"


def test_calls_and_results_travel_with_their_ids():
    def say(body):
        prompts = [str(message["content"]) for message in body["messages"] if "Say: " in str(message["content"])]
        number, word = len(body["messages"]), prompts[-1].rpartition("Say: ")[2]
        names = ("act", "fly") if number == 2 else ("act", "act")
        calls = [
            tool_call(name, json.dumps({"action": word})) | {"id": f"c{number}{name}{i}"}
            for i, name in enumerate(names)
        ]
        return 200, completion(None, "tool_calls", tool_calls=calls)

    with Server(say) as server:
        policy = policy_of(server)

        async def go():
            async with policy:
                prompt_format = PromptFormat(grammar="tool_call")
                return await rollout(LocalSession(EchoEnv()), policy.actor(EPISODE), prompt_format, EPISODE, Limits())

        played = asyncio.run(go())
    assert played.success
    first, second, third, last_turn = played.turns
    assert first.action is None
    assert len(second.action) == len(second.results) == 2
    assert (second.results[0], second.results[1]) == tuple(last_results(third.observation))
    assert len(last_turn.results) == 1, "the first call ended the episode"
    assert [turn.reward for turn in played.turns] == [0.0, 0.0, 0.0, 1.0]
    last = server.requests[-1][1]["messages"]
    roles = [(m["role"], m.get("tool_call_id") or [c["id"] for c in m.get("tool_calls", ())]) for m in last]
    assert roles == [
        ("system", []),
        ("user", []),
        ("assistant", ["c2act0", "c2fly1"]),
        ("tool", "c2act0"),
        ("tool", "c2fly1"),
        ("assistant", ["c5act0", "c5act1"]),
        ("tool", "c5act0"),
        ("tool", "c5act1"),
        ("assistant", ["c8act0", "c8act1"]),
        ("tool", "c8act0"),
        ("tool", "c8act1"),
    ]
    assert last[3]["content"].startswith("No action taken: the reply made 2 tool calls and none was carried out")
    assert [message["content"] for message in last[6:8]] == list(second.results)
    assert all(json.loads(call["function"]["arguments"]) for call in last[5]["tool_calls"])


def last_results(observation):
    """The results in what the agent was shown."""
    return re.split(r"\n?Result of call \d: ", observation)[1:]


def test_a_failure_is_recorded_and_never_scored():
    with Server((500, "down")) as server:

        async def go():
            async with policy_of(server, retries=0) as policy:
                return await rollout(LocalSession(EchoEnv()), policy.actor(EPISODE), PromptFormat(), EPISODE, Limits())

        played = asyncio.run(go())
    assert played.stop is StopReason.POLICY_FAILED
    assert "answered 500: down" in played.error
