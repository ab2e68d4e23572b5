"""Credit assigners: pure functions from a Batch to a Credit, by the name that a recipe uses.

An assigner's options are the keyword-only parameters of its function. To add one, write the function and add it here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentgym_trainers.config.registry import FunctionPart, Registry, needs
from agentgym_trainers.credit import skill
from agentgym_trainers.credit.action_value import digiq, q_minus_v
from agentgym_trainers.credit.digirl import digirl
from agentgym_trainers.credit.gae import bilevel_gae, token_gae, turn_gae
from agentgym_trainers.credit.gigpo import gigpo
from agentgym_trainers.credit.group_baselines import dr_grpo, grpo, loop, reinforce, rloo
from agentgym_trainers.credit.hgpo import hgpo
from agentgym_trainers.credit.implicit import istar, prime, prm_tokens, prm_turns
from agentgym_trainers.credit.monte_carlo import mc_branch
from agentgym_trainers.credit.normalize import normalize
from agentgym_trainers.credit.oreo import oreo
from agentgym_trainers.credit.outcome import a_lol, filtered, outcome
from agentgym_trainers.credit.reward_to_go import mt_grpo, rtg_loo
from agentgym_trainers.credit.rewardflow import rewardflow
from agentgym_trainers.credit.self_play import rae
from agentgym_trainers.data.batch import Batch

__all__ = ["ASSIGNERS", "Assigner", "needs", "normalize"]


@dataclass(frozen=True)
class Assigner(FunctionPart):
    """function: (batch, *, options) -> Credit."""

    skill: Callable[[Batch, Mapping[str, Any]], float] | None = None
    """(batch, options) -> how much of the batch's outcomes the columns that it reads explain, 0 to 1; None where it
    reads nothing that learns, or nothing whose outcome is known."""


ASSIGNERS = Registry(
    "assigner",
    Assigner,
    {
        "reinforce": Assigner(reinforce),
        "rloo": Assigner(rloo, frozenset({"groups"})),
        "grpo": Assigner(grpo, frozenset({"groups"})),
        "dr_grpo": Assigner(dr_grpo, frozenset({"groups"})),
        "gigpo": Assigner(gigpo, frozenset({"groups", "anchors"})),
        "token_gae": Assigner(token_gae, frozenset({"value_A", "bootstrap_M"}), skill.of_token_values),
        "turn_gae": Assigner(turn_gae, frozenset({"value_N", "bootstrap_M"}), skill.of_turn_values),
        "bilevel_gae": Assigner(bilevel_gae, frozenset({"value_A", "bootstrap_M"}), skill.of_token_values),
        "loop": Assigner(loop, frozenset({"groups"})),
        "hgpo": Assigner(hgpo, frozenset({"groups", "anchors"})),
        "rewardflow": Assigner(rewardflow, frozenset({"groups", "anchors"})),
        "rtg_loo": Assigner(rtg_loo, frozenset({"groups"})),
        "mt_grpo": Assigner(mt_grpo, frozenset({"groups"})),
        "prime": Assigner(prime, frozenset({"groups", "prm_A"})),
        "istar": Assigner(istar, frozenset({"groups", "prm_A"})),
        "prm_tokens": Assigner(prm_tokens, frozenset({"groups", "prm_A", "prm_logit_M"}), skill.of_reward_model),
        "prm_turns": Assigner(prm_turns, frozenset({"groups", "prm_A", "prm_logit_M"}), skill.of_reward_model),
        "rae": Assigner(rae, frozenset({"role_N", "role_baseline_N"})),
        "digirl": Assigner(digirl, frozenset({"value_N", "bootstrap_M"})),
        "q_minus_v": Assigner(q_minus_v, frozenset({"q_N", "v_N"})),
        "digiq": Assigner(digiq, frozenset({"q_N", "v_N"})),
        "mc_branch": Assigner(mc_branch, frozenset({"mc_value_N", "mc_after_N"})),
        "outcome": Assigner(outcome),
        "filtered": Assigner(filtered, frozenset({"success_M"})),
        "a_lol": Assigner(a_lol, frozenset({"inst_value_M"})),
        "oreo": Assigner(oreo, frozenset({"value_N", "prox_logprob_A", "ref_logprob_A", "bootstrap_M"})),
    },
)
