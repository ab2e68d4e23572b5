"""Tokens and dollars of an evaluation: counted at a real server, limited, and gone on with."""

from __future__ import annotations

import asyncio
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from agentgym.errors import ConfigError, PolicyFailure, UsageError
from agentgym.evaluation.cost import Price, read_prices
from agentgym.evaluation.evaluate import evaluate
from agentgym.evaluation.run_folder import read_attempts
from agentgym.evaluation.suite import Suite
from agentgym.rollouts.openai_policy import OpenAIPolicy
from agentgym.rollouts.policy import ModelResponse, TextActor, Usage
from agentgym.rollouts.trajectory import Span, read_jsonl

SUITE = Suite.model_validate({"name": "s", "env": [{"name": "agentgym.testing:EchoEnv", "tasks": 4}]})
PRICE = Price(prompt=1.0, completion=10.0)


class Handler(BaseHTTPRequestHandler):
    """Model "known" that says the wrong word, with 100 tokens read and 10 sampled."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.answer(200, self.server.models)

    def do_POST(self):
        model = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["model"]
        if model not in ("known", "unlisted"):
            return self.answer(404, {"error": {"message": f"no model {model}"}})
        message = {"role": "assistant", "content": "what"}
        usage = {"usage": self.server.usage} if self.server.usage else {}
        return self.answer(200, {"choices": [{"message": message, "finish_reason": "stop"}], **usage})

    def answer(self, status, content):
        data = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.usage, server.models = {"prompt_tokens": 100, "completion_tokens": 10}, {"data": [{"id": "known"}]}
    server.url = f"http://127.0.0.1:{server.server_port}/v1"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def play(server, out, model="known", **options):
    async def go():
        async with OpenAIPolicy(server.url, model, retries=0) as policy:
            await policy.probe()
            return await evaluate(SUITE, policy, out, identity=model, **{"concurrency": 1, "price": PRICE, **options})

    return asyncio.run(go())


def test_tokens_of_a_server_are_counted_and_priced(server, tmp_path):
    report = play(server, tmp_path)
    turns = sum(row.turns for row in report.rows)
    assert [row.tokens for row in report.rows] == [Usage(100 * row.turns, 10 * row.turns) for row in report.rows]
    overall = report.summary.overall
    assert (overall.prompt_tokens, overall.completion_tokens) == (100 * turns, 10 * turns)
    assert overall.cost == pytest.approx(turns * 200 / 1e6)
    assert overall.seconds > 0
    turn = next(read_jsonl(tmp_path / "trajectories.jsonl")).turns[0]
    assert (turn.prompt_tokens, turn.completion_tokens) == (100, 10)
    written = json.loads((tmp_path / "summary.json").read_text())
    assert written["overall"]["cost"] == overall.cost
    assert written["price"] == {"prompt": 1.0, "completion": 10.0}


def test_server_without_usage_leaves_tokens_unknown(server, tmp_path):
    server.usage = None
    report = play(server, tmp_path)
    assert {row.tokens for row in report.rows} == {None}
    assert (report.summary.overall.prompt_tokens, report.summary.overall.cost) == (None, None)
    with pytest.raises(UsageError, match="does not count its tokens, so its cost cannot be limited"):
        play(server, tmp_path / "limited", max_cost=1.0)


def test_max_cost_stops_new_episodes_and_resumes(server, tmp_path):
    complete = play(server, tmp_path / "complete")
    cost = complete.summary.overall.cost
    first = play(server, tmp_path / "run", max_cost=cost * 0.4)
    assert 0 < len(first.rows) < 4
    assert first.summary.overall.cost >= cost * 0.4
    left = 4 - len(first.rows)
    assert f"{left} of 4 attempts are left; ask again with a greater maximum cost" in first.stopped
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["stopped"] == first.stopped
    again = play(server, tmp_path / "run", max_cost=cost * 0.4)
    assert len(again.rows) == len(first.rows), "what was spent before counts"
    assert play(server, tmp_path / "run", max_cost=cost * 2).stopped == ""
    assert len(read_attempts(tmp_path / "run")) == 4


def test_concurrent_episodes_in_flight_are_ended(server, tmp_path):
    report = play(server, tmp_path, max_cost=1e-9, concurrency=2)
    assert len(report.rows) == 2
    assert all(not row.failed and row.turns == 8 for row in report.rows)


class Broken(TextActor):
    """Replies once and fails, until the third episode is begun."""

    def __init__(self, begun: int) -> None:
        self.begun = begun

    async def act(self, ask):
        if self.begun < 3 and ask.turn == 1:
            raise PolicyFailure("the engine stopped")
        return ModelResponse("what", span=Span(0, 7, 9))


class BrokenPolicy:
    begun = 0

    def actor(self, episode):
        self.begun += 1
        return Broken(self.begun)


def test_tokens_of_failed_tries_and_of_spans_count(tmp_path):
    suite = SUITE.model_copy(update={"envs": (SUITE.envs[0].model_copy(update={"tasks": 1}),)})
    policy = BrokenPolicy()
    failed = asyncio.run(evaluate(suite, policy, tmp_path, identity="broken"))
    assert [(row.failed, row.tokens) for row in failed.rows] == [(True, Usage(14, 4))]
    (row,) = asyncio.run(evaluate(suite, policy, tmp_path, identity="broken")).rows
    assert (row.failed, row.tokens) == (False, Usage(14 + 7 * row.turns, 4 + 2 * row.turns))


def test_probe_names_the_models_there(server, tmp_path):
    with pytest.raises(UsageError, match=r"/v1 has no model 'typo'; it has known$"):
        play(server, tmp_path / "typo", "typo")
    assert not (tmp_path / "typo").exists()
    assert len(play(server, tmp_path / "unlisted", "unlisted").rows) == 4
    server.models = {"models": []}
    assert len(play(server, tmp_path / "nolist", "known").rows) == 4


def test_prices_are_read_and_mistakes_are_named(tmp_path):
    file = tmp_path / "prices.toml"
    file.write_text('["org/model-1.5"]\nprompt = 0.25\ncompletion = 2.0\n')
    price = read_prices(file)["org/model-1.5"]
    assert price.of(Usage(1_000_000, 500_000)) == 1.25
    for text, message in (
        ("x", "cannot be read as prices"),
        ("[m]\nprompt = 1\n", r"m\.completion: Field required"),
        ("[m]\nprompt = -1\ncompletion = 0\n", r"m\.prompt: Input should be greater"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=message):
            read_prices(file)
    with pytest.raises(ConfigError, match="cannot be read as prices"):
        read_prices(tmp_path / "none.toml")
