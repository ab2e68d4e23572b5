"""One training step of a learner: epochs, mini-batches, and further epochs of the critic."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from agentgym_credit.batch import Batch, Credit
from agentgym_trainers.config.sections import Config, LossOptions
from agentgym_trainers.data.sequences import Row, select
from agentgym_trainers.learner.nonfinite import dump_nonfinite_batch
from agentgym_trainers.losses import OBJECTIVES


class TrainStep:
    """Base of a learner in this process and of a group of learners elsewhere. A subclass has `update` and
    `fit_value`, one optimizer step each on a whole mini-batch."""

    not_finite: list[str]
    """Parameters whose gradient was not finite in the last step that was skipped for it."""

    def state_dict(self) -> dict[str, Any]:
        """All that decides how learning goes on, but the model's own weights."""
        raise NotImplementedError

    def save_state(self, checkpoint: Path) -> dict[str, Any]:
        """The state for the trainer's part of a checkpoint, into whose folder several processes write their slices."""
        return self.state_dict()

    def update(self, batch: Batch, rows: Sequence[Row], credit: Credit, options: LossOptions) -> dict[str, float]:
        raise NotImplementedError

    def fit_value(self, batch: Batch, rows: Sequence[Row], credit: Credit) -> dict[str, float]:
        raise NotImplementedError

    def end_step(self, options: LossOptions, metrics: Mapping[str, float]) -> None:
        """Update what the regularizers of `options` remember of past steps."""
        raise NotImplementedError

    def train_step(
        self,
        batch: Batch,
        rows: Sequence[Row],
        credit: Credit,
        config: Config,
        step: int,
        *,
        folder: Path,
        stop: Callable[[Mapping[str, float], Batch], bool],
        warmup: bool = False,
    ) -> dict[str, float]:
        """All epochs and mini-batches of step `step`; metrics are means, "max" metrics maxima.

        With `warmup` the critic alone learns: no optimizer step of the policy is taken at all. A policy loss that is 0
        but for rounding, as a KL to itself is, would make Adam's first step one of full size.
        `stop` is asked after each mini-batch whether the policy has moved far enough. What was skipped because its loss
        or gradient was not finite is kept in `folder`.
        """
        if not len(batch.group_M):
            return {}
        rng = np.random.default_rng([config.run.seed, step, 1])
        if warmup:
            return self.fit_critic(batch, rows, credit, config, rng, config.optim.epochs)
        values: dict[str, list[float]] = {}
        epochs = (mini_batches(batch, config, rng) for _ in range(config.optim.epochs))
        for keep_M in chain.from_iterable(epochs):
            part = select(batch, rows, credit, keep_M)
            metrics = self.update(*part, config.loss)
            if metrics.get("optim/skipped"):
                message = dump_nonfinite_batch(folder, step + 1, *part, metrics, self.not_finite)
                logging.getLogger(__name__).warning("%s", message)
            for name, value in metrics.items():
                values.setdefault(name, []).append(value)
            if stop(metrics, part[0]):
                break
        self.fit_critic(batch, rows, credit, config, rng)
        result = {name: max(v) if name.endswith("max") else sum(v) / len(v) for name, v in values.items()}
        # Before the first step nothing has moved: what the learner says of sampled tokens must be what the engine said.
        result["policy/engine_gap"] = values["policy/logprob_gap"][0]
        result |= {name: values[name][0] for name in ("policy/prob_error", "policy/mismatch_kl") if name in values}
        self.end_step(config.loss, result)
        return result

    def fit_critic(
        self,
        batch: Batch,
        rows: Sequence[Row],
        credit: Credit,
        config: Config,
        rng: np.random.Generator,
        epochs: int = 0,
    ) -> dict[str, float]:
        """Train the critic alone, for its extra epochs and `epochs` more; metrics are means."""
        if config.value is None:
            return {}
        values: dict[str, list[float]] = {}
        for _ in range(config.value.extra_epochs + epochs):
            for keep_M in mini_batches(batch, config, rng):
                for name, value in self.fit_value(*select(batch, rows, credit, keep_M)).items():
                    values.setdefault(name, []).append(value)
        return {name: sum(v) / len(v) for name, v in values.items()}


def mini_batches(batch: Batch, config: Config, rng: np.random.Generator) -> list[np.ndarray]:
    """The trajectories of each mini-batch of an epoch, at random; groups stay whole where the objective asks."""
    full_groups = OBJECTIVES[config.loss.objective].needs_full_groups
    units, unit_M = np.unique(batch.group_M, return_inverse=True) if full_groups else (batch.group_M, None)
    order = rng.permutation(len(units))
    parts = np.array_split(order, min(config.optim.minibatches, len(order)))
    return parts if unit_M is None else [np.flatnonzero(np.isin(unit_M, part)) for part in parts]
