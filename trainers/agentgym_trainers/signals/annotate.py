"""Where signals meet a batch: the columns they add, and what they learn from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentgym_trainers.signals.base import Signal, SignalContext


async def annotate(
    scene: SignalContext, learner: Any, signals: Mapping[str, Signal], *, prox: bool
) -> tuple[SignalContext, dict[str, float]]:
    """The scene with the columns of critic, reference, present policy (`prox`) and signals; and the metrics of the
    signals that learn before they annotate."""
    scene = replace(scene, batch=learner.annotate(scene.batch, scene.rows, prox=prox))
    metrics = await fit_signals(scene, signals, first=True)
    for signal in signals.values():
        scene = replace(scene, batch=scene.batch.with_columns(**await signal.annotate(scene)))
    return scene, metrics


async def fit_signals(scene: SignalContext, signals: Mapping[str, Signal], *, first: bool) -> dict[str, float]:
    """Train the signals that learn before (`first`) or after the batch is annotated."""
    metrics = {}
    for name, signal in signals.items():
        if signal.fit_first == first:
            metrics |= {f"{name}/{key}": value for key, value in (await signal.fit(scene)).items()}
    return metrics


async def resample_actions(
    scene: SignalContext, learner: Any, signals: Mapping[str, Signal], *, prox: bool
) -> SignalContext:
    """What the policy is trained on: the scene, or actions that a signal draws anew at its states; nobody played
    those, so that they have no trajectories."""
    for signal in signals.values():
        resampled = await signal.training_batch(scene)
        if resampled is not None:
            batch, rows = resampled
            batch = learner.annotate(batch, rows, prox=prox)
            return replace(scene, batch=batch, rows=rows, trajectories=())
    return scene
