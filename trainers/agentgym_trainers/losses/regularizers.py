"""Regularizers: a penalty for each action token, to be scaled, added to the objective and reduced like it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from torch import Tensor

from agentgym_trainers.losses.objective import MAX_LOG_RATIO


class Regularizer:
    """Penalty that remembers past steps; without a state of its own a penalty is a function, as below.

    Its options are the table of its name in `[loss]`, and hold the `coefficient` that scales the reduced penalty.
    """

    def penalty(self, entropy_A: Tensor, options: Any) -> Tensor:
        """Return the penalty of each token."""
        raise NotImplementedError

    def end_step(self, metrics: Mapping[str, float]) -> None:
        """Take in the metrics of a finished training step."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def kl(logprob_A: Tensor, ref_logprob_A: Tensor, estimator: Literal["k1", "k2", "k3", "k3+"] = "k3+") -> Tensor:
    """KL(π ‖ ref) from tokens sampled from π (Schulman 2020, "Approximating KL Divergence"), with d = ℓ_ref − ℓ.

    k1 = −d, k2 = d²/2, k3 = e^d − d − 1. As a loss only k2 has the gradient of the KL: k1's is 0 on average, k3's is
    that of KL(ref ‖ π). "k3+" has the value of k3 (unbiased, never negative) and the gradient of k2.
    """
    d = ref_logprob_A - logprob_A
    k2 = d**2 / 2
    k3 = d.clamp(max=MAX_LOG_RATIO).exp() - d - 1
    return {"k1": -d, "k2": k2, "k3": k3, "k3+": k2 + (k3 - k2).detach()}[estimator]


def entropy(entropy_A: Tensor) -> Tensor:
    """−H: minimizing it keeps the policy spread. H is each token's entropy over the vocabulary, with gradient."""
    return -entropy_A


def cross_entropy(logprob_A: Tensor) -> Tensor:
    """−ℓ: imitation of the tokens."""
    return -logprob_A
