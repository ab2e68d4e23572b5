"""Credit for prime-rl: a custom advantage function, by its import path.

    [orchestrator.algorithm.advantage]
    type = "custom"
    import_path = "agentgym_credit.adapters.prime_rl.advantages"
    kwargs = { assigner = "mt_grpo", gamma = 0.9 }

Written against prime-rl's per-token contract (`AdvantageInputs` of one group -> a list of numbers for each rollout),
and tested against a copy of that contract, not against prime-rl itself, which wants CUDA and Python 3.12. A turn is a
step of the rollout's trajectory. A step's `reward` and `state_key` (in its `extras`) are read where the environment
gives them; what the rollout's reward has beyond them comes with the last turn.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from agentgym_credit.rows import from_rows


def advantages(inputs: Any, *, assigner: str = "grpo", **options: Any) -> list[list[float]]:
    """One number for each of a rollout's completion tokens, observations between turns included, which have 0.

    Raises ValueError for a rollout without a reward or with branches, and as `from_rows` and `assign` do.
    """
    shape = len(inputs.rollouts), max(inputs.completion_lengths, default=0)
    mask, turns, reward, found = (np.zeros(shape) for _ in range(4))
    states = []
    for row, rollout in enumerate(inputs.rollouts):
        played = [step for step in rollout["trajectory"] if any(step["tokens"]["completion_mask"])]
        states.append([step.get("extras", {}).get("state_key") for step in played])
        if not played:
            continue
        if rollout["reward"] is None:
            raise ValueError(f"rollout {row} has no reward: leave rollouts that failed out of the group")
        first = len(rollout["trajectory"][0]["tokens"]["prompt_ids"])  # a later step's prompt holds all before it
        for turn, step in enumerate(rollout["trajectory"]):
            start = len(step["tokens"]["prompt_ids"]) - first
            stop = start + len(step["tokens"]["completion_ids"])
            if start < 0 or stop > inputs.completion_lengths[row]:
                raise ValueError(
                    f"rollout {row}: turn {turn} does not continue the one before it; train it in branches"
                )
            mask[row, start:stop] = step["tokens"]["completion_mask"]
            turns[row, start:stop] = turn
            reward[row, stop - 1] = step.get("reward") or 0.0
        reward[row, stop - 1] += rollout["reward"] - reward[row].sum()
    if mask.any():
        rows = from_rows(mask, reward, [0] * len(mask), turn_BT=turns, states=states, skip_idle=True)
        rows = replace(rows, group_size=max(2, rows.group_size))  # a lone rollout may be what is left of its group
        found = rows.assign(assigner, **options)
    return [list(row[:n]) for row, n in zip(found, inputs.completion_lengths, strict=True)]
