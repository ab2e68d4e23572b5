"""Adapters on the real vLLM, as adapters: what it says under each version's name is what the merged weights say; and
what becomes of a run where a server has none, or takes one and samples from something else.

One server for all of it; `make scale` installs vLLM's build for CPUs beside this environment and runs these.
"""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections.abc import Callable, Iterator
from importlib import util
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from vllm_models import EPISODES, LENGTH, SLACK, engine_over, logprobs_of, tokens

from agentgym.errors import PolicyFailure
from agentgym_trainers.engines.base import Sampling
from agentgym_trainers.engines.options import cache_bytes
from agentgym_trainers.engines.vllm.client import VllmClient
from agentgym_trainers.engines.vllm.server import ServerFlags, VllmServer
from agentgym_trainers.engines.vllm.weight_sync import AdapterSync, DiskSync
from agentgym_trainers.nn import checkpoint, lora
from agentgym_trainers.recipe import resolve
from agentgym_trainers.run import run

pytestmark = [
    pytest.mark.skipif(util.find_spec("vllm") is None, reason="vLLM is not installed here: run `make scale`"),
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("default"),  # vLLM's own, and its torch's
]
RANK = 4
LONG = 200
"""Tokens of a prompt: more than a block of the server's cache."""


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def url(make, tokenizer, tmp_path_factory) -> Iterator[str]:
    """A server that has room for adapters up to rank 8, with other weights than any run's; its head is tied."""
    folder, model = tmp_path_factory.mktemp("served"), make(9, tied=True)
    checkpoint.save_model(folder / "model", model, tokenizer, model.state_dict())
    memory = cache_bytes(model.config, "float32", 16 * LENGTH)
    flags = ServerFlags(folder / "model", LENGTH, EPISODES, "float32", 0, 0.5, memory, lora_rank=RANK)
    server = VllmServer(flags, folder / "log")
    yield asyncio.run(server.start())
    server.stop()


@pytest.fixture(scope="module")
def base(make) -> Any:
    return make(0, tied=True)


@pytest.fixture(scope="module")
def adapted(base) -> Callable[..., lora.MergedWeights]:
    """adapted(seed, size, rank) -> weights of the base and of adapters whose B has entries of this size."""

    def build(seed: int, size: float = 0.1, rank: int = RANK) -> lora.MergedWeights:
        model = copy.deepcopy(base)
        lora.add_lora(model, lora.LoraOptions(rank=rank, alpha=2.0 * rank), seed=0)
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in model.named_parameters():
            if ".lora_B" in name:
                parameter.data = size * torch.randn(parameter.shape, generator=generator)
        weights = lora.merge_lora(model.state_dict(), model)
        assert isinstance(weights, lora.MergedWeights)
        return weights

    return build


def merged(base: Any, weights: lora.MergedWeights) -> Any:
    model = copy.deepcopy(base)
    model.load_state_dict(dict(weights))
    return model


async def sample(engine: Any, prompt: list[int], most: int = 8) -> Any:
    talk = engine.open(np.random.default_rng(0))
    got = await talk.generate(prompt, Sampling(1.0, most))
    talk.close()
    return got


async def names(engine: Any) -> list[str]:
    return [model.id for model in await engine.clients[0]._models()][1:]


def test_each_version_is_an_adapter_with_caches_of_its_own(
    url, base, adapted, tokenizer, tmp_path, monkeypatch
) -> None:
    """The server is not asked to forget: only names and salts keep keys and values apart."""

    async def remember(self: VllmClient) -> None: ...

    monkeypatch.setattr(VllmClient, "forget", remember)
    prompt, versions = tokens(0, LONG), {0: adapted(0, 0.0), 17: adapted(1), 18: adapted(2), 19: adapted(3, 1e-3)}

    async def main() -> None:
        async with (
            engine_over([url], base, tokenizer, tmp_path) as engine,
            engine_over([url], base, tokenizer, tmp_path) as other,
        ):
            for version, weights in versions.items():
                await engine.refresh(weights, version)
                assert isinstance(engine.sync, AdapterSync)
                assert await names(engine) == [f"step-{version}"]
                await other.attach(version)
                model = merged(base, weights)
                for _ in range(2):
                    for one in (engine, other):  # the second, and any again, from the first one's cache
                        got = await sample(one, prompt)
                        assert got.versions == [version] * 8
                        np.testing.assert_allclose(got.logprobs, logprobs_of(model, prompt, got.ids), atol=SLACK)
            again = engine.clients[0].complete
            part = await again(prompt, Sampling(1.0, 4), seed=0, salt="another")  # of other prompts' salt
            expected = logprobs_of(merged(base, versions[19]), prompt, part.token_ids)
            np.testing.assert_allclose(part.logprobs.token_logprobs, expected, atol=SLACK)

    asyncio.run(main())
    sizes = {path.name: sum(file.stat().st_size for file in path.iterdir()) for path in tmp_path.iterdir()}
    assert set(sizes) == {"base", "adapter-0", "adapter-1", "adapter-trial"}  # all weights were written once
    assert sizes["adapter-1"] < sizes["base"] / 4


def test_a_reply_under_way_goes_on_with_the_new_adapter(url, base, adapted, tokenizer, tmp_path) -> None:
    """Each token is what the version that it names says of it, after all tokens before it."""
    weights, prompt = {1: adapted(1), 2: adapted(2)}, tokens(1, 30)

    async def main() -> Any:
        async with engine_over([url], base, tokenizer, tmp_path) as engine:
            await engine.refresh(weights[1], 1)
            started = time.monotonic()
            await sample(engine, prompt, 250)
            wait_s = (time.monotonic() - started) / 2
            for _ in range(12):
                await engine.refresh(weights[1], 1)
                reply = asyncio.ensure_future(sample(engine, prompt, 250))
                await asyncio.sleep(wait_s)
                await engine.refresh(weights[2], 2)
                got = await reply
                if len(set(got.versions)) == 2:
                    return got
                wait_s *= 0.5 if set(got.versions) == {1} else 1.5
        raise AssertionError("no refresh met the reply")

    got = asyncio.run(main())
    assert (len(got.ids), got.versions) == (250, sorted(got.versions))
    for version, one in weights.items():
        own = np.flatnonzero(np.array(got.versions) == version)
        truth = logprobs_of(merged(base, one), prompt, got.ids)
        np.testing.assert_allclose(np.array(got.logprobs)[own], truth[own], atol=SLACK)


def base_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: an adapter is taken, and its name leads to the model without it."""
    load = VllmClient.load_adapter

    async def accept(self: VllmClient, name: str, folder: str) -> None:
        await load(self, name, folder)
        self.model = self.base

    monkeypatch.setattr(VllmClient, "load_adapter", accept)


def test_a_server_that_samples_the_base_is_caught(url, base, adapted, tokenizer, tmp_path, monkeypatch) -> None:
    """At the first adapter that changes anything, however little: rounding would explain this change."""
    prompt = tokens(2, 30)

    async def main() -> None:
        async with engine_over([url], base, tokenizer, tmp_path) as engine:
            await engine.refresh(adapted(0, 0.0), 0)
            with monkeypatch.context() as patch:
                base_instead(patch)
                await engine.refresh(adapted(0, 0.0), 1)  # it changes nothing: there is nothing to catch
                with pytest.raises(PolicyFailure, match=r"answers as before, where the new weights .* without its ad"):
                    await engine.refresh(adapted(1, 2e-4), 2)
                with pytest.raises(PolicyFailure, match="last refresh failed"):
                    await sample(engine, prompt)
            await engine.refresh(adapted(1, 2e-4), 3)
            assert isinstance(engine.sync, AdapterSync)
            got = await sample(engine, prompt)
            truth = logprobs_of(merged(base, adapted(1, 2e-4)), prompt, got.ids)
            np.testing.assert_allclose(got.logprobs, truth, atol=SLACK)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("rank", "reason"),
    [(RANK, r"took an adapter, but"), (16, r"LoRA rank 16 is greater than max_lora_rank 8"), (513, "up to rank 512")],
    ids=["not applied", "refused", "too large"],
)
def test_merged_where_adapters_are_not_served(
    url, base, adapted, tokenizer, tmp_path, monkeypatch, caplog, rank, reason
) -> None:
    """Found at the start, and said in one line; then all is as without adapters."""
    if rank == RANK:
        base_instead(monkeypatch)
    prompt = tokens(3, 30)

    async def main() -> None:
        async with engine_over([url], base, tokenizer, tmp_path) as engine:
            for version, weights in enumerate([adapted(1, 0.1, rank), adapted(2, 0.01, rank)]):
                await engine.refresh(weights, version)
                assert isinstance(engine.sync, DiskSync)
                assert await names(engine) == []
                got = await sample(engine, prompt)
                truth = logprobs_of(merged(base, weights), prompt, got.ids)
                np.testing.assert_allclose(got.logprobs, truth, atol=SLACK)

    asyncio.run(main())
    lines = [record.getMessage() for record in caplog.records if "merged" in record.getMessage()]
    assert len(lines) == 1
    assert reason in lines[0]
    assert "\n" not in lines[0]


def test_a_run_with_adapters_and_its_checkpoint_elsewhere(url, base, tokenizer, tmp_path) -> None:
    """The learner says of sampled tokens what vLLM said, at every step; the checkpoint is a merged model, which plain
    transformers and vLLM load and agree on."""
    checkpoint.save_model(tmp_path / "base", base, tokenizer, base.state_dict())
    config = resolve("reinforce", [
        f"model.path={tmp_path / 'base'}", "env.name=keydoor", "env.serve=false", "env.max_turns=3", "rollout.groups=2",
        "rollout.group_size=2", "rollout.max_new_tokens=5", "rollout.max_length=400", "rollout.concurrency=6",
        "run.steps=2", "run.threads=1", "run.checkpoint_every=2", "sft=", "eval.tasks=0", f"model.lora.rank={RANK}",
        "optim.lr=1e-2", "loss.entropy=0.1", "engine.kind=vllm", f'engine.urls=["{url}"]', "engine.deadline_s=120",
    ])  # fmt: skip
    folder = asyncio.run(run(config, tmp_path / "run")).folder
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["phase"] == "rl"]
    assert max(line["policy/engine_gap"] for line in steps) < SLACK
    assert {path.name for path in (folder / "engine").iterdir()} == {"base", "adapter-0", "adapter-1", "adapter-trial"}
    last = folder / "checkpoints" / "step-000002"
    model, prompt = AutoModelForCausalLM.from_pretrained(last, dtype=torch.float32), tokens(4, 30)
    assert (model.state_dict()["model.layers.0.mlp.up_proj.weight"] - base.model.layers[0].mlp.up_proj.weight).any()

    async def main() -> Any:
        client = VllmClient(url, 120.0)
        try:
            await client.require(LENGTH)
            await client.drop_adapters()
            await client.pause()
            await client.read_weights(str(last.resolve()))
            await client.forget()
            await client.resume()
            return await client.complete(prompt, Sampling(1.0, 8), seed=0, salt="export")
        finally:
            await client.aclose()

    part = asyncio.run(main())
    np.testing.assert_allclose(part.logprobs.token_logprobs, logprobs_of(model, prompt, part.token_ids), atol=SLACK)
