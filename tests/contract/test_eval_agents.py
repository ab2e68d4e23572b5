"""Programs of others under evaluation: the environment's session scores them, and a claim is called one."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from agentgym.cli.main import verbs
from agentgym.evaluation.agents.attempt import AgentAttempt
from agentgym.evaluation.run_folder import read_attempts
from agentgym.rollouts.trajectory import Trajectory, read_jsonl
from agentgym_servers.agents.app import serve_agents
from agentgym_servers.agents.replies import prompt_text, read_reply
from agentgym_servers.web.run import serve_in_loop, serve_in_thread

AGENT = """
import json, os, sys, urllib.request

def post(url, **body):
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request, timeout=60))

def ask(content):
    messages = [{"role": "user", "content": content}]
    answer = post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", model="any", messages=messages)
    return answer["choices"][0]["message"]["content"]

def play(action=""):
    env = os.environ["AGENTGYM_ENV_URL"]
    step, over, turn = post(env + "/reset"), False, 0
    session = step["session_id"]
    while not over:
        reply = ask(step["observation"]["text"])
        action = {"text": reply}
        step = post(env + "/step", session_id=session, step=turn, action=action)
        over, turn = step["done"], turn + 1
        BETWEEN
    print("the last line", flush=True)

task, episode = int(os.environ["AGENTGYM_TASK"]), os.environ["AGENTGYM_EPISODE"]
BEHAVE
"""
CLAIM = "post(episode + '/finish', reward=1, success=True)"


@pytest.fixture(scope="module")
def model() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A model's URL, and the requests that it got: it says "left", and fails at tasks with "down" in their prompt."""
    app, requests = FastAPI(), []

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"data": [{"id": "m"}]}

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> JSONResponse:
        body = await request.json()
        requests.append({**body, "authorization": request.headers.get("authorization")})
        if "down" in body["messages"][-1]["content"]:
            return JSONResponse({"error": "out of order"}, 503)
        choice = {"message": {"role": "assistant", "content": "left"}, "finish_reason": "stop"}
        return JSONResponse({"choices": [choice], "usage": {"prompt_tokens": 7, "completion_tokens": 2}})

    with serve_in_thread(app) as url:
        yield f"{url}/v1", requests


@pytest.fixture
def run(model, tmp_path) -> Any:
    """run(behave, *options, between="") evaluates a program: (exit status, output, attempts, trajectories)."""

    def evaluate(behave: str, *options: str, between: str = "") -> tuple[int, str, list[Any], list[Trajectory]]:
        file = tmp_path / "agent.py"
        file.write_text(AGENT.replace("BEHAVE", behave).replace("BETWEEN", between), encoding="utf-8")
        command = shlex.join([sys.executable, str(file)])
        plain = ["--env", "oracle", "--split", "train", "--tasks", "1", "--out", str(tmp_path / "out")]
        arguments = ["eval", model[0], "--model", "m", "--agent", command, *plain, *options]
        done = CliRunner().invoke(verbs, arguments, env={"OPENAI_API_KEY": "secret"})
        folder = tmp_path / "out"
        rows = read_attempts(folder) if (folder / "attempts.jsonl").exists() else []
        kept = list(read_jsonl(folder / "trajectories.jsonl")) if rows else []
        return done.exit_code, done.output + str(done.exception or ""), rows, kept

    return evaluate


def test_the_environment_scores_and_not_the_agent(run, model, tmp_path):
    """The agent says "left" for ever, which is no success, and claims a success."""
    status, output, rows, kept = run(f"play(); {CLAIM}", "--attempts", "2")
    assert status == 0, output
    assert [(row.success, row.score, row.turns, row.failed) for row in rows] == [(False, 0.0, 3, False)] * 2
    assert [turn.action for turn in kept[0].turns] == ["left"] * 3
    assert "fork" in kept[0].turns[0].observation
    assert (rows[0].prompt_tokens, rows[0].completion_tokens) == (21, 6)
    sent = model[1][-1]
    assert (sent["model"], sent["authorization"]) == ("m", "Bearer secret")
    logs = tmp_path / "out" / "agents"
    assert (logs / "oracle-train-task-0-seed-0-attempt-1.log").read_text() == "the last line\n"
    calls = (logs / "oracle-train-task-0-seed-0-attempt-1.jsonl").read_text().splitlines()
    assert [json.loads(line)["reply"] for line in calls] == ["left"] * 3
    status, output, rows, _ = run(f"play(); {CLAIM}", "--attempts", "2")  # nothing is left to play
    assert (status, len(rows), len(list(logs.iterdir()))) == (0, 2, 4)
    verified = CliRunner().invoke(verbs, ["eval", "verify", str(tmp_path / "out")])
    assert "2 attempts gave the same rewards and success" in verified.output
    status, output, _, _ = run(f"play() or {CLAIM}", "--attempts", "2")
    assert (status, "another policy" in output) == (1, True)  # the program was edited


@pytest.mark.parametrize(
    ("behave", "between", "stop", "error"),
    [
        ("play()", "sys.exit(3)", "policy_failed", "ended with status 3"),
        ("play()", "import time; time.sleep(600)", "deadline", "longer than 4 s"),
        (CLAIM, "", "policy_failed", "ended with status 1"),
        (f"ask('x'); {CLAIM}", "", "policy_failed", "without a step in the environment at AGENTGYM_ENV_URL"),
        ("play()", "ask('down')", "policy_failed", "the model's server failed its last call"),
    ],
)
def test_a_failure_is_counted_and_never_a_zero(run, behave, between, stop, error):
    timeout = ("--agent-timeout", "4") if stop == "deadline" else ()
    status, output, rows, _ = run(behave, *timeout, between=between)
    assert status == 1, output
    assert [(row.stop, row.success, row.score) for row in rows] == [(stop, None, None)]
    assert error in rows[0].error


def test_a_program_that_gives_up_counts_as_it_stands(run):
    status, output, rows, _ = run("play()", between="sys.exit()")
    assert (status, rows[0].stop, rows[0].success, rows[0].turns) == (0, "agent_ended", False, 1), output
    assert "1 programs ended before their episodes did" in " ".join(output.split())


def test_an_episode_is_played_once_and_without_help(run, tmp_path):
    """No second reset, no other task, no solver and no snapshot; a claim over HTTP changes nothing."""
    refused = """
for verb, body in (("reset", {}), ("reset", {"index": 1}), ("solver", {}), ("snapshot", {})):
    try:
        body = body if verb == "reset" else {"session_id": session}
        post(env + "/" + verb, **body)
    except urllib.error.HTTPError as error:
        print(verb, error.code, json.load(error)["message"][:50], flush=True)
"""
    indented = "\n        ".join(refused.strip().splitlines())
    status, output, rows, _ = run("import urllib.error; play()", between=indented)
    assert (status, rows[0].turns) == (0, 3), output
    lines = next((tmp_path / "out" / "agents").glob("*.log")).read_text().splitlines()
    assert len([line for line in lines if line.startswith("reset 422")]) == 6
    assert len([line for line in lines if line.startswith(("solver 4", "snapshot 4"))]) == 6


def test_an_agents_own_environment_is_a_claim(run, tmp_path):
    behave = "\n".join(["ask('one'); ask('two')", "if task: sys.exit()", "post(episode + '/finish', reward=[0, 2])"])
    status, output, rows, kept = run(behave, "--own-env", "--tasks", "2", "--env", "my-bench")
    assert status == 0, output
    by_task = {(row.env, row.task): row for row in rows}
    claimed, silent = by_task["my-bench", 0], by_task["my-bench", 1]
    assert (claimed.success, claimed.score, claimed.turns, claimed.prompt_tokens) == (True, 2.0, 2, 14)
    assert (silent.stop, silent.score) == ("policy_failed", None)
    assert "did not POST $AGENTGYM_EPISODE/finish" in silent.error
    played = next(trajectory for trajectory in kept if trajectory.task == 0)
    assert [(turn.observation, turn.reply, turn.reward) for turn in played.turns] == [
        ("one", "left", 0.0),
        ("two", "left", 2.0),
    ]
    assert "the score is the agent's own claim" in " ".join(output.split())
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["claimed"] is True
    verified = CliRunner().invoke(verbs, ["eval", "verify", str(tmp_path / "out")])
    assert "own claim" in verified.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["solver", "--agent", "python a.py"], "--agent needs a model"),
        (["http://127.0.0.1:9/v1", "--model", "m", "--own-env"], "go with --agent"),
        (["http://127.0.0.1:9/v1", "--agent", "python a.py"], "--model NAME"),
        (["http://127.0.0.1:9/v1", "--agent", ""], "name the program"),
        (["http://127.0.0.1:9/v1", "--agent", "x", "--temperature", "0"], "--temperature: an agent's program decides"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments, message, tmp_path):
    done = CliRunner().invoke(verbs, ["eval", *arguments, "--env", "oracle", "--out", str(tmp_path)])
    assert message in str(done.exception) + done.output


def forwarded(app: Any, *calls: tuple[str, dict[str, Any]]) -> tuple[AgentAttempt, list[httpx.Response]]:
    """The attempt of a program that made these calls (a path, a body) of the model `app`, and their replies."""
    attempt = AgentAttempt("one")

    async def main() -> list[httpx.Response]:
        async with serve_in_loop(app) as model, serve_agents(f"{model}/v1", "m", "secret") as servers:
            servers.open(attempt)
            headers = {"authorization": f"Bearer {servers.key}"}
            async with httpx.AsyncClient(base_url=f"{servers.url}/episodes/one/v1", headers=headers) as program:
                return [await program.post(path, json=body) for path, body in calls]

    return attempt, asyncio.run(main())


def test_a_program_stays_below_the_models_v1():
    paths, app = [], FastAPI()

    @app.post("/{path:path}")
    async def note(request: Request) -> dict[str, Any]:
        paths.append(request.scope["raw_path"].decode())
        return {}

    calls = ["/%2e%2e/admin", "/a/%2E./%2e%2e/%2e%2e/admin", "/chat%3Fadmin=1"]
    _, replies = forwarded(app, *((path, {}) for path in calls))
    assert [reply.status_code for reply in replies] == [400, 400, 200]
    assert paths == ["/v1/chat%3Fadmin%3D1"]


def test_a_reply_that_breaks_off_is_the_servers_failure():
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def chat() -> StreamingResponse:
        return StreamingResponse(iter([b"{"]), headers={"content-length": "100"})

    attempt, (reply,) = forwarded(app, ("/chat/completions", {"messages": []}))
    assert (reply.status_code, attempt.calls) == (502, [])
    assert "RemoteProtocolError" in attempt.problem


def test_a_stream_left_at_its_last_event_is_kept():
    """Clients hang up at "[DONE]"; the model's server may end the response a moment later."""
    app, left = FastAPI(), asyncio.Event()

    @app.post("/v1/chat/completions")
    async def chat() -> StreamingResponse:
        async def events() -> AsyncIterator[bytes]:
            choice = {"delta": {"content": "left"}, "finish_reason": "stop"}
            yield f"data: {json.dumps({'choices': [choice]})}\n\ndata: [DONE]\n\n".encode()
            await left.wait()

        return StreamingResponse(events(), media_type="text/event-stream")

    attempt = AgentAttempt("one")

    async def main() -> None:
        async with serve_in_loop(app) as model, serve_agents(f"{model}/v1", "m") as servers:
            servers.open(attempt)
            headers, url = {"authorization": f"Bearer {servers.key}"}, f"{servers.url}/episodes/one/v1/chat/completions"
            async with (
                httpx.AsyncClient(headers=headers) as program,
                program.stream("POST", url, json={"messages": []}) as reply,
            ):
                async for line in reply.aiter_lines():
                    if line == "data: [DONE]":
                        break
            async with asyncio.timeout(5):
                while not attempt.calls:
                    await asyncio.sleep(0.01)
            left.set()

    asyncio.run(main())
    assert [call.reply for call in attempt.calls] == ["left"]


def test_replies_are_read_in_every_shape():
    call = {"name": "look", "arguments": {"at": "door"}}
    tool = f"<tool_call>{json.dumps(call)}</tool_call>"
    blocks = [{"type": "text", "text": "I look"}, {"type": "tool_use", "name": "look", "input": call["arguments"]}]
    usage = {"input_tokens": 3, "output_tokens": 4}
    message = {"content": blocks, "stop_reason": "max_tokens", "usage": usage}
    assert read_reply("/messages", json.dumps(message).encode(), False) == (f"I look\n{tool}", "length", (3, 4))
    item = {"type": "function_call", "name": "look", "arguments": '{"at": "door"}'}
    response = {"output": [item], "status": "completed", "usage": usage}
    assert read_reply("/responses", json.dumps(response).encode(), False) == (tool, "stop", (3, 4))
    parts = [{"delta": {"content": "a"}}, {"delta": {"content": "b"}, "finish_reason": "length"}]
    events = [f"data: {json.dumps({'choices': [part]})}\n\n" for part in parts] + ["data: [DONE]\n\n"]
    assert read_reply("/chat/completions", "".join(events).encode(), True) == ("ab", "length", None)
    text = "a\u2028b\x85c"  # which end a line of a text, and not of an event
    part = json.dumps({"choices": [{"delta": {"content": text}}]}, ensure_ascii=False)
    assert read_reply("/chat/completions", f"data: {part}\n\n".encode(), True) == (text, "stop", None)
    with pytest.raises(ValueError, match="no reply can be read"):
        read_reply("/messages", b"[]", False)
    assert prompt_text({"input": [{"type": "function_call_output", "output": "a door"}]}) == "a door"
