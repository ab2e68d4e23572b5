"""An environment whose rewards depend on the exact sequence of the steps applied, and that writes down each of them."""

from __future__ import annotations

import os
import socket
import stat
import time
import uuid
import zlib
from typing import Any

from agentgym.env import Action, Observation
from agentgym.spec import EnvSpec
from agentgym.testing import ChaosEnv, EchoEnv

WORDS = ("left", "right", "up", "down")


class Ledger(ChaosEnv):
    """Rewards are a running checksum of the words said; an action is `INDEX WORD`, the step's number and the word.

    Reset options: `ledger`, a file to which every applied step is appended as `KEY INSTANCE INDEX WORD`, or "HOST:PORT"
    where a collector does so for environments in containers; `key`;
    `pace_s`, what a step takes; `trouble`, a deed of `ChaosEnv` (or "babble": garbage into every socket of the
    process), done after the step `trouble_at` is applied.
    """

    env_spec = EnvSpec(
        id="ledger",
        description="Rewards are a checksum of what was done so far; for tests.",
        instructions="Answer with the number of the step and a word.",
        splits={"train": 64},
        max_turns=8,
        step_deadline_s=1.5,
    )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        options = options or {}
        super().reset(seed=seed, options=options)
        self._instance = uuid.uuid4().hex
        self._ledger, self._key = options.get("ledger"), options.get("key", "")
        self._pace_s = options.get("pace_s", 0)
        self._trouble, self._trouble_at = options.get("trouble"), options.get("trouble_at", 0)
        self._sum = zlib.crc32(f"{seed} {options.get('task', 0)}".encode())
        return f"{self._sum}", {}

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        _, _, word = str(action).partition(" ")
        self._write(f"{self._key} {self._instance} {action}\n")
        self._sum = zlib.crc32(word.encode(), self._sum)
        time.sleep(self._pace_s)
        turn, self._turns = self._turns, self._turns + 1
        if self._trouble is not None and turn == self._trouble_at:
            verb, _, argument = self._trouble.partition(" ")
            getattr(self, f"_do_{verb}")(argument)
        terminated = self._turns >= 3 and self._sum % 5 == 0
        truncated = not terminated and self._turns >= self.env_spec.max_turns
        return f"{self._sum}", self._sum % 1000 / 1000, terminated, truncated, {}

    def _write(self, line: str) -> None:
        if self._ledger is None:
            return
        if not self._ledger.startswith("/"):
            host, _, port = self._ledger.rpartition(":")
            with socket.create_connection((host, int(port)), 5) as collector:
                collector.sendall(line.encode())
                collector.recv(1)  # it is written down
            return
        file = os.open(self._ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)

    def _do_babble(self, _: str) -> None:
        for name in os.listdir("/proc/self/fd"):
            try:
                if stat.S_ISSOCK(os.stat(int(name)).st_mode):
                    os.write(int(name), bytes(range(256)) * 64)
            except OSError:  # the descriptor that listed the others
                continue


class InlineLedger(Ledger):
    """The same in the server's own thread: for troubles of the network only."""

    env_spec = Ledger.env_spec.model_copy(update={"id": "inline-ledger", "inline": True})


class Sleeper(EchoEnv):
    """An environment whose first task takes ten minutes to begin."""

    env_spec = EchoEnv.env_spec.model_copy(
        update={"id": "sleeper", "inline": False, "splits": {"train": 4}, "step_deadline_s": 1200.0}
    )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        answer = super().reset(seed=seed, options=options)
        if self._task == 0:
            time.sleep(600)
        return answer
