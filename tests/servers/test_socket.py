"""Our socket, /ws?ext=1, over a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import uvicorn

from agentgym.testing import EchoEnv
from agentgym_servers.env_server.app import create_app
from agentgym_servers.web.run import listen, serve_in_thread

GATE = threading.Event()
LARGEST = 100_000


class Gated(EchoEnv):
    """The action "wait" waits until the test opens the gate."""

    def step(self, action: Any) -> Any:
        if action == "wait":
            GATE.wait(10)
        return super().step(action)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    envs = {
        "echo": EchoEnv,
        "gated": lambda: Gated(inline=False),
        "crash": lambda: EchoEnv(crash_at=1),
        "slow": lambda: EchoEnv(latency_s=0.2),
    }
    with serve_in_thread(create_app(envs, max_body_bytes=LARGEST, lease_s=60)) as url:
        yield url


@pytest.fixture
def wire(dial, url):
    """A socket of the first environment, greeted."""
    wire = dial(f"{url}/ws?ext=1")
    wire.hear()
    return wire


def begin(wire: Any, **data: Any) -> str:
    reply = wire.ask({"id": 0, "type": "reset", "data": {"index": 0, **data}})
    assert reply["type"] == "reply", reply
    return reply["data"]["session_id"]


def step(session_id: str, text: str, index: int | None = None, **more: Any) -> dict[str, Any]:
    body = {"session_id": session_id, "action": {"text": text}, **more}
    return body if index is None else {**body, "step": index}


def test_an_episode_is_the_same_as_over_http(dial, url, wire):
    assert dial(f"{url}/envs/slow/ws?ext=1").hear() == {
        "type": "hello",
        "data": {"protocol": "1", "env": "slow", "lease_s": 60, "max_frame_bytes": LARGEST},
    }
    session_id = begin(wire)
    with httpx.Client(base_url=url) as http:
        other = http.post("/reset", json={"index": 0}).json()["session_id"]
        for index, word in enumerate(("apple", "brook", "cloud")):
            ours = wire.ask({"id": index, "type": "step", "data": step(session_id, word, index)})
            theirs = http.post("/step", json=step(other, word, index)).json()
            assert (ours["id"], ours["type"]) == (index, "reply")
            differ = {"session_id", "server_ms"}
            assert {k: v for k, v in ours["data"].items() if k not in differ} == {
                k: v for k, v in theirs.items() if k not in differ
            }
    again = wire.ask({"id": 9, "type": "step", "data": step(session_id, "cloud", 2)})
    assert again["data"] == ours["data"]  # replayed, byte for byte the same


def test_every_verb(wire):
    session_id = begin(wire)
    body = {"session_id": session_id}
    assert wire.ask({"id": 1, "type": "solver", "data": body})["data"]["action"]["text"] == "apple"
    assert "'a'" in wire.ask({"id": 2, "type": "hint", "data": body})["data"]["hint"]
    snapshot = wire.ask({"id": 3, "type": "snapshot", "data": body})["data"]["snapshot"]
    fork = wire.ask({"id": 4, "type": "restore", "data": {"snapshot": snapshot}})["data"]["session_id"]
    assert wire.ask({"id": 5, "type": "step", "data": step(fork, "apple", 0)})["data"]["info"]["progress"] > 0
    assert wire.ask({"id": 6, "type": "close", "data": body})["data"]["closed"] is True
    lost = wire.ask({"id": 7, "type": "step", "data": step(session_id, "apple", 0)})
    assert (lost["id"], lost["type"], lost["data"]["code"]) == (7, "error", "EPISODE_LOST")


def test_answers_come_as_they_are_ready(dial, url):
    GATE.clear()
    wire = dial(f"{url}/envs/gated/ws?ext=1")
    wire.hear()
    slow, fast = begin(wire), begin(wire)
    wire.say({"id": 1, "type": "step", "data": step(slow, "wait", 0)})
    wire.say({"id": 2, "type": "step", "data": step(fast, "apple", 0)})
    assert wire.hear()["id"] == 2
    busy = wire.ask({"id": 3, "type": "step", "data": step(slow, "x", 1)})
    assert (busy["id"], busy["data"]["code"], busy["data"]["retryable"]) == (3, "SESSION_BUSY", True)
    GATE.set()
    assert wire.hear()["id"] == 1


def test_step_many_sends_the_rest_as_it_becomes_ready(dial, url):
    GATE.clear()
    wire = dial(f"{url}/envs/gated/ws?ext=1")
    wire.hear()
    ids = [begin(wire) for _ in range(3)]
    steps = [step(ids[0], "wait", 0), step(ids[1], "x", 0), step("never", "x", 0), step(ids[2], "x", 0)]
    wire.say({"id": 4, "type": "step_many", "data": {"steps": steps, "wait_for": 3}})
    first = wire.hear()
    assert (first["id"], first["type"], first["data"]["pending"]) == (4, "results", 1)
    got = dict(first["data"]["results"])
    assert sorted(got) == [1, 2, 3]
    assert (got[1]["step"], got[2]["code"], got[3]["step"]) == (1, "UNKNOWN_SESSION", 1)
    GATE.set()
    last = wire.hear()
    assert (last["id"], last["data"]["pending"], last["data"]["results"][0][0]) == (4, 0, 0)
    everything = wire.ask({"id": 5, "type": "step_many", "data": {"steps": steps}})
    assert everything["data"]["pending"] == 0
    assert [index for index, _ in everything["data"]["results"]] == [0, 1, 2, 3]


def test_http_step_many_waits_for_the_stated_number(url):
    GATE.clear()
    with httpx.Client(base_url=f"{url}/envs/gated") as http:
        ids = [http.post("/reset", json={"index": 0}).json()["session_id"] for _ in range(3)]
        steps = [step(ids[0], "x", 0), step(ids[1], "x", 0), step(ids[2], "wait", 0)]
        results = http.post("/step_many", json={"steps": steps, "wait_for": 2, "wait_s": 0}).json()["results"]
        assert [entry and entry["step"] for entry in results] == [1, 1, None]
        threading.Timer(0.1, GATE.set).start()
        results = http.post("/step_many", json={"steps": steps, "wait_for": 9, "wait_s": 0}).json()["results"]
        assert [entry["step"] for entry in results] == [1, 1, 1]


def test_a_session_outlives_its_socket(dial, url):
    GATE.clear()
    wire = dial(f"{url}/envs/gated/ws?ext=1")
    wire.hear()
    session_id = begin(wire)
    wire.say({"id": 1, "type": "step", "data": step(session_id, "wait", 0)})
    wire.ask({"id": 2, "type": "hint", "data": {"session_id": session_id}})  # the step has been taken up
    wire.connection.close()
    second = dial(f"{url}/envs/gated/ws?ext=1")
    second.hear()
    second.say({"id": 7, "type": "step", "data": step(session_id, "wait", 0)})
    assert httpx.get(f"{url}/envs/gated/sessions/{session_id}").json()["busy"] is True
    GATE.set()
    reply = second.hear()
    assert (reply["id"], reply["type"], reply["data"]["step"]) == (7, "reply", 1)


def test_a_crash_is_one_sessions_error(dial, url):
    wire = dial(f"{url}/envs/crash/ws?ext=1")
    wire.hear()
    session_id, other = begin(wire), begin(wire)
    wire.ask({"id": 1, "type": "step", "data": step(session_id, "x", 0)})
    crash = wire.ask({"id": 2, "type": "step", "data": step(session_id, "x", 1)})
    assert (crash["type"], crash["data"]["code"]) == ("error", "ENVIRONMENT_CRASHED")
    assert wire.ask({"id": 3, "type": "step", "data": step(other, "x", 0)})["type"] == "reply"


@pytest.mark.parametrize(
    ("frame", "identity", "complaint"),
    [
        ("{not json", None, "not JSON"),
        ("[" * 5000, None, "recursion limit"),
        ('{"id": 1, "type": "step", "data": {"x": NaN}}', None, "not JSON"),
        ('{"id": ' + "9" * 5000 + "}", None, "out of range"),
        ("[1, 2]", None, "is an object"),
        ('"text"', None, "is an object"),
        ({"type": "step", "data": {}}, None, "`id`"),
        ({"id": True, "type": "step"}, None, "`id`"),
        ({"id": 2**64, "type": "step"}, None, "64 bits"),
        ({"id": 5}, None, "`type`"),
        ({"id": 5, "type": ["step"]}, None, "`type`"),
        ({"id": 5, "type": "health"}, 5, "one of reset"),
        ({"id": 5, "type": "step", "data": None}, 5, "not valid"),
        ({"id": 5, "type": "step", "data": {"session_id": "x"}}, 5, "action: Field required"),
        ({"id": 5, "type": "step", "data": {"session_id": "x" * 99, "action": {"text": ""}}}, 5, "session_id"),
        ({"id": 5, "type": "step_many", "data": {"steps": []}}, 5, "steps"),
        ({"id": 5, "type": "restore", "data": {"snapshot": "é"}}, 5, "base64"),
        ('{"id": 5, "type": "step", "data": {"session_id": "\\ud800", "action": {"text": "a"}}}', None, "not JSON"),
        (b"\x00\x01", None, "binary"),
        ("x" * (LARGEST + 1), None, "100000 bytes"),
        ("y" * (3 * 2**20), None, "100000 bytes"),
        (["[1,", " 2]"], None, "is an object"),
    ],
)
def test_frames_that_are_wrong_get_an_error_and_the_socket_stays(wire, frame, identity, complaint):
    refused = wire.ask(frame)
    assert (refused["id"], refused["type"], refused["data"]["code"]) == (identity, "error", "BAD_REQUEST")
    assert complaint in refused["data"]["message"]
    assert len(refused["data"]["message"]) < 2000
    begin(wire)


def test_text_that_is_not_utf8_gets_an_error_frame(wire):
    with wire.connection.send_context():
        wire.connection.protocol.send_text(b"\xff\xfe")
    assert wire.hear()["data"]["code"] == "BAD_REQUEST"
    begin(wire)


def test_a_large_answer_and_many_frames_at_once(wire):
    session_id = begin(wire)
    text = "long " * 10_000
    reply = wire.ask({"id": 1, "type": "step", "data": step(session_id, text, 0)})
    assert text.strip() in reply["data"]["observation"]["text"]
    for index in range(500):
        wire.say({"id": index, "type": "solver" if index % 50 == 0 else "reset", "data": {"session_id": session_id}})
    assert {wire.hear()["id"] for _ in range(500)} == set(range(500))


def test_an_env_that_is_not_there(dial, url):
    from websockets.exceptions import InvalidStatus

    with pytest.raises(InvalidStatus) as refused:
        dial(f"{url}/envs/nowhere/ws?ext=1")
    assert refused.value.response.status_code == 404
    assert b"it has echo" in bytes(refused.value.response.body)


def test_the_same_under_a_server_that_is_not_ours(dial):
    listener = listen("127.0.0.1", 0)
    listener.listen()  # a client that comes before the server waits for it
    app = create_app({"echo": EchoEnv, "gated": lambda: Gated(inline=False)})
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="websockets-sansio"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        wire = dial(f"{url}/ws?ext=1")
        assert wire.hear()["type"] == "hello"
        session_id = begin(wire)
        assert wire.ask({"id": 1, "type": "step", "data": step(session_id, "apple", 0)})["data"]["step"] == 1
        assert wire.ask(b"\x00")["data"]["code"] == "BAD_REQUEST"
        GATE.clear()
        legacy = dial(f"{url}/envs/gated/ws")
        legacy.ask({"type": "reset"})
        legacy.say({"type": "step", "data": {"text": "wait"}})
        for _ in range(40):
            legacy.say({"type": "state"})
        GATE.set()
        assert [legacy.hear()["type"] for _ in range(41)] == ["observation", *["state"] * 40]
        legacy.say({"type": "close"})
        assert legacy.closed() == 1000
    finally:
        server.should_exit = True
        thread.join()


def test_steps_of_one_request_come_before_later_frames(wire):
    """Few are taken in a turn of the loop, and the socket's next frame waits for all of them."""
    session_id = begin(wire)
    steps = [step("none", "x")] * 500 + [step(session_id, "apple", 0)]
    wire.say({"id": 1, "type": "step_many", "data": {"steps": steps, "wait_for": len(steps)}})
    answer = wire.ask({"id": 2, "type": "step", "data": step(session_id, "brook", 1)})
    assert answer["data"]["results"][-1][1]["info"]["progress"] > 0
    second = wire.hear()
    assert (second["id"], second["type"]) == (2, "reply"), second
