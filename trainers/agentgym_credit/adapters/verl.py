"""Credit for verl, through its registry of advantage estimators (`register_adv_est`).

    import agentgym_credit.adapters.verl as credit
    credit.register("gigpo", gamma=0.95)        # then algorithm.adv_estimator=agentgym_gigpo

Tested against the registry and the advantage step of verl 0.9 itself, on a CPU; not in a training with it. A turn is a
run of 1s in `response_mask`. A trainer of verl-agent's kind, whose rows are turns, passes `traj_uid` (the attempt),
`anchor_obs` (states), and `rewards`, each row's own: its token-level rewards repeat the episode's return in every row,
which would count once a turn. verl's own trainer passes none of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from agentgym_credit.batch import Batch, Credit
from agentgym_credit.rows import from_rows


def _target_A(credit: Credit, batch: Batch) -> np.ndarray | None:
    """A critic's target at every token, where the assigner has some: never of advantages that were normalized."""
    if "value_N" in credit.targets:
        return credit.targets["value_N"][batch.turn_A]
    return credit.targets.get("value_A")


def register(name: str, **options: Any) -> str:
    """Register the assigner `name` with these options as "agentgym_NAME"; gives that name."""
    from verl.trainer.ppo.core_algos import register_adv_est  # type: ignore[import-not-found]

    register_adv_est(f"agentgym_{name}")(estimator(name, **options))
    return f"agentgym_{name}"


def estimator(name: str, **options: Any) -> Any:
    """(token_level_rewards, response_mask, index, ...) -> (advantages, returns), both float[B, T].

    Returns are what verl's critic is fitted to: the assigner's own targets, a turn's at each of its tokens; of an
    assigner without targets the advantages, plus the values where there are any.
    """

    def advantages(
        token_level_rewards: Any, response_mask: Any, index: Any = None, config: Any = None, **batch: Any
    ) -> tuple[Any, Any]:
        mask, reward = response_mask.cpu().numpy().astype(bool), token_level_rewards.cpu().numpy()
        attempts, states, values = (batch.get(key) for key in ("traj_uid", "anchor_obs", "values"))
        kept = np.flatnonzero(mask.any(axis=1))  # a row that is masked out has nothing to learn from
        if batch.get("rewards") is not None:
            last = mask.shape[1] - 1 - mask[:, ::-1].argmax(axis=1)
            reward = np.zeros(mask.shape)
            reward[np.arange(len(mask)), last] = np.asarray(batch["rewards"], np.float64)
        found = token_level_rewards.new_zeros(mask.shape)
        returns = found.clone()
        if len(kept):
            rows = from_rows(
                mask[kept],
                reward[kept],
                kept.tolist() if index is None else [index[row] for row in kept],
                trajectory_B=None if attempts is None else [attempts[row] for row in kept],
                states=None
                if states is None
                else [s if isinstance(s, list | tuple) else [s] for s in map(states.__getitem__, kept)],
                **({} if values is None else {key: values.cpu().numpy()[kept] for key in ("value_A", "value_N")}),
            )
            credit = rows.credit(name, **options)
            found[kept] = found.new_tensor(rows.padded(credit.advantage_A))
            returns = found if values is None else (found + values) * response_mask
            if (target_A := _target_A(credit, rows.batch)) is not None:
                returns = found.new_zeros(mask.shape)
                returns[kept] = found.new_tensor(rows.padded(target_A))
        return found, returns

    return advantages
