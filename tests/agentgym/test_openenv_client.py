"""The client of OpenEnv servers, against a small one that keeps to OpenEnv 0.10's wire and knows nothing of ours."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi import FastAPI, Request, WebSocket, WebSocketDisconnect

from agentgym.clients.client import EnvClient, connect
from agentgym.clients.gym import RemoteEnv
from agentgym.clients.schema_mapping import Actions, read_observation
from agentgym.errors import (
    AtCapacity,
    BadRequest,
    ConfigError,
    DeadlineExceeded,
    EnvironmentCrashed,
    EpisodeLost,
    OutOfOrder,
    SessionBusy,
    Unreachable,
)
from agentgym_servers.web.run import serve_in_thread

TEXT = {"type": "object", "properties": {"metadata": {"type": "object"}, "message": {"type": "string"}}}
TEXT_SCHEMA = {**TEXT, "required": ["message"], "additionalProperties": False}


class Counting:
    """An environment that repeats what it is told and counts; `done` after `length` steps."""

    def __init__(self, length: int = 3) -> None:
        self.length, self.steps, self.begun = length, 0, dict[str, Any]()

    def reset(self, data: dict[str, Any]) -> dict[str, Any]:
        self.steps, self.begun = 0, data
        return {"observation": {"echoed": f"begin {json.dumps(data, sort_keys=True)}", "metadata": {}}, "done": False}

    def step(self, action: dict[str, Any]) -> dict[str, Any]:
        if action.get("message") == "crash":
            raise RuntimeError("the environment broke")
        self.steps += 1
        metadata = {"count": self.steps}
        observation = {"echoed": f"{self.steps} {action.get('message')}", "metadata": metadata}
        return {"observation": observation, "reward": 0.5, "done": self.steps == self.length, "metadata": metadata}


class Upstream:
    """The server. `faults` says what becomes of the n-th step frame that it gets: "drop before" or "drop after" it is
    applied, "stall" before it answers, or text to answer with."""

    def __init__(
        self, *, resumable: bool = True, rooms: int = 8, tasks: bool = True, schema: Any = TEXT_SCHEMA
    ) -> None:
        self.resumable, self.rooms, self.tasks, self.schema = resumable, rooms, tasks, schema
        self.faults: dict[int, str] = {}
        self.frames: list[dict[str, Any]] = []
        self.applied: list[dict[str, Any]] = []
        self.made: dict[str, Counting] = {}
        self.attached: set[str] = set()
        self.owned = 0
        self.steps = 0
        self.sockets: list[WebSocket] = []

    def app(self) -> FastAPI:
        app = FastAPI()
        app.get("/metadata")(lambda: {"name": "counting", "description": "Counts.", "readme_content": None})
        app.get("/schema")(lambda: {"action": self.schema, "observation": {}, "state": {}})
        app.post("/mcp")(self.mcp)
        app.websocket("/ws")(self.ws)
        if self.tasks:
            app.get("/list_environments")(lambda: ["Counting"])
            app.get("/Counting/splits")(lambda: [{"name": "train", "type": "train"}, {"name": "dev", "type": "test"}])
            app.post("/Counting/num_tasks")(self.num_tasks)
        return app

    async def num_tasks(self, request: Request) -> dict[str, int]:
        return {"num_tasks": {"train": 7, "dev": 2}[(await request.json())["split"]]}

    async def mcp(self, request: Request) -> dict[str, Any]:
        call = await request.json()
        method, params, answer = call["method"], call.get("params", {}), {"jsonrpc": "2.0", "id": call["id"]}
        if method == "openenv/session/create" and self.resumable:
            if self.full():
                data = {"active_sessions": self.rooms, "max_sessions": self.rooms}
                return {**answer, "error": {"code": -32000, "message": "no room", "data": data}}
            session_id = str(uuid.uuid4())
            self.made[session_id] = Counting()
            return {**answer, "result": {"session_id": session_id}}
        if method == "openenv/session/close" and self.resumable:
            self.made.pop(params["session_id"], None)
            return {**answer, "result": {"session_id": params["session_id"], "closed": True}}
        return {**answer, "error": {"code": -32601, "message": "no such method", "data": None}}

    def full(self) -> bool:
        return len(self.made) + self.owned >= self.rooms

    async def ws(self, socket: WebSocket) -> None:
        await socket.accept()
        self.sockets.append(socket)
        session_id = socket.query_params.get("session_id")
        if session_id is not None and (session_id not in self.made or session_id in self.attached):
            return await self.refuse(socket, "SESSION_ERROR", f"no session {session_id}, or it has a socket")
        if session_id is None and self.full():
            return await self.refuse(socket, "CAPACITY_REACHED", "no room")
        env = Counting() if session_id is None else self.made[session_id]
        self.attached.add(session_id or "")
        self.owned += session_id is None
        try:
            while await self.answer(socket, env, json.loads(await socket.receive_text())):
                pass
        except WebSocketDisconnect:
            pass
        finally:
            self.attached.discard(session_id or "")
            self.owned -= session_id is None

    async def answer(self, socket: WebSocket, env: Counting, frame: dict[str, Any]) -> bool:
        self.frames.append(frame)
        assert set(frame) <= {"type", "data"}, "an OpenEnv server rejects any other key"
        if frame["type"] == "state":
            await self.send(socket, "state", {"episode_id": None, "step_count": env.steps})
        elif frame["type"] == "reset":
            await self.send(socket, "observation", {"reward": None, **env.reset(frame.get("data", {}))})
        elif frame["type"] == "step":
            return await self.step(socket, env, frame["data"])
        else:
            await socket.close()
            return False
        return True

    async def step(self, socket: WebSocket, env: Counting, action: dict[str, Any]) -> bool:
        fault = self.faults.get(self.steps, "")
        self.steps += 1
        if fault == "drop before":
            await socket.close()
            return False
        if not set(action) <= {"message", "metadata"} or not isinstance(action.get("message"), str):
            errors = [{"type": "missing", "loc": ["message"], "msg": "Field required"}]
            await self.send(socket, "error", {"code": "VALIDATION_ERROR", "message": "Invalid", "errors": errors})
            return True
        self.applied.append(action)
        try:
            reply = env.step(action)
        except RuntimeError as error:
            await self.send(socket, "error", {"code": "EXECUTION_ERROR", "message": str(error)})
            return True
        if fault == "drop after":
            await socket.close()
            return False
        if fault == "stall":
            await asyncio.sleep(0.3)
        if fault.startswith("{"):
            await socket.send_text(fault)
        else:
            await self.send(socket, "observation", reply)
        return True

    async def send(self, socket: WebSocket, kind: str, data: Any) -> None:
        await socket.send_text(json.dumps({"type": kind, "data": data}))

    async def refuse(self, socket: WebSocket, code: str, message: str) -> None:
        await self.send(socket, "error", {"code": code, "message": message})
        await socket.close()

    def kinds(self) -> list[str]:
        return [frame["type"] for frame in self.frames]


@contextmanager
def serving(**options: Any) -> Iterator[tuple[Upstream, str]]:
    upstream = Upstream(**options)
    with serve_in_thread(upstream.app()) as url:
        yield upstream, url


def play(script: Any, url: str, **options: Any) -> None:
    async def main() -> None:
        async with connect(url, **options) as env:
            await script(env)

    asyncio.run(main())


@pytest.mark.parametrize("resumable", [True, False])
def test_an_episode(resumable):
    async def script(env: Any) -> None:
        assert (env.spec.id, env.spec.description) == ("counting", "Counts.")
        assert (env.spec.splits, env.spec.max_turns) == ({"train": 7, "dev": 2}, 12)
        session = env.session()
        with pytest.raises(OutOfOrder):
            await session.step("x")
        for _ in range(2):
            first = await session.reset(seed=3, options={"split": "dev", "task": 1, "hard": True})
            assert first == ('begin {"hard": true, "index": 1, "seed": 3, "split": "dev"}', 0.0, False, False, {})
            steps = [await session.step(word) for word in ("a", "b", "c")]
            assert [step.observation for step in steps] == ["1 a", "2 b", "3 c"]
            assert [step.terminated for step in steps] == [False, False, True]
            assert steps[0][1:] == (0.5, False, False, {"count": 1})
            with pytest.raises(OutOfOrder):
                await session.step("d")
        for options in ({"split": "nowhere"}, {"task": 7}, {"task": "1"}, {"x": object()}):
            with pytest.raises(BadRequest):
                await session.reset(options=options)
        for call in (session.solver, session.hint, session.snapshot):
            with pytest.raises(BadRequest):
                await call()

    with serving(resumable=resumable) as (upstream, url):
        play(script, url, spec={"max_turns": 12})
        assert (upstream.made, upstream.owned) == ({}, 0)
        assert len(upstream.sockets) == 1


def test_without_tasks_a_task_is_a_seed():
    async def script(env: Any) -> None:
        session = env.session()
        assert (await session.reset(options={"split": "train", "task": 5})).observation == 'begin {"seed": 5}'
        assert (await session.reset(seed=9, options={"task": 5})).observation == 'begin {"seed": 9}'

    with serving(tasks=False) as (_, url):
        play(script, url, spec={"splits": {"train": 10}})


def test_a_dropped_socket_reopens_the_same_session():
    async def script(env: Any) -> None:
        session = env.session()
        await session.reset()
        await session.step("a")
        await session._socket.close()
        assert (await session.step("b")).observation == "2 b"

    with serving() as (upstream, url):
        play(script, url)
        assert upstream.kinds() == ["reset", "step", "state", "step", "close"]
        assert len(upstream.sockets) == 2


@pytest.mark.parametrize("resumable", [True, False])
@pytest.mark.parametrize("fault", ["drop before", "drop after"])
def test_a_step_whose_reply_is_lost_is_never_sent_again(fault, resumable):
    async def script(env: Any) -> None:
        session = env.session()
        await session.reset()
        await session.step("a")
        for _ in range(2):
            with pytest.raises(EpisodeLost):
                await session.step("b")
        await session.reset()
        assert (await session.step("c")).observation == "1 c"

    with serving(resumable=resumable) as (upstream, url):
        upstream.faults = {1: fault}
        play(script, url)
        words = [frame["data"]["message"] for frame in upstream.frames if frame["type"] == "step"]
        assert words == ["a", "b", "c"]


def test_a_session_that_owned_its_socket_is_lost_with_it():
    async def script(env: Any) -> None:
        session = env.session()
        await session.reset()
        await session._socket.close()
        with pytest.raises(EpisodeLost, match="with it the session"):
            await session.step("b")
        await session.reset()

    with serving(resumable=False) as (_, url):
        play(script, url)


def test_a_session_that_the_server_forgot_is_lost(monkeypatch):
    monkeypatch.setattr("agentgym.clients.openenv.ATTACHING_S", 0.1)

    async def script(env: Any) -> None:
        session = env.session()
        await session.reset()
        await session._socket.close()
        upstream.made.clear()
        with pytest.raises(EpisodeLost, match=r"attached again.*no session"):
            await session.step("b")
        await session.reset()

    with serving() as (upstream, url):
        play(script, url)
        assert not upstream.applied


@pytest.mark.parametrize("resumable", [True, False])
def test_a_server_without_room_is_waited_for(resumable, monkeypatch):
    monkeypatch.setattr("agentgym.clients.openenv.ROOM_S", 0.1)

    async def main(url: str) -> None:
        async with EnvClient(url) as client, EnvClient(url, capacity_wait_s=0.15) as impatient:
            first, second = client.session(), client.session()
            await first.reset()
            with pytest.raises(AtCapacity, match="no room"):
                await impatient.session().reset()
            waiting = asyncio.create_task(second.reset())
            await asyncio.sleep(0.15)
            assert not waiting.done()
            await first.close()
            assert (await waiting).observation.startswith("begin")

    with serving(resumable=resumable, rooms=1) as (_, url):
        asyncio.run(main(url))


def test_a_late_reply_is_never_taken_for_the_next_ones():
    async def script(env: Any) -> None:
        session = env.session()
        await session.reset()
        with pytest.raises(DeadlineExceeded):
            await session.step("late")
        with pytest.raises(EpisodeLost):
            await session.step("x")
        await session.reset()
        assert (await session.step("y")).observation == "1 y"

    with serving() as (upstream, url):
        upstream.faults = {0: "stall"}
        play(script, url, timeout_s=0.15)


def test_a_call_that_is_cancelled_ends_the_episode():
    async def script(env: Any) -> None:
        session = env.session()
        await session.reset()
        waiting = asyncio.create_task(session.step("late"))
        await asyncio.sleep(0.05)
        with pytest.raises(SessionBusy):
            await session.step("x")
        with pytest.raises(SessionBusy):
            await session.reset()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(EpisodeLost, match="cancelled"):
            await session.step("x")
        await session.reset()
        assert (await session.step("y")).observation == "1 y"

    with serving() as (upstream, url):
        upstream.faults = {0: "stall"}
        play(script, url)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ('{"type": "state", "data": {}}', "a state in answer to a step"),
        ('{"type": "observation"}', "protocol forbids"),
        ('{"type": "observation", "data": {"reward": 1}}', "no observation"),
        ('{"type": "observation", "data": {"observation": {}, "reward": "high"}}', "no observation"),
        ('{"type": "error", "data": {"code": "FACTORY_ERROR", "message": "no environment"}}', "no environment"),
        ('{"type": "error", "data": {"code": "NEW", "message": "of a newer server"}}', "newer"),
        ('{"broken', "protocol forbids"),
    ],
)
def test_garbage_is_shown_and_never_scored(fault, message):
    async def script(env: Any) -> None:
        session = env.session()
        await session.reset()
        with pytest.raises(EnvironmentCrashed, match=message):
            await session.step("x")
        with pytest.raises(EpisodeLost):
            await session.step("x")

    with serving() as (upstream, url):
        upstream.faults = {0: fault}
        play(script, url)


def test_failures_of_the_env_and_of_the_agent():
    async def script(env: Any) -> None:
        session = env.session()
        await session.reset()
        refused = await session.step({"name": "act", "arguments": {"nonsense": 1}})
        assert (refused.reward, refused.info) == (0.0, {"valid_action": False})
        assert refused.observation == "Invalid action: Invalid; message: Field required"
        assert (await session.step("a")).observation == "1 a"
        with pytest.raises(BadRequest):
            await session.step("\ud800")
        with pytest.raises(EnvironmentCrashed, match="the environment broke"):
            await session.step("crash")
        with pytest.raises(EpisodeLost):
            await session.step("a")
        await session.reset()

    with serving() as (_, url):
        play(script, url)


def test_sessions_last_after_the_server_was_gone():
    """That it did not answer says nothing about what it can do."""

    async def main() -> None:
        with serving() as (_, url):
            client = EnvClient(url, retries=0)
            await client.fetch_spec()
        session = client.session()
        with pytest.raises(Unreachable):
            await session.reset()
        with serve_in_thread(Upstream().app(), port=int(url.rpartition(":")[2])):
            await session.reset()
            await session._socket.close()  # type: ignore[attr-defined]
            assert (await session.step("a")).observation == "1 a"
            await client.close()

    asyncio.run(main())


def test_gymnasium_sees_no_difference():
    with serving() as (_, url), RemoteEnv(url) as env:
        env.reset(seed=1)
        assert env.step("a") == ("1 a", 0.5, False, False, {"count": 1})


def test_servers_that_are_gone_or_something_else():
    with serving(schema=None) as (_, url), pytest.raises(ConfigError, match="without the /schema"):
        play(None, url)
    with serving() as (_, url), pytest.raises(ConfigError, match="cannot be described"):
        play(None, url, spec={"max_turns": 0})
    with pytest.raises(Unreachable):
        play(None, url, retries=0)


def schema_of(required: str = "", **fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"metadata": {}, **fields}, "required": required.split()}


STRING, INTEGER = {"type": "string"}, {"type": "integer"}
SEARCH = {"name": "search", "description": "Finds.", "inputSchema": {"type": "object", "properties": {"q": STRING}}}
CALL = {"type": "call_tool", "tool_name": "search", "arguments": {"q": "x"}}


@pytest.mark.parametrize(
    ("schema", "tools", "action", "sent"),
    [
        (schema_of("text", text=STRING), [], "go", {"text": "go"}),
        (schema_of(action_str=STRING), [], "go", {"action_str": "go"}),
        (schema_of("code", code=STRING, timeout=INTEGER), [], "print()", {"code": "print()"}),
        (schema_of(text=STRING, note=STRING), [], "go", {"text": "go"}),
        (schema_of("move", move={"anyOf": [STRING, {"type": "null"}]}), [], "e4", {"move": "e4"}),
        (schema_of("column", column=INTEGER), [], "3", {"column": 3}),
        (schema_of("column", column=INTEGER), [], '{"column": 3}', {"column": 3}),
        (schema_of("x y", x=INTEGER, y=INTEGER), [], '{"x": 1, "y": 2}', {"x": 1, "y": 2}),
        (schema_of("x y", x=INTEGER, y=INTEGER), [], {"name": "act", "arguments": {"x": 1}}, {"x": 1}),
        (schema_of("text", text=STRING), [], {"name": "act", "arguments": {"text": "go"}}, {"text": "go"}),
        (schema_of(), [SEARCH], {"name": "search", "arguments": {"q": "x"}}, CALL),
        (schema_of("tool_name", tool_name=STRING, arguments={"type": "object"}), [SEARCH],
         '{"name": "search", "arguments": {"q": "x"}}', CALL),
    ],
)  # fmt: skip
def test_actions_become_the_servers(schema, tools, action, sent):
    assert Actions.of(schema, tools).encode(action) == sent


@pytest.mark.parametrize(
    ("schema", "tools", "text"),
    [
        (schema_of("column", column=INTEGER), [], "three"),
        (schema_of("x y", x=INTEGER, y=INTEGER), [], "left"),
        (schema_of("x y", x=INTEGER, y=INTEGER), [], "[1, 2]"),
        (schema_of(), [SEARCH], "search for x"),
        (schema_of(), [SEARCH], '{"tool": "search"}'),
    ],
)
def test_text_that_is_no_action_is_the_agents_mistake(schema, tools, text):
    with pytest.raises(ValueError):
        Actions.of(schema, tools).encode(text)


def test_tools_that_are_offered():
    assert [tool.name for tool in Actions.of(schema_of(), [SEARCH, {"no": "name"}]).tools] == ["search"]
    (act,) = Actions.of(schema_of("x", x=INTEGER, y=STRING, z=STRING) | {"required": ["x", "y"]}, []).tools
    assert (act.name, act.parameters["required"]) == ("act", ["x", "y"])
    assert not Actions.of(schema_of("text", text=STRING), [SEARCH]).tools


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        ({"text": "You see a door.", "metadata": {}}, "You see a door."),
        ({"text": "You see a door.", "n": 2, "metadata": {"k": 1}}, ("You see a door.", {"n": 2, "k": 1})),
        ({"echoed": "hi", "metadata": {"k": 1}}, ("hi", {"k": 1})),
        ({"board": [[1]], "turn": "é", "metadata": {}}, '{"board":[[1]],"turn":"é"}'),
        ({"tool_name": "t", "result": {"content": [{"type": "text", "text": "4"}], "data": 4}, "error": None}, "4"),
        ({"tool_name": "t", "result": None, "error": {"error_type": "x", "message": "no such"}}, "Error: no such"),
        ({"tool_name": "t", "result": {"a": 1}, "error": None}, '{"a":1}'),
    ],
)
def test_observations_become_text(observation, text):
    assert read_observation(observation) == (text if isinstance(text, tuple) else (text, {}))
