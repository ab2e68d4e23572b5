"""The client's side of the extended socket, against servers that misbehave in every way and networks that cut."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from agentgym.clients.client import EnvClient
from agentgym.clients.transports import websocket
from agentgym.errors import BadRequest, EnvironmentCrashed, EpisodeLost, Unreachable
from agentgym.testing import EchoEnv

HELLO = {"type": "hello", "data": {"protocol": "1", "env": "echo", "lease_s": 600.0, "max_frame_bytes": 65536}}
Handler = Callable[[ServerConnection], Awaitable[None]]


def step_reply(step: int, text: str, **more: Any) -> dict[str, Any]:
    ends = {"done": False, "terminated": False, "truncated": False}
    return {"observation": {"text": text}, "reward": 0.5, "step": step, "info": {}, **ends, **more}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What an honest server replies to a frame."""
    data, number = request["data"], request["id"]
    if request["type"] == "step_many":
        results = [[i, step_reply(one["step"] + 1, one["action"]["text"])] for i, one in enumerate(data["steps"])]
        return {"id": number, "type": "results", "data": {"results": results, "pending": 0}}
    if request["type"] == "step":
        content = step_reply(data["step"] + 1, data["action"]["text"])
    elif request["type"] == "reset":
        content = {**step_reply(0, "begin"), "session_id": data.get("session_id", f"s{number}")}
    else:
        content = {"session_id": data["session_id"], "closed": True}
    return {"id": number, "type": "reply", "data": content}


async def honest(socket: ServerConnection) -> None:
    await socket.send(json.dumps(HELLO))
    async for message in socket:
        await socket.send(json.dumps(answer(json.loads(message))))


class Scripted:
    """A server that describes an environment and leaves its socket to `handler`; `asked` holds the frames it got."""

    def __init__(self, handler: Handler) -> None:
        self.handler, self.requests, self.sockets = handler, list[dict[str, Any]](), 0

    async def __call__(self, socket: ServerConnection) -> None:
        self.sockets += 1
        receive = socket.recv

        async def noted(*args: Any, **kwargs: Any) -> Any:
            message = await receive(*args, **kwargs)
            self.requests.append(json.loads(message))
            return message

        socket.recv = noted  # type: ignore[method-assign]
        await self.handler(socket)

    def describe(self, _: ServerConnection, request: Request) -> Response | None:
        if request.path != "/metadata":
            return None
        extra = {"protocol": "1", "spec": EchoEnv.env_spec.model_dump(mode="json"), "extensions": ["socket"]}
        body = json.dumps({"name": "echo", "agentgym": extra}).encode()
        return Response(200, "OK", Headers({"content-length": str(len(body)), "connection": "close"}), body)

    def kinds(self) -> list[str]:
        return [request["type"] for request in self.requests]


@contextlib.asynccontextmanager
async def client_of(script: Scripted, **options: Any) -> AsyncIterator[EnvClient]:
    async with serve(script, "127.0.0.1", 0, process_request=script.describe, close_timeout=0.1) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with EnvClient(f"http://127.0.0.1:{port}", **options) as client:
            yield client


async def opened(client: EnvClient, count: int) -> list[Any]:
    sessions = [client.session() for _ in range(count)]
    await asyncio.gather(*(session.reset() for session in sessions))
    return sessions


def test_simultaneous_steps_share_one_frame():
    script = Scripted(honest)

    async def main() -> None:
        async with client_of(script) as client:
            sessions = await opened(client, 5)
            for word in ("one", "two"):
                steps = await asyncio.gather(*(session.step(word) for session in sessions))
                assert [step.observation for step in steps] == [word] * 5
            assert (await sessions[0].step("three")).reward == 0.5

    asyncio.run(main())
    assert script.kinds() == ["reset"] * 5 + ["step_many"] * 2 + ["step"] + ["close"] * 5
    assert script.sockets == 1


def test_replies_in_any_order_twice_and_in_pieces():
    """Every reply comes again, results come backwards and one by one, and text comes in fragments."""

    async def disorderly(socket: ServerConnection) -> None:
        await socket.send([json.dumps(HELLO)[:9], json.dumps(HELLO)[9:]])
        late: list[str] = []
        async for message in socket:
            reply = answer(json.loads(message))
            frames = [json.dumps(reply)] * 2
            if reply["type"] == "results":
                entries = reply["data"]["results"][::-1]
                again = [*entries, entries[0]]
                parts = [{**reply, "data": {"results": [one], "pending": len(entries)}} for one in again]
                parts[-1]["data"]["pending"] = 0
                frames = [json.dumps(part) for part in (*parts, parts[-1])]
            for frame in [*frames, *late]:
                await socket.send([frame[:5], frame[5:]])
            late = frames

    async def main() -> None:
        async with client_of(Scripted(disorderly)) as client:
            sessions = await opened(client, 4)
            for turn in range(3):
                steps = await asyncio.gather(*(s.step(f"{turn}.{i}") for i, s in enumerate(sessions)))
                assert [step.observation for step in steps] == [f"{turn}.{i}" for i in range(4)]

    asyncio.run(main())


def test_replies_of_single_requests_in_the_wrong_order():
    async def backwards(socket: ServerConnection) -> None:
        await socket.send(json.dumps(HELLO))
        while True:
            pair = [answer(json.loads(await socket.recv())) for _ in range(2)]
            for reply in reversed(pair):
                await socket.send(json.dumps(reply))

    async def main() -> None:
        async with client_of(Scripted(backwards)) as client:
            one, other = await opened(client, 2)
            await asyncio.gather(one.close(), other.close())

    asyncio.run(main())


GARBAGE: list[tuple[str | bytes, type[Exception], str]] = [
    ("<html>", Unreachable, "3 attempts.*protocol forbids.*html"),
    ("[1]", Unreachable, "protocol forbids"),
    ('{"id": 2}', Unreachable, "protocol forbids"),
    (b"{}", Unreachable, "protocol forbids"),
    ('{"id": 999, "type": "reply", "data": {}}', Unreachable, "nobody asked for"),
    ('{"id": "2", "type": "reply", "data": {}}', Unreachable, "nobody asked for"),
    ('{"id": null, "type": "error", "data": {"code": "X", "message": "cannot read"}}', Unreachable, "cannot read"),
    ('{"id": ID, "type": "reply", "data": {"reward": 1}}', EnvironmentCrashed, "Field required"),
    ('{"id": ID, "type": "reply", "data": null}', EnvironmentCrashed, "protocol forbids"),
    ('{"id": ID, "type": "surprise", "data": {}}', EnvironmentCrashed, "surprise"),
    ('{"id": ID, "type": "error", "data": "oh"}', EnvironmentCrashed, "oh"),
    ('{"id": ID, "type": "results", "data": {"results": [], "pending": 0}}', EnvironmentCrashed, "protocol forbids"),
]


@pytest.mark.parametrize(("garbage", "failure", "message"), GARBAGE)
def test_garbage_is_shown_and_never_scored(garbage, failure, message):
    async def rubbish(socket: ServerConnection) -> None:
        await socket.send(json.dumps(HELLO))
        async for frame in socket:
            request = json.loads(frame)
            if request["type"] != "step":
                await socket.send(json.dumps(answer(request)))
            elif isinstance(garbage, str):
                await socket.send(garbage.replace("ID", str(request["id"])))
            else:
                await socket.send(garbage)

    async def main() -> None:
        async with client_of(Scripted(rubbish), retries=2) as client:
            (session,) = await opened(client, 1)
            with pytest.raises(failure, match=message):
                await session.step("x")
            await session.reset()

    asyncio.run(main())


@pytest.mark.parametrize(
    "content",
    [None, {}, {"results": [[0, {}]]}, {"results": [[7, {}]], "pending": 0}, {"results": [], "pending": 0}],
)
def test_a_batch_answered_with_garbage(content):
    async def rubbish(socket: ServerConnection) -> None:
        await socket.send(json.dumps(HELLO))
        async for frame in socket:
            reply = answer(json.loads(frame))
            await socket.send(json.dumps({**reply, "data": content} if reply["type"] == "results" else reply))

    async def main() -> None:
        async with client_of(Scripted(rubbish)) as client:
            sessions = await opened(client, 2)
            for failure in await asyncio.gather(*(s.step("x") for s in sessions), return_exceptions=True):
                assert isinstance(failure, EnvironmentCrashed)

    asyncio.run(main())


def test_an_error_of_one_step_fails_only_its_session():
    async def failing(socket: ServerConnection) -> None:
        await socket.send(json.dumps(HELLO))
        async for frame in socket:
            reply = answer(json.loads(frame))
            if reply["type"] == "results":
                gone = {"code": "EPISODE_LOST", "scope": "session", "message": "its lease ran out"}
                reply["data"]["results"][1][1] = gone
            await socket.send(json.dumps(reply))

    async def main() -> None:
        async with client_of(Scripted(failing)) as client:
            sessions = await opened(client, 3)
            results = await asyncio.gather(*(s.step("x") for s in sessions), return_exceptions=True)
            assert [type(result).__name__ for result in results] == ["Step", "EpisodeLost", "Step"]
            with pytest.raises(EpisodeLost, match="lease ran out"):
                await sessions[1].step("x")

    asyncio.run(main())


@pytest.mark.parametrize("silent_sockets", [2, 99])
def test_a_silent_server_is_retried_and_given_up(silent_sockets):
    script: Scripted

    async def silent(socket: ServerConnection) -> None:
        await socket.send(json.dumps(HELLO))
        quiet = script.sockets <= silent_sockets
        async for frame in socket:
            request = json.loads(frame)
            if request["type"] != "step" or not quiet:
                await socket.send(json.dumps(answer(request)))

    script = Scripted(silent)

    async def main() -> None:
        async with client_of(script, timeout_s=0.1, retries=2) as client:
            (session,) = await opened(client, 1)
            if silent_sockets == 2:
                assert (await session.step("x")).observation == "x"
            else:
                with pytest.raises(Unreachable, match=r"3 attempts.*no reply in 0\.1 s"):
                    await session.step("x")

    asyncio.run(main())
    steps = [request["data"] for request in script.requests if request["type"] == "step"]
    assert len(steps) == 3
    assert all(step == steps[0] for step in steps)


def test_a_socket_that_is_dead_without_saying_so_is_found_out(monkeypatch):
    """The first connection swallows everything, pings too, as a network that lost its way does."""
    monkeypatch.setattr(websocket, "PING_S", 0.1)
    script: Scripted

    async def numb(socket: ServerConnection) -> None:
        await socket.send(json.dumps(HELLO))
        if script.sockets == 1:
            await socket.send(json.dumps(answer(json.loads(await socket.recv()))))
            socket.transport.pause_reading()
            while script.sockets == 1:
                await asyncio.sleep(0.02)
            return socket.transport.abort()
        async for frame in socket:
            await socket.send(json.dumps(answer(json.loads(frame))))

    script = Scripted(numb)

    async def main() -> None:
        async with client_of(script, timeout_s=20.0) as client:
            client._env.wire._watch_s = 0.05  # type: ignore[union-attr]
            (session,) = await opened(client, 1)
            assert (await session.step("x")).observation == "x"
        assert script.sockets == 2

    asyncio.run(main())


def test_a_request_that_is_too_large_is_refused_here():
    script = Scripted(honest)

    async def main() -> None:
        async with client_of(script) as client:
            sessions = await opened(client, 3)
            with pytest.raises(BadRequest, match="65536 bytes"):
                await sessions[0].step("x" * 70_000)
            await asyncio.gather(*(session.step("x" * 30_000) for session in sessions))  # two frames

    asyncio.run(main())
    assert script.sockets == 1
    assert script.kinds() == ["reset"] * 3 + ["step_many", "step"] + ["close"] * 3


@pytest.mark.parametrize(
    ("first", "message"),
    [({"type": "hello", "data": {}}, "no hello"), ({"type": "observation", "data": {}}, "no hello"), (None, "closed")],
)
def test_a_socket_that_is_not_ours(first, message):
    async def stranger(socket: ServerConnection) -> None:
        if first is not None:
            await socket.send(json.dumps(first))

    async def main() -> None:
        with pytest.raises(Unreachable, match=message):
            async with client_of(Scripted(stranger), wire="socket", retries=0):
                pass

    asyncio.run(main())


def test_closing_a_client_midway_leaves_nothing_behind():
    async def silent(socket: ServerConnection) -> None:
        await socket.send(json.dumps(HELLO))
        async for frame in socket:
            request = json.loads(frame)
            if request["type"] != "step":
                await socket.send(json.dumps(answer(request)))

    async def main() -> None:
        async with client_of(Scripted(silent)) as client:
            (session,) = await opened(client, 1)
            waiting = asyncio.create_task(session.step("x"))
            await asyncio.sleep(0.01)
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())


def test_a_closed_client_says_so():
    async def main() -> None:
        async with client_of(Scripted(honest)) as client:
            (session,) = await opened(client, 1)
            await client.close()
            with pytest.raises(EpisodeLost, match="closed"):
                await session.step("x")
            with pytest.raises(Unreachable, match="is closed; make a new one"):
                await client.session().reset()

    asyncio.run(main())
