"""Fakes that are part of the product: environments whose behavior, good or bad, is known in advance.

agentgym serve agentgym.testing:EchoEnv
env = EchoEnv(crash_at=2)
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import time
from collections.abc import Iterable
from typing import Any, Literal

import httpx
import numpy as np

from agentgym.env import Action, Env, Observation
from agentgym.errors import BadRequest
from agentgym.spec import EnvSpec

WORDS = ("apple", "brook", "cloud", "drum", "ember", "fern", "gate", "hill")
LENGTH = 3
"""Words to repeat in an episode."""

Garbage = Literal["tuple", "reward", "observation", "info", "end"]
Fault = Literal["ok", "lost request", "lost reply", "twice"]


class EchoEnv(Env):
    """The smallest environment that behaves: a word is shown, the agent repeats it; three in a row is success and
    reward 1.

    `latency_s` is slept in every step. At the 0-based step `crash_at` the environment raises, at `hang_at` it sleeps
    for `hang_s`, at `garbage_at` it returns something its contract forbids (`garbage` says what). With `image=True` it
    is seen as well as read. It is `inline` unless it sleeps.
    """

    env_spec = EnvSpec(
        id="echo",
        description="Repeat the word that is shown, three times: the smallest environment that behaves.",
        instructions="You are shown a word. Answer with exactly that word and nothing else.",
        splits={"train": 8, "validation": 4, "test": 4},
        max_turns=8,
        info_keys=("success", "valid_action", "state_key", "progress"),
        capabilities=("snapshot", "solver", "hint"),
        inline=True,
    )

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        latency_s: float = 0.0,
        crash_at: int | None = None,
        hang_at: int | None = None,
        hang_s: float = 60.0,
        garbage_at: int | None = None,
        garbage: Garbage = "tuple",
        max_turns: int | None = None,
        step_deadline_s: float | None = None,
        image: bool = False,
        inline: bool | None = None,
    ) -> None:
        self.latency_s, self.hang_s, self.garbage = latency_s, hang_s, garbage
        self.crash_at, self.hang_at, self.garbage_at = crash_at, hang_at, garbage_at
        spec = spec or type(self).env_spec
        sleeps = latency_s > 0 or hang_at is not None
        change: dict[str, Any] = {"inline": (spec.inline and not sleeps) if inline is None else inline}
        if max_turns is not None:
            change["max_turns"] = max_turns
        if step_deadline_s is not None:
            change["step_deadline_s"] = step_deadline_s
        if image:
            change["observations"] = ("text", "image")
            change["capabilities"] = (*spec.capabilities, "image")
        super().__init__(spec.model_copy(update=change))
        self._split, self._task, self._matched, self._turns, self._ended = "", 0, 0, 0, True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self._split, self._task = self.select_task(options)
        self._matched, self._turns, self._ended = 0, 0, False
        return self._look(f"Say: {self._word()}"), self._info(valid=True)

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        if self._ended:
            raise BadRequest("there is no episode: call reset()")
        turn = self._turns
        self._misbehave(turn)
        word = action.strip() if isinstance(action, str) else ""
        self._turns += 1
        self._matched += word == self._word()
        terminated = self._matched == LENGTH
        truncated = not terminated and self._turns >= self.env_spec.max_turns
        self._ended = terminated or truncated
        ask = "Well said." if terminated else f"Say: {self._word()}"
        answer = (
            self._look(f"You said: {word}\n{ask}"),
            float(terminated),
            terminated,
            truncated,
            self._info(valid=bool(word)),
        )
        return self._spoil(answer) if turn == self.garbage_at else answer

    def snapshot(self) -> bytes:
        state = [self._split, self._task, self._matched, self._turns, self._ended, self.np_random.bit_generator.state]
        return json.dumps(state).encode()

    def restore(self, state: bytes) -> None:
        self._split, self._task, self._matched, self._turns, self._ended, generator = json.loads(state)
        self.np_random.bit_generator.state = generator

    def solver(self) -> Action:
        return self._word()

    def hint(self) -> str:
        return f"The word begins with {self._word()[0]!r}."

    def _word(self) -> str:
        first = 3 * self._task + 5 * list(self.env_spec.splits).index(self._split)
        return WORDS[(first + min(self._matched, LENGTH - 1)) % len(WORDS)]

    def _info(self, valid: bool) -> dict[str, Any]:
        return {
            "success": self._matched == LENGTH,
            "valid_action": valid,
            "state_key": f"{self._split}/{self._task}:{self._matched}",
            "progress": self._matched / LENGTH,
        }

    def _look(self, text: str) -> Observation:
        if "image" not in self.env_spec.observations:
            return text
        return {"text": text, "image": np.full((8, 8, 3), 40 * self._matched, np.uint8)}

    def _misbehave(self, turn: int) -> None:
        if self.latency_s:
            time.sleep(self.latency_s)
        if turn == self.crash_at:
            raise RuntimeError(f"EchoEnv was told to crash at step {turn}")
        if turn == self.hang_at:
            time.sleep(self.hang_s)

    def _spoil(self, answer: Any) -> Any:
        observation, reward, terminated, truncated, info = answer
        return {
            "tuple": (observation, reward),
            "reward": (observation, float("nan"), terminated, truncated, info),
            "observation": (42, reward, terminated, truncated, info),
            "info": (observation, reward, terminated, truncated, {"state_key": object()}),
            "end": (observation, reward, "no", truncated, info),
        }[self.garbage]


class ChaosEnv(Env):
    """An environment that does its process harm when an action tells it to, for tests of whatever runs it.

    Actions: `exit CODE`, `signal NUMBER` (9 kills it, 11 is a segmentation fault), `sleep SECONDS`, `hang SECONDS`
    (holding the interpreter's lock), `leak` (memory, without end), `raise` (an exception that cannot be printed),
    `interrupt` (a KeyboardInterrupt), `print` (garbage, to Python's standard output and to file descriptor 1),
    `write FD` (garbage), `big BYTES` (an observation), `spawn` (a process that stays; its id is the observation).
    Anything else is repeated. Never run it in a process that matters.
    """

    env_spec = EnvSpec(
        id="chaos",
        description="Harms the process that it runs in, as told; for tests.",
        instructions="Say what shall go wrong.",
        splits={"train": 64},
        max_turns=1000,
    )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        super().reset(seed=seed)
        self.select_task(options)
        self._turns = 0
        return "What shall go wrong?", {"pid": os.getpid()}

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        verb, _, argument = str(action).partition(" ")
        deed = getattr(self, f"_do_{verb}", None)
        observation = str(action if deed is None else deed(argument))
        self._turns += 1
        return observation, 0.0, False, self._turns >= self.env_spec.max_turns, {"pid": os.getpid()}

    def _do_exit(self, code: str) -> None:
        os._exit(int(code))

    def _do_signal(self, number: str) -> None:
        os.kill(os.getpid(), int(number))
        time.sleep(60)

    def _do_sleep(self, seconds: str) -> None:
        time.sleep(float(seconds))

    def _do_hang(self, seconds: str) -> None:
        ctypes.PyDLL(None).usleep(int(float(seconds) * 1e6))

    def _do_leak(self, _: str) -> None:
        hoard = []
        while True:
            hoard.append(b"x" * 2**24)

    def _do_raise(self, _: str) -> None:
        raise _Unprintable

    def _do_interrupt(self, _: str) -> None:
        raise KeyboardInterrupt

    def _do_print(self, _: str) -> None:
        print("garbage " * 1000)
        os.write(1, bytes(range(256)) * 100 + b"\n")

    def _do_write(self, fd: str) -> None:
        os.write(int(fd), bytes(range(256)))

    def _do_big(self, size: str) -> str:
        return "x" * int(size)

    def _do_spawn(self, _: str) -> int:
        return subprocess.Popen(["sleep", "1000"]).pid


class _Unprintable(BaseException):
    def __str__(self) -> str:
        raise RuntimeError("not even its text")


class FaultyTransport(httpx.AsyncBaseTransport):
    """A network with faults that are known in advance, around another transport.

    `plan` says for each request, by order, what becomes of it: "ok" passes it, "lost request" fails before it is
    sent, "lost reply" performs it and fails afterwards, "twice" performs it twice and answers with the second reply.
    After the plan everything is "ok". `paths` lists the paths that were asked for.
    """

    def __init__(self, inner: httpx.AsyncBaseTransport, plan: Iterable[Fault] = ()) -> None:
        self.inner, self._plan = inner, iter(plan)
        self.paths: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        fault = next(self._plan, "ok")
        self.paths.append(request.url.path)
        if fault == "lost request":
            raise httpx.ConnectError("the request was lost, as planned", request=request)
        reply = await self.inner.handle_async_request(request)
        if fault == "ok":
            return reply
        await reply.aread()
        await reply.aclose()
        if fault == "lost reply":
            raise httpx.ReadError("the reply was lost, as planned", request=request)
        return await self.inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self.inner.aclose()
