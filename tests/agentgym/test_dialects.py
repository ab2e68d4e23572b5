"""The client of AgentGym's servers (agentenv), against small ones that answer as those do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import Body, FastAPI, HTTPException
from fastapi.responses import PlainTextResponse

from agentgym.clients.agentenv_table import DIALECTS
from agentgym.clients.client import EnvClient, connect
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
    UsageError,
)
from agentgym.testing import FaultyTransport

Json = dict[str, Any]


class Server:
    """What all have in common: numbered sessions, of which each has been told some actions."""

    ends_after = 3

    def __init__(self) -> None:
        self.actions: dict[int, list[str]] = {}
        self.items: dict[int, int] = {}
        self.closed: list[int] = []
        self.app = FastAPI()
        self.app.get("/")(lambda: "ok")

    def open(self) -> int:
        number = len(self.actions)
        self.actions[number] = []
        return number

    def begin(self, number: int, item: int) -> None:
        self.actions[number], self.items[number] = [], item

    def act(self, number: int, action: str) -> tuple[str, bool]:
        actions = self.actions[number]
        actions.append(action)
        return f"{len(actions)}: {action}", len(actions) == self.ends_after


class IdFamily(Server):
    """textcraft, babyai and the tutorial's generic shape; what goes wrong is 200 with an `error`."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        if kind == "textcraft":  # wants a body, which may be empty
            self.app.post("/create")(lambda body=Body(): self.create())  # noqa: B008
        else:
            self.app.post("/create")(self.create)
        for path, handler in (("/reset", self.reset), ("/step", self.step), ("/close", self.close)):
            self.app.post(path)(handler)

    def create(self) -> Json:
        return {"id": self.open(), "observation": "x", "done": False, "reward": 0}

    def reset(self, body: Json = Body()) -> Json:  # noqa: B008
        if set(body) != {"id", "data_idx"}:
            raise HTTPException(422, [{"type": "missing", "loc": ["body"]}])
        self.begin(body["id"], body["data_idx"])
        return {"observation": f"Goal: {body['data_idx']}", "reward": 0, "score": 0, "done": False, "deleted": False}

    def step(self, body: Json = Body()) -> Json:  # noqa: B008
        if body["id"] not in self.actions or body["id"] in self.closed:
            return {"error": f"The id {body['id']} is not valid."}
        if body["action"] == "break":
            return {"error": "division by zero"}
        text, done = self.act(body["id"], body["action"])
        score = 0.25 * len(self.actions[body["id"]])
        more = {"score": score} if self.kind == "babyai" else {}
        return {"observation": text, "reward": float(done), "done": done, **more}

    def close(self, body: Json = Body()) -> Any:  # noqa: B008
        self.closed.append(body["id"])
        return {"closed": True} if self.kind == "generic" else True


class WebShop(Server):
    """A bare number, `state`, the first observation apart, no /close; what goes wrong is a bare 500."""

    def __init__(self, rooms: int = 99) -> None:
        super().__init__()
        self.rooms = rooms
        self.app.post("/create")(lambda: self.open() if len(self.actions) < self.rooms else 0)
        self.app.post("/reset")(self.reset)
        self.app.get("/observation")(lambda env_idx: f"Instruction {self.items[int(env_idx)]}")
        self.app.post("/step")(self.step)

    def reset(self, body: Json = Body()) -> Any:  # noqa: B008
        self.begin(body["env_idx"], body["session_id"])
        return ["a page", None]

    def step(self, body: Json = Body()) -> Any:  # noqa: B008
        if body["action"] == "break":
            return PlainTextResponse("Internal Server Error", 500)
        text, done = self.act(body["env_idx"], body["action"])
        return {"state": text, "reward": 0.5 if done else 0.0, "done": done, "info": None}


class SearchQA(Server):
    def __init__(self) -> None:
        super().__init__()
        self.app.post("/create")(self.create)
        self.app.post("/reset")(self.reset)
        self.app.post("/step")(self.step)
        self.app.post("/close")(lambda body=Body(): self.closed.append(body["env_idx"]) or True)  # noqa: B008

    def create(self, body: Json = Body()) -> int:  # noqa: B008
        assert set(body) == {"id"}
        return self.open()

    def reset(self, body: Json = Body()) -> str:  # noqa: B008
        self.begin(body["env_idx"], body["id"])
        return f"Question {body['id']}"

    def step(self, body: Json = Body()) -> Json:  # noqa: B008
        text, done = self.act(body["env_idx"], body["action"])
        return {"observation": text, "reward": float(done), "done": done, "info": None}


class WebArena(Server):
    def __init__(self) -> None:
        super().__init__()
        self.app.post("/create")(lambda: {"env_idx": self.open()})
        self.app.post("/reset")(self.reset)
        self.app.post("/step")(self.step)
        self.app.post("/close")(self.close)

    def close(self, body: Json = Body()) -> Json:  # noqa: B008
        self.closed.append(body["env_idx"])
        return {"closed": "closed"}

    def reset(self, body: Json = Body()) -> Json:  # noqa: B008
        assert set(body) == {"env_idx", "seed", "idx"}
        if body["idx"] == 7:
            return {"observation": "TimeoutError", "sites": "Error", "object": "Error"}
        self.begin(body["env_idx"], body["idx"])
        return {"observation": f"Task {body['idx']}", "sites": ["shop"], "object": "find"}

    def step(self, body: Json = Body()) -> Json:  # noqa: B008
        text, done = self.act(body["env_idx"], body["action"])
        return {"observation": text, "reward": 0.7, "terminated": done, "truncated": False, "info": {}}


MAKERS: dict[str, Callable[[], Server]] = {
    "textcraft": lambda: IdFamily("textcraft"),
    "babyai": lambda: IdFamily("babyai"),
    "generic": lambda: IdFamily("generic"),
    "webshop": WebShop,
    "searchqa": SearchQA,
    "webarena": WebArena,
}


def play(env: str, server: Server, script: Any, plan: Any = (), **options: Any) -> Any:
    async def main() -> Any:
        transport = FaultyTransport(httpx.ASGITransport(server.app), plan)
        async with connect(f"agentenv+http://env?env={env}&tasks=40", transport=transport, **options) as environment:
            return await script(environment)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("env", "first", "rewards"),
    [
        ("textcraft", "Goal: 3", [0.0, 0.0, 1.0]),
        ("babyai", "Goal: 3", [0.25, 0.25, 0.25]),
        ("generic", "Goal: 3", [0.0, 0.0, 1.0]),
        ("webshop", "Instruction 3", [0.0, 0.0, 0.5]),
        ("searchqa", f"Question {51713 + 3}", [0.0, 0.0, 1.0]),
        ("webarena", "Task 3", [0.0, 0.0, 0.7]),
    ],
)
def test_an_episode(env, first, rewards):
    server = MAKERS[env]()

    async def script(environment: Any) -> None:
        assert environment.spec.id == env
        session = environment.session()
        with pytest.raises(OutOfOrder):
            await session.step("go")
        for _ in range(2):
            begun = await session.reset(seed=1, options={"split": "train", "task": 3})
            assert begun == (first, 0.0, False, False, {})
            steps = [await session.step(word) for word in ("go", "on", "now")]
            assert [step.observation for step in steps] == ["1: go", "2: on", "3: now"]
            assert [step.reward for step in steps] == rewards
            assert [step.terminated for step in steps] == [False, False, True]
            with pytest.raises(OutOfOrder):
                await session.step("more")
        for options in ({"split": "nowhere"}, {"task": 40}, {"task": "1"}, {"x": 1}):
            with pytest.raises(BadRequest):
                await session.reset(options=options)
        for call in (session.solver, session.hint, session.snapshot):
            with pytest.raises(BadRequest):
                await call()

    play(env, server, script)
    assert len(server.actions) == 1
    assert server.closed == ([0] if DIALECTS[env].closes else [])


@pytest.mark.parametrize(
    ("env", "action", "failure", "message"),
    [
        ("textcraft", "break", EnvironmentCrashed, "division by zero"),
        ("webshop", "break", EnvironmentCrashed, "500.*Internal Server Error"),
    ],
)
def test_what_goes_wrong_at_the_server_is_never_a_reward(env, action, failure, message):
    server = MAKERS[env]()

    async def script(environment: Any) -> None:
        session = environment.session()
        await session.reset()
        with pytest.raises(failure, match=message):
            await session.step(action)
        with pytest.raises(EpisodeLost):
            await session.step("go")
        await session.reset()
        assert (await session.step("go")).observation == "1: go"

    play(env, server, script)
    assert len(server.actions) == 2  # the broken session was not used again


def test_a_session_that_the_server_dropped_is_lost():
    server = MAKERS["textcraft"]()

    async def script(env: Any) -> None:
        session = env.session()
        await session.reset()
        server.closed.append(0)
        with pytest.raises(EpisodeLost, match="The id 0 is not valid"):
            await session.step("go")

    play("textcraft", server, script)


def test_webarenas_time_out_is_a_failure():
    async def script(env: Any) -> None:
        session = env.session()
        with pytest.raises(EnvironmentCrashed, match="TimeoutError"):
            await session.reset(options={"task": 7})
        assert (await session.reset(options={"task": 8})).observation == "Task 8"

    play("webarena", WebArena(), script)


@pytest.mark.parametrize(
    ("fault", "applied", "failure"),
    [("lost request", ["go"], None), ("lost reply", ["go"], EpisodeLost)],
)
def test_a_step_acts_once_whatever_is_lost(fault, applied, failure):
    server = MAKERS["generic"]()

    async def script(env: Any) -> None:
        session = env.session()
        await session.reset()
        if failure is None:
            await session.step("go")
        else:
            with pytest.raises(failure, match="act twice"):
                await session.step("go")
        assert server.actions[0] == applied

    play("generic", server, script, ["ok", "ok", "ok", fault])  # GET /, create, reset, step


def test_lost_resets_are_repeated():
    async def script(env: Any) -> None:
        assert (await env.session().reset()).observation == "Goal: 0"

    play("generic", MAKERS["generic"](), script, ["ok", "lost reply", "ok", "lost reply"])


def test_calls_of_one_session_are_made_one_after_another():
    async def script(env: Any) -> None:
        session = env.session()
        await session.reset()
        first = asyncio.create_task(session.step("go"))
        await asyncio.sleep(0)
        with pytest.raises(SessionBusy):
            await session.step("on")
        reset = asyncio.create_task(session.reset())
        assert (await first).observation == "1: go"
        assert (await reset).observation == "Goal: 0"

    play("generic", MAKERS["generic"](), script)


@pytest.mark.parametrize("env", ["generic", "webshop"])
def test_a_cancelled_call_ends_the_episode_and_frees_its_session(env):
    server = MAKERS[env]()

    async def script(environment: Any) -> None:
        session = environment.session()
        await session.reset()
        waiting = asyncio.create_task(session.step("go"))
        for _ in range(3):
            await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(EpisodeLost, match="cancelled"):
            await session.step("go")
        await session.reset()
        await asyncio.sleep(0.05)
        await environment.session().reset()

    play(env, server, script)
    assert server.actions[0] == (["go"] if env == "generic" else [])  # webshop's was used again
    assert len(server.actions) == {"generic": 3, "webshop": 2}[env]
    assert sorted(server.closed) == {"generic": [0, 1, 2], "webshop": []}[env]


def test_sessions_a_server_cannot_close_are_reused():
    server = WebShop()

    async def script(env: Any) -> None:
        for _ in range(5):
            session = env.session()
            await session.reset()
            await session.close()

    play("webshop", server, script)
    assert len(server.actions) == 1


def test_a_server_that_hands_out_a_session_twice_has_no_room():
    async def script(env: Any) -> None:
        first, second = env.session(), env.session()
        await first.reset()
        with pytest.raises(AtCapacity, match="session 0 twice"):
            await second.reset()
        await first.close()
        await second.reset()

    play("webshop", WebShop(rooms=1), script, capacity_wait_s=0.0)


@pytest.mark.parametrize(
    ("reply", "failure"),
    [
        (httpx.Response(200, text="<html>"), EnvironmentCrashed),
        (httpx.Response(200, json={"state": "x", "reward": 0, "done": False}), EnvironmentCrashed),
        (httpx.Response(200, json={"observation": "x", "reward": "high", "done": False}), EnvironmentCrashed),
        (httpx.Response(200, json={"observation": None, "reward": 0, "done": False}), EnvironmentCrashed),
        (httpx.Response(200, json=[]), EnvironmentCrashed),
        (httpx.Response(422, json={"detail": []}), BadRequest),
        (httpx.Response(404), EnvironmentCrashed),
    ],
)
def test_garbage_is_shown_and_never_scored(reply, failure):
    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/step":
            return reply
        return httpx.Response(200, json={"id": 0, "observation": "begin", "reward": 0, "done": False})

    async def main() -> None:
        url = "agentenv+http://env?env=generic"
        async with EnvClient(url, transport=httpx.MockTransport(handle)) as env:
            session = env.session()
            await session.reset()
            with pytest.raises(failure):
                await session.step("go")
            with pytest.raises(EpisodeLost):
                await session.step("go")

    asyncio.run(main())


def test_a_server_that_is_slow_is_given_up():
    async def slow(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/step":
            raise httpx.ReadTimeout("too slow", request=request)
        return httpx.Response(200, json={"id": 0, "observation": "begin"})

    async def main() -> None:
        url = "agentenv+http://env?env=generic"
        async with EnvClient(url, transport=httpx.MockTransport(slow), timeout_s=0.5) as env:
            session = env.session()
            await session.reset()
            with pytest.raises(DeadlineExceeded, match=r"0\.5 s"):
                await session.step("go")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("env", "text", "sent"),
    [
        ("textcraft", "Thought: I need wood.\nAction: get 1 'oak' log!", "get 1 oak log"),
        ("babyai", "  go to red   ball 1 ", "go to red ball 1"),
        ("sciworld", "Thought: x\nAction:\nopen door", "open door"),
        ("webshop", "Action: search[red shoes]", "search[red shoes]"),
        ("sqlgym", "First:\n```sql\nSELECT 1\n```\nthen\n```sql\nSELECT 2\n```", "SELECT 2"),
        ("searchqa", "<search>who</search>", "<search>who</search>"),
        ("webarena", "I click. ```click [12]```", "I click. ```click [12]```"),
    ],
)
def test_what_is_made_of_a_reply(env, text, sent):
    assert DIALECTS[env].prepare(text) == sent


def test_two_actions_cost_a_turn_and_ask_the_server_nothing():
    server = MAKERS["textcraft"]()

    async def script(env: Any) -> None:
        session = env.session()
        await session.reset()
        step = await session.step("Action: get 1 log\nAction: inventory")
        assert (step.reward, step.terminated, step.info) == (0.0, False, {"valid_action": False})
        assert (await session.step({"name": "inventory", "arguments": {}})).observation.startswith("1: inventory")

    play("textcraft", server, script)


def test_names_that_are_wrong():
    for url, message in (
        ("agentenv+http://x", "needs"),
        ("agentenv+http://x?env=chess", "one of generic, textcraft"),
        ("agentenv+http://x?env=generic&speed=9", "options speed"),
        ("agentenv+http://x?env=generic&tasks=many", "number"),
        ("agentenv+ftp://x?env=generic", "URL"),
    ):
        with pytest.raises(UsageError, match=message):
            EnvClient(url)
    with pytest.raises(ConfigError, match="cannot be described"):
        play("generic", MAKERS["generic"](), None, spec={"max_turns": 0})
    with pytest.raises(Unreachable, match="check that the server runs"):
        play("generic", MAKERS["generic"](), None, ["lost reply"] * 9, retries=0)


@pytest.mark.parametrize("name", sorted(DIALECTS))
def test_every_dialect_is_complete(name):
    dialect = DIALECTS[name]
    assert dialect.description.endswith((".", "/maze.", "/wordle."))
    assert dialect.instructions
    assert dialect.max_turns > 0
    for items in dialect.splits.values():
        assert dialect.reset_body(items.start)
        assert dialect.create_body(items.start) in (None, {}, {"id": items.start})
