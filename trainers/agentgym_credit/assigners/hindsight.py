"""Credit from hindsight: a turn counts by how much more likely it is once the outcome is known."""

from __future__ import annotations

from typing import Annotated

import numpy as np

from agentgym_credit.batch import Batch, Credit
from agentgym_credit.bounds import Within
from agentgym_credit.segments import standardize


def hcapo(batch: Batch, *, omega: float = 1.0, clip: Annotated[float, Within(1)] = 2.0) -> Credit:
    """The trajectory's advantage, weighted at each turn by the ratio of its probability with hindsight to that without.

    A_{i,t} = (R_i − mean R) (1 + ω (ρ_t − 1));  ρ_t = exp(hindsight_N), at least 1/clip and at most clip; of
    trajectories above the mean at least 1.
    After HCAPO (2603.08754) and Harutyunyan et al. 2019: ρ = π(a | s, outcome) / π(a | s) is P(outcome | s, a) /
    P(outcome | s), above 1 for what helped a success and for what caused a failure. The paper's ρ refines Q beside
    GRPO's advantage, and its mask takes no credit from a success. Its formulas and constants were not at hand: the
    weight on the outcome's advantage, `clip`, ω = 1 and means without a standard deviation are ours, and its smoothing
    over neighboring turns is left out. ω = 0 or ρ = 1 is `dr_grpo`. Population: of R the group's trajectories.
    K = 1: 0. Truncated: what was collected counts. All-equal rewards: exactly 0.
    """
    advantage_N = standardize(batch.return_M, batch.group_M, scale=False)[batch.traj_N]
    limit = np.log(clip)
    ratio_N = np.exp(np.clip(batch.x["hindsight_N"], -limit, limit))
    ratio_N = np.where(advantage_N > 0, np.maximum(ratio_N, 1.0), ratio_N)
    return Credit((advantage_N * (1 + omega * (ratio_N - 1)))[batch.turn_A])
