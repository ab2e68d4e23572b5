"""Vision-language models: what is sampled, recorded and learned is one distribution, images included."""

from __future__ import annotations

import asyncio
import copy
import json

import numpy as np
import pytest
import torch
from colors import build, plain_logprobs, play

from agentgym_trainers.config.sections import OptimOptions
from agentgym_trainers.data.sequences import collate
from agentgym_trainers.learner.learner import Learner

SLACK = 1e-5


@pytest.mark.parametrize("window", [None, 0], ids=["one branch", "forks"])
@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
def test_engine_transformers_and_learner_agree_on_images(kit, name, window) -> None:
    model, tokenizer = build(name)
    trajectories = play(model, tokenizer, window=window)
    assert all(len(t.branches) == 1 + (window == 0) for t in trajectories)
    assert len({branch.images[0].stop for t in trajectories for branch in t.branches}) == 2  # two sizes
    batch, rows, _ = collate(kit.in_pairs(trajectories))
    for tokens in (100, 5000):
        logprob_A = Learner(model, OptimOptions(tokens_per_micro_batch=tokens)).logprobs(batch, rows)
        np.testing.assert_allclose(logprob_A, batch.logprob_A, atol=SLACK)
    for branch in (branch for t in trajectories for branch in t.branches):
        at = np.flatnonzero(branch.turn >= 0)
        plain = plain_logprobs(model, branch)[torch.from_numpy(at - 1), torch.from_numpy(branch.ids[at]).long()]
        np.testing.assert_allclose(branch.logprobs[at], plain.numpy(), atol=SLACK)
