"""A vLLM server of our own, for as long as a run needs it; `guard.py` stands between and ends it with this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

import httpx

from agentgym.clients.server_process import end_of
from agentgym.errors import UsageError
from agentgym_trainers.engines.vllm.guard import GRACE_S

STARTUP_S = 900.0
"""Seconds until the server answers: large models take minutes to load."""
DYING_S = 8.0
"""A server looks every five seconds whether its model's process lives."""
TAIL = 30
"""Lines of the log that an error shows."""
TOKENS = 2048
"""Tokens of one forward on a CPU, unless one sequence may be longer."""
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Room for adapters that vLLM can be started with."""
NO_LORA = "does not support LoRA yet"
"""vLLM's word for a model whose adapters it cannot serve."""
GUARD = Path(__file__).with_name("guard.py")
READER = "agentgym_trainers.engines.vllm.worker.WeightReader"


@dataclass(frozen=True)
class ServerFlags:
    """Settings of a server."""

    model: Path
    """A checkpoint's folder."""
    max_length: int
    max_sequences: int
    dtype: str
    seed: int
    gpu_memory_utilization: float
    cache_bytes: int | None
    """Memory for keys and values on a CPU; None where there is a GPU."""
    host: str = "127.0.0.1"
    """Address at which it listens. Whoever reaches it may change the model."""
    gpus: int = 1
    """Slices that the model is cut into."""
    lora_rank: int | None = None
    """Rank of the adapters that it serves, one at a time; None: it serves none."""
    transfer: str | None = None
    """vLLM's backend by which it takes weights from another process's memory: "ipc", "nccl"."""

    def engine(self) -> dict[str, Any]:
        """Arguments of vLLM's engine, by the names of its `EngineArgs`."""
        given: dict[str, Any] = {
            "model": str(self.model), "dtype": self.dtype, "max_model_len": self.max_length,
            "max_num_seqs": self.max_sequences, "seed": self.seed, "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm", "worker_extension_cls": READER, "enable_prefix_caching": True,
            "disable_log_stats": True, "use_tqdm_on_load": False,
        }  # fmt: skip
        if self.gpus > 1:
            given["tensor_parallel_size"] = self.gpus
        if self.lora_rank is not None:
            given |= {"enable_lora": True, "max_loras": 1}
            given["max_lora_rank"] = next(rank for rank in LORA_RANKS if rank >= self.lora_rank)
        if self.transfer is not None:
            given["weight_transfer_config"] = json.dumps({"backend": self.transfer})
        if self.cache_bytes is None:
            return given | {"gpu_memory_utilization": self.gpu_memory_utilization}
        # Prompts stay whole: vLLM 0.32's CPU build dies of one with a seed that is cut between two forwards.
        return given | {
            "kv_cache_memory_bytes": self.cache_bytes, "max_num_batched_tokens": max(self.max_length, TOKENS),
            "enforce_eager": True, "enable_chunked_prefill": False,
        }  # fmt: skip

    def command(self, port: int, name: str) -> list[str]:
        """Command that starts a server; `name` is what it calls its model."""
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        given = {**self.engine(), "served_model_name": name, "host": self.host, "port": port}
        for key, value in given.items():
            flag = key.replace("_", "-")
            if isinstance(value, bool):
                command.append(f"--{flag}" if value else f"--no-{flag}")
            else:
                command += [f"--{flag}", str(value)]
        return [*command, "--disable-uvicorn-access-log"]


class VllmServer:
    """Started by `start`, ended by `stop` or with this process."""

    def __init__(self, flags: ServerFlags, log: Path) -> None:
        self.flags, self.log = flags, log
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self, startup_s: float = STARTUP_S) -> str:
        """Its URL, once it answers. A model whose adapters vLLM cannot serve is served without them. Raises UsageError
        with the end of its log when it does not answer."""
        try:
            return await self._start(startup_s)
        except UsageError:
            if self.flags.lora_rank is None or NO_LORA not in self._lines():
                raise
        self.flags = replace(self.flags, lora_rank=None)
        return await self._start(startup_s)

    async def _start(self, startup_s: float) -> str:
        port, started = free_port(), monotonic()
        url, name = f"http://{self.flags.host}:{port}", f"agentgym-{os.getpid()}-{port}"
        command = [sys.executable, "-P", str(GUARD), *self.flags.command(port, name)]
        path = os.pathsep.join(folder for folder in sys.path if folder)
        variables = {**os.environ, **environment(self.flags), "PYTHONPATH": path, "VLLM_SERVER_DEV_MODE": "1"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, env=variables
            )
        try:
            async with httpx.AsyncClient(base_url=url, timeout=5.0, trust_env=False) as client:
                while not await _answers(client, name):
                    if self.process.poll() is not None:
                        raise self._not_started(f"ended with status {self.process.returncode}")
                    if monotonic() - started > startup_s:
                        raise self._not_started(f"did not answer within {startup_s:g} s")
                    await asyncio.sleep(0.2)
        except BaseException:
            self.stop()
            raise
        return url

    def died(self) -> bool:
        """True where it ends by itself within a moment: a server whose model's process was killed takes some
        seconds."""
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(DYING_S)
                return True
        return False

    def stop(self) -> None:
        """End it and all that it started."""
        process, self.process = self.process, None
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()  # asks the process between to end the server
        try:
            process.wait(2 * GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _not_started(self, how: str) -> UsageError:
        return UsageError(f"the vLLM server {how} ({self.log}). {end_of(self._lines().splitlines()[-TAIL:])}")

    def _lines(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


def environment(flags: ServerFlags) -> dict[str, str]:
    """Environment variables of a server."""
    found = {"VLLM_NO_USAGE_STATS": "1"}
    if flags.lora_rank is not None:
        found["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if flags.cache_bytes is not None:
        # As many threads as OMP_NUM_THREADS says, on whatever cores are free.
        found["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    return found


async def _answers(client: httpx.AsyncClient, name: str) -> bool:
    """True where the server at this address answers, and is ours."""
    try:
        response = await client.get("/v1/models")
    except httpx.TransportError:
        return False
    return response.status_code == 200 and name in response.text


def free_port() -> int:
    """One that nobody listens on now. Another may take it before the server does: then the server ends, and says so."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
