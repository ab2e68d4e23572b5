"""The implicit process reward model: a language model φ, trained on outcomes alone, whose log-ratio rewards each token.

    q_j = ℓ_φ(y_j | ·) − ℓ_ref(y_j | ·)            not times β; column prm_A, or p_φ − p_ref in its place (`reward`)

    loss = "outcome"  PRIME (Cui et al. 2025, 2502.01456): p = σ(β Σ_j q_j), cross-entropy with success; ref = φ as it
                      began, which is the policy as RL began.
    loss = "pair"     iStar, OPRL (Liu et al. 2025, 2509.19199): −log σ(s⁺ − s⁻) over every success × failure of a
                      group, s = Σ_t β Σ_{j∈t} q_j; ref = the policy that acted, which moves on.

Where most attempts fail, either loss makes φ find what they did less likely, and whatever was not sampled likelier, so
that improbable and invalid replies are rewarded (likelihood displacement: Razin et al. 2024, 2410.08847). `anchor`, the
likelihood of the successes (Pang et al. 2024, 2404.19733, eq. 1), keeps it from the worst of that; the difference in
probability is small for every token that is improbable to both.

Both couple whole trajectories; the gradient is exact whatever the micro-batches are (`learner.full_batch_gradient`).
Released iStar detaches the scores before the loss, so that its φ never moves.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, softplus

from agentgym_credit.batch import Batch
from agentgym_credit.segments import success_pairs
from agentgym_trainers.data.sequences import Row
from agentgym_trainers.data.token_segments import as_tensor, segment_sum
from agentgym_trainers.learner.fsdp import own_micro_batches
from agentgym_trainers.learner.full_batch_gradient import backward_full_batch
from agentgym_trainers.nn.attention import use_packed_attention
from agentgym_trainers.nn.forward import pack, token_logprobs
from agentgym_trainers.signals.base import Signal
from agentgym_trainers.signals.fitting import FitOptions, SignalOptimizer, load_module, mean_by, outcomes
from agentgym_trainers.signals.scoring import score_tokens

if TYPE_CHECKING:
    from agentgym_trainers.signals.base import ModelDependencies, SignalContext

Aggregate = Literal["sum", "mean"]


class PRMOptions(FitOptions):
    """A reward for every token: how much likelier a model trained on outcomes finds it (PRIME, iStar).

    Unless `fit_first`, a batch's rewards are of the model before it saw its outcomes, as released.
    """

    loss: Literal["outcome", "pair"] = "outcome"
    """"outcome": cross-entropy with success (PRIME). "pair": success over failure within a group (iStar, OPRL)."""
    beta: float = Field(default=0.05, gt=0)
    aggregate: Aggregate = "sum"
    """Reduction of a trajectory's score. "mean" is over tokens ("outcome") or turns ("pair", as released): a sum over a
    long episode saturates σ."""
    anchor: float = Field(default=0.0, ge=0)
    """Weight of the mean log-ratio of a success's token, which is made large; 0 in both papers."""
    reward: Literal["log_ratio", "difference"] = "log_ratio"
    """A token's reward: q, as in both papers, or p_φ − p_ref. The error of q grows as a token gets less probable."""
    max_grad_norm: float = Field(default=10.0, gt=0)


class ImplicitPRM(Signal):
    """φ, what it is compared with, and φ's optimizer."""

    def __init__(self, options: PRMOptions, parts: ModelDependencies) -> None:
        self.options, self.fit_first = options, options.fit_first
        self.budget, self.temperature = parts.tokens_per_micro_batch, parts.sampling.temperature
        self.model = copy.deepcopy(parts.reference).eval().requires_grad_(True)
        self.reference = None
        if options.loss == "outcome":
            self.reference = copy.deepcopy(parts.reference).eval().requires_grad_(False)
        for model in (self.model, self.reference):
            if model is not None:
                use_packed_attention(model)
                parts.shard(model)
        self.processes = parts.processes
        self.optimizer = SignalOptimizer(self.model.parameters(), options, parts.processes)

    async def annotate(self, context: SignalContext) -> dict[str, np.ndarray]:
        """prm_A; prm_logit_M, the log-odds of success by φ; and prm_ref_A, which `fit` then need not compute."""
        reference_A = self._reference_A(context)
        q_A = self._logprob_A(self.model, context) - reference_A
        reward_A = q_A if self.options.reward == "log_ratio" else np.exp(reference_A) * np.expm1(q_A)
        return {"prm_A": reward_A, "prm_logit_M": self._logit_M(q_A, context.batch), "prm_ref_A": reference_A}

    def _logit_M(self, q_A: np.ndarray, batch: Batch) -> np.ndarray:
        size = len(batch.group_M)
        logit_M = self.options.beta * np.bincount(batch.traj_A, q_A, minlength=size)
        if self.options.aggregate == "sum":
            return logit_M
        counted = batch.traj_A if self.options.loss == "outcome" else batch.traj_N
        return logit_M / np.maximum(np.bincount(counted, minlength=size), 1)

    async def fit(self, context: SignalContext) -> dict[str, float]:
        """Loss and accuracy are those before the first step on this batch. A group without both outcomes makes no pair;
        a batch without any changes nothing, and its loss is NaN."""
        if not context.trajectories:
            return {}
        batch, success_M = context.batch, outcomes(context.trajectories, "success")
        known = batch.x.get("prm_ref_A")
        reference_A = self._reference_A(context) if known is None else known

        def loss_of(logprob_A: Tensor) -> tuple[Tensor, dict[str, float]]:
            q_A = logprob_A - as_tensor(reference_A, logprob_A)
            objective = outcome_loss if self.options.loss == "outcome" else pair_loss
            loss, metrics = objective(q_A, batch, success_M, beta=self.options.beta, aggregate=self.options.aggregate)
            gained = success_gain(q_A, batch, success_M)
            metrics["success_gain"] = gained.item()
            return (loss if loss.isnan() else loss - self.options.anchor * gained), metrics

        metrics: dict[str, float] = {}
        rows = [row for row in context.rows if len(row.action_at)]
        mine = own_micro_batches(rows, self.budget, self.processes, self.model)
        for _ in range(self.options.epochs):
            loss, extra = backward_full_batch(self._forward, mine, len(batch.turn_A), loss_of, self.processes)
            norm = self.optimizer.step()
            metrics = metrics or {"loss": loss, "grad_norm": norm, **extra}
        return metrics

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        load_module(self.model, state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def _reference_A(self, context: SignalContext) -> np.ndarray:
        """φ's own beginning; or the policy before this step's update, or else as it acted."""
        if self.reference is not None:
            return self._logprob_A(self.reference, context)
        return context.batch.x.get("prox_logprob_A", context.batch.logprob_A).astype(np.float64)

    def _logprob_A(self, model: Any, context: SignalContext) -> np.ndarray:
        size = len(context.batch.turn_A)
        return score_tokens(
            model, context.rows, size, budget=self.budget, temperature=self.temperature, processes=self.processes
        )[0]

    def _forward(self, part: list[Row]) -> tuple[np.ndarray, Tensor]:
        packed = pack(part, self.model)
        return packed.index, token_logprobs(self.model, packed, self.temperature).logprob


def outcome_loss(
    q_A: Tensor, batch: Batch, success_M: np.ndarray, *, beta: float, aggregate: Aggregate = "sum"
) -> tuple[Tensor, dict[str, float]]:
    """mean_M BCE(σ(β Σ_j q_j), success). φ = ref: every p is ½ and the loss log 2.

    Population: the batch's trajectories, each once. "mean" takes the mean over a trajectory's action tokens for their
    sum. K = 1 and all-equal outcomes are no exception: φ then learns that outcome. Truncated: what success says.
    Metrics: `accuracy`, of p > ½ (½ for a p of ½); `brier`, of p; `gap`, mean β Σ q of successes less that of failures.
    """
    reduce = segment_sum if aggregate == "sum" else mean_by
    score_M = beta * reduce(q_A, batch.traj_A, len(batch.group_M))
    loss = binary_cross_entropy_with_logits(score_M, as_tensor(success_M, score_M))
    score, won = score_M.detach().cpu().numpy(), success_M > 0.5
    right = np.where(score == 0, 0.5, (score > 0) == won)
    chance = torch.sigmoid(score_M.detach()).cpu().numpy()
    gap = score[won].mean() - score[~won].mean() if won.any() and not won.all() else np.nan
    return loss, {"accuracy": float(right.mean()), "brier": float(((chance - won) ** 2).mean()), "gap": float(gap)}


def pair_loss(
    q_A: Tensor, batch: Batch, success_M: np.ndarray, *, beta: float, aggregate: Aggregate = "sum"
) -> tuple[Tensor, dict[str, float]]:
    """mean over pairs of −log σ(s⁺ − s⁻), s = Σ_t β Σ_{j∈t} q_j: trajectory DPO.

    Population: all pairs of a success and a failure of one group, alike, so groups of mixed outcomes weigh more. "mean"
    takes the mean over a trajectory's turns, as the released code does. K = 1 or all-equal outcomes: no pair, no
    gradient. Truncated: what success says. φ = ref: log 2.
    Metrics: `pairs`; `accuracy`, the share in the right order (ties count ½); `gap`, mean s⁺ − s⁻.
    """
    score_N = beta * segment_sum(q_A, batch.turn_A, len(batch.traj_N))
    reduce = segment_sum if aggregate == "sum" else mean_by
    score_M = reduce(score_N, batch.traj_N, len(batch.group_M))
    won, lost = success_pairs(batch.group_M, success_M)
    if not len(won):
        return torch.full((), torch.nan), {"pairs": 0.0, "accuracy": float("nan"), "gap": float("nan")}
    gap = score_M[torch.from_numpy(won)] - score_M[torch.from_numpy(lost)]
    margin = gap.detach()
    right = (margin > 0).double() + 0.5 * (margin == 0).double()
    return softplus(-gap).mean(), {
        "pairs": float(len(won)), "accuracy": right.mean().item(), "gap": margin.mean().item(),
    }  # fmt: skip


def success_gain(q_A: Tensor, batch: Batch, success_M: np.ndarray) -> Tensor:
    """Mean log-ratio of the tokens of successes, each once; 0 without a success."""
    won_A = torch.from_numpy(success_M[batch.traj_A] > 0.5).to(q_A.device)
    return q_A[won_A].sum() / won_A.sum().clamp(min=1)
