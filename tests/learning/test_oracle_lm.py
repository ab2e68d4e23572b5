"""A tiny language model learns the oracle environment, in words, by every assigner that asks for no other signal.

Uniform words win 3 times in 16, and saying each room's first word always wins. The warm-up imitates a solver that is
random nine times in ten, so that all of the rest is the assigner's doing.
"""

from __future__ import annotations

import asyncio
import copy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from agentgym import registry
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits, Runner
from agentgym.session import LocalSession
from agentgym_trainers.build import build
from agentgym_trainers.config.sections import Config, SFTOptions
from agentgym_trainers.credit import ASSIGNERS
from agentgym_trainers.learner import sft
from agentgym_trainers.learner.learner import Learner
from agentgym_trainers.monitoring.metrics import MetricsLog, success_rate
from agentgym_trainers.nn import tiny
from agentgym_trainers.rollout.tokens import ChatTemplate, corpus, tokenize
from agentgym_trainers.train import Trainer

SPEC = registry.get_spec("oracle")
SHAPE = tiny.TinyModel(hidden_size=32, layers=1, heads=1, intermediate_size=64, max_length=256)
WARM_UP = SFTOptions(demonstrations=128, noise=0.9, lr=5e-3, batch=16, max_steps=60)
START, REACHED = 0.4, 0.7
BY_ITSELF = {"groups", "anchors", "value_N", "value_A", "bootstrap_M", "success_M", "prox_logprob_A", "ref_logprob_A"}
NOT_HERE = {
    "outcome": "labels for objectives of pairs",
    "oreo": "its advantage is 0: the objective reads the critic",
    "digirl": "a filter for imitation, and a critic of two classes",
    "filtered": "imitation: an update that is no policy gradient",
    "digiq": "a filter for imitation",
}
"""Their recipes are in test_recipes.py; test_credit_learning.py has them on the same environment without words."""
LEARN_ALONE = [name for name, a in ASSIGNERS.items() if a.needs <= BY_ITSELF and name not in NOT_HERE]


async def open_session() -> LocalSession:
    return LocalSession(registry.make("oracle"))


def config(assigner: str, seed: int) -> Config:
    reads_values = any(need.startswith("value_") for need in ASSIGNERS[assigner].needs)
    return Config.model_validate(
        {
            "name": "oracle",
            "run": {"seed": seed, "steps": 12, "checkpoint_every": 1000, "trajectories_every": 1000},
            "env": {"name": "oracle", "serve": False},
            "rollout": {"groups": 8, "group_size": 8, "max_new_tokens": 6, "max_length": 256, "concurrency": 64},
            "credit": {"assigner": assigner},
            "optim": {"lr": 3e-3, "minibatches": 2, "tokens_per_micro_batch": 8192},
            **({"value": {"lr": 3e-3}} if reads_values else {}),
        }
    )


@cache
def warm(seed: int) -> tuple[Any, Any]:
    """(model, tokenizer) after the warm-up."""
    prompt_format = PromptFormat()
    runner = Runner(open_session, prompt_format, Limits(), 64)
    demonstrations = asyncio.run(sft.demonstrate(runner, SPEC, "train", WARM_UP, seed))
    tokenizer = tiny.make_tokenizer(corpus(SPEC, prompt_format, demonstrations), SHAPE.vocab_size, SHAPE.max_length)
    model = tiny.make_model(SHAPE, tokenizer, seed).eval()
    template = ChatTemplate(tokenizer)
    learner = Learner(model, config("reinforce", seed).optim.model_copy(update={"lr": WARM_UP.lr}))
    tokenized = [tokenize(t, SPEC, prompt_format, template) for t in demonstrations]
    for _ in sft.imitate(learner, tokenized, WARM_UP, seed):
        pass
    return model, tokenizer


async def success(trainer: Trainer) -> float:
    """Of 128 sampled episodes."""
    return success_rate([t for _ in range(2) for group in await trainer.collect() for t in group.trajectories])


@pytest.mark.learning
@pytest.mark.parametrize(
    ("assigner", "seed"),
    [
        pytest.param(name, seed, marks=() if seed == place % 2 else pytest.mark.every)
        for place, name in enumerate(LEARN_ALONE)
        for seed in (0, 1)
    ],
)
def test_every_assigner_teaches_the_oracle(assigner: str, seed: int, tmp_path: Path) -> None:
    """By turns on either seed; `make every` on both, and test_credit_learning.py on more, without words."""
    torch.set_num_threads(1)
    model, tokenizer = warm(seed)

    async def learn() -> tuple[float, float]:
        model_now = copy.deepcopy(model)
        trainer = build(config(assigner, seed), tmp_path, SPEC, open_session, model_now, model, tokenizer)
        before = await success(trainer)
        log = MetricsLog(tmp_path)
        await trainer.run(log)
        log.close()
        after = await success(trainer)
        trainer.engine.shutdown()
        return before, after

    before, after = asyncio.run(learn())
    assert before < START
    assert after > REACHED
