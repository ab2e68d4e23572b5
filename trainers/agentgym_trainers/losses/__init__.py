"""Losses: pure torch functions, and the weights that sum them.

    loss = Σ_A w_A · loss_A,   w = token_weights(whole optimizer batch, mode)

The weights hold every denominator, so micro-batches simply add up. An objective whose unit is larger than a token sees
the whole optimizer batch at once; the learner takes its exact gradient in two passes (`learner.full_batch_gradient`).

An objective's options are the keyword-only parameters of its function. To add one, write the function and add it here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from agentgym_trainers.config.registry import FunctionPart, Registry
from agentgym_trainers.losses.classification import pacs
from agentgym_trainers.losses.direct_advantage import direct_advantage
from agentgym_trainers.losses.entropy_band import EntropyBand
from agentgym_trainers.losses.objective import policy_gradient, ppo_clip
from agentgym_trainers.losses.pairs import dpo, refuel
from agentgym_trainers.losses.reduce import token_weights, turn_weights
from agentgym_trainers.losses.regularizers import Regularizer, cross_entropy, entropy, kl
from agentgym_trainers.losses.sequence import a_lol, clip_cov, gspo, ratio_clip
from agentgym_trainers.losses.soft_bellman import oreo
from agentgym_trainers.losses.token import awr, cispo, loop_clip
from agentgym_trainers.losses.value import value_loss

__all__ = [
    "OBJECTIVES",
    "REGULARIZERS",
    "Objective",
    "cross_entropy",
    "entropy",
    "kl",
    "policy_gradient",
    "ppo_clip",
    "token_weights",
    "turn_weights",
    "value_loss",
]


@dataclass(frozen=True)
class Objective(FunctionPart):
    """Unit "token": (logprob_A, old_logprob_A, advantage_A, *, options) -> (loss_A, metrics), of any tokens. Larger
    units: (logprob_A, old_logprob_A, batch, advantage_A, weights_A, *, options) -> (scalar, metrics), of a whole
    optimizer batch. Metrics are detached scalars: maxima where the name ends in "max", else means."""

    unit: Literal["token", "turn", "trajectory", "pair", "group"] = "token"
    """Unit of a single term of the loss. Optimizer batches of pairs and groups are cut between groups."""
    option_needs: Callable[[Mapping[str, Any]], frozenset[str]] = lambda options: frozenset()
    """Further needs, which depend on the options."""

    @property
    def inputs(self) -> tuple[str, ...]:
        if self.unit == "token":
            return ("logprob_A", "old_logprob_A", "advantage_A")
        return ("logprob_A", "old_logprob_A", "batch", "advantage_A", "weights_A")

    def needs_with(self, options: Mapping[str, Any]) -> frozenset[str]:
        """All needs of the objective with these options."""
        return self.needs | self.option_needs(options)

    @property
    def needs_full_groups(self) -> bool:
        return self.unit in ("pair", "group")


def _of_dpo(options: Mapping[str, Any]) -> frozenset[str]:
    columns = {("weigh", "steps"): "judge_N", ("score", "branched"): "branched_N"}
    return frozenset(column for (option, value), column in columns.items() if options.get(option) == value)


OBJECTIVES = Registry(
    "objective",
    Objective,
    {
        "policy_gradient": Objective(policy_gradient),
        "ppo_clip": Objective(ppo_clip),
        "loop_clip": Objective(loop_clip),
        "cispo": Objective(cispo),
        "awr": Objective(awr),
        "clip_cov": Objective(clip_cov, unit="trajectory"),
        "ratio_clip": Objective(ratio_clip, unit="turn"),
        "gspo": Objective(gspo, unit="trajectory"),
        "a_lol": Objective(a_lol, frozenset({"ref_logprob_A"}), "trajectory"),
        "direct_advantage": Objective(direct_advantage, unit="turn"),
        "oreo": Objective(oreo, frozenset({"ref_logprob_A", "value_N", "bootstrap_M"}), "trajectory"),
        "dpo": Objective(
            dpo,
            frozenset({"groups", "ref_logprob_A"}),
            "pair",
            _of_dpo,
        ),
        "refuel": Objective(refuel, frozenset({"groups", "branched_N"}), "pair"),
        "pacs": Objective(pacs, frozenset({"groups", "success_M"}), "group"),
    },
)

REGULARIZERS: dict[str, type[Regularizer]] = {"band": EntropyBand}
"""Regularizers with a state, by the name of their table in `[loss]`. A learner has one of each."""
