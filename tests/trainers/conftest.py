"""Tiny models of several architectures, and real episodes played with them."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
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

from agentgym import registry
from agentgym.clients.server_process import server_process
from agentgym.rollouts.policy import EpisodeSpec, SolverPolicy
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits, Runner
from agentgym.rollouts.trajectory import Group, Trajectory
from agentgym.session import LocalSession
from agentgym_credit.batch import Batch, Credit
from agentgym_trainers.config.sections import OptimOptions
from agentgym_trainers.data.sequences import Row, collate
from agentgym_trainers.engines.base import Sampling
from agentgym_trainers.engines.inprocess import InProcessEngine
from agentgym_trainers.learner.learner import Learner
from agentgym_trainers.nn import tiny
from agentgym_trainers.recipe import resolve
from agentgym_trainers.rollout.policy import TokenPolicy
from agentgym_trainers.rollout.tokens import ChatTemplate, tokenize
from agentgym_trainers.run import run
from agentgym_trainers.signals.base import SignalContext, SignalDependencies

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


def exact(model: Any) -> Any:
    """In float64 throughout: transformers' RMSNorm computes in float32 whatever the model's dtype."""
    model = model.double()
    for parent in list(model.modules()):
        for name, module in list(parent.named_children()):
            if type(module).__name__.endswith("RMSNorm"):
                norm = torch.nn.RMSNorm(module.weight.shape, eps=module.variance_epsilon, dtype=torch.float64)
                norm.weight = module.weight
                setattr(parent, name, norm)
    return model


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
    env: str = "keydoor",
    episodes: int = 6,
    temperature: float = 1.0,
    lockstep: bool = False,
    max_new_tokens: int = 6,
    max_length: int = 640,
    max_turns: int | None = None,
    prompt_format: PromptFormat | None = None,
    engine: Any = None,
    salt: int = 0,
) -> list[Trajectory]:
    """Episodes of a real environment, two attempts at each task."""
    template = ChatTemplate(tokenizer)
    engine = engine or InProcessEngine(model, max_sequences=episodes, max_length=max_length, lockstep=lockstep)
    policy = TokenPolicy(engine, template, Sampling(temperature, max_new_tokens, template.stop_ids()), (salt,))

    async def open_session() -> LocalSession:
        return LocalSession(registry.make(env))

    runner = Runner(open_session, prompt_format or PromptFormat(), Limits(max_turns), episodes)
    tasks = registry.get_spec(env).splits["train"]
    return asyncio.run(
        runner.run(policy, [EpisodeSpec(env, "train", (i // 2) % tasks, i // 2, i % 2) for i in range(episodes)])
    )


def signal_context(
    tokenizer: Any, *, env: str = "oracle", groups: int = 4, size: int = 4, noise: float = 1.0, model: Any = None
) -> SignalContext:
    """Real rows of a solver that acts at random with probability `noise`: some of them succeed. Log-probabilities are
    `model`'s, else 0."""
    spec, template = registry.get_spec(env), ChatTemplate(tokenizer)

    async def open_session() -> LocalSession:
        return LocalSession(registry.make(env))

    tasks = spec.splits["train"]
    episodes = [EpisodeSpec(env, "train", i // size % tasks, i // size, i % size) for i in range(groups * size)]
    runner = Runner(open_session, PromptFormat(), Limits(None), groups * size)
    played = asyncio.run(runner.run(SolverPolicy(noise), episodes))
    tokenized = [tokenize(t, spec, PromptFormat(), template) for t in played]
    batch, rows, trajectories = collate([Group(tuple(tokenized[i : i + size])) for i in range(0, len(episodes), size)])
    if model is not None:
        logprobs = Learner(model, OptimOptions()).logprobs(batch, rows)
        batch = replace(batch, logprob_A=logprobs.astype(np.float32))
    return SignalContext(batch, rows, trajectories, 0, np.random.default_rng(0))


def parts(model: Any, *, tokens: int = 10**6, temperature: float = 1.0) -> SignalDependencies:
    """What signals without an engine are built from."""
    absent: Any = None
    return SignalDependencies(
        model=model, reference=model, template=absent, sampling=Sampling(temperature, 1, frozenset()), seed=0,
        tokens_per_micro_batch=tokens, player=absent, spec=absent, folder=absent,
    )  # fmt: skip


def plain_hidden(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """float32[T, H]: the last layer's states, by transformers' own forward on this one sequence."""
    reference = copy.deepcopy(model)
    reference.set_attn_implementation("sdpa")
    with torch.inference_mode():
        return reference.base_model(input_ids=torch.tensor([list(ids)]), use_cache=False).last_hidden_state[0]


SMALL = (
    "run.threads=1", "rollout.groups=6", "rollout.group_size=4", "rollout.concurrency=24", "rollout.max_new_tokens=4",
    "eval.tasks=0", "eval.split=train",
)  # fmt: skip


def trained(recipe: str, warm: tuple[str, Path], folder: Path, *overrides: str) -> list[dict[str, Any]]:
    """Three steps of a recipe with a warm model on a served environment: the metrics of each."""
    env, model = warm
    options = ["run.steps=3", "run.checkpoint_every=3", "sft=", f"model.path={model}", f"env.name={env}"]
    asyncio.run(run(resolve(recipe, [*SMALL, *options, *overrides]), folder))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["phase"] == "rl"]


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
    spec = registry.get_spec("keydoor")
    return tiny.make_tokenizer(
        [PromptFormat().instructions(spec), *spec.actions, "user\n", "assistant\n"] * 3, 320, 1024
    )


@pytest.fixture(scope="session")
def chatty(tokenizer: Any) -> Callable[..., Any]:
    """chatty(architecture) -> a model whose replies sometimes end by themselves."""

    def make(name: str = "qwen3", **changes: Any) -> Any:
        model = build(name, len(tokenizer), **changes)
        stop_more(model, tokenizer.eos_token_id, 6.0)
        return model

    return make


@pytest.fixture(scope="session")
def warm_oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """(URL of the oracle environment on a server of its own, a model that knows its words and sometimes wins)."""
    folder = tmp_path_factory.mktemp("warm") / "run"
    options = ["sft.demonstrations=48", "sft.max_steps=45", "sft.lr=5e-3", "sft.noise=0.7", "sft.stop_at_success="]
    tiny = ["model.tiny.hidden_size=32", "model.tiny.layers=2"]
    with server_process(["oracle"]) as url:
        env = f"{url}/envs/oracle"
        config = resolve("reinforce", [*SMALL, *options, *tiny, "run.steps=0", f"env.name={env}"])
        asyncio.run(run(config, folder))
        yield env, folder / "checkpoints" / "step-000000"


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def kit() -> Any:
    """The functions of this file, for the tests beside it."""
    return SimpleNamespace(
        build=build,
        exact=exact,
        plain_logprobs=plain_logprobs,
        plain_hidden=plain_hidden,
        play=play,
        in_pairs=in_pairs,
        episodes=random_episodes,
        credit_of=credit_of,
        signal_context=signal_context,
        trained=trained,
        parts=parts,
        small=SMALL,
    )
