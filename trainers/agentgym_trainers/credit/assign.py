"""Credit of a batch: one assigner, and what is done to its advantages before they are learned from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from agentgym.errors import ConfigError
from agentgym_credit.batch import Batch, Credit
from agentgym_credit.normalize import normalize
from agentgym_trainers.config.sections import Config, CreditOptions
from agentgym_trainers.credit import ASSIGNERS
from agentgym_trainers.losses import importance


def assign_credit(batch: Batch, options: CreditOptions) -> tuple[Credit, dict[str, float]]:
    """A = Σ_k w_k · normalize_k(assigner_k(batch)), the critic's targets of whichever term has some; and metrics.

    w_k is the term's weight, times its skill where it is gated. Raises ConfigError for an assigner of one's own that
    gives something else than a credit of every token.
    """
    total, metrics = Credit(np.zeros(len(batch.turn_A))), {}
    for path, term in options.parts.items():
        assigner, weight, name = ASSIGNERS[term.assigner], term.weight, path.rpartition(".")[2]
        credit = assigner.function(batch, **term.options)
        _check_credit(f"{path}.assigner = {term.assigner!r}", credit, len(batch.turn_A))
        if term.normalize != "none":
            credit = normalize(credit, batch, population=term.normalize)
        if term.gate and assigner.skill is not None:
            metrics[f"credit/{name}_skill"] = assigner.skill(batch, term.options)
            weight *= metrics[f"credit/{name}_skill"]
        if options.terms:
            metrics[f"credit/{name}_std"] = weight * float(credit.advantage_A.std()) if len(batch.turn_A) else 0.0
        total = Credit(total.advantage_A + weight * credit.advantage_A, {**total.targets, **credit.targets})
    return total, metrics


def _check_credit(who: str, credit: Any, tokens: int) -> None:
    """Raise ConfigError unless `credit` is a Credit of so many tokens."""
    if not isinstance(credit, Credit):
        problem = f"returned {'None' if credit is None else f'something of type {type(credit).__name__}'}"
    elif not isinstance(credit.advantage_A, np.ndarray):
        problem = f"returned an advantage_A of type {type(credit.advantage_A).__name__}"
    elif credit.advantage_A.shape != (tokens,):
        problem = f"returned an advantage_A of shape {credit.advantage_A.shape}"
    elif credit.weight_A is not None:
        problem = "returned a weight_A, which is for importance weights and filters"
    else:
        return
    raise ConfigError(
        f"{who} {problem}: return Credit(advantage_A), numpy numbers of shape ({tokens},), one for each action token; "
        "x_N[batch.turn_A] gives each token its turn's number"
    )


def apply_stages(batch: Batch, credit: Credit, config: Config, step: int) -> tuple[Credit, dict[str, float]]:
    """The credit after importance weights, filters and the staleness mask; and their metrics."""
    metrics: dict[str, float] = {}
    if config.correct is not None:
        weight_A, extra = importance.apply(config.correct, batch.x["prox_logprob_A"], batch.logprob_A, batch)
        credit = replace(credit, weight_A=weight_A, corrected=True)
        metrics |= {f"correct/{name}": value for name, value in extra.items()}
    credit = mask_dropped(batch, credit)
    if config.rollout.staleness:
        credit, extra = mask_stale_tokens(batch, credit, step, config.rollout.staleness)
        metrics |= extra
    return credit, metrics


def mask_dropped(batch: Batch, credit: Credit) -> Credit:
    """No advantage and no weight for the trajectories that a filter dropped (`kept_M`); a critic still learns from
    them."""
    if "kept_M" not in batch.x:
        return credit
    return _masked(credit, batch.x["kept_M"][batch.traj_A] > 0)


def mask_stale_tokens(batch: Batch, credit: Credit, step: int, staleness: int) -> tuple[Credit, dict[str, float]]:
    """No advantage and no weight for tokens more than `staleness` updates old; "async/staleness_max" is of the
    others."""
    age_A = np.maximum(step - batch.x["version_A"], 0)
    old_A = age_A > staleness
    kept = age_A[~old_A]
    metrics = {
        "async/staleness_mean": float(age_A.mean()) if len(age_A) else 0.0,
        "async/staleness_max": float(kept.max(initial=0)),
        "async/stale": float(old_A.mean()) if len(age_A) else 0.0,
    }
    return _masked(credit, ~old_A), metrics


def _masked(credit: Credit, keep_A: np.ndarray) -> Credit:
    """The credit of the tokens in `keep_A`. An advantage of 0 is not enough: to a regression it is a target."""
    if keep_A.all():
        return credit
    weight_A = np.ones(len(keep_A)) if credit.weight_A is None else credit.weight_A
    return replace(
        credit,
        advantage_A=np.where(keep_A, credit.advantage_A, 0.0),
        weight_A=np.where(keep_A, weight_A, 0.0),
    )
