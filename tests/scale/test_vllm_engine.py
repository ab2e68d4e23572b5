"""The vLLM engine on the real vLLM: it says what the in-process engine and the learner say, before and after new
weights; and what becomes of a reply when the weights, the way or the server change under it.

`make scale` installs vLLM's build for CPUs beside this environment and runs these.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import os
import re
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from importlib import util
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from vllm_models import EPISODES, LENGTH, SLACK, engine_over, logprobs_of, plain, tokens

from agentgym import registry
from agentgym.errors import PolicyFailure
from agentgym.rollouts.policy import ContextFull, EpisodeSpec
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits, Runner
from agentgym.rollouts.trajectory import Group, Trajectory
from agentgym.session import LocalSession
from agentgym_trainers.config.sections import OptimOptions
from agentgym_trainers.data.sequences import collate
from agentgym_trainers.engines.base import Engine, Sampling
from agentgym_trainers.engines.inprocess import InProcessEngine
from agentgym_trainers.engines.options import cache_bytes
from agentgym_trainers.engines.vllm import engine as vllm
from agentgym_trainers.engines.vllm.client import VllmClient
from agentgym_trainers.engines.vllm.server import ServerFlags, VllmServer
from agentgym_trainers.learner.learner import Learner
from agentgym_trainers.nn import checkpoint
from agentgym_trainers.recipe import resolve
from agentgym_trainers.rollout.policy import TokenPolicy
from agentgym_trainers.rollout.tokens import ChatTemplate
from agentgym_trainers.run import run

pytestmark = [
    pytest.mark.skipif(util.find_spec("vllm") is None, reason="vLLM is not installed here: run `make scale`"),
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("default"),  # vLLM's own, and its torch's
]
BOTH = pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def served(make, tokenizer, tmp_path_factory) -> Iterator[Callable[[bool], str]]:
    """served(tied) -> the URL of a server of such models; each is started once."""
    servers: dict[bool, tuple[VllmServer, str]] = {}

    def url(tied: bool) -> str:
        if tied not in servers:
            folder, model = tmp_path_factory.mktemp("served"), make(9, tied)
            checkpoint.save_model(folder / "model", model, tokenizer, model.state_dict())
            memory = cache_bytes(model.config, "float32", 16 * LENGTH)
            server = VllmServer(
                ServerFlags(folder / "model", LENGTH, EPISODES, "float32", 0, 0.5, memory), folder / "log"
            )
            servers[tied] = server, asyncio.run(server.start())
        return servers[tied][1]

    yield url
    for server, _ in servers.values():
        server.stop()


async def play(engine: Engine, tokenizer: Any, temperature: float) -> list[Trajectory]:
    """Two attempts each at three tasks of `keydoor`."""
    template = ChatTemplate(tokenizer)
    policy = TokenPolicy(engine, template, Sampling(temperature, 6, template.stop_ids()))

    async def open_session() -> LocalSession:
        return LocalSession(registry.make("keydoor"))

    runner = Runner(open_session, PromptFormat(), Limits(None), EPISODES)
    return await runner.run(policy, [EpisodeSpec("keydoor", "train", i // 2, i // 2, i % 2) for i in range(EPISODES)])


@BOTH
def test_vllm_our_own_engine_and_the_learner_agree(served, make, tokenizer, tmp_path, tied) -> None:
    """Over whole episodes of many turns, and again once there are other weights."""
    url, temperature, models = served(tied), 0.7, [make(0, tied), make(1, tied)]

    async def main() -> list[tuple[list[Trajectory], list[Trajectory], list[Trajectory]]]:
        found = []
        async with engine_over([url], models[0], tokenizer, tmp_path) as engine:
            for version, model in enumerate(models):
                await engine.refresh(model.state_dict(), version)
                assert engine.version == version
                other = InProcessEngine(copy.deepcopy(model), max_sequences=EPISODES, max_length=LENGTH)
                sampled = await play(engine, tokenizer, temperature)
                found.append((sampled, await play(engine, tokenizer, 0.0), await play(other, tokenizer, 0.0)))
                await other.aclose()
        return found

    for version, (sampled, greedy, in_process) in enumerate(asyncio.run(main())):
        assert max(len(trajectory.turns) for trajectory in sampled) == 10
        batch, rows, _ = collate([Group(tuple(sampled[i : i + 2])) for i in range(0, EPISODES, 2)])
        learner = Learner(copy.deepcopy(models[version]), OptimOptions(), temperature=temperature)
        np.testing.assert_allclose(learner.logprobs(batch, rows), batch.logprob_A, atol=SLACK)
        assert set(batch.x["version_A"].tolist()) == {version}
        assert len({tuple(trajectory.branches[0].ids.tolist()) for trajectory in sampled}) > 3
        for ours, theirs in zip(greedy, in_process, strict=True):
            assert ours.branches[0].ids.tolist() == theirs.branches[0].ids.tolist()
            np.testing.assert_allclose(ours.branches[0].logprobs, theirs.branches[0].logprobs, atol=SLACK)


@BOTH
def test_a_reply_under_way_goes_on_with_the_new_weights(served, make, tokenizer, tmp_path, tied) -> None:
    """Each token is what the weights that it names say of it, after all tokens before it."""
    url, models = served(tied), {3: make(2, tied), 4: make(3, tied)}
    prompts = [tokens(number, 20 + number) for number in range(4)]

    async def main() -> list[Any]:
        async with engine_over([url], models[3], tokenizer, tmp_path) as engine:

            def begin() -> asyncio.Future[list[Any]]:
                talks = [engine.open(np.random.default_rng(number)) for number in range(4)]
                pairs = zip(talks, prompts, strict=True)
                return asyncio.gather(*(talk.generate(prompt, Sampling(1.0, 500)) for talk, prompt in pairs))

            await engine.refresh(models[3].state_dict(), 3)
            started = time.monotonic()
            await begin()
            wait_s = (time.monotonic() - started) / 2  # the first replies of a server can take several times as long
            for _ in range(12):
                await engine.refresh(models[3].state_dict(), 3)
                replies = begin()
                await asyncio.sleep(wait_s)
                await engine.refresh(models[4].state_dict(), 4)
                completions = await replies
                if any(len(set(completion.versions)) == 2 for completion in completions):
                    return completions
                wait_s *= 0.5 if all(set(completion.versions) == {3} for completion in completions) else 1.5
        raise AssertionError("no refresh met a reply")

    for prompt, completion in zip(prompts, asyncio.run(main()), strict=True):
        assert (len(completion.ids), completion.finish) == (500, "length")
        assert completion.versions == sorted(completion.versions)
        for version, model in models.items():
            own = np.flatnonzero(np.array(completion.versions) == version)
            truth = logprobs_of(model, prompt, completion.ids)
            np.testing.assert_allclose(np.array(completion.logprobs)[own], truth[own], atol=SLACK)


def test_a_server_that_kept_old_weights_is_found_out(served, make, tokenizer, tmp_path, monkeypatch) -> None:
    """vLLM 0.32's own order to reload leaves the tied head of its CPU build as it was."""
    url = served(True)

    async def reload(self: VllmClient, folder: str) -> None:
        await self._http.post("/collective_rpc", json={"method": "reload_weights", "kwargs": {"weights_path": folder}})

    async def main() -> None:
        async with engine_over([url], make(0, True), tokenizer, tmp_path) as engine:
            await engine.refresh(make(4, True).state_dict(), 1)
            talk, prompt = engine.open(np.random.default_rng(0)), tokens(0, 20)
            with monkeypatch.context() as patch:
                patch.setattr(VllmClient, "read_weights", reload)
                with pytest.raises(PolicyFailure, match="away from those of the weights it was given"):
                    await engine.refresh(make(5, True).state_dict(), 2)
            with pytest.raises(PolicyFailure, match="last refresh failed"):
                await talk.generate(prompt, Sampling(1.0, 4))
            await engine.refresh(make(5, True).state_dict(), 3)
            got = await talk.generate(prompt, Sampling(1.0, 4))
            np.testing.assert_allclose(got.logprobs, logprobs_of(make(5, True), prompt, got.ids), atol=SLACK)

    asyncio.run(main())


def test_limits_and_stops(served, make, tokenizer, tmp_path) -> None:
    """As the in-process engine's."""
    url = served(False)

    async def main() -> None:
        async with engine_over([url], make(0), tokenizer, tmp_path) as engine:
            talk = engine.open(np.random.default_rng(0))
            with pytest.raises(PolicyFailure, match="refresh comes first"):
                await talk.generate([5], Sampling())
            await engine.refresh(make(0).state_dict(), 0)
            for room, most in ((100, 7), (2, 7), (1, 7)):
                got = await talk.generate(tokens(0, LENGTH - room), Sampling(1.0, most))
                assert (len(got.ids), got.finish) == (min(room, most), "length")
            with pytest.raises(ContextFull, match=f"{LENGTH} tokens"):
                await talk.generate(tokens(0, LENGTH), Sampling(1.0, 7))
            with pytest.raises(ValueError, match="empty"):
                await talk.generate([], Sampling(1.0, 7))
            got = await talk.generate([4], Sampling(1.0, 7, frozenset(range(320))))
            assert (len(got.ids), got.finish) == (1, "stop")
            ends = frozenset({tokenizer.eos_token_id})  # stops nothing unless it is asked to
            long = [await talk.generate(tokens(i, 9), Sampling(2.0, 400)) for i in range(3)]
            assert {completion.finish for completion in long} == {"length"}
            assert any(set(completion.ids) & ends for completion in long)
            for temperature in (0.0, 0.5, 1.0, 1.7):
                prompt = tokens(5, 30)
                got = await talk.generate(prompt, Sampling(temperature, 12))
                np.testing.assert_allclose(got.logprobs, logprobs_of(make(0), prompt, got.ids, temperature), atol=SLACK)
                if not temperature:
                    assert got.ids == plain(make(0), [*prompt, *got.ids])[29:].argmax(dim=-1).tolist()
            again = [engine.open(np.random.default_rng(7)) for _ in range(2)]
            first, second = [await one.generate(prompt, Sampling(1.0, 12)) for one in again]
            assert first.ids == second.ids  # one seed, one reply, where nothing else is computed

    asyncio.run(main())


def test_more_prompts_at_once_than_a_forward_takes(served, make, tokenizer, tmp_path) -> None:
    """vLLM 0.32's CPU build cannot cut the prompt of a request that has a seed."""
    url = served(False)

    async def main() -> None:
        async with engine_over([url], make(0), tokenizer, tmp_path) as engine:
            await engine.refresh(make(0).state_dict(), 0)
            prompts = [tokens(number, 600) for number in range(EPISODES)]
            talks = [engine.open(np.random.default_rng(number)) for number in range(EPISODES)]
            completions = await asyncio.gather(
                *(talk.generate(prompt, Sampling(1.0, 4)) for talk, prompt in zip(talks, prompts, strict=True))
            )
            for prompt, got in zip(prompts, completions, strict=True):
                np.testing.assert_allclose(got.logprobs, logprobs_of(make(0), prompt, got.ids), atol=SLACK)

    asyncio.run(main())


class Door:
    """A port that leads to the server: shut, nobody gets in; held, nobody gets an answer."""

    def __init__(self, url: str) -> None:
        self.target, self.passed, self.held = int(url.rpartition(":")[2]), 0, False
        self._port = 0
        self._pipes: list[asyncio.StreamWriter] = []

    async def open(self) -> str:
        self._listener = await asyncio.start_server(self._enter, "127.0.0.1", self._port)
        self._port = self._listener.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{self._port}"

    async def shut(self) -> None:
        self._listener.close()
        for writer in self._pipes:
            writer.transport.abort()
        self._pipes = []
        await asyncio.sleep(0)

    async def _enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", self.target)
        self._pipes += [writer, forth]
        await asyncio.gather(self._carry(reader, forth), self._carry(back, writer), return_exceptions=True)
        for end in (writer, forth):
            end.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            while self.held:
                await asyncio.sleep(0.05)
            self.passed += len(data)
            writer.write(data)
            await writer.drain()
        writer.close()


async def two_doors(url: str, then: Callable[[list[Door], list[str]], Awaitable[None]]) -> None:
    doors = [Door(url), Door(url)]
    try:
        await then(doors, [await door.open() for door in doors])
    finally:
        for door in doors:
            await door.shut()


def test_conversations_stay_with_their_server(served, make, tokenizer, tmp_path) -> None:
    async def main(doors: list[Door], urls: list[str]) -> None:
        async with engine_over(urls, make(0), tokenizer, tmp_path) as engine:
            await engine.refresh(make(0).state_dict(), 0)
            talks = [engine.open(np.random.default_rng(number)) for number in range(4)]
            assert [talk.server for talk in talks] == [0, 1, 0, 1]
            talks[1].close()
            talks[1].close()  # twice does no harm
            assert [engine.open(np.random.default_rng(9)).server for _ in range(2)] == [1, 0]
            before = [door.passed for door in doors]
            for _ in range(3):
                await talks[0].generate(tokens(1, 30), Sampling(1.0, 5))
            assert doors[0].passed > before[0]
            assert doors[1].passed == before[1]
            await doors[1].shut()
            with pytest.raises(PolicyFailure, match="cannot be reached"):
                await talks[3].generate(tokens(1, 30), Sampling(1.0, 5))
            assert len((await talks[0].generate(tokens(1, 30), Sampling(1.0, 5))).ids) == 5

    asyncio.run(two_doors(served(False), main))


def test_after_a_failed_weight_sync_nothing_is_paused_or_sampled(served, make, tokenizer, tmp_path) -> None:
    async def main(doors: list[Door], urls: list[str]) -> None:
        async with engine_over(urls, make(0), tokenizer, tmp_path) as engine, httpx.AsyncClient() as direct:
            await engine.refresh(make(0).state_dict(), 0)
            talk = engine.open(np.random.default_rng(0))
            await doors[1].shut()
            with pytest.raises(PolicyFailure, match="cannot be reached"):
                await engine.refresh(make(1).state_dict(), 1)
            assert (await direct.get(f"{served(False)}/is_paused")).json() == {"is_paused": False}
            with pytest.raises(PolicyFailure, match="last refresh failed"):
                await talk.generate(tokens(0, 30), Sampling(1.0, 5))
            await doors[1].open()
            await engine.refresh(make(1).state_dict(), 1)
            got = await talk.generate(tokens(0, 30), Sampling(1.0, 5))
            assert got.versions == [1] * 5
            np.testing.assert_allclose(got.logprobs, logprobs_of(make(1), tokens(0, 30), got.ids), atol=SLACK)

    asyncio.run(two_doors(served(False), main))


def test_no_answer_is_waited_for_longer_than_the_deadline(served, make, tokenizer, tmp_path) -> None:
    async def main(doors: list[Door], urls: list[str]) -> None:
        async with engine_over(urls[:1], make(0), tokenizer, tmp_path) as engine:
            await engine.refresh(make(0).state_dict(), 0)
            talk = engine.open(np.random.default_rng(0))
            engine.clients[0].deadline_s = 0.5
            doors[0].held = True
            with pytest.raises(PolicyFailure, match=r"no answer to /v1/completions within 0\.5 s"):
                await talk.generate(tokens(0, 30), Sampling(1.0, 5))
            with pytest.raises(PolicyFailure, match=r"no answer to /\w+ within 0\.5 s"):
                await engine.refresh(make(1).state_dict(), 1)
            doors[0].held = False
            engine.clients[0].deadline_s = 60
            await engine.refresh(make(1).state_dict(), 1)
            assert len((await talk.generate(tokens(0, 30), Sampling(1.0, 5))).ids) == 5

    asyncio.run(two_doors(served(False), main))


def processes_naming(text: str) -> list[int]:
    """Those whose command line has `text`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if text.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def signal_vllm(number: signal.Signals, folder: Path) -> None:
    """To the engine's own server, with all that belongs to it.

    What stands between has the server's command among its arguments, and is of this process's group: it is the last of
    the two where process numbers have begun anew.
    """
    words = f"\0-m\0vllm.entrypoints.openai.api_server\0--model\0{folder}"
    servers = [pid for pid in processes_naming(words) if os.getpgid(pid) != os.getpgrp()]
    assert servers, "there is no server"
    os.killpg(os.getpgid(servers[-1]), number)


def test_a_killed_vllm_is_started_again(make, tokenizer, tmp_path, monkeypatch) -> None:
    """Of an engine that started its own: replies go on with the same weights, and new weights still come; but not when
    it dies again at once."""
    models, folder, prompt = [make(0, True), make(1, True)], tmp_path / "engine", tokens(0, 20)

    async def main() -> None:
        async with engine_over([], models[0], tokenizer, folder) as engine:
            await engine.refresh(models[0].state_dict(), 0)
            talks = [engine.open(np.random.default_rng(number)) for number in range(4)]
            signal_vllm(signal.SIGSTOP, folder)  # so that no reply ends before it dies
            futures = [asyncio.ensure_future(talk.generate(prompt, Sampling(1.0, 600))) for talk in talks]
            await asyncio.sleep(0.5)
            signal_vllm(signal.SIGKILL, folder)
            for got in await asyncio.gather(*futures):
                assert got.versions == [0] * 600
                np.testing.assert_allclose(got.logprobs, logprobs_of(models[0], prompt, got.ids), atol=SLACK)
            with monkeypatch.context() as patch:
                patch.setattr(vllm, "REVIVED_S", 0.0)
                signal_vllm(signal.SIGKILL, folder)
                await engine.refresh(models[1].state_dict(), 1)
            got = await talks[0].generate(prompt, Sampling(1.0, 9))
            np.testing.assert_allclose(got.logprobs, logprobs_of(models[1], prompt, got.ids), atol=SLACK)
            monkeypatch.setattr(vllm, "REVIVED_S", 600.0)  # "at once", on however slow a machine
            signal_vllm(signal.SIGSTOP, folder)
            futures = [asyncio.ensure_future(talk.generate(prompt, Sampling(1.0, 600))) for talk in talks]
            await asyncio.sleep(0.5)
            signal_vllm(signal.SIGKILL, folder)
            for failed in await asyncio.gather(*futures, return_exceptions=True):
                assert isinstance(failed, PolicyFailure)
                assert re.search("cannot be reached|vLLM failed at a reply", str(failed))
            with pytest.raises(PolicyFailure, match=r"cannot be reached|vLLM failed at"):
                await engine.refresh(models[0].state_dict(), 2)

    asyncio.run(main())
    assert processes_naming(str(tmp_path)) == []


def test_a_run_with_a_vllm_of_its_own(tmp_path) -> None:
    """A few steps of a recipe: what the learner says of sampled tokens is what vLLM said, at every step."""
    config = resolve("reinforce", [
        "env.name=keydoor", "env.serve=false", "env.max_turns=4", "rollout.groups=4", "rollout.group_size=2",
        "rollout.max_new_tokens=5", "rollout.max_length=400", "rollout.concurrency=8", "rollout.temperature=0.8",
        "run.steps=3", "run.threads=1", "run.checkpoint_every=3", "sft=", "eval.tasks=2", "eval.attempts=1",
        "model.tiny.layers=2", "optim.lr=3e-3", "loss.entropy=0.1", "engine.kind=vllm", "engine.deadline_s=120",
    ])  # fmt: skip
    outcome = asyncio.run(run(config, tmp_path / "run"))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["phase"] == "rl"]
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert max(line["policy/engine_gap"] for line in steps) < SLACK
    assert all(line["optim/grad_norm"] > 0 for line in steps)  # the weights moved, so a stale engine would be seen
    assert outcome.before is not None
    assert outcome.after is not None
    assert processes_naming(str(tmp_path)) == []
