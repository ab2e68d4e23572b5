"""Credit from milestones: a turn is judged by how soon its segment reached the next one."""

from __future__ import annotations

import numpy as np

from agentgym_credit.batch import Batch, Credit
from agentgym_credit.bounds import UnitInterval
from agentgym_credit.segments import named, reverse_scan, standardize


def beacon(batch: Batch, *, omega: float = 1.0, gamma: UnitInterval = 0.95) -> Credit:
    """The trajectory's advantage in its group, plus the turn's among turns that follow the same milestone.

    A_{i,t} = (R_i − mean R) + ω (r_t − mean r),  r_t = γ^(turns until the next milestone is reached), 0 where none is.
    Wang et al. 2026 (BEACON, 2605.06078), with the released code's differences from the mean, γ and ω. A milestone
    pays 1 there too, as a success does (10 each); the ALFWorld script has γ = .9 and ω = 10. The code numbers a
    trajectory's segments; here they are compared by the milestone's name, and the mean of R has each trajectory once,
    not once a turn. Population: of R the group's trajectories; of r the group's turns with the same last milestone
    (milestone_N), those of the own trajectory included, so that a segment's first turns are below its last ones for
    γ < 1. K = 1: the turns of the one trajectory are compared. No name (−1): the second term is 0. Truncated: what was
    collected counts. All-equal rewards: not 0, turns are still told apart by milestones.
    """
    reached_N = batch.x["reached_N"] > 0.5
    begins_N = np.append(True, (np.diff(batch.traj_N) != 0) | reached_N[:-1])[: len(reached_N)]
    shaped_N = reverse_scan(reached_N, np.cumsum(begins_N) - 1, gamma)
    follows_N = named(batch.group_M[batch.traj_N], batch.x["milestone_N"])
    episode_M = standardize(batch.return_M, batch.group_M, scale=False)
    segment_N = standardize(shaped_N, follows_N, scale=False)
    return Credit((episode_M[batch.traj_N] + omega * segment_N)[batch.turn_A])
