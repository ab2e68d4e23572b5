"""Models that a vLLM server starts from in seconds."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from agentgym import registry
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym_trainers.nn import tiny


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    spec = registry.get_spec("keydoor")
    return tiny.make_tokenizer(
        [PromptFormat().instructions(spec), *spec.actions, "user\n", "assistant\n"] * 3, 320, 1024
    )


@pytest.fixture(scope="module")
def make(tokenizer: Any) -> Callable[..., Any]:
    """make(seed, tied) -> a model of two layers with weights so wide that predictions depend on all that was before."""

    def build(seed: int, tied: bool = False) -> Any:
        model = tiny.make_model(tiny.TinyModel(layers=2), tokenizer, seed)
        config = copy.deepcopy(model.config)
        config.initializer_range, config.tie_word_embeddings = 0.12, tied
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return type(model)(config).eval()

    return build
