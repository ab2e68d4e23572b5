"""Credit from probing: how sure of the right answer the policy is after each step."""

from __future__ import annotations

import numpy as np

from agentgym_trainers.batch import Batch, Credit
from agentgym_trainers.credit.segments import position, standardise


def potential(accuracy: np.ndarray, confidence: np.ndarray) -> np.ndarray:
    """Φ = 3/2 Acc · Conf + 1/2 Acc − Conf: 1 where sure and right, ½ unsure and right, 0 unsure, −1 sure and wrong.

    Acc: mean probability of the true answer's tokens; Conf = exp(−mean entropy), of answers forced after each step.
    """
    return 1.5 * accuracy * confidence + 0.5 * accuracy - confidence


def spae(batch: Batch, *, xi: float = 0.5, alpha: float = 0.5, saturation: float = 0.9) -> Credit:
    """The trajectory's advantage, faded once the answer is known, plus what the step added to the probed potential.

    A_{i,t} = (R_i − mean R) f + xi g;  f = 1 − alpha (1 − e^{−C}), C the earlier steps of the trajectory with
    Φ > saturation;  g = exp(ΔΦ scaled to [0, 1]) − its mean, ΔΦ = Φ_t − Φ_{t−1}, 0 at the first step.
    SPAE (2601.03823); afterwards the batch is standardised (credit.normalise = "turn"). `spae_phi_N` is `potential`
    after each turn. Where R_i < mean R, f < 1 also fades the blame.
    Population: of R the group's trajectories; of the scaling and g's mean all turns of the batch, so other groups
    change g. K = 1: xi g alone. Truncated: what was collected counts. All-equal rewards: xi g; all-equal Φ: g = 0.
    """
    phi_N, position_N = batch.x["spae_phi_N"], position(batch.traj_N)
    gain_N = np.where(position_N > 0, phi_N - np.roll(phi_N, 1), 0.0)
    low, high = gain_N.min(initial=np.inf), gain_N.max(initial=-np.inf)
    bonus_N = np.exp((gain_N - low) / (high - low)) if high > low else np.ones(len(gain_N))
    bonus_N = bonus_N - bonus_N.mean() if len(bonus_N) else bonus_N
    known_N = (phi_N > saturation).astype(np.float64)
    earlier_N = np.cumsum(known_N) - known_N
    earlier_N -= earlier_N[np.arange(len(phi_N)) - position_N]
    fade_N = 1 - alpha * (1 - np.exp(-earlier_N))
    group_M = standardise(batch.return_M, batch.group_M, scale=False)
    return Credit((group_M[batch.traj_N] * fade_N + xi * bonus_N)[batch.turn_A])
