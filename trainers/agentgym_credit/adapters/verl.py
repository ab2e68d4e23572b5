"""Credit for verl, through its registry of advantage estimators (`register_adv_est`).

    import agentgym_credit.adapters.verl as credit
    credit.register("mt_grpo", gamma=0.95)        # then algorithm.adv_estimator=agentgym_mt_grpo

Tested against the registry and the advantage step of verl 0.9 itself, on a CPU; not in a training with it. A turn is a
run of 1s in `response_mask`. A trainer of verl-agent's kind, whose rows are turns, passes `traj_uid` (the attempt),
`anchor_obs` (states), and `rewards`, each row's own: its token-level rewards repeat the episode's return in every row,
which would count once a turn. verl's own trainer passes none of them, nor a critic's values: assigners that read these
or compare states (`gigpo`) are for trainers that do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from agentgym_credit.assigners import ASSIGNERS
from agentgym_credit.batch import Batch, Credit
from agentgym_credit.rows import LEVELS, check_assigner, from_rows

VALUES = {"value_A", "value_N"}
"""Columns of a critic, which a trainer may pass as `values`."""


def _target_A(credit: Credit, batch: Batch) -> np.ndarray | None:
    """A critic's target at every token, where the assigner has some: never of advantages that were normalized."""
    if "value_N" in credit.targets:
        return credit.targets["value_N"][batch.turn_A]
    return credit.targets.get("value_A")


def register(name: str, **options: Any) -> str:
    """Register the assigner `name` with these options as "agentgym_NAME"; gives that name.

    Raises ValueError as `estimator` does.
    """
    from verl.trainer.ppo.core_algos import register_adv_est  # type: ignore[import-not-found]

    register_adv_est(f"agentgym_{name}")(estimator(name, **options))
    return f"agentgym_{name}"


def estimator(name: str, **options: Any) -> Any:
    """(token_level_rewards, response_mask, index, ...) -> (advantages, returns), both float[B, T].

    Returns are what verl's critic is fitted to: the assigner's own targets, a turn's at each of its tokens; of an
    assigner without targets the advantages, plus the values where there are any. Raises ValueError where there is no
    such assigner or option, or it reads what verl does not have.
    """
    check_assigner(name, **options)
    needs = ASSIGNERS[name].needs_with(options)
    if missing := sorted(need for need in needs - VALUES - {"bootstrap_M"} if need.endswith(LEVELS)):
        raise ValueError(f"{name} reads {', '.join(missing)}, which verl does not have: take another, as mt_grpo")

    def advantages(
        token_level_rewards: Any, response_mask: Any, index: Any = None, config: Any = None, **batch: Any
    ) -> tuple[Any, Any]:
        given = token_level_rewards.float()  # numpy has no bfloat16
        mask, reward = response_mask.cpu().numpy().astype(bool), given.cpu().numpy()
        attempts, states, values = (batch.get(key) for key in ("traj_uid", "anchor_obs", "values"))
        if values is None and needs & VALUES:
            raise ValueError(
                f"{name} reads a critic's values, and this trainer passes none to its estimators, as verl's own: take "
                "verl's gae (algorithm.adv_estimator=gae), or an assigner without a critic, as mt_grpo"
            )
        if batch.get("rewards") is not None:
            last = mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)
            reward = np.zeros(mask.shape)
            reward[np.arange(len(mask)), last] = np.asarray(batch["rewards"], np.float64)
        if not mask.any():
            return given.new_zeros(mask.shape), given.new_zeros(mask.shape)
        rows = from_rows(
            mask,
            reward,
            range(len(mask)) if index is None else index,
            trajectory_B=attempts,
            states=None if states is None else [s if isinstance(s, list | tuple) else [s] for s in states],
            skip_idle=True,  # an estimator cannot leave rows out
            **({} if values is None else {column: values.float().cpu().numpy() for column in VALUES}),
        )
        credit = rows.credit(name, **options)
        found = given.new_tensor(rows.padded(credit.advantage_A))
        if (target_A := _target_A(credit, rows.batch)) is not None:
            return found, found.new_tensor(rows.padded(target_A))
        return found, found if values is None else (found + values) * response_mask

    return advantages
