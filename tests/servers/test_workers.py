"""Environments in worker processes: what harms one process ends its own sessions, with a typed error, and nothing
else."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from running import alive

from agentgym.testing import EchoEnv
from agentgym_servers.env_server.app import create_app
from agentgym_servers.env_server.workers.env_call import envs_of
from agentgym_servers.env_server.workers.process import WorkerProcess

CHAOS = "agentgym.testing:ChaosEnv"
ECHO = "agentgym.testing:EchoEnv"

ENVS = '''
import mmap, os, pathlib, sys, threading, time
from agentgym.testing import ChaosEnv

CHILD = "agentgym_servers.env_server.workers.worker_main" in sys.orig_argv


class Other(ChaosEnv):
    """Another env, to be in processes of its own."""

    env_spec = ChaosEnv.env_spec.model_copy(update={"id": "other"})

    def _do_thread(self, _):
        return threading.get_ident()

    def _do_share(self, size):
        self.shared = mmap.mmap(-1, int(size))  # not data: only the supervisor sees it grow
        for _ in range(int(size) // 2**20):
            self.shared.write(b"x" * 2**20)

    def _do_garble(self, _):
        for fd in os.listdir("/proc/self/fd"):
            try:
                if os.readlink(f"/proc/self/fd/{fd}").startswith("socket"):
                    os.write(int(fd), b"\\xff" * 100)
            except OSError:
                pass
        time.sleep(30)

    def close(self):
        if CHILD:
            pathlib.Path(__file__).with_name("closed").write_text("politely")


class Late(ChaosEnv):
    env_spec = ChaosEnv.env_spec.model_copy(update={"id": "late"})


if CHILD and pathlib.Path(__file__).with_name("broken").exists():
    raise OSError("the disk is on fire")
'''


@pytest.fixture
def other(tmp_path, monkeypatch) -> str:
    (tmp_path / "odd_envs.py").write_text(ENVS)
    monkeypatch.syspath_prepend(tmp_path)
    yield "odd_envs:Other"
    sys.modules.pop("odd_envs", None)


async def until(true: Callable[[], bool]) -> None:
    for _ in range(500):
        if true():
            return
        await asyncio.sleep(0.02)
    pytest.fail("it never came true")


async def processes(api: Any, count: int, path: str = "") -> list[tuple[str, int]]:
    """New sessions and the processes they are in."""
    found = []
    for _ in range(count):
        status, reply = await api.post(f"{path}/reset")
        assert status == 200, reply
        status, reply = await api.post(f"{path}/step", session_id=reply["session_id"], action={"text": "hello"})
        found.append((reply["session_id"], reply["info"]["pid"]))
    return found


@pytest.mark.parametrize(
    ("deed", "how"),
    [("exit 3", "exited with code 3"), ("signal 9", "killed by SIGKILL"), ("signal 11", "killed by SIGSEGV")],
)
def test_a_process_that_dies_takes_only_its_own_sessions(play, other, deed, how):
    async def script(api):
        (victim, first), (fine, second), (same, third) = await processes(api, 3)
        assert first == third != second
        ((elsewhere, _),) = await processes(api, 1, "/envs/other")
        inline = (await api.post("/envs/echo/reset"))[1]["session_id"]
        running = asyncio.create_task(api.step(same, "sleep 30", 1))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        for status, crash in (await api.step(victim, deed, 1), await running):
            assert (status, crash["code"]) == (500, "ENVIRONMENT_CRASHED")
            assert how in crash["message"]
        assert time.monotonic() - began < 10  # not the deadline, nor the sleep
        for session in (victim, same):
            status, gone = await api.step(session, "hello", 2)
            assert (status, gone["code"]) == (410, "EPISODE_LOST")
            assert how in gone["message"]
        assert (await api.step(fine, "hello", 1))[1]["info"]["pid"] == second
        body = {"action": {"text": "x"}}
        assert (await api.post("/envs/other/step", session_id=elsewhere, **body))[0] == 200
        assert (await api.post("/envs/echo/step", session_id=inline, **body))[0] == 200
        assert (await api.get("/health"))[1]["status"] == "healthy"
        ((_, fresh),) = await processes(api, 1)
        assert fresh not in (first, second)

    play(create_app([CHAOS, other, ECHO], workers=2), script)


def test_an_idle_session_of_a_dead_process_is_lost_with_reason(play):
    async def script(api):
        ((idle, pid),) = await processes(api, 1)
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not app.state.sessions.live)
        status, gone = await api.step(idle, "hello", 1)
        assert (status, gone["code"]) == (410, "EPISODE_LOST")
        assert "SIGKILL" in gone["message"]

    app = create_app([CHAOS], workers=1)
    play(app, script)


def test_an_env_past_its_deadline_does_not_disturb_others(play):
    async def script(api):
        (late, pid), (same, same_pid) = await processes(api, 2)
        assert pid == same_pid
        status, missed = await api.step(late, "sleep 60", 1, timeout_s=0.3)
        assert (status, missed["code"]) == (504, "DEADLINE_EXCEEDED")
        assert (await api.step(late, "x", 1))[0] == 410
        assert (await api.step(same, "hello", 1))[1]["info"]["pid"] == pid
        assert (await api.get("/health"))[1]["stuck"] == 1
        ((_, fresh),) = await processes(api, 1)
        assert fresh != pid  # a process in which something hangs takes no new sessions
        await api.post("/close", session_id=same)
        await until(lambda: not alive(pid))  # nobody needed it any more
        await until(lambda: not app.state.sessions.stuck)

    app = create_app([CHAOS], workers=1)
    play(app, script)


def test_an_env_that_returns_after_its_deadline_is_forgiven(play):
    async def script(api):
        (late, pid), _ = await processes(api, 2)
        assert (await api.step(late, "sleep 0.6", 1, timeout_s=0.2))[0] == 504
        await until(lambda: not app.state.sessions.stuck)
        ((_, again),) = await processes(api, 1)
        assert again == pid

    app = create_app([CHAOS], workers=1)
    play(app, script)


def test_an_env_that_holds_the_gil_is_killed(play):
    async def script(api):
        (hanging, pid), (fine, elsewhere), (same, same_pid) = await processes(api, 3)
        assert pid == same_pid != elsewhere
        hang = asyncio.create_task(api.step(hanging, "hang 60", 1, timeout_s=0.3))
        await asyncio.sleep(0.1)
        waiting = asyncio.create_task(api.step(same, "hello", 1))
        assert (await hang)[1]["code"] == "DEADLINE_EXCEEDED"
        assert (await api.step(fine, "hello", 1))[0] == 200
        status, crash = await waiting
        assert (status, crash["code"]) == (500, "ENVIRONMENT_CRASHED")
        assert "answers no pings" in crash["message"]
        assert not alive(pid)
        assert (await api.get("/health"))[1]["stuck"] == 0

    play(create_app([CHAOS], workers=2), script)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no process to a processor")
def test_two_thousand_sessions_on_a_busy_processor():
    # At Python's own switch interval this takes some 50 s: the threads wake each other up and do little else.
    async def script():
        loop, ready, gone = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        (env,) = envs_of([CHAOS]).values()
        process = WorkerProcess(env, 2048, lambda _: ready.set(), lambda _: gone.set())

        def ask(session: int, method: str, *arguments: Any) -> asyncio.Future[Any]:
            answer = loop.create_future()
            process.ask(session, method, arguments, answer.set_result)
            return answer

        async def play_session(session: int) -> None:
            await ask(session, "reset", session, {})
            for _ in range(6):
                await ask(session, "step", "sleep 0.05")

        await ready.wait()
        processors = os.sched_getaffinity(0)
        for pid in (0, process.pid):
            os.sched_setaffinity(pid, {min(processors)})
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
        try:
            await asyncio.wait_for(asyncio.gather(*map(play_session, range(1, 2049))), 30)
        finally:
            os.sched_setaffinity(0, processors)
            for other in busy:
                other.kill()
                other.wait()
            process.kill("the test has ended")
            await gone.wait()

    asyncio.run(script())


def test_memory_is_bounded_for_the_session_that_asks_for_it(play, other):
    async def script(api):
        (greedy, pid), (same, same_pid) = await processes(api, 2)
        assert pid == same_pid
        for deed in ("leak", "big 1000000000"):
            status, crash = await api.step(greedy, deed, 1)
            assert (status, crash["code"]) == (500, "ENVIRONMENT_CRASHED")
            assert "MemoryError" in crash["message"]
            ((greedy, _),) = await processes(api, 1)
        assert (await api.step(same, "hello", 1))[0] == 200
        assert alive(pid)
        ((session, pid),) = await processes(api, 1, "/envs/other")
        body = {"session_id": session, "step": 1, "action": {"text": f"share {500 * 2**20}"}}
        await api.post("/envs/other/step", **body)
        await until(lambda: session not in app.state.sessions.live)
        assert not alive(pid)
        assert "it used" in (await api.post("/envs/other/step", **body))[1]["message"]

    app = create_app([CHAOS, other], workers=1, worker_memory_mb=300)
    play(app, script)


def test_prints_of_an_env_go_to_the_log_not_the_protocol(play, other, caplog):
    caplog.set_level(logging.INFO, "agentgym_servers")

    def printed() -> list[str]:
        return [r.fields["line"] for r in caplog.records if r.message == "environment printed"]  # type: ignore[attr-defined]

    async def script(api):
        ((session, _),) = await processes(api, 1)
        assert (await api.step(session, "print", 1))[0] == 200
        assert (await api.step(session, "hello", 2))[0] == 200
        await until(lambda: any("garbage" in line for line in printed()))
        assert max(map(len, printed())) <= 500
        assert all(line.isprintable() for line in printed())
        assert len(printed()) <= 60
        ((session, _),) = await processes(api, 1, "/envs/other")
        body = {"session_id": session, "action": {"text": "garble"}}
        status, crash = await api.post("/envs/other/step", **body)
        assert (status, crash["code"]) == (500, "ENVIRONMENT_CRASHED")
        assert "it wrote what is no reply" in crash["message"]
        await processes(api, 1, "/envs/other")

    play(create_app([CHAOS, other], workers=1), script)


def test_odd_exceptions_and_answers_are_typed(play):
    async def script(api):
        for deed, complaint in (
            ("raise", "its text cannot be had"),
            ("interrupt", "KeyboardInterrupt"),
            (f"big {65 * 2**20}", "it may have 67108864"),
        ):
            ((session, _),) = await processes(api, 1)
            status, crash = await api.step(session, deed, 1)
            assert (status, crash["code"]) == (500, "ENVIRONMENT_CRASHED")
            assert complaint in crash["message"]

    play(create_app([CHAOS], workers=1), script)


class Vague(EchoEnv):
    def solver(self) -> Any:
        return {"name": 3}

    def hint(self) -> Any:
        return None

    def snapshot(self) -> Any:
        return "text"


@pytest.mark.parametrize("inline", [True, False])
def test_abilities_that_answer_garbage_are_typed(play, inline):
    async def script(api):
        for verb in ("solver", "hint", "snapshot"):
            session_id = await api.begin()
            status, crash = await api.post(f"/{verb}", session_id=session_id)
            assert (status, crash["code"]) == (500, "ENVIRONMENT_CRASHED")
            assert f"{verb} returned" in crash["message"]

    play(create_app({"vague": lambda: Vague(inline=inline)}), script)


def test_an_env_that_cannot_be_imported_in_its_process_says_why(play, other, tmp_path):
    async def script(api):
        (tmp_path / "broken").touch()
        for complaint in ("the disk is on fire", "tried again in"):
            status, crash = await api.post("/reset")
            assert (status, crash["code"]) == (500, "ENVIRONMENT_CRASHED")
            assert "the disk is on fire" in crash["message"]
            assert complaint in crash["message"]
        (tmp_path / "broken").unlink()
        await asyncio.sleep(0.6)
        assert (await api.post("/reset"))[0] == 200
        assert (await api.get("/health"))[1]["sessions"] == 1

    play(create_app([other], workers=1), script)


def test_closing_a_session_cancels_its_call(play):
    async def script(api):
        ((session, pid),) = await processes(api, 1)
        step = asyncio.create_task(api.step(session, "sleep 60", 1, timeout_s=1.0))
        await asyncio.sleep(0.2)
        assert (await api.post("/close", session_id=session))[0] == 200
        status, gone = await step
        assert (status, gone["code"]) == (410, "EPISODE_LOST")
        assert len(app.state.sessions.stuck) == 1
        await until(lambda: not app.state.sessions.stuck)  # the deadline still held
        assert not alive(pid)

    app = create_app([CHAOS], workers=1)
    play(app, script)


def test_closing_a_session_cancels_its_call_in_a_thread_too(play):
    async def script(api):
        session = await api.begin()
        step = asyncio.create_task(api.step(session, "x", 0))
        await asyncio.sleep(0.1)
        await api.post("/close", session_id=session)
        status, gone = await step
        assert (status, gone["code"]) == (410, "EPISODE_LOST")

    play(create_app({"slow": lambda: EchoEnv(latency_s=1.5)}), script)


def test_many_sessions_share_few_processes(play, other):
    async def script(api):
        begun = await processes(api, 60)
        assert len({pid for _, pid in begun}) == 2
        rounds = [await asyncio.gather(*(api.step(one, "thread", n) for one, _ in begun)) for n in (1, 2)]
        first, second = ([reply["observation"]["text"] for _, reply in replies] for replies in rounds)
        assert first == second
        assert len({(pid, thread) for (_, pid), thread in zip(begun, first)}) == 60

    play(create_app([other], workers=2), script)


def test_envs_are_closed_with_the_processes_they_started(play, other, tmp_path):
    async def script(api):
        ((session, pid),) = await processes(api, 1)
        reply = (await api.step(session, "spawn", 1))[1]
        return pid, int(reply["observation"]["text"])

    started = play(create_app([other], workers=1), script)
    assert (tmp_path / "closed").read_text() == "politely"
    asyncio.run(until(lambda: not any(map(alive, started))))


def test_no_worker_outlives_a_server_that_is_killed():
    command = [sys.executable, "-m", "agentgym_servers.env_server.app", CHAOS, "--port", "0", "--workers", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        pids = []
        try:
            url = server.stdout.readline().split()[-1]
            with httpx.Client(base_url=url, timeout=60) as http:
                for _ in range(2):
                    body = {"session_id": http.post("/reset").json()["session_id"], "action": {"text": "hello"}}
                    pids.append(http.post("/step", json=body).json()["info"]["pid"])
                with pytest.raises(httpx.ReadTimeout):  # it hears neither the end of its socket nor anything else
                    http.post("/step", json={**body, "action": {"text": "hang 60"}}, timeout=0.5)
        finally:
            server.kill()
    assert len(set(pids)) == 2
    asyncio.run(until(lambda: not any(map(alive, pids))))
