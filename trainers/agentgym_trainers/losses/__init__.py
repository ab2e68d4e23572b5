"""Losses: pure torch functions on one number an action token, and the weights that sum them.

    loss = Σ_A w_A · loss_A,   w = token_weights(whole optimiser batch, mode)

The weights hold every denominator, so micro-batches simply add up.
"""

from agentgym_trainers.losses.objective import policy_gradient, ppo_clip
from agentgym_trainers.losses.reduce import token_weights, turn_weights
from agentgym_trainers.losses.regularise import cross_entropy, entropy, kl
from agentgym_trainers.losses.value import value_loss

__all__ = [
    "cross_entropy",
    "entropy",
    "kl",
    "policy_gradient",
    "ppo_clip",
    "token_weights",
    "turn_weights",
    "value_loss",
]
