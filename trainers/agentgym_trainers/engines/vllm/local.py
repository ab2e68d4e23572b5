"""vLLM within the trainer's own process: what `VllmClient` asks of a server, without the server.

Its scheduler and its model still run in a process that vLLM starts, so that sampling and learning do not wait for one
another's interpreter; that process ends with this one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Sequence
from itertools import count
from typing import Any, TypeVar

from agentgym.errors import PolicyFailure
from agentgym_trainers.engines.base import Sampling
from agentgym_trainers.engines.vllm.client import UNTOUCHED, Logprobs, PartialCompletion, ServerUnavailable
from agentgym_trainers.engines.vllm.server import ServerFlags, environment

LOOK_S = 1.0
"""How often it is seen whether the engine still lives."""

T = TypeVar("T")


class VllmLocal:
    """One vLLM engine. Use it within one event loop. Every call ends within `deadline_s` seconds, or raises
    PolicyFailure."""

    url = "within this process"
    """What errors call it."""

    def __init__(self, flags: ServerFlags, deadline_s: float) -> None:
        """Starts it: seconds for a tiny model, minutes for a large one."""
        os.environ.update(environment(flags))  # read where vLLM is imported
        os.environ["VLLM_WORKER_MULTIPROCESSING_METHOD"] = "spawn"  # a fork of a process with threads may hang
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # its log is among the run's lines
        from vllm.engine.arg_utils import AsyncEngineArgs  # pyright: ignore
        from vllm.v1.engine.async_llm import AsyncLLM  # pyright: ignore

        self.deadline_s = deadline_s
        self._engine: Any = AsyncLLM.from_engine_args(AsyncEngineArgs(**flags.engine()))
        self._asked: set[str] = set()
        """Requests under way."""
        self._number = count()

    async def require(self, max_length: int) -> None:
        """It was started for this length."""

    async def complete(self, prompt: Sequence[int], sampling: Sampling, *, seed: int, salt: str) -> PartialCompletion:
        """See `VllmClient.complete`."""
        from vllm import SamplingParams  # pyright: ignore
        from vllm.sampling_params import RequestOutputKind  # pyright: ignore

        asked = SamplingParams(
            **UNTOUCHED,
            temperature=sampling.temperature,
            max_tokens=sampling.max_new_tokens,
            stop_token_ids=sorted(sampling.stop_ids),
            ignore_eos=True,  # only `stop_ids` stop
            seed=seed,
            logprobs=0,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        given = {"type": "token", "prompt_token_ids": list(prompt), "cache_salt": salt}
        name = f"reply {next(self._number)}"

        async def ask() -> Any:
            said = [answer async for answer in self._engine.generate(given, asked, name)]
            return said[-1].outputs[0]

        self._asked.add(name)
        try:
            said = await self._within(ask(), "a reply")
        finally:
            self._asked.discard(name)
        ids = list(said.token_ids)
        places: list[Any] = said.logprobs or []
        logprobs = [place[token].logprob for place, token in zip(places, ids, strict=True)]
        return PartialCompletion(
            token_ids=ids, logprobs=Logprobs(token_logprobs=logprobs), finish_reason=said.finish_reason
        )

    async def pause(self) -> None:
        """Begin nothing new, and end every reply under way: each answers with what it has."""
        await self._within(self._engine.pause_generation(mode="abort", clear_cache=False), "a pause")

    async def abort(self) -> None:
        """End what arrived after the pause."""
        await self._within(self._engine.abort(list(self._asked)), "an abort")

    async def read_weights(self, folder: str) -> None:
        """Take the weights of a checkpoint's folder."""
        await self._within(self._engine.collective_rpc("read_agentgym_weights", args=(folder,)), "new weights")

    async def forget(self) -> None:
        """Drop all cached keys and values."""
        if not await self._within(self._engine.reset_prefix_cache(), "a reset of its cache"):
            raise PolicyFailure("vLLM holds on to keys and values of the weights before")

    async def resume(self) -> None:
        await self._within(self._engine.resume_generation(), "a resumption")

    async def aclose(self) -> None:
        """Nothing is asked of it any more; `stop` ends it."""
        if self._engine.output_handler is not None:
            self._engine.output_handler.cancel()  # or it would tell of an engine that is gone

    def died(self) -> bool:
        return bool(self._engine.errored)

    def stop(self) -> None:
        engine, self._engine = self._engine, None  # at the interpreter's exit its destructor would fail
        engine.shutdown()

    async def _within(self, call: Coroutine[Any, Any, T], what: str) -> T:
        """Raises PolicyFailure, in a sentence, where the engine is too late, refuses or has died."""
        asked = asyncio.ensure_future(call)
        try:
            async with asyncio.timeout(self.deadline_s):
                while not asked.done():
                    if self._engine.errored:  # what it was asked just before is never answered
                        raise ServerUnavailable(f"vLLM has died at {what}")
                    await asyncio.wait((asked,), timeout=LOOK_S)
                return asked.result()
        except TimeoutError as error:
            raise PolicyFailure(f"vLLM did not answer {what} within {self.deadline_s:g} s") from error
        except PolicyFailure:
            raise
        except Exception as error:
            if self._engine.errored:
                raise ServerUnavailable(f"vLLM has died at {what}: {error or type(error).__name__}") from error
            raise
        finally:
            asked.cancel()
