"""The value of an instruction: what a task is worth before the first action.

A head on a frozen trunk, the policy as RL began, read at the last token of the first prompt. DigiRL's V_inst (Bai et
al. 2024, 2406.11896): two classes, success. A-LoL's V_ref (Baheti et al. 2024, 2305.14718): regression on the return.
Its use is A_inst = R − V_inst: which attempts, or which tasks, to learn from.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from agentgym_trainers.data.sequences import Row
from agentgym_trainers.data.token_segments import as_tensor
from agentgym_trainers.learner.critic import Readout, ReadoutOptions
from agentgym_trainers.learner.fsdp import DUMMY_ROW, own_micro_batches
from agentgym_trainers.nn.attention import use_packed_attention
from agentgym_trainers.nn.forward import pack
from agentgym_trainers.signals.base import Signal
from agentgym_trainers.signals.fitting import FitOptions, Outcome, SignalOptimizer, calibration, outcomes

if TYPE_CHECKING:
    from agentgym_trainers.signals.base import ModelDependencies, SignalContext


class InstructionOptions(ReadoutOptions, FitOptions):
    """Value of a task before the first action: a head on a frozen trunk (DigiRL's V_inst, A-LoL's V_ref)."""

    head: Literal["scalar", "two_class", "hl_gauss"] = "two_class"
    target: Outcome = "success"
    """"success", 1 or 0 (DigiRL), or "return", the sum of the environment's rewards (A-LoL, with head = "scalar")."""


class InstructionValue(Signal):
    """The head, its frozen trunk, and its optimizer."""

    def __init__(self, options: InstructionOptions, parts: ModelDependencies) -> None:
        self.options, self.fit_first = options, options.fit_first
        self.budget, self.processes = parts.tokens_per_micro_batch, parts.processes
        self.trunk = copy.deepcopy(parts.reference.base_model).eval().requires_grad_(False)
        use_packed_attention(self.trunk)
        parts.shard(self.trunk)  # the head is whole in every process, and learns the same in each
        self.head = Readout(self.trunk.config.get_text_config().hidden_size, options).to(self.trunk.device)
        self.optimizer = SignalOptimizer(self.head.parameters(), options)

    async def annotate(self, context: SignalContext) -> dict[str, np.ndarray]:
        """inst_value_M: the same for every attempt at one task."""
        with torch.no_grad():
            return {"inst_value_M": self.head.read(self.head(self._features_MH(context))).cpu().numpy().astype(float)}

    async def fit(self, context: SignalContext) -> dict[str, float]:
        """Loss and calibration are those before the first step on this batch. `bias`: mean V less the mean outcome."""
        if not context.trajectories:
            return {}
        features_MH, outcome_M = self._features_MH(context), outcomes(context.trajectories, self.options.target)
        metrics: dict[str, float] = {}
        for _ in range(self.options.epochs):
            out = self.head(features_MH)
            loss = self.head.loss(out, as_tensor(outcome_M, out)).mean()
            loss.backward()
            norm = self.optimizer.step()
            prediction_M = self.head.read(out.detach()).cpu().numpy()
            metrics = metrics or {"loss": loss.item(), "grad_norm": norm, **calibration(prediction_M, outcome_M)}
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return {"head": self.head.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.head.load_state_dict(state["head"])
        self.optimizer.load_state_dict(state["optimizer"])

    def _features_MH(self, context: SignalContext) -> Tensor:
        """The trunk's state after each trajectory's first prompt; every distinct prompt is computed once."""
        prompts = first_prompts(context)
        places = {prompt.tobytes(): i for i, prompt in enumerate(prompts)}
        order = {key: number for number, key in enumerate(places)}
        none = np.zeros(0, np.int64)
        rows = [Row(prompts[i], none, none, number, False) for number, i in enumerate(places.values())]
        state_PH = torch.zeros(
            len(rows), self.trunk.config.get_text_config().hidden_size, device=self.trunk.device
        )  # float32
        with torch.no_grad():
            for part in own_micro_batches(rows, self.budget, self.processes, self.trunk):
                packed = pack(part, self.trunk)
                ends = np.array([place[-1] for place in packed.places])
                hidden = self.trunk(**packed.inputs).last_hidden_state[0][torch.from_numpy(ends)]
                for row, state in zip(part, hidden, strict=True):
                    if row is not DUMMY_ROW:
                        state_PH[row.trajectory] = state
        self.processes.sum(state_PH)
        return state_PH[[order[prompt.tobytes()] for prompt in prompts]]


def first_prompts(context: SignalContext) -> list[np.ndarray]:
    """Tokens of each trajectory before its first sampled one."""
    batch = context.batch
    firsts = np.flatnonzero(np.append(True, np.diff(batch.traj_A) != 0))
    found = {}
    for row in context.rows:
        for at in row.action_at[row.action_index == firsts[row.trajectory]]:
            found[row.trajectory] = row.ids[:at]
    return [found[m] for m in range(len(batch.group_M))]
