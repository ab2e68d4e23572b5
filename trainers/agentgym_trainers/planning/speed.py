"""Seconds of a step, from operations and bytes over what a GPU does in a second.

Learning is measured: the share of a matrix product's operations that three updates reached on one H200. Sampling is
stated: half of what the memory's bandwidth allows (docs/scale.md); vLLM has not been measured here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentgym_trainers.config.sections import Config
from agentgym_trainers.engines.options import cache_bytes, head_size_of

PEAK = 761e12
"""Operations a second of a matrix product in bfloat16 on one H200 (benchmarks/results/gpu/learner.json)."""
SHARES = {0.60e9: 0.205, 1.72e9: 0.319, 4.02e9: 0.360}
"""Share of them that one update reached, by the model's parameters; the same file."""
BANDWIDTH = 3.3e12
"""Bytes a second that a GPU's memory gives (docs/scale.md)."""
SAMPLING_SHARE = 0.5
"""Share of what the bandwidth allows that sampling is taken to reach; stated, not measured."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """Tokens of the longest step that the limits allow."""

    episodes: int
    length: int
    """Tokens of an episode."""
    sampled: int
    """Tokens of it that the policy says."""

    @property
    def tokens(self) -> int:
        return self.episodes * self.length


def step_work(config: Config, max_turns: int) -> StepWork:
    """The largest step: every episode is as long as it may be."""
    rollout = config.rollout
    sampled = min(max_turns * rollout.max_new_tokens, rollout.max_length)
    return StepWork(rollout.groups * rollout.group_size, rollout.max_length, sampled)


def share_of(parameters: int) -> tuple[float, float]:
    """(parameters of the measured model next below, its share of `PEAK`)."""
    below = [size for size in SHARES if size <= 1.01 * parameters]
    size = max(below, default=min(SHARES))
    return size, SHARES[size]


def learning_s(config: Config, shape: Any, parameters: int, matrices: int, work: StepWork) -> float:
    """Seconds of a step's updates and of the forwards before them, on all learners together.

    matrices: entries of the layers' matrices. A forward is 2 operations an entry and token, a backward twice as many,
    or as many where only adapters learn; checkpointing is one forward more.
    """
    pairs = work.length * (work.length + 1) / 2
    attention = 4 * shape.num_hidden_layers * shape.num_attention_heads * head_size_of(shape) * pairs
    trunk = 2 * matrices * work.length + attention
    head = 2 * shape.vocab_size * shape.hidden_size * work.sampled
    backward = 2 if config.model.lora is None else 1
    passes = config.optim.epochs * (1 + backward + config.model.gradient_checkpointing)
    needs = config.all_needs
    forwards = ("ref_logprob_A" in needs or config.loss.kl > 0) + ("prox_logprob_A" in needs)
    operations = (trunk + head) * (passes + forwards)
    if config.value is not None:
        again = config.optim.epochs + config.value.extra_epochs
        operations += trunk * (again * (3 + config.model.gradient_checkpointing) + 1)
    learners = config.scale.learners if config.scale is not None else 1
    return work.episodes * operations / (share_of(parameters)[1] * PEAK * learners)


def sampling_s(config: Config, shape: Any, parameters: int, dtype: str, capacity: int, work: StepWork) -> float:
    """Seconds of a step's sampling by vLLM. capacity: tokens whose keys and values one server holds."""
    scale = config.scale
    servers = max(scale.servers if scale is not None else 1, 1)
    gpus = max(scale.server_gpus if scale is not None else 1, 1)
    at_once = min(work.episodes, config.rollout.concurrency) / servers
    at_once = max(min(at_once, capacity / work.length), 1.0)
    size = 4 if dtype == "float32" else 2
    read = size * parameters + cache_bytes(shape, dtype, int(at_once * work.length / 2))  # half full on average
    tokens_a_second = servers * at_once * SAMPLING_SHARE * gpus * BANDWIDTH / read
    return work.episodes * work.sampled / tokens_a_second
