"""What a server tells the people who run it: /metrics and its log."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from agentgym.testing import EchoEnv
from agentgym_servers.env_server.app import create_app
from agentgym_servers.web.metrics import BOUNDS_S, Latencies

ECHO = "agentgym.testing:EchoEnv"


async def page(api: Any) -> dict[tuple[str, ...], float]:
    """(name, label values but the environment's "echo" ...) -> value, and that the page can be read."""
    reply = await api.http.get("/metrics")
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }


def test_the_page_counts_what_happened(play):
    now = [0.0]

    async def script(api):
        first = (await api.post("/reset", episode_id="e"))[1]["session_id"]
        for index in range(3):
            await api.step(first, "x", index)
            await api.step(first, "x", index)  # replayed: not a step
        await api.step(first, "x", 9)
        await api.step("nobody")
        waiter = asyncio.create_task(api.post("/reset", episode_id="w", queue_s=30))
        while not app.state.sessions.waiting:
            await asyncio.sleep(0.005)
        counted = await page(api)
        assert counted["agentgym_queue_length", "echo"] == 1
        assert counted["agentgym_sessions", "echo"] == 1
        assert counted["agentgym_step_seconds_count", "echo"] == 3
        assert counted["agentgym_step_seconds_bucket", "echo", "+Inf"] == 3
        assert counted["agentgym_step_seconds_sum", "echo"] > 0
        assert counted["agentgym_reset_seconds_count", "echo"] == 1
        assert counted["agentgym_errors_total", "OUT_OF_ORDER", "echo"] == 1
        assert counted["agentgym_errors_total", "UNKNOWN_SESSION", "echo"] == 1
        for queue_s in (0, 0.01):
            assert (await api.post("/reset", queue_s=queue_s))[0] == 503
        assert (await page(api))["agentgym_errors_total", "CAPACITY_REACHED", "echo"] == 2
        await api.post("/close", session_id=first)
        await waiter
        now[0] = 1000.0
        app.state.sessions.sweep()
        counted = await page(api)
        assert counted["agentgym_sessions_ended_total", "echo", "closed"] == 1
        assert counted["agentgym_sessions_ended_total", "echo", "lease"] == 1
        assert counted["agentgym_sessions", "echo"] == counted["agentgym_queue_length", "echo"] == 0

    app = create_app([ECHO], max_sessions=1, clock=lambda: now[0])
    play(app, script)


def test_two_servers_of_one_process_count_apart_and_envs_apart(play):
    other = create_app([ECHO])

    async def script(api):
        await api.begin()
        await api.post("/envs/crash/step", session_id=(await api.post("/envs/crash/reset"))[1]["session_id"], action=X)
        counted = await page(api)
        assert counted["agentgym_reset_seconds_count", "echo"] == 1
        assert counted["agentgym_errors_total", "ENVIRONMENT_CRASHED", "crash"] == 1
        assert ("agentgym_errors_total", "ENVIRONMENT_CRASHED", "echo") not in counted

    async def script_of_other(api):
        assert (await page(api))["agentgym_reset_seconds_count", "echo"] == 0

    play(create_app({"echo": EchoEnv, "crash": lambda: EchoEnv(crash_at=0)}), script)
    play(other, script_of_other)


X = {"text": "x"}


def test_workers_are_counted_and_weighed(play):
    async def script(api):
        session_id = (await api.post("/reset"))[1]["session_id"]
        counted = await page(api)
        assert counted["agentgym_workers", "chaos"] == 1
        assert counted["agentgym_worker_memory_bytes", "chaos"] > 2**20
        assert counted["agentgym_worker_restarts_total", "chaos"] == 0
        await api.step(session_id, "exit 1")
        assert (await page(api))["agentgym_worker_restarts_total", "chaos"] == 1

    play(create_app(["agentgym.testing:ChaosEnv"], workers=1), script)


def test_a_histogram_counts_each_value_once_in_its_bucket():
    latencies = Latencies()
    for seconds in (0.0, BOUNDS_S[0], 0.003, 1e9):
        latencies.observe(seconds)
    buckets = dict(latencies.buckets())
    assert buckets["0.0005"] == 2
    assert buckets["0.0025"] == 2
    assert buckets["0.005"] == 3
    assert buckets["60.0"] == 3
    assert buckets["+Inf"] == 4


def test_logs_are_json_lines_without_full_session_ids():
    env = "agentgym.testing:ChaosEnv"
    command = [sys.executable, "-m", "agentgym_servers.env_server.app", env, "--port", "0", "--log-format", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        url = server.stdout.readline().split()[-1]
        session_id = httpx.post(f"{url}/reset").json()["session_id"]
        crash = httpx.post(f"{url}/step", json={"session_id": session_id, "action": {"text": "exit 1"}})
        assert crash.status_code == 500
        server.terminate()
        _, log = server.communicate(timeout=20)
    events = [json.loads(line) for line in log.splitlines()]
    assert [event["event"] for event in events] == ["worker started", "worker ended", "session ended"]
    assert {event["env"] for event in events} == {"chaos"}
    assert events[2]["code"] == "ENVIRONMENT_CRASHED"
    assert events[2]["session"] == session_id[:8]
    assert {"time", "level", "logger"} <= events[2].keys()
    assert session_id not in log
