"""What can be known of the vLLM engine without vLLM: what is refused, how a server is started and ended, and what
becomes of answers that are none. tests/scale has the rest."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import util
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pytest
from running import alive
from transformers import Qwen3Config

from agentgym.errors import ConfigError, MissingDependency, PolicyFailure, UsageError
from agentgym_trainers.engines.base import Sampling
from agentgym_trainers.engines.build import build_engine
from agentgym_trainers.engines.options import CPU_HEAD_SIZES, Vllm, cache_bytes, check_engine, head_size_of
from agentgym_trainers.engines.vllm.client import VllmClient
from agentgym_trainers.engines.vllm.engine import VllmEngine
from agentgym_trainers.engines.vllm.server import GUARD, ServerFlags, VllmServer
from agentgym_trainers.recipe import resolve, to_toml

# What is asked for


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["rollout.lockstep=true"], "'vllm' batches as requests come: set rollout.lockstep = false"),
        (["rollout.temperature=2.5"], "'vllm' samples at temperatures up to 2, and rollout.temperature is 2.5"),
        (["engine.gpu_memory_utilization=1.5"], "gpu_memory_utilization should be less than or equal to 1, not 1.5"),
        (["engine.dtype=int8"], "dtype should be 'float32', 'bfloat16' or 'float16', not 'int8'"),
        (["engine.url=x"], "unknown option"),
        (
            ["engine.kind=vlm"],
            "engine: there is no engine 'vlm' (did you mean 'vllm'?); there are inprocess, vllm, and",
        ),
        (["engine.kind=inprocess", "engine.dtype=float32"], "unknown option"),
    ],
)
def test_what_vllm_cannot_do_is_refused_in_a_sentence(overrides, sentence) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve("grpo", ["env.name=keydoor", "rollout.concurrency=256", "engine.kind=vllm", *overrides])
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_table_survives_toml_and_makes_the_engine(kit, tokenizer, tmp_path) -> None:
    config = resolve("grpo", ["env.name=keydoor", "engine.kind=vllm", 'engine.urls=["http://a:1", "http://b:2/v1"]'])
    (tmp_path / "again.toml").write_text(to_toml(config), encoding="utf-8")
    assert resolve(tmp_path / "again.toml") == config
    engine = build_engine(config, tmp_path, kit.build(), tokenizer)
    assert isinstance(engine, VllmEngine)
    assert (engine.max_length, engine.folder) == (config.rollout.max_length, tmp_path / "engine")
    assert [engine.open(np.random.default_rng(0)).server for _ in range(3)] == [0, 1, 0]
    assert [VllmClient(url, 1.0).url for url in config.engine.urls] == ["http://a:1", "http://b:2"]


def test_what_cannot_start_here_is_an_error_beforehand() -> None:
    for size in (16, 64):
        check_engine(Vllm(kind="vllm", urls=("http://a:1",)), size)  # it runs elsewhere, with whatever it has
    if util.find_spec("vllm") is None:
        with pytest.raises(MissingDependency, match=r"pip install 'turngym\[vllm\]', or name running ones"):
            check_engine(Vllm(kind="vllm"), 64)
    else:
        check_engine(Vllm(kind="vllm"), 64)
        with pytest.raises(ConfigError, match="heads have size 16, and vLLM's CPU build has attention for 32, 64"):
            check_engine(Vllm(kind="vllm"), 16)
    assert 32 in CPU_HEAD_SIZES


def test_sizes_of_a_model() -> None:
    shape = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    config = Qwen3Config(hidden_size=64, **shape)
    assert head_size_of(config) == 32
    assert cache_bytes(config, "float32", 10) == 2 * 3 * 2 * 32 * 4 * 10
    assert cache_bytes(config, "bfloat16", 10) == 2 * 3 * 2 * 32 * 2 * 10


# Its server


def flags(model: Path, memory: int | None = 1 << 20) -> ServerFlags:
    return ServerFlags(model, 128, 4, "float32", 0, 0.5, memory)


def test_a_servers_command_line() -> None:
    here, gpu = (flags(Path("m"), memory).command(8000, "it") for memory in (1 << 20, None))
    for wanted in ("--host 127.0.0.1", "--logprobs-mode processed_logprobs", "--generation-config vllm"):
        assert wanted in " ".join(here)
    assert {"--enforce-eager", "--kv-cache-memory-bytes"} <= {*here} - {*gpu}
    assert "--gpu-memory-utilization" in {*gpu} - {*here}


@pytest.mark.skipif(util.find_spec("vllm") is not None, reason="vLLM is installed here, so that it starts")
def test_a_server_that_does_not_start_shows_the_end_of_its_log(tmp_path) -> None:
    server = VllmServer(flags(tmp_path), tmp_path / "log")
    with pytest.raises(UsageError, match=r"(?s)ended with status 1 .*log.*No module named .*vllm"):
        asyncio.run(server.start())
    assert server.process is None


FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", ["the pipe ends", "it is told to"])
def test_the_guard_ends_all_descendants(how) -> None:
    command = [sys.executable, "-P", str(GUARD), sys.executable, "-c", FAMILY]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folder for folder in sys.path if folder)}
    guard = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    assert guard.stdin is not None
    assert guard.stdout is not None
    grandchild = int(guard.stdout.readline())
    assert alive(grandchild)
    if how == "it is told to":
        guard.terminate()
    else:
        guard.stdin.close()
    guard.wait(60)
    until = monotonic() + 60
    while alive(grandchild) and monotonic() < until:
        sleep(0.05)
    assert not alive(grandchild)
    guard.stdout.close()
    guard.stdin.close()


# Answers that are none

Answer = tuple[int, bytes]


@pytest.fixture
def answering() -> Iterator[Callable[[Answer], str]]:
    """answering((status, body)) -> the URL of a server that answers that to everything."""
    servers = []

    def serve(answer: Answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"] or 0))
                self.do_GET()

            def do_GET(self) -> None:
                self.send_response(answer[0])
                self.send_header("Content-Length", str(len(answer[1])))
                self.end_headers()
                self.wfile.write(answer[1])

            def log_message(self, *_: Any) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def reply(ids: list[int], logprobs: list[Any], finish: str = "length") -> bytes:
    choice = {"token_ids": ids, "logprobs": {"token_logprobs": logprobs}, "finish_reason": finish}
    return json.dumps({"choices": [choice]}).encode()


def ask(url: str, deadline_s: float = 30.0) -> Any:
    async def main() -> Any:
        client = VllmClient(url, deadline_s)
        try:
            return await client.complete([1, 2], Sampling(1.0, 3), seed=0, salt="0")
        finally:
            await client.aclose()

    return asyncio.run(main())


def test_a_complete_answer(answering) -> None:
    part = ask(answering((200, reply([4, 5], [-0.5, -1.0], "stop"))))
    assert (part.token_ids, part.logprobs.token_logprobs, part.finish_reason) == ([4, 5], [-0.5, -1.0], "stop")
    assert ask(answering((200, reply([], [], "abort")))).token_ids == []


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ((200, b"<html>"), "something else than was asked for"),
        ((200, b"{}"), r"something else than was asked for \(choices: Field required\)"),
        ((200, reply([1], [None])), "something else than was asked for"),
        ((200, reply([1], [-1.0], "error")), "something else than was asked for"),
        ((200, reply([1, 2], [-1.0])), "2 tokens and 1 log-probabilities"),
        ((200, reply([], [])), "0 tokens and 0 log-probabilities"),
        ((200, reply([1, 2, 3, 4], [-1.0] * 4)), "at most 3 tokens were asked for"),
        ((500, b"it broke"), "answered /v1/completions with status 500: it broke"),
        ((400, b"no such thing"), "status 400: no such thing"),
    ],
)
def test_an_answer_that_is_none(answering, answer, sentence) -> None:
    with pytest.raises(PolicyFailure, match=sentence) as failed:
        ask(answering(answer))
    assert "\n" not in str(failed.value)


def test_unsupported_requests_and_a_short_model_are_errors(answering) -> None:
    async def main(url: str, call: Callable[[VllmClient], Any]) -> None:
        client = VllmClient(url, 30.0)
        try:
            await call(client)
        finally:
            await client.aclose()

    with pytest.raises(PolicyFailure, match="has no /pause: start it with VLLM_SERVER_DEV_MODE=1"):
        asyncio.run(main(answering((404, b"")), VllmClient.pause))
    with pytest.raises(PolicyFailure, match="holds on to keys and values"):
        asyncio.run(main(answering((200, b'{"success": false}')), VllmClient.forget))
    models = b'{"data": [{"id": "m", "max_model_len": 100}]}'
    with pytest.raises(ConfigError, match=r"holds 100 tokens and rollout\.max_length is 101: start it with"):
        asyncio.run(main(answering((200, models)), lambda client: client.require(101)))
    asyncio.run(main(answering((200, models)), lambda client: client.require(100)))


def test_nobody_there() -> None:
    with pytest.raises(PolicyFailure, match="cannot be reached"):
        ask("http://127.0.0.1:9")


def test_a_lost_attached_server_is_a_failure_not_restarted(answering, tmp_path) -> None:
    """It is somebody else's."""

    async def main() -> None:
        urls = (answering((200, b'{"data": [{"id": "m", "max_model_len": 100}]}')),)
        engine = VllmEngine(Vllm(kind="vllm", urls=urls), None, None, tmp_path, max_sequences=2, max_length=100)
        await engine.attach(3)
        engine.clients = [VllmClient("http://127.0.0.1:9", 30.0)]
        for _ in range(2):
            with pytest.raises(PolicyFailure, match="cannot be reached"):
                await engine.open(np.random.default_rng(0)).generate([1, 2], Sampling(1.0, 3))
        await engine.aclose()

    asyncio.run(main())


def test_a_held_worker_waits_until_released_at_any_weights(answering, tmp_path) -> None:
    """An attachment that was under way when the hold came says of the new weights that they are the old ones."""

    async def main() -> None:
        urls = (answering((200, b'{"data": [{"id": "m", "max_model_len": 100}]}')),)
        engine = VllmEngine(Vllm(kind="vllm", urls=urls), None, None, tmp_path, max_sequences=2, max_length=100)
        await engine.hold()
        await engine.attach(3)
        engine.clients = [VllmClient("http://127.0.0.1:9", 30.0)]
        request = asyncio.ensure_future(engine.open(np.random.default_rng(0)).generate([1, 2], Sampling(1.0, 3)))
        await asyncio.wait([request], timeout=2.0)  # longer than all tries take where nobody answers
        assert not request.done()
        engine.release()
        with pytest.raises(PolicyFailure, match="cannot be reached"):
            await request
        await engine.aclose()

    asyncio.run(main())
