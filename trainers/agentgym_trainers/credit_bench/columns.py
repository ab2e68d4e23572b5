"""The columns that assigners read: signals and critics, trained for the bench on episodes that it does not measure."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import process_time
from typing import Any

import numpy as np
import torch

from agentgym_credit.batch import Batch, Credit
from agentgym_credit.segments import reverse_scan
from agentgym_trainers.credit_bench.contestants import Contestant
from agentgym_trainers.data.sequences import Row, select
from agentgym_trainers.learner.critic import Critic, ValueOptions
from agentgym_trainers.learner.learner import Learner
from agentgym_trainers.nn.forward import micro_batches, pack
from agentgym_trainers.rollout.monte_carlo import BranchedValues
from agentgym_trainers.signals import SIGNALS
from agentgym_trainers.signals.base import SignalContext, SignalDependencies
from agentgym_trainers.signals.mc_value import columns_of
from agentgym_trainers.train import Trainer

AFTER_WARMUP_STEP = 10**6
"""A step at which every signal's warm-up is over."""
POOL = 128
"""Replayed turns that a critic with a buffer draws a step, at most; a training run has more time."""
BUFFERED = 4
"""Passes of others for one of a critic with a buffer, which takes many steps in each."""
CRITIC = 4
"""Passes of the critic for one of a signal: on keydoor-untold it explains .09 of the variance after 8, .80 after 32."""


@dataclass
class Columns:
    """Signals and critics by what they are, each trained once, whoever asks for it."""

    trainer: Trainer
    parts: SignalDependencies
    contexts: Sequence[SignalContext]
    """Contexts to train on."""
    passes: int
    on_step: Callable[[str], None] = lambda what: None
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    """Last metrics of each signal, with its seconds of processor time."""
    _given: dict[str, tuple[list[Batch], Batch]] = field(default_factory=dict)
    _critics: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)

    async def of(self, contestant: Contestant, context: SignalContext, branched: BranchedValues) -> Batch:
        """The measured batch with what the contestant needs. Raises AgentGymError where a signal cannot say."""
        batch = context.batch.with_columns(**columns_of(branched, context.batch.reward_N))
        trained = [s.batch for s in self.contexts]
        for kind, options in contestant.signals.items():
            key = f"{kind} {json.dumps(options.model_dump(), sort_keys=True, default=str)}"
            if key not in self._given:
                self._given[key] = await self._signal(kind, options, context, f"{kind} of {contestant.name}")
            before, here = self._given[key]
            trained = [b.with_columns(**own.x) for b, own in zip(trained, before, strict=True)]
            batch = batch.with_columns(**{name: here.x[name] for name in SIGNALS[kind].provides if name in here.x})
        if contestant.measured:
            return batch.with_columns(**values_of(branched, batch))
        if contestant.reads_values:
            key = json.dumps([contestant.shaping, [*contestant.signals] if contestant.shaping else []], default=str)
            if key not in self._critics:
                name = f"value of {contestant.name}" if contestant.shaping else "value"
                self._critics[key] = self._critic([contestant.shaped(b) for b in trained], context, name)
                self.metrics[name]["explained_variance"] = explained(self._critics[key], branched.value_N)
            batch = batch.with_columns(**self._critics[key])
        return batch

    async def _signal(self, kind: str, options: Any, context: SignalContext, name: str) -> tuple[list[Batch], Batch]:
        """Train a signal; the training batches and the measured one with its columns."""
        began = process_time()
        if "pool" in type(options).model_fields:
            options = options.model_copy(update={"pool": min(options.pool, POOL)})
        signal = SIGNALS[kind].build(options, self.parts)
        known = type(options).model_fields
        often = BUFFERED if "updates" in known else options.epochs if "epochs" in known else 1  # steps of one `fit`
        passes = max(1, self.passes // often)
        for number in range(passes):
            for step, training in enumerate(self.contexts):
                self.on_step(f"training {kind}")
                here = replace(training, step=number * len(self.contexts) + step)
                here = replace(here, batch=here.batch.with_columns(**await signal.annotate(here)))
                self.metrics[name] = await signal.fit(here)
        trained = [
            s.batch.with_columns(**await signal.annotate(replace(s, step=AFTER_WARMUP_STEP))) for s in self.contexts
        ]
        measured = context.batch.with_columns(**await signal.annotate(replace(context, step=AFTER_WARMUP_STEP)))
        self.metrics[name]["seconds"] = process_time() - began
        return trained, measured

    def _critic(self, batches: Sequence[Batch], context: SignalContext, name: str) -> dict[str, np.ndarray]:
        """A value head on a trunk of its own, fitted before every token to what was still to come."""
        began, rng = process_time(), np.random.default_rng([self.parts.seed, 5])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.parts.seed)
            value = Critic(self.parts.reference, ValueOptions())
        learner = Learner(
            self.parts.model, self.trainer.config.optim, temperature=self.parts.sampling.temperature, value=value
        )
        optimizer = torch.optim.AdamW(value.parameters(), lr=value.options.lr, betas=(0.9, 0.99), weight_decay=0.0)
        errors = []
        for _ in range(CRITIC * self.passes):
            for number in rng.permutation(len(batches)).tolist():
                self.on_step("training the critic")
                batch, rows = batches[number], self.contexts[number].rows
                credit = Credit(reverse_scan(batch.reward_N, batch.traj_N, 1.0)[batch.turn_A])
                for keep_M in np.array_split(rng.permutation(len(batch.group_M)), 2):
                    _, kept, targets = select(batch, rows, credit, keep_M)
                    errors.append(self._fit(value, optimizer, kept, targets.advantage_A))
        self.metrics[name] = {"loss": float(np.mean(errors[-2 * len(batches) :])), "seconds": process_time() - began}
        value_batch = learner.annotate(context.batch, context.rows)
        return {name: value_batch.x[name] for name in ("value_N", "value_A", "bootstrap_M")}

    def _fit(self, value: Critic, optimizer: Any, rows: Sequence[Row], target_A: np.ndarray) -> float:
        """One step on some trajectories; the mean loss of a token."""
        total = 0.0
        for part in micro_batches(rows, self.parts.tokens_per_micro_batch):
            packed = pack(part, self.parts.model)
            target = torch.from_numpy(target_A[packed.index]).to(packed.at.device, torch.float32)
            loss = value.loss(value(packed.inputs, packed.at), target).sum() / max(len(target_A), 1)
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(value.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total


def values_of(branched: BranchedValues, batch: Batch) -> dict[str, np.ndarray]:
    """A critic's columns from measured values: within a turn V stays what it was before it; after a cut it is 0, as
    for continuations, which end there too."""
    value_N = columns_of(branched, batch.reward_N)["mc_value_N"]
    return {"value_N": value_N, "value_A": value_N[batch.turn_A], "bootstrap_M": np.zeros(len(batch.group_M))}


def explained(columns: Mapping[str, np.ndarray], truth_N: np.ndarray) -> float:
    """Share of the measured values' variance over turns that a critic's values explain."""
    known = ~np.isnan(truth_N)
    spread = float(np.var(truth_N[known]))
    return 1 - float(np.var((columns["value_N"] - truth_N)[known])) / spread if spread > 0 else float("nan")
