"""Credit assigners: pure functions from a Batch to a Credit, by name.

An assigner's options are the keyword-only parameters of its function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from agentgym_credit.assigners import skill
from agentgym_credit.assigners.action_value import digiq, q_minus_v
from agentgym_credit.assigners.beacon import beacon
from agentgym_credit.assigners.critical import critical
from agentgym_credit.assigners.digirl import digirl
from agentgym_credit.assigners.gae import bilevel_gae, token_gae, turn_gae
from agentgym_credit.assigners.gagpo import gagpo
from agentgym_credit.assigners.gigpo import gigpo
from agentgym_credit.assigners.group_baselines import dr_grpo, grpo, loop, reinforce, rloo
from agentgym_credit.assigners.hgpo import hgpo
from agentgym_credit.assigners.hindsight import hcapo
from agentgym_credit.assigners.implicit import istar, prime, prm_tokens, prm_turns
from agentgym_credit.assigners.monte_carlo import mc_branch
from agentgym_credit.assigners.oreo import oreo
from agentgym_credit.assigners.outcome import a_lol, filtered, outcome
from agentgym_credit.assigners.reward_to_go import mt_grpo, rtg_loo
from agentgym_credit.assigners.rewardflow import rewardflow
from agentgym_credit.assigners.self_play import rae
from agentgym_credit.assigners.spae import spae
from agentgym_credit.batch import Batch, Credit


class Entry(NamedTuple):
    """A way of assigning credit, and what it must be given."""

    function: Callable[..., Credit]
    """(batch, *, options) -> Credit."""
    needs: frozenset[str] = frozenset()
    """Columns of `Batch.x` ("bootstrap_M" only if a trajectory is truncated), "groups" of two or more trajectories,
    "anchors" that name states."""
    skill: Callable[[Batch, Mapping[str, Any]], float] | None = None
    """(batch, all its options) -> how much of the batch's outcomes the columns that it reads explain, 0 to 1; None
    where it reads nothing that learns, or nothing whose outcome is known."""
    skill_needs: frozenset[str] = frozenset()
    """Columns that `skill` reads and the function does not."""
    option_needs: Callable[[Mapping[str, Any]], frozenset[str]] = lambda options: frozenset()
    """Further needs, which depend on the options."""

    def needs_with(self, options: Mapping[str, Any]) -> frozenset[str]:
        """All needs of the function with these options."""
        return self.needs | self.option_needs(options)


def _of_filtered(options: Mapping[str, Any]) -> frozenset[str]:
    return frozenset({"success_M"} if options.get("keep", "success") == "success" else ())


ASSIGNERS: dict[str, Entry] = {
    "reinforce": Entry(reinforce),
    "rloo": Entry(rloo, frozenset({"groups"})),
    "grpo": Entry(grpo, frozenset({"groups"})),
    "dr_grpo": Entry(dr_grpo, frozenset({"groups"})),
    "gigpo": Entry(gigpo, frozenset({"groups", "anchors"})),
    "token_gae": Entry(token_gae, frozenset({"value_A", "bootstrap_M"}), skill.of_token_values),
    "turn_gae": Entry(turn_gae, frozenset({"value_N", "bootstrap_M"}), skill.of_turn_values),
    "bilevel_gae": Entry(bilevel_gae, frozenset({"value_A", "bootstrap_M"}), skill.of_token_values),
    "beacon": Entry(beacon, frozenset({"groups", "milestone_N", "reached_N"})),
    "critical": Entry(critical, frozenset({"groups", "entropy_N"})),
    "loop": Entry(loop, frozenset({"groups"})),
    "hcapo": Entry(hcapo, frozenset({"groups", "hindsight_N"})),
    "hgpo": Entry(hgpo, frozenset({"groups", "anchors"})),
    "gagpo": Entry(gagpo, frozenset({"groups", "anchors"})),
    "rewardflow": Entry(rewardflow, frozenset({"groups", "anchors"})),
    "rtg_loo": Entry(rtg_loo, frozenset({"groups"})),
    "mt_grpo": Entry(mt_grpo, frozenset({"groups"})),
    "prime": Entry(prime, frozenset({"groups", "prm_A"})),
    "istar": Entry(istar, frozenset({"groups", "prm_A"})),
    "prm_tokens": Entry(prm_tokens, frozenset({"groups", "prm_A"}), skill.of_reward_model, skill.REWARD_MODEL),
    "prm_turns": Entry(prm_turns, frozenset({"groups", "prm_A"}), skill.of_reward_model, skill.REWARD_MODEL),
    "spae": Entry(spae, frozenset({"groups", "answer_prob_N", "answer_conf_N"})),
    "rae": Entry(rae, frozenset({"role_N", "role_baseline_N"})),
    "digirl": Entry(digirl, frozenset({"value_N", "bootstrap_M"})),
    "q_minus_v": Entry(q_minus_v, frozenset({"q_N", "v_N"})),
    "digiq": Entry(digiq, frozenset({"q_N", "v_N"})),
    "mc_branch": Entry(mc_branch, frozenset({"mc_value_N", "mc_after_N"})),
    "outcome": Entry(outcome),
    "filtered": Entry(filtered, option_needs=_of_filtered),
    "a_lol": Entry(a_lol, frozenset({"inst_value_M"})),
    "oreo": Entry(oreo, frozenset({"value_N", "prox_logprob_A", "ref_logprob_A", "bootstrap_M"})),
}
