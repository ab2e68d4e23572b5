"""Tiny models of several architectures, and real episodes played with them."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agentgym import load
from agentgym.harness import Harness
from agentgym.policy import Episode
from agentgym.rollout import Limits, Runner
from agentgym.session import LocalSession
from agentgym.trajectory import Group, Trajectory
from agentgym_trainers import tiny
from agentgym_trainers.batch import Batch, Credit
from agentgym_trainers.engines.base import Sampling
from agentgym_trainers.engines.inprocess import InProcessEngine
from agentgym_trainers.policy import TokenPolicy
from agentgym_trainers.rows import Row
from agentgym_trainers.tokens import ChatTemplate

ARCHITECTURES = {
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16, "num_key_value_heads": 2}),
    "qwen2-gqa": (Qwen2Config, Qwen2ForCausalLM, {"num_key_value_heads": 1}),
    "llama-gqa": (LlamaConfig, LlamaForCausalLM, {"num_key_value_heads": 1}),
    "mistral": (MistralConfig, MistralForCausalLM, {"num_key_value_heads": 2, "sliding_window": None}),
}


def build(name: str = "qwen3", vocabulary: int = 64, seed: int = 0, **changes: Any) -> Any:
    """Weights are drawn wide, so that predictions depend strongly on every token before."""
    config_class, model_class, options = ARCHITECTURES[name]
    shape = {
        "vocab_size": vocabulary,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
        "initializer_range": 0.25,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return model_class(config_class(**{**shape, **options, **changes})).eval()


def plain_logprobs(model: Any, ids: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
    """float32[T - 1, V] of positions 1 .. T - 1, by transformers' own forward on this one sequence."""
    reference = copy.deepcopy(model)
    reference.set_attn_implementation("sdpa")
    with torch.inference_mode():
        logits = reference(input_ids=torch.tensor([list(ids)]), use_cache=False).logits[0, :-1]
    return torch.log_softmax(logits / temperature, dim=-1)


def play(
    model: Any,
    tokenizer: Any,
    *,
    world: str = "keydoor",
    episodes: int = 6,
    temperature: float = 1.0,
    lockstep: bool = False,
    max_new_tokens: int = 6,
    max_length: int = 640,
    max_turns: int | None = None,
    harness: Harness | None = None,
    engine: Any = None,
    salt: int = 0,
) -> list[Trajectory]:
    """Episodes of a real world, two attempts at each task."""
    template = ChatTemplate(tokenizer)
    engine = engine or InProcessEngine(model, max_sequences=episodes, max_length=max_length, lockstep=lockstep)
    policy = TokenPolicy(engine, template, Sampling(temperature, max_new_tokens, template.stop_ids()), (salt,))

    async def open_session() -> LocalSession:
        return LocalSession(load.make(world))

    runner = Runner(open_session, harness or Harness(), Limits(max_turns), episodes)
    tasks = load.spec(world).splits["train"]
    return asyncio.run(
        runner.run(policy, [Episode(world, "train", (i // 2) % tasks, i // 2, i % 2) for i in range(episodes)])
    )


def in_pairs(trajectories: Sequence[Trajectory]) -> list[Group]:
    return [Group(tuple(trajectories[i : i + 2])) for i in range(0, len(trajectories), 2)]


def stop_more(model: Any, token: int, amount: float) -> None:
    """Raise a token's logit everywhere, in a model whose output layer has no bias."""
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, model.config.vocab_size, (4, 64)))
    with torch.inference_mode():
        mean = model.base_model(input_ids=ids).last_hidden_state.flatten(0, 1).mean(dim=0)
    with torch.no_grad():
        model.lm_head.weight[token] += amount * mean.clone() / mean.square().sum()


def random_episodes(seed: int = 0, vocabulary: int = 64, trajectories: int = 5) -> tuple[Batch, list[Row]]:
    """A batch of `trajectories` with 1 to 4 turns of 1 to 4 tokens, each a single row; the second is truncated."""
    rng = np.random.default_rng(seed)
    rows, turn_A, traj_N = [], [], []
    for m in range(trajectories):
        ids, at = rng.integers(0, vocabulary, 5).tolist(), []
        for _ in range(rng.integers(1, 5)):
            count = int(rng.integers(1, 5))
            at += range(len(ids), len(ids) + count)
            ids += rng.integers(0, vocabulary, count + int(rng.integers(1, 6))).tolist()
            turn_A += [len(traj_N)] * count
            traj_N.append(m)
        index = np.arange(len(turn_A) - len(at), len(turn_A))
        rows.append(Row(np.array(ids), np.array(at), index, m, m == 1))
    a, n = len(turn_A), len(traj_N)
    batch = Batch(
        group_M=np.arange(trajectories) // 2,
        traj_N=np.array(traj_N),
        reward_N=rng.normal(size=n),
        turn_A=np.array(turn_A),
        truncated_M=np.arange(trajectories) == 1,
        anchor_N=np.full(n, -1),
        logprob_A=rng.normal(-4, 0.5, a).astype(np.float32),
        x={"ref_logprob_A": rng.normal(-4, 0.5, a)},
    )
    return batch, rows


def credit_of(batch: Batch, column: str = "value_A", seed: int = 1) -> Credit:
    rng = np.random.default_rng(seed)
    size = len(batch.turn_A) if column == "value_A" else len(batch.traj_N)
    return Credit(rng.normal(size=len(batch.turn_A)), {column: rng.normal(size=size)})


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    spec = load.spec("keydoor")
    return tiny.make_tokenizer([Harness().instructions(spec), *spec.actions, "user\n", "assistant\n"] * 3, 320, 1024)


@pytest.fixture(scope="session")
def chatty(tokenizer: Any) -> Callable[..., Any]:
    """chatty(architecture) -> a model whose replies sometimes end by themselves."""

    def make(name: str = "qwen3", **changes: Any) -> Any:
        model = build(name, len(tokenizer), **changes)
        stop_more(model, tokenizer.eos_token_id, 6.0)
        return model

    return make


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def kit() -> Any:
    """The functions of this file, for the tests beside it."""
    return SimpleNamespace(
        build=build,
        plain_logprobs=plain_logprobs,
        play=play,
        in_pairs=in_pairs,
        episodes=random_episodes,
        credit_of=credit_of,
    )
