"""The progress head: what each turn contributed to the outcome. Wang et al. 2025 (SPA-RL, 2505.20732).

    c_t = f(s_t, a_t), read at the last token of turn t        L = mean_M (Σ_t c_t − R)²,   ∂L/∂c_t = 2 (Σ c − R) / M

The released head reads the vocabulary's logits; this one reads the hidden state. The loss sees only sums: what tells
the turns of one attempt apart is other attempts that begin alike and end otherwise. Changes that sum to 0 within an
attempt cost nothing. Where the last turn alone shows the outcome, c = (0, ..., 0, R) fits perfectly, and only the
smoothness of f spreads credit to earlier turns: use few epochs, and look at more than the loss.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from agentgym_credit.batch import Batch
from agentgym_trainers.data.sequences import Row
from agentgym_trainers.data.token_segments import as_tensor, segment_sum
from agentgym_trainers.learner.fsdp import own_micro_batches
from agentgym_trainers.learner.full_batch_gradient import backward_full_batch
from agentgym_trainers.nn.attention import use_packed_attention
from agentgym_trainers.nn.forward import pack
from agentgym_trainers.signals.base import Signal
from agentgym_trainers.signals.fitting import FitOptions, Outcome, SignalOptimizer, calibration, load_module, outcomes

if TYPE_CHECKING:
    from agentgym_trainers.signals.base import ModelDependencies, SignalContext


KEEP = 0.9
"""Factor a batch of the sums that skill is measured by: some ten batches count."""


class ProgressOptions(FitOptions):
    """Contribution of each turn to the outcome: a head whose outputs sum to it over an attempt (SPA-RL)."""

    trunk: Literal["own", "frozen"] = "own"
    """"own": a copy of the policy's trunk as it was when RL began, trained too. "frozen": the copy is only read."""
    target: Outcome = "return"
    """Sum of the contributions: "return", the sum of the environment's rewards, or "success", 1 or 0."""
    divide: bool = False
    """c_t = f / H of an attempt of H turns. A long attempt then has no more gradient than a short one; but the same
    turn counts less in a longer attempt."""
    fit_steps: int | None = Field(default=None, ge=0)
    """RL steps in which it learns; as published all before the policy does. Unset, it goes on, and the two adapt to
    each other: the loss knows sums alone, so what a policy earns by turns that f overrates is taken from the turns
    before, which nothing that is still to come depends on."""


class ProgressHead(Signal):
    """f, the optimizer that trains it online, and the constant that it starts from."""

    def __init__(self, options: ProgressOptions, parts: ModelDependencies) -> None:
        self.options, self.fit_first = options, options.fit_first
        self.budget = parts.tokens_per_micro_batch
        self.trunk = copy.deepcopy(parts.reference.base_model).eval().requires_grad_(options.trunk == "own")
        use_packed_attention(self.trunk)
        dtype = torch.promote_types(self.trunk.dtype, torch.float32)
        self.head = nn.Linear(self.trunk.config.get_text_config().hidden_size, 1).to(self.trunk.device, dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        for module in (self.trunk, self.head):
            parts.shard(module)
        trained = [*self.head.parameters(), *(p for p in self.trunk.parameters() if p.requires_grad)]
        self.processes = parts.processes
        self.optimizer = SignalOptimizer(trained, options, parts.processes)
        self.started = False
        self.fits, self.missed, self.varied = 0, 0.0, 0.0

    async def annotate(self, context: SignalContext) -> dict[str, np.ndarray]:
        """progress_c_N, and progress_skill_M, the skill so far."""
        self._start(context)
        contribution_N = np.zeros(len(context.batch.traj_N))
        with torch.no_grad():
            for part in self._mine(context.rows):
                index, contribution = self.contributions(part, context.batch)
                contribution_N[index] = contribution.cpu().numpy()
        self.processes.sum(torch.from_numpy(contribution_N))
        return {"progress_c_N": contribution_N, "progress_skill_M": np.full(len(context.batch.group_M), self.skill)}

    async def fit(self, context: SignalContext) -> dict[str, float]:
        """Loss, correlation, mean error and skill are those before the first step on these attempts."""
        done = self.options.fit_steps is not None and context.step >= self.options.fit_steps
        if not context.trajectories or done:
            return {}
        self._start(context)
        batch, outcome_M = context.batch, outcomes(context.trajectories, self.options.target)

        def loss_of(contribution_N: Tensor) -> tuple[Tensor, np.ndarray]:
            total_M = segment_sum(contribution_N, batch.traj_N, len(batch.group_M))
            return progress_loss(total_M, as_tensor(outcome_M, total_M)), total_M.detach().cpu().numpy()

        metrics: dict[str, float] = {}
        mine = self._mine(context.rows)
        for _ in range(self.options.epochs):
            loss, total_M = backward_full_batch(
                lambda part: self.contributions(part, batch),
                mine,
                len(batch.traj_N),
                loss_of,
                self.processes,
            )
            norm = self.optimizer.step()
            if not metrics:
                if self.fits and len(outcome_M) > 1:  # the first batch's own mean is where the head began
                    self._measure(total_M, outcome_M)
                self.fits += 1
                metrics = {"loss": loss, "grad_norm": norm, "skill": self.skill, **calibration(total_M, outcome_M)}
        return metrics

    @property
    def skill(self) -> float:
        """Explained variance of outcomes by Σ_t c_t, 1 − Σ (R − Σ c)² / Σ (R − mean R)², over the last batches, each
        before it was learned from; 0 where it is negative. A constant error counts."""
        return max(0.0, 1 - self.missed / self.varied) if self.varied > 0 else 0.0

    def _measure(self, total_M: np.ndarray, outcome_M: np.ndarray) -> None:
        self.missed = KEEP * self.missed + float(((total_M - outcome_M) ** 2).sum())
        self.varied = KEEP * self.varied + float(outcome_M.var(ddof=1)) * len(outcome_M)

    def contributions(self, rows: list[Row], batch: Batch) -> tuple[np.ndarray, Tensor]:
        """(turns that end in these rows, their c): read at the position of a turn's last token."""
        packed = pack(rows, self.trunk)
        ends = np.flatnonzero(batch.last_A[packed.index])
        turns = batch.turn_A[packed.index[ends]]
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.options.trunk == "own"):
            hidden = self.trunk(**packed.inputs).last_hidden_state[0]
        at = packed.own[torch.from_numpy(ends).to(packed.own.device)]
        contribution = self.head(hidden[at].to(self.head.weight.dtype))[:, 0]
        if self.options.divide:
            contribution = contribution / as_tensor(np.bincount(batch.traj_N)[batch.traj_N[turns]], contribution)
        return turns, contribution

    def state_dict(self) -> dict[str, Any]:
        trunk = self.trunk.state_dict() if self.options.trunk == "own" else None
        return {
            "head": self.head.state_dict(), "trunk": trunk,
            "optimizer": self.optimizer.state_dict(), "started": self.started,
            "skill": (self.fits, self.missed, self.varied),
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_module(self.head, state["head"])
        if state["trunk"] is not None:
            load_module(self.trunk, state["trunk"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.started = state["started"]
        self.fits, self.missed, self.varied = state["skill"]

    def _start(self, context: SignalContext) -> None:
        """Start with equal contributions of all turns, whose sum over the mean attempt is the mean outcome."""
        if self.started:
            return
        self.started = True
        turns = 1.0 if self.options.divide else len(context.batch.traj_N) / len(context.batch.group_M)
        with torch.no_grad():
            self.head.bias.fill_(float(outcomes(context.trajectories, self.options.target).mean()) / turns)

    def _mine(self, rows: Sequence[Row]) -> list[list[Row]]:
        """This process's micro-batches."""
        acted = [row for row in rows if len(row.action_at)]
        return own_micro_batches(acted, self.budget, self.processes, self.trunk)


def progress_loss(total_M: Tensor, outcome_M: Tensor) -> Tensor:
    """mean_M (Σ_t c_t − R)². Population: the batch's attempts, each once. K = 1: no group is looked at. One turn: plain
    regression. Truncated: R is what was collected. All-equal R: that constant is learned."""
    return ((total_M - outcome_M) ** 2).mean()
