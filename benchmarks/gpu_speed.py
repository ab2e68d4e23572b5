"""Speed at the shapes of Qwen3, with weights from a seed: parts of benchmarks/gpu.py.

learner   one update of episodes of 8,192 tokens: sampled tokens a second, and operations a second as a share of what
          the same card does in a matrix product
rollouts  vLLM with the weights of 0.6B: tokens a second, how long a refresh takes, and what the learner says of the
          tokens; needs vLLM
sync      the same weights, how long a refresh takes and what is sampled a second: an adapter as such and merged, all
          weights through files and from memory to memory; needs vLLM
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from agentgym_credit.batch import Batch, Credit
from agentgym_trainers.config.sections import LossOptions, OptimOptions
from agentgym_trainers.data.sequences import Row
from agentgym_trainers.learner.learner import Learner

SHAPES = {"0.6B": (28, 1024, 16, 8, 3072), "1.7B": (28, 2048, 16, 8, 6144), "4B": (36, 2560, 32, 8, 9728)}
"""Of Qwen3: layers, hidden size, heads of queries, heads of keys, intermediate size."""
VOCABULARY, HEAD = 151936, 128
TURNS, OBSERVATION, RESPONSE = 32, 192, 64
"""Of an episode of 8,192 tokens."""
NEEDS = {"0.6B": 37, "1.7B": 70, "4B": 148}
"""GB of memory that an H200 had reserved: 16 bytes a parameter, the rest activations of 8,192 tokens, none of them
computed again."""


def device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def model_of(name: str, small: bool) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    layers, hidden, heads, key_heads, intermediate = (2, 64, 4, 2, 128) if small else SHAPES[name]
    config = Qwen3Config(
        vocab_size=300 if small else VOCABULARY, hidden_size=hidden, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=key_heads, head_dim=32 if small else HEAD,
        intermediate_size=intermediate, max_position_embeddings=16384, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(device()):
        return Qwen3ForCausalLM(config).eval()


def episodes(count: int, turns: int, vocabulary: int) -> tuple[Batch, list[Row]]:
    """Episodes that share nothing, a row each."""
    rng, rows, block = np.random.default_rng(0), [], OBSERVATION + RESPONSE
    at = np.concatenate([np.arange(RESPONSE) + turn * block + OBSERVATION for turn in range(turns)])
    for m in range(count):
        rows.append(Row(rng.integers(1, vocabulary, turns * block), at, m * len(at) + np.arange(len(at)), m, False))
    n = count * turns
    batch = Batch(
        group_M=np.zeros(count, int),
        traj_N=np.repeat(np.arange(count), turns),
        reward_N=rng.normal(size=n),
        turn_A=np.repeat(np.arange(n), RESPONSE),
        truncated_M=np.zeros(count, bool),
        anchor_N=np.full(n, -1),
        logprob_A=np.full(n * RESPONSE, -float(np.log(vocabulary)), np.float32),
    )
    return batch, rows


def operations(model: Any, rows: list[Row]) -> float:
    """Of a forward and a backward, which needs twice as many: matrices for each token, the head for each token that was
    sampled, attention for each pair of tokens that see each other."""
    config = model.config
    matrices = sum(p.numel() for p in model.model.layers.parameters() if p.ndim == 2)
    head, forward = config.vocab_size * config.hidden_size, 0.0
    for row in rows:
        pairs = len(row.ids) * (len(row.ids) + 1) / 2
        attention = 4 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * pairs
        forward += 2 * matrices * len(row.ids) + 2 * head * len(row.action_at) + attention
    return 3 * forward


def seconds_of(call: Any, rounds: int) -> float:
    """The median round's; one round before is not counted."""
    taken = []
    for _ in range(rounds + 1):
        if device() == "cuda":
            torch.cuda.synchronize()
        began = perf_counter()
        call()
        if device() == "cuda":
            torch.cuda.synchronize()
        taken.append(perf_counter() - began)
    return float(np.median(taken[1:]))


def peak(small: bool) -> float:
    """Operations a second of a matrix product in bfloat16."""
    size = 256 if small else 8192
    a, b = (torch.randn(size, size, device=device(), dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / seconds_of(lambda: a @ b, 20)


def learner(small: bool) -> list[dict[str, Any]]:
    highest = peak(small)
    found: list[dict[str, Any]] = [{"what": "matrix product in bfloat16, Tflop/s", "value": highest / 1e12}]
    turns = 2 if small else TURNS
    for name, count in (("0.6B", 4),) if small else (("0.6B", 4), ("1.7B", 4), ("4B", 2)):
        what = f"learner, {name}, {count} episodes of {turns * (OBSERVATION + RESPONSE)} tokens"
        if not small and torch.cuda.mem_get_info()[0] < NEEDS[name] * 1e9:
            found.append({"what": what, "skipped": f"needs {NEEDS[name]} GB of free memory"})
            continue
        found += measured_update(name, what, count, turns, highest)
        gc.collect()
        if not small:
            torch.cuda.empty_cache()
    return found


def measured_update(name: str, what: str, count: int, turns: int, highest: float) -> list[dict[str, Any]]:
    small = device() == "cpu"
    model = model_of(name, small)
    batch, rows = episodes(count, turns, model.config.vocab_size)
    credit = Credit(np.random.default_rng(1).normal(size=len(batch.turn_A)))
    learner = Learner(model, OptimOptions(tokens_per_micro_batch=len(rows[0].ids)), dtype="bfloat16")
    if not small:
        torch.cuda.reset_peak_memory_stats()
    seconds = seconds_of(lambda: learner.update(batch, rows, credit, LossOptions()), 3)
    found = [
        {"what": f"{what}: tokens a second", "value": sum(len(row.ids) for row in rows) / seconds},
        {
            "what": f"learner, {name}: share of the matrix product's",
            "value": operations(model, rows) / seconds / highest,
        },
    ]
    if not small:
        found.append({"what": f"learner, {name}: GB at most", "value": torch.cuda.max_memory_allocated() / 1e9})
        found.append({"what": f"learner, {name}: GB reserved", "value": torch.cuda.max_memory_reserved() / 1e9})
    return found


def words(count: int) -> Any:
    """A tokenizer of so many words, so that a model's whole vocabulary can be sampled."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(count)}, unk_token="w1"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w0", pad_token="w0")


def rollouts(small: bool) -> list[dict[str, Any]]:
    import vllm  # noqa: F401  # pyright: ignore[reportMissingImports]

    return asyncio.run(_rollouts(small))


@contextlib.asynccontextmanager
async def engine_of(model: Any, small: bool, count: int) -> AsyncIterator[Any]:
    from agentgym_trainers.engines.options import Vllm
    from agentgym_trainers.engines.vllm.engine import VllmEngine

    options = Vllm(kind="vllm", dtype="float32" if small else "bfloat16", gpu_memory_utilization=0.4)
    with tempfile.TemporaryDirectory() as folder:
        engine = VllmEngine(
            options, model, words(model.config.vocab_size), Path(folder), max_sequences=count, max_length=2048
        )
        try:
            yield engine
        finally:
            await engine.aclose()


async def refreshed(engine: Any, weights: Mapping[str, torch.Tensor], versions: range) -> list[float]:
    """Seconds of each refresh."""
    times = []
    for version in versions:
        began = perf_counter()
        await engine.refresh(weights, version)
        times.append(perf_counter() - began)
    return times


async def sampled_a_second(engine: Any, small: bool, count: int) -> float:
    """Tokens; those of the first replies are not counted."""
    from agentgym_trainers.engines.base import Sampling

    prompt, length = (16, 8) if small else (512, 512)
    rng, vocabulary = np.random.default_rng(0), engine.model.config.vocab_size
    prompts = [rng.integers(1, vocabulary, prompt).tolist() for _ in range(count)]
    talks = [engine.open(np.random.default_rng(i)) for i in range(count)]
    seconds, done = 0.0, []
    for length_now in (8, length):
        began = perf_counter()
        done = await asyncio.gather(
            *(t.generate(p, Sampling(1.0, length_now, frozenset())) for t, p in zip(talks, prompts, strict=True))
        )
        seconds = perf_counter() - began
    for talk in talks:
        talk.close()
    return sum(len(one.ids) for one in done) / seconds


async def _rollouts(small: bool) -> list[dict[str, Any]]:
    model, count = model_of("0.6B", small), 4 if small else 256
    async with engine_of(model, small, count) as engine:
        times = await refreshed(engine, model.state_dict(), range(3))
        speed = await sampled_a_second(engine, small, count)
    return [
        {"what": f"vLLM, 0.6B, {count} conversations: sampled tokens a second", "value": speed},
        {"what": "vLLM, 0.6B: seconds to start with the first weights", "value": times[0]},
        {"what": "vLLM, 0.6B: seconds of a refresh, its probe included", "value": min(times[1:])},
    ]


def sync(small: bool) -> list[dict[str, Any]]:
    import vllm  # noqa: F401  # pyright: ignore[reportMissingImports]

    return asyncio.run(_sync(small))


async def _sync(small: bool) -> list[dict[str, Any]]:
    """The first way of each engine is its own choice; files come after it, on the same server."""
    from agentgym_trainers.engines.vllm.device_sync import DeviceSync
    from agentgym_trainers.engines.vllm.weight_sync import AdapterSync, DiskSync
    from agentgym_trainers.nn import lora

    model, count, found = model_of("0.6B", small), 4 if small else 256, []
    adapted = copy.deepcopy(model)
    lora.add_lora(adapted, lora.LoraOptions(rank=16), seed=0)
    for name, parameter in adapted.named_parameters():
        if ".lora_B" in name:
            torch.nn.init.normal_(parameter, std=1e-3)
    ways = [
        ("an adapter of rank 16", lora.merge_lora(adapted.state_dict(), adapted), AdapterSync),
        ("all weights from memory to memory", model.state_dict(), DeviceSync),
    ]
    for what, weights, kind in ways:
        async with engine_of(model, small, count) as engine:
            await engine.refresh(weights, 0)
            if isinstance(engine.sync, kind):
                found += await _measured(engine, what, weights, small, count)
            else:
                skipped = "it needs a GPU" if small else "it was not chosen: the log says why"
                found.append({"what": f"refresh by {what}", "skipped": skipped})
            engine.sync = DiskSync(engine.folder, engine.model, engine.tokenizer)
            for client in engine.clients:
                await client.drop_adapters()
            found += await _measured(engine, f"{what.partition(' from')[0]}, through files", weights, small, count)
    return found


async def _measured(
    engine: Any, what: str, weights: Mapping[str, torch.Tensor], small: bool, count: int
) -> list[dict[str, Any]]:
    times = await refreshed(engine, weights, range(1, 5))
    return [
        {"what": f"refresh by {what}: seconds, its probe included", "value": min(times[1:])},
        {
            "what": f"sampled then, {count} conversations: tokens a second",
            "value": await sampled_a_second(engine, small, count),
        },
    ]
