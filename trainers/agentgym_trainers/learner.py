"""The learner: forwards rows, adds up losses, takes optimiser steps. It does not know the names of methods.

Shapes: A action tokens, N turns, M trajectories of the batch; a leading lower-case name says "of these rows".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentgym_trainers import losses
from agentgym_trainers.attention import Segments, at_least_float32, positions, use_packed_attention
from agentgym_trainers.batch import Batch, Credit
from agentgym_trainers.config import LossOptions, OptimOptions
from agentgym_trainers.rows import Row
from agentgym_trainers.signals.value import ValueHead


@dataclass(frozen=True, slots=True)
class Outputs:
    """What the models say of some rows. `index` places each entry among the batch's action tokens."""

    index: np.ndarray
    logprob: Tensor
    entropy: Tensor
    value: Tensor | None
    bootstrap: list[tuple[int, Tensor]]
    """(trajectory, V of its final observation)"""


class Learner:
    """A policy, perhaps a critic, perhaps a frozen reference, and their optimiser."""

    def __init__(
        self,
        model: Any,
        optim: OptimOptions,
        *,
        temperature: float = 1.0,
        value: ValueHead | None = None,
        reference: Any = None,
    ) -> None:
        """`temperature` is the engine's: log-probabilities are those of the distribution that was sampled."""
        for part in (model, value.trunk if value else None, reference):
            if part is not None:
                use_packed_attention(part)
        self.model, self.value, self.reference = model, value, reference
        self.optim, self.temperature = optim, temperature
        groups = [{"params": list(model.parameters()), "lr": optim.lr}]
        if value is not None:
            groups.append({"params": list(value.parameters()), "lr": value.options.lr})
        self.optimizer = torch.optim.AdamW(groups, betas=optim.betas, weight_decay=optim.weight_decay, foreach=True)

    def annotate(self, batch: Batch, rows: Sequence[Row]) -> Batch:
        """Add what the critic and the reference say, before anything is updated."""
        if self.value is None and self.reference is None:
            return batch
        columns: dict[str, np.ndarray] = {}
        with torch.inference_mode():
            if self.value is not None:
                value_A, bootstrap_M = np.zeros(len(batch.turn_A)), np.zeros(len(batch.group_M))
                for outputs in self._forward_all(rows, logits=False):
                    assert outputs.value is not None
                    value_A[outputs.index] = outputs.value.cpu().numpy()
                    for m, value in outputs.bootstrap:
                        bootstrap_M[m] = value.item()
                columns |= {"value_A": value_A, "value_N": value_A[batch.first_A], "bootstrap_M": bootstrap_M}
            if self.reference is not None:
                ref_A = np.zeros(len(batch.turn_A))
                for outputs in self._forward_all(rows, model=self.reference, critic=False):
                    ref_A[outputs.index] = outputs.logprob.cpu().numpy()
                columns["ref_logprob_A"] = ref_A
        return batch.with_columns(**columns)

    def logprobs(self, batch: Batch, rows: Sequence[Row]) -> np.ndarray:
        """float64[A]: each action token's log-probability under the present weights."""
        logprob_A = np.zeros(len(batch.turn_A))
        with torch.inference_mode():
            for outputs in self._forward_all(rows, critic=False):
                logprob_A[outputs.index] = outputs.logprob.cpu().numpy()
        return logprob_A

    def imitate(self, rows: Sequence[Row], weights_A: np.ndarray) -> dict[str, float]:
        """One optimiser step of cross-entropy on the rows' action tokens; `weights_A` as from `token_weights`."""
        total = 0.0
        for part in self._micro_batches(rows):
            outputs = self._forward(part, critic=False)
            weights = _tensor(weights_A[outputs.index], outputs.logprob)
            loss = (weights * losses.cross_entropy(outputs.logprob)).sum()
            loss.backward()
            total += loss.item()
        return {"loss/cross_entropy": total, **self._step()}

    def update(self, batch: Batch, rows: Sequence[Row], credit: Credit, options: LossOptions) -> dict[str, float]:
        """One optimiser step on this whole batch, however many micro-batches it takes. Returns mean metrics."""
        weights_A = losses.token_weights(batch, options.reducer, options.reducer_length)
        parts = _targets(batch, credit) if self.value is not None else None
        sums: dict[str, float] = {}
        for part in self._micro_batches(rows):
            outputs = self._forward(part, critic=parts is not None)
            loss, metrics = self._loss(outputs, batch, credit.advantage_A, weights_A, parts, options)
            loss.backward()
            share = len(outputs.index) / len(batch.turn_A)
            for name, (value, how) in metrics.items():
                if how == "max":
                    sums[name] = max(sums.get(name, 0.0), value)
                else:
                    sums[name] = sums.get(name, 0.0) + value * (share if how == "mean" else 1.0)
        return {**sums, **self._step()}

    def _loss(
        self,
        outputs: Outputs,
        batch: Batch,
        advantage_A: np.ndarray,
        weights_A: np.ndarray,
        value_parts: tuple[np.ndarray, np.ndarray] | None,
        options: LossOptions,
    ) -> tuple[Tensor, dict[str, tuple[float, str]]]:
        """The rows' share of the loss, and (metric, how it adds up over shares)."""
        index, logprob = outputs.index, outputs.logprob
        old = _tensor(batch.logprob_A[index], logprob)
        advantage = _tensor(advantage_A[index], logprob)
        weights = _tensor(weights_A[index], logprob)
        if options.objective == "ppo_clip":
            policy, seen = losses.ppo_clip(
                logprob, old, advantage, clip_low=options.clip_low, clip_high=options.clip_high,
                dual_clip=options.dual_clip,
            )  # fmt: skip
        else:
            policy, seen = losses.policy_gradient(logprob, advantage)
        loss = (weights * policy).sum()
        gap = (logprob.detach() - old).abs().max().item() if len(index) else 0.0
        metrics = {
            "loss/policy": (loss.item(), "sum"),
            "policy/entropy": (outputs.entropy.detach().mean().item() if len(index) else 0.0, "mean"),
            "policy/logprob_gap": (gap, "max"),
            **{
                f"policy/{name}": (value.item(), "max" if name.endswith("max") else "mean")
                for name, value in seen.items()
            },
        }
        if options.entropy:
            loss = loss + options.entropy * (weights * losses.entropy(outputs.entropy)).sum()
        if options.kl:
            ref = _tensor(batch.x["ref_logprob_A"][index], logprob)
            penalty = (weights * losses.kl(logprob, ref, options.kl_estimator)).sum()
            metrics["loss/kl"] = (penalty.item(), "sum")
            loss = loss + options.kl * penalty
        if value_parts is not None:
            assert outputs.value is not None
            assert self.value is not None
            target, weight = (_tensor(part[index], logprob) for part in value_parts)
            critic = (weight * losses.value_loss(outputs.value, target)).sum()
            metrics["loss/value"] = (critic.item(), "sum")
            loss = loss + self.value.options.coefficient * critic
        return loss, metrics

    def _step(self) -> dict[str, float]:
        """Clip, check, step. A gradient that is not finite steps nothing."""
        norms = {}
        finite = True
        for name, group in zip(("grad_norm", "value_grad_norm"), self.optimizer.param_groups, strict=False):
            norm = torch.nn.utils.clip_grad_norm_(group["params"], self.optim.max_grad_norm)
            finite = finite and bool(torch.isfinite(norm))
            norms[f"optim/{name}"] = norm.item()
        if finite:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return {**norms, "optim/skipped": 0.0 if finite else 1.0}

    def _micro_batches(self, rows: Sequence[Row]) -> Iterator[list[Row]]:
        """Rows in order, cut where the next one would exceed the token budget."""
        part: list[Row] = []
        tokens = 0
        for row in rows:
            if part and tokens + len(row.ids) > self.optim.tokens_per_micro_batch:
                yield part
                part, tokens = [], 0
            part.append(row)
            tokens += len(row.ids)
        if part:
            yield part

    def _forward_all(self, rows: Sequence[Row], **options: Any) -> Iterator[Outputs]:
        for part in self._micro_batches(rows):
            yield self._forward(part, **options)

    def _forward(self, rows: list[Row], *, model: Any = None, critic: bool = True, logits: bool = True) -> Outputs:
        """One packed forward. Logits are computed at the positions that predict action tokens, nowhere else."""
        model = model or self.model
        lengths = [len(row.ids) for row in rows]
        starts = np.cumsum([0, *lengths[:-1]])
        ids = torch.from_numpy(np.concatenate([row.ids for row in rows])).to(model.device)
        at = np.concatenate([row.action_at - 1 + start for row, start in zip(rows, starts, strict=True)])
        index = np.concatenate([row.action_index for row in rows])
        inputs = {
            "input_ids": ids[None],
            "position_ids": positions(lengths, model.device),
            "use_cache": False,
            "layout": Segments(lengths),
        }
        value = self.value if critic else None
        at_t = torch.from_numpy(at).to(model.device)
        logprob = entropy = torch.zeros(len(at), device=model.device)
        hidden = None
        if logits or (value is not None and value.trunk is None):
            out = model(**inputs, logits_to_keep=at_t, output_hidden_states=value is not None and value.trunk is None)
            hidden = out.hidden_states[-1][0] if out.hidden_states is not None else None
            distribution = torch.log_softmax(at_least_float32(out.logits[0]) / self.temperature, dim=-1)
            logprob = distribution.gather(1, ids[at_t + 1][:, None])[:, 0]
            entropy = -(distribution.exp() * distribution).sum(dim=-1)
        values, bootstrap = None, []
        if value is not None:
            cut = [
                (row.trajectory, start + len(row.ids) - 1)
                for row, start in zip(rows, starts, strict=True)
                if row.bootstrap
            ]
            wanted = torch.cat([at_t, torch.tensor([p for _, p in cut], dtype=torch.int64, device=model.device)])
            both = value(inputs, hidden, wanted)
            values = both[: len(at)]
            bootstrap = [(m, both[len(at) + i]) for i, (m, _) in enumerate(cut)]
        return Outputs(index, logprob, entropy, values, bootstrap)


def _targets(batch: Batch, credit: Credit) -> tuple[np.ndarray, np.ndarray] | None:
    """The critic's (target, weight) at each action token: every token's, or only a turn's first."""
    if "value_A" in credit.targets:
        a = len(batch.turn_A)
        return credit.targets["value_A"], np.full(a, 1 / max(a, 1))
    if "value_N" in credit.targets:
        target_A = credit.targets["value_N"][batch.turn_A]
        return target_A, np.where(batch.first_A, losses.turn_weights(batch)[batch.turn_A], 0.0)
    return None


def _tensor(array: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(like.device, like.dtype)
