"""Guards: what watches a run and stops it with a sentence when its numbers can no longer be trusted.

    before_step    asks every judge about answers that say nothing, at the start and every PROBE_EVERY steps
    after_filter   stops a run whose filter has kept nothing for EMPTY_STEPS steps
    after_batch    ends the epochs of a step once the policy is too far from the one that sampled
    after_step     refuses a signal whose loss reaches no parameter

A guard changes nothing that is trained: it reads, and lets the run go on or raises GuardTripped.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

from agentgym.errors import GuardTripped, PolicyFailure
from agentgym.rollouts.trajectory import Group, StopReason, Trajectory
from agentgym_credit.batch import Batch
from agentgym_trainers.data.sequences import is_demonstration

PROBES = (
    # Nothing at all, and punctuation.
    "", " ", "\n\n\t", "\u200b", ".", ",", ":", ";", "?", "...", "—", "#", "```", "{}", "[]", "\\boxed{}",
    # The beginnings of an answer that never comes.
    "Thought process:", "Let's solve this step by step", "Let's solve this problem step by step.",
    "Let me think.", "First, let me think about this.", "Solution", "Solution:", "Answer:", "The answer is",
    "Final answer:", "Explanation:", "Reasoning:", "Step 1:", "Okay,", "Sure!", "Assistant:", "<think></think>",
    "null", "None", "N/A", "Yes", "OK", "Done.",
    # The same in other languages.
    "解", "解：", "答案：", "让我们一步一步地思考。", "かいせつ", "解説：", "풀이:", "정답:", "Respuesta:",
    "Resolvamos esto paso a paso.", "Solución:", "Réponse :", "Résolvons cela étape par étape.", "Lösung:",
    "Lösen wir das Schritt für Schritt.", "Soluzione:", "Resposta:", "Решение:", "Ответ:", "الحل:", "الجواب:",
    "उत्तर:", "समाधान:", "Çözüm:", "Cevap:", "Lời giải:", "Rozwiązanie:", "Oplossing:",
)  # fmt: skip
"""Answers without content that language models have been seen to accept, in the manner of "One token to fool LLM-as-a-
judge" (2507.08794): a judge that calls one of them good can be satisfied by saying nothing."""


PROBE_EVERY = 50
"""Steps between probings; the first is before the first step, and after every resume."""


EMPTY_STEPS = 10
"""Steps in a row in which a filter may leave nothing to learn from."""


class GuardOptions(BaseModel):
    """Limits at which a run is stopped, or a step cut short."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_kl: float | None = Field(default=None, gt=0)
    """Ends a step's epochs once the log-probabilities of a trajectory's tokens, summed, have moved by more than this
    (|KL(sampling policy ‖ present one)|, mean over the optimizer batch). LOOP has 20."""


MAX_REASON = 1000
"""Characters of an episode's error that are repeated."""


@runtime_checkable
class Probed(Protocol):
    """A signal that judges answers, and so can be fooled."""

    max_false_positives: float
    """Share of the probes that it may call good; above it the run is stopped."""

    async def probe(self, answers: Sequence[str]) -> list[float]:
        """The verdict on each answer, by the model alone: no rule before it, no cache. Above 0 means good."""
        ...


@dataclass
class Guards:
    """The guards of one run. `signals`: the recipe's, by kind."""

    options: GuardOptions
    signals: Mapping[str, Any] = field(default_factory=dict)
    _begun: bool = field(default=False, init=False)
    _empty_steps: int = field(default=0, init=False)

    async def before_step(self, step: int) -> dict[str, float]:
        """Probe the judges if it is time. Metrics only where the step number alone says so, so that a resumed run
        writes the same ones. Raises GuardTripped."""
        due = step % PROBE_EVERY == 0
        if not due and self._begun:
            return {}
        self._begun = True
        metrics = {}
        for kind, signal in self.signals.items():
            if isinstance(signal, Probed):
                verdicts = await signal.probe(PROBES)
                metrics[f"guards/{kind}_false_positives"] = false_positives(
                    kind, verdicts, signal.max_false_positives, step
                )
        return metrics if due else {}

    def after_filter(self, step: int, played: Sequence[Group], kept: Sequence[Group], select: Any) -> None:
        """Count the steps that a filter left nothing of. Nothing is learned in them, so what the filter sees does not
        change by itself. Raises GuardTripped."""
        self._empty_steps = 0 if kept else self._empty_steps + 1
        if self._empty_steps < EMPTY_STEPS:
            return
        episodes = [t for group in played for t in group.trajectories if not t.stop.is_failure]
        success = sum(t.success for t in episodes) / max(len(episodes), 1)
        raise GuardTripped(
            f"step {step + 1}: the filter select.kind = {select.kind!r} has kept no group for {EMPTY_STEPS} steps, so "
            f"nothing is learned any more; {success:.0%} of this step's episodes succeeded. Warm up longer, choose "
            "easier tasks, or train without [select]"
        )

    def after_batch(self, metrics: Mapping[str, float], batch: Batch) -> bool:
        """True once the step's epochs should end. "policy/log_ratio" is the mean over the optimizer batch's action
        tokens of ℓ − ℓ_old; summed over a trajectory and negated it is the k1 estimate of the KL."""
        if self.options.max_kl is None:
            return False
        kl = metrics["policy/log_ratio"] * len(batch.turn_A) / max(len(batch.group_M), 1)
        return not abs(kl) <= self.options.max_kl  # a KL that is no number is too far, too

    def after_step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Look at the signals' own metrics. Raises GuardTripped."""
        for kind in self.signals:
            norm, loss = (metrics.get(f"{kind}/{what}") for what in ("grad_norm", "loss"))
            # A loss of 0 is a step with nothing to learn from, such as no pair of a success and a failure.
            if norm == 0 and loss is not None and loss != 0 and math.isfinite(loss):
                raise GuardTripped(
                    f"step {step}: the signal {kind!r} has a loss of {loss:.6g} and a gradient of exactly 0, so "
                    "nothing of it was trained: its loss does not reach its parameters (a detached input?)"
                )


def false_positives(kind: str, verdicts: Sequence[float], allowed: float, step: int) -> float:
    """The share of the probes that were called good. Raises GuardTripped, naming some, where it is too large."""
    fooled = [probe for probe, verdict in zip(PROBES, verdicts, strict=True) if verdict > 0]
    rate = len(fooled) / len(PROBES)
    if rate > allowed:
        raise GuardTripped(
            f"step {step}: the {kind} calls {len(fooled)} of {len(PROBES)} answers that say nothing good "
            f"({rate:.0%}; signals.{kind}.false_positives allows {allowed:.0%}), such as "
            f"{', '.join(repr(probe) for probe in fooled[:3])}: a policy would learn to say them. Use another model "
            "or another rubric"
        )
    return rate


def check_played(played: Sequence[Group], step: int, config: Any) -> None:
    """Raise PolicyFailure where every episode of the step failed, GuardTripped where most filled their context."""
    episodes = [t for group in played for t in group.trajectories if not is_demonstration(t)]
    check_context([t.stop for t in episodes], f"step {step + 1}", config)
    if all(t.stop.is_failure for group in played for t in group.trajectories):
        raise PolicyFailure(f"every episode of step {step + 1} failed: {failure_reason(episodes)}")


REMEDIES = {
    StopReason.CONTEXT_FULL: "raise rollout.max_length, or let the environment show less",
    StopReason.DEADLINE: "raise env.episode_s, or find out what is slow",
    StopReason.ENVIRONMENT_FAILED: "`agentgym envs check` tries the environment by itself",
    StopReason.POLICY_FAILED: "see what the engine printed",
}


def failure_reason(episodes: Sequence[Trajectory]) -> str:
    """The most frequent reason why episodes left nothing to learn from, and what to do about it."""
    kinds = Counter((t.stop, t.error.partition(":")[0]) for t in episodes)
    (stop, code), count = kinds.most_common(1)[0]
    first = next(t for t in episodes if (t.stop, t.error.partition(":")[0]) == (stop, code))
    reason = first.error or f"it ended {stop.value}"
    if stop is StopReason.CONTEXT_FULL:
        size = len(first.final_observation)
        reason = f"context_full before the first turn: an observation of {size} characters does not fit the context"
    remedy = f"; {REMEDIES[stop]}" if stop in REMEDIES else ""
    return f"{reason[:MAX_REASON]} ({count} of {len(episodes)} episodes){remedy}"


def check_context(stops: Sequence[str], where: str, config: Any) -> None:
    """Raise GuardTripped where most episodes ended because the next prompt did not fit rollout.max_length."""
    full = sum(stop == StopReason.CONTEXT_FULL for stop in stops)
    if full > len(stops) / 2:
        also = "" if config.model.path is not None else " and model.tiny.max_length"
        raise GuardTripped(
            f"{full} of {len(stops)} episodes of {where} ended because the next prompt did not fit the context: "
            f"rollout.max_length is {config.rollout.max_length}; raise rollout.max_length{also} in a new run"
        )
