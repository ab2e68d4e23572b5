"""Credit from a whole trajectory's return, on its own or against a number that a column gives."""

from __future__ import annotations

from typing import Literal

import numpy as np

from agentgym_credit.batch import Batch, Credit
from agentgym_credit.bounds import UnitInterval
from agentgym_credit.segments import at_least


def outcome(batch: Batch) -> Credit:
    """The raw return, for objectives that compare trajectories themselves: preferences, regressions, labels.

    A_i = R_i. No statistic, so no population. K = 1: the same. Truncated: what was collected counts. All-equal
    rewards: not 0, there is no baseline; the objective's pairs or groups cancel it.
    """
    return Credit(batch.return_M[batch.traj_A])


def filtered(
    batch: Batch,
    *,
    keep: Literal["success", "threshold", "quantile"] = "success",
    threshold: float = 0.5,
    quantile: UnitInterval = 0.9,
) -> Credit:
    """Imitate what went well: 1 for every token of a good trajectory, else 0. Filtered behavior cloning.

    A_i = 1[success_i], 1[R_i ≥ threshold], or 1[R_i ≥ the batch's quantile of R], both up to rounding.
    RFT, ReST^EM (2312.06585); ArCHer's baseline keeps the best tenth. With the objective policy_gradient the loss is
    cross-entropy on the trajectories that are kept. With rewards of 0 and 1 one on-policy step is REINFORCE without a
    baseline; from the second epoch on it is imitation.
    Population: of the quantile the batch's trajectories, so other groups change it; else none. K = 1: the same.
    Truncated: what was collected counts. All-equal rewards: all 1 or all 0, by quantile all 1.
    """
    if keep == "success":
        good_M = batch.x["success_M"] > 0
    elif keep == "threshold" or not len(batch.group_M):
        good_M = at_least(batch.return_M, threshold)
    else:
        good_M = at_least(batch.return_M, np.quantile(batch.return_M, quantile))
    return Credit(good_M.astype(np.float64)[batch.traj_A])


def a_lol(batch: Batch) -> Credit:
    """Return minus the reference policy's value of the task; never less than 0.

    A_i = max(R_i − inst_value_i, 0).
    Baheti et al. 2023 (A-LoL, 2305.14718), for data of another policy: what did worse than the reference is not
    learned from. Positive parts are not a policy gradient; with rewards of 0 and 1 it is one, scaled by 1 − V.
    Population: whatever inst_value_M was fitted to. K = 1: the same. Truncated: what was collected counts. All-equal
    rewards: 0 if the value says so.
    """
    return Credit(np.maximum(batch.return_M - batch.x["inst_value_M"], 0.0)[batch.traj_A])


def replay_baseline(batch: Batch) -> Credit:
    """A replayed success against what is usual by now: what no longer beats it is dropped.

    A_i = max(R_i − baseline_i, 0).
    SPEAR (2509.22601): the baseline is the median of recent groups' mean returns, so an episode that was remarkable
    when it was stored is not imitated for ever. Rewards that fade (a bonus for using tools) must not be in R here, or
    the baseline drifts with them.
    Population: the groups that the source of `baseline_M` remembers. K = 1: the same. Truncated: what was collected
    counts. All-equal rewards: 0 if the baseline says so.
    """
    return Credit(np.maximum(batch.return_M - batch.x["baseline_M"], 0.0)[batch.traj_A])
