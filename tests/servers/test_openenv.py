"""OpenEnv 0.10's socket and its stateless HTTP, frame by frame."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from agentgym.testing import EchoEnv
from agentgym_servers.env_server.app import create_app
from agentgym_servers.web.run import serve_in_thread

GATE = threading.Event()


class Gated(EchoEnv):
    def step(self, action: Any) -> Any:
        GATE.wait(10)
        return super().step(action)


class Unopened(EchoEnv):
    broken = False

    def __init__(self) -> None:
        if self.broken:
            raise OSError("no display")
        super().__init__()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    envs = {
        "echo": EchoEnv,
        "threaded": lambda: EchoEnv(inline=False),
        "gated": lambda: Gated(inline=False),
        "crash": lambda: EchoEnv(crash_at=1),
        "hangs": lambda: EchoEnv(hang_at=0, hang_s=0.6, step_deadline_s=0.1),
        "seen": lambda: EchoEnv(image=True),
        "unopened": Unopened,
    }
    Unopened.broken = False
    with serve_in_thread(create_app(envs)) as url:
        Unopened.broken = True
        yield url


def live(url: str) -> int:
    return httpx.get(f"{url}/health").json()["sessions"]


def until(condition: Any) -> None:
    for _ in range(400):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("it never came to be")


def error(frame: Any) -> str:
    assert frame["type"] == "error", frame
    assert isinstance(frame["data"]["message"], str)
    return frame["data"]["code"]


@pytest.mark.parametrize("env", ["echo", "threaded"])
def test_an_episode_frame_by_frame(dial, url, env):
    wire = dial(f"{url}/envs/{env}/ws")
    assert wire.ask({"type": "state"}) == {"type": "state", "data": {"episode_id": None, "step_count": 0}}
    assert wire.ask({"type": "reset", "data": {"index": 0, "seed": 3, "episode_id": "mine"}}) == {
        "type": "observation",
        "data": {"observation": {"text": "Say: apple", "metadata": {}}, "reward": None, "done": False},
    }
    assert wire.ask({"type": "step", "data": {"text": "apple"}}) == {
        "type": "observation",
        "data": {"observation": {"text": "You said: apple\nSay: brook", "metadata": {}}, "reward": 0.0, "done": False},
    }
    assert wire.ask({"type": "state"}) == {"type": "state", "data": {"episode_id": "mine", "step_count": 1}}
    wire.ask({"type": "step", "data": {"text": "brook", "metadata": {}}})
    last = wire.ask({"type": "step", "data": {"text": "cloud"}})["data"]
    assert (last["reward"], last["done"]) == (1.0, True)
    assert error(wire.ask({"type": "step", "data": {"text": "more"}})) == "EXECUTION_ERROR"
    again = wire.ask({"type": "reset", "data": {"index": 1, "episode_id": "mine"}})  # an id may be used again
    assert again["data"]["observation"]["text"] == "Say: drum"
    assert wire.ask({"type": "reset"})["type"] == "observation"
    wire.say({"type": "close"})
    assert wire.closed() == 1000


def test_a_picture_arrives(dial, url):
    wire = dial(f"{url}/envs/seen/ws")
    assert set(wire.ask({"type": "reset"})["data"]["observation"]) == {"text", "image", "metadata"}


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("{not json", "INVALID_JSON"),
        ("", "INVALID_JSON"),
        ("[" * 5000, "INVALID_JSON"),
        ('{"type": "reset", "data": {"seed": NaN}}', "INVALID_JSON"),
        (b"\x00", "INVALID_JSON"),
        ("[]", "VALIDATION_ERROR"),
        ("3", "VALIDATION_ERROR"),
        ({"data": {}}, "UNKNOWN_TYPE"),
        ({"type": "jump"}, "UNKNOWN_TYPE"),
        ({"type": ["step"]}, "UNKNOWN_TYPE"),
        ({"type": "reset", "data": None}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"index": -1}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"episode_id": 5}}, "VALIDATION_ERROR"),
        ({"type": "reset", "data": {"split": "nowhere"}}, "EXECUTION_ERROR"),
        ({"type": "reset", "data": {}, "extra": 1}, "VALIDATION_ERROR"),
        ({"type": "step"}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"action": {"text": "a"}}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"text": "a", "tool": "b"}}, "VALIDATION_ERROR"),
        ({"type": "step", "data": {"text": "a"}, "request_id": "x"}, "VALIDATION_ERROR"),
        ({"type": "state", "data": {}}, "VALIDATION_ERROR"),
        ({"type": "close", "now": True}, "VALIDATION_ERROR"),
        ({"type": "mcp", "data": None}, "VALIDATION_ERROR"),
    ],
)
def test_frames_that_are_wrong_leave_the_episode_as_it_was(dial, url, frame, code):
    wire = dial(f"{url}/ws")
    wire.ask({"type": "reset", "data": {"index": 0}})
    wire.ask({"type": "step", "data": {"text": "apple"}})
    refused = wire.ask(frame)
    assert error(refused) == code
    if code == "VALIDATION_ERROR":
        assert refused["data"]["errors"][0]["loc"]
    if frame != {"type": "reset", "data": {"split": "nowhere"}}:
        assert wire.ask({"type": "state"})["data"]["step_count"] == 1


def test_the_place_of_an_error_is_relative_to_the_action(dial, url):
    wire = dial(f"{url}/ws")
    wire.ask({"type": "reset"})
    refused = wire.ask({"type": "step", "data": {"text": 5}})["data"]
    assert [entry["loc"] for entry in refused["errors"]] == [["text"]]


def test_frames_sent_ahead_are_answered_in_order(dial, url):
    GATE.clear()
    wire = dial(f"{url}/envs/gated/ws")
    wire.ask({"type": "reset"})
    wire.say({"type": "step", "data": {"text": "x"}})
    for _ in range(100):
        wire.say({"type": "state"})
    wire.say({"type": "jump"})
    wire.say({"type": "step", "data": {"text": "y"}})
    GATE.set()
    answers = [wire.hear() for _ in range(103)]
    assert [answer["type"] for answer in answers] == ["observation", *["state"] * 100, "error", "observation"]
    assert answers[50]["data"]["step_count"] == 1


def test_a_request_id_in_metadata_makes_a_step_repeatable(dial, url):
    wire = dial(f"{url}/ws")
    wire.ask({"type": "reset", "data": {"index": 0}})
    step = {"type": "step", "data": {"text": "apple", "metadata": {"request_id": "r-1"}}}
    assert wire.ask(step) == wire.ask(step)
    assert wire.ask({"type": "state"})["data"]["step_count"] == 1


def test_the_session_ends_with_its_socket(dial, url):
    before = live(url)
    wire = dial(f"{url}/ws")
    wire.ask({"type": "reset"})
    assert live(url) == before + 1
    wire.connection.close()
    until(lambda: live(url) == before)
    GATE.clear()
    wire = dial(f"{url}/envs/gated/ws")
    wire.ask({"type": "reset"})
    wire.say({"type": "step", "data": {"text": "x"}})
    wire.connection.close()  # in the middle of a step
    until(lambda: live(url) == before)
    GATE.set()


def test_an_env_that_fails_and_a_reset_after_it(dial, url):
    wire = dial(f"{url}/envs/crash/ws")
    wire.ask({"type": "reset"})
    wire.ask({"type": "step", "data": {"text": "x"}})
    crash = wire.ask({"type": "step", "data": {"text": "x"}})
    assert error(crash) == "EXECUTION_ERROR"
    assert "told to crash" in crash["data"]["message"]
    assert error(wire.ask({"type": "step", "data": {"text": "x"}})) == "EXECUTION_ERROR"  # never a new episode silently
    assert error(wire.ask({"type": "state"})) == "EXECUTION_ERROR"
    assert wire.ask({"type": "reset"})["type"] == "observation"
    hangs = dial(f"{url}/envs/hangs/ws")
    hangs.ask({"type": "reset"})
    late = hangs.ask({"type": "step", "data": {"text": "x"}})
    assert error(late) == "EXECUTION_ERROR"
    assert "0.1 s" in late["data"]["message"]


def test_an_env_that_cannot_be_opened(dial, url):
    wire = dial(f"{url}/envs/unopened/ws")
    refused = wire.ask({"type": "reset"})
    assert (error(refused), refused["data"]["factory_name"]) == ("FACTORY_ERROR", "unopened")
    assert "no display" in refused["data"]["message"]
    assert wire.closed() == 1000


def test_no_room(dial):
    with serve_in_thread(create_app({"echo": EchoEnv}, max_sessions=1)) as url:
        first = dial(f"{url}/ws")
        first.ask({"type": "reset"})
        second = dial(f"{url}/ws")
        refused = second.hear()
        assert error(refused) == "CAPACITY_REACHED"
        assert (refused["data"]["active_sessions"], refused["data"]["max_sessions"]) == (1, 1)
        assert second.closed() == 1000
        first.connection.close()
        until(lambda: live(url) == 0)
        assert dial(f"{url}/ws").ask({"type": "reset"})["type"] == "observation"


def rpc(url: str, method: str, **params: Any) -> Any:
    return httpx.post(f"{url}/mcp", json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).json()


def test_a_session_created_before_outlives_its_sockets(dial, url):
    session_id = rpc(url, "openenv/session/create")["result"]["session_id"]
    wire = dial(f"{url}/ws?session_id={session_id}")
    wire.ask({"type": "reset", "data": {"index": 0}})
    wire.ask({"type": "step", "data": {"text": "apple"}})
    second = dial(f"{url}/ws?session_id={session_id}")
    refused = second.hear()
    assert error(refused) == "SESSION_ERROR"
    assert "already" in refused["data"]["message"]
    assert second.closed() == 1000
    wire.say({"type": "close"})
    assert wire.closed() == 1000
    until(lambda: "type" in (found := dial(f"{url}/ws?session_id={session_id}")).ask({"type": "state"}) and found)
    assert rpc(url, "openenv/session/close", session_id=session_id)["result"] in (
        {"session_id": session_id, "closed": True},
        {"session_id": session_id, "closed": False, "closing": True},
    )


def test_a_session_is_closed_when_its_socket_lets_go(dial, url):
    before = live(url)
    session_id = rpc(url, "openenv/session/create")["result"]["session_id"]
    wire = dial(f"{url}/ws?session_id={session_id}")
    wire.ask({"type": "reset", "data": {"index": 0}})
    closing = rpc(url, "openenv/session/close", session_id=session_id)["result"]
    assert closing == {"session_id": session_id, "closed": False, "closing": True}
    assert wire.ask({"type": "step", "data": {"text": "apple"}})["type"] == "observation"
    wire.connection.close()
    until(lambda: live(url) == before)
    gone = dial(f"{url}/ws?session_id={session_id}")
    assert error(gone.hear()) == "SESSION_ERROR"
    assert rpc(url, "openenv/session/close", session_id=session_id)["error"]["code"] == -32602


def test_a_session_of_http_can_be_attached_too(dial, url):
    session_id = httpx.post(f"{url}/reset", json={"index": 0}).json()["session_id"]
    wire = dial(f"{url}/ws?session_id={session_id}")
    assert wire.ask({"type": "step", "data": {"text": "apple"}})["type"] == "observation"
    assert httpx.get(f"{url}/state", params={"session_id": session_id}).json()["step_count"] == 1
    assert error(dial(f"{url}/ws?session_id=never").hear()) == "SESSION_ERROR"


def test_a_socket_keeps_its_session_while_its_client_thinks(dial):
    with serve_in_thread(create_app({"echo": EchoEnv}, lease_s=0.3)) as url:
        wire = dial(f"{url}/ws")
        wire.ask({"type": "reset"})
        forgotten = httpx.post(f"{url}/reset").json()["session_id"]
        until(lambda: httpx.get(f"{url}/sessions/{forgotten}").status_code == 410)
        assert wire.ask({"type": "step", "data": {"text": "x"}})["type"] == "observation"


def test_http_without_a_session_is_stateless(url):
    before = live(url)
    body = {"action": {"text": "hi"}, "request_id": "r", "anything": 1}
    reply = httpx.post(f"{url}/step", json=body).json()
    assert reply["observation"]["text"].startswith("You said: hi")
    assert reply["metadata"] is None
    assert httpx.get(f"{url}/state").json() == {"episode_id": None, "step_count": 0}
    assert live(url) == before
    refused = httpx.post(f"{url}/step", json={"action": {"txt": "hi"}})
    assert (refused.status_code, refused.json()["detail"][0]["loc"]) == (422, ["txt"])
    refused = httpx.post(f"{url}/step", content=b"{")
    assert (refused.status_code, refused.json()["detail"][0]["loc"]) == (422, ["body"])


def test_looking_a_session_up(url):
    session_id = httpx.post(f"{url}/reset", json={"index": 0, "episode_id": "looked-up"}).json()["session_id"]
    httpx.post(f"{url}/step", json={"session_id": session_id, "action": {"text": "x"}})
    assert httpx.get(f"{url}/sessions/{session_id}").json() == {
        "session_id": session_id,
        "env": "echo",
        "step": 1,
        "episode_id": "looked-up",
        "busy": False,
    }
    assert httpx.get(f"{url}/envs/threaded/sessions/{session_id}").status_code == 404
    httpx.post(f"{url}/close", json={"session_id": session_id})
    assert httpx.get(f"{url}/sessions/{session_id}").json()["code"] == "EPISODE_LOST"


def test_production_has_no_http_reset_or_step(dial):
    with serve_in_thread(create_app({"echo": EchoEnv}, mode="production")) as url:
        for path in ("/reset", "/step", "/step_many", "/envs/echo/step"):
            assert httpx.post(url + path, json={}).status_code == 404
        assert httpx.get(f"{url}/state").status_code == 404
        assert httpx.get(f"{url}/schema").status_code == 200
        assert dial(f"{url}/ws").ask({"type": "reset"})["type"] == "observation"


def test_pages_of_other_sites_are_refused(dial, url):
    host = url.removeprefix("http://")
    for origin in ("http://evil.example", "null", f"http://127.0.0.1.evil.example:{host.split(':')[1]}", "https://["):
        refused = httpx.post(f"{url}/reset", headers={"Origin": origin})
        assert (refused.status_code, refused.json()["code"]) == (403, "FORBIDDEN")
        assert "other programs send no Origin" in refused.json()["message"]
        for path in ("/ws", "/ws?ext=1", "/mcp"):
            with pytest.raises(InvalidStatus) as handshake:
                dial(url + path, origin=origin)
            assert handshake.value.response.status_code == 403
    # A name that its owner has pointed at this machine (DNS rebinding) is another site too.
    rebound = f"evil.example:{host.split(':')[1]}"
    assert httpx.post(f"{url}/reset", headers={"Origin": f"http://{rebound}", "Host": rebound}).status_code == 403
    assert httpx.get(f"{url}/health", headers={"Origin": "http://evil.example"}).status_code == 200
    assert httpx.post(f"{url}/reset", headers={"Origin": url}).status_code == 200
    assert dial(f"{url}/ws", origin=url).ask({"type": "reset"})["type"] == "observation"
