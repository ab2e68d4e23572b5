"""Credit for TRL: a mixin that gives GRPOTrainer an advantage for every token.

    class Trainer(TurnCredit, trl.GRPOTrainer):
        credit = "mt_grpo"
        credit_options = {"gamma": 0.9}

Tested against TRL 1.16 itself. A turn is a run of the model's own tokens (`tool_mask`). A completion's reward is at its
last token; where its input has `turn_rewards` (from `rollout_func`, one number a turn), they are added at the ends of
turns, and `turn_states`, likewise, name the states before them; a row may have None. The groups are those of one
process: with several, each needs entire groups (per_device_train_batch_size × gradient accumulation a multiple of
num_generations).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from agentgym_credit.rows import from_rows


class TurnCredit:
    """Put before GRPOTrainer among a class' bases."""

    credit: ClassVar[str] = "grpo"
    credit_options: ClassVar[dict[str, Any]] = {}

    def _calculate_rewards(self: Any, inputs: Any, *rest: Any) -> Any:
        rewards = super()._calculate_rewards(inputs, *rest)  # type: ignore[misc]
        first = self.accelerator.process_index * len(inputs)
        own = rewards[first : first + len(inputs)] * self.reward_weights.to(rewards.device)
        self._played = inputs, own.nansum(dim=1).cpu().numpy()
        return rewards

    def _generate_and_score_completions(self: Any, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)  # type: ignore[misc]
        mask = (output["completion_mask"] * output.get("tool_mask", 1)).cpu().numpy().astype(bool)
        inputs, rewards = self._played
        group = self.num_generations if self.model.training else self.num_generations_eval
        reward_BT = np.zeros(mask.shape)
        for row in np.flatnonzero(mask.any(axis=1)):  # a completion that is masked out has nothing to learn from
            ends = np.flatnonzero(mask[row] & ~np.append(mask[row, 1:], False))
            if (given := inputs[row].get("turn_rewards")) is not None:
                if np.shape(given) != ends.shape:
                    raise ValueError(f"row {row} has {len(ends)} turns and {np.size(given)} turn_rewards: one a turn")
                reward_BT[row, ends] = given
            reward_BT[row, ends[-1]] += rewards[row]
        advantages = output["advantages"].new_zeros(mask.shape)
        if mask.any():
            states = [own.get("turn_states") for own in inputs]
            rows = from_rows(mask, reward_BT, np.arange(len(mask)) // group, states=states, skip_idle=True)
            rows = replace(rows, group_size=self.num_generations)  # an evaluation may have one attempt a task
            advantages = advantages.new_tensor(rows.assign(self.credit, **self.credit_options))
        return {**output, "advantages": advantages}
