"""Application of signals to a batch: the columns that they add, and their own training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentgym_trainers.signals.base import Signal, SignalContext


async def annotate(
    context: SignalContext, learner: Any, signals: Mapping[str, Signal], *, prox: bool
) -> tuple[SignalContext, dict[str, float]]:
    """The context with the columns of critic, reference, present policy (`prox`) and signals; and the metrics of the
    signals that learn before they annotate."""
    context = replace(context, batch=learner.annotate(context.batch, context.rows, prox=prox))
    metrics = await fit_signals(context, signals, first=True)
    for signal in signals.values():
        context = replace(context, batch=context.batch.with_columns(**await signal.annotate(context)))
    return context, metrics


async def fit_signals(context: SignalContext, signals: Mapping[str, Signal], *, first: bool) -> dict[str, float]:
    """Train the signals that learn before (`first`) or after the batch is annotated."""
    metrics = {}
    for name, signal in signals.items():
        if signal.fit_first == first:
            metrics |= {f"{name}/{key}": value for key, value in (await signal.fit(context)).items()}
    return metrics


async def resample_actions(
    context: SignalContext, learner: Any, signals: Mapping[str, Signal], *, prox: bool
) -> SignalContext:
    """Context that the policy is trained on: the step's own, or actions that a signal draws anew at its states; nobody
    played those, so that they have no trajectories."""
    for signal in signals.values():
        resampled = await signal.training_batch(context)
        if resampled is not None:
            batch, rows = resampled
            batch = learner.annotate(batch, rows, prox=prox)
            return replace(context, batch=batch, rows=rows, trajectories=())
    return context
