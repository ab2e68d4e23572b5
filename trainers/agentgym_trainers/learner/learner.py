"""The learner: forwards rows, adds up losses, takes optimizer steps. It does not know the names of methods.

Shapes: A action tokens, N turns, M trajectories of the batch; a leading lower-case name says "of these rows".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from agentgym_credit.batch import Batch, Credit
from agentgym_trainers import losses
from agentgym_trainers.config.sections import LossOptions, OptimOptions
from agentgym_trainers.data.sequences import Row
from agentgym_trainers.learner import fsdp
from agentgym_trainers.learner.critic import Critic
from agentgym_trainers.learner.full_batch_gradient import full_batch_gradient
from agentgym_trainers.learner.nonfinite import nonfinite_gradients
from agentgym_trainers.learner.optimizer import make_optimizer
from agentgym_trainers.learner.train_step import TrainStep
from agentgym_trainers.monitoring.turn_bins import NAMES, shares_by_bin
from agentgym_trainers.nn import lora
from agentgym_trainers.nn.attention import use_packed_attention
from agentgym_trainers.nn.forward import pack, token_logprobs
from agentgym_trainers.nn.precision import Dtype, autocast
from agentgym_trainers.nn.process_group import SINGLE_PROCESS, DataParallel


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """Outputs of the models for some rows. `index` places each entry among the batch's action tokens."""

    index: np.ndarray
    logprob: Tensor
    entropy: Tensor
    value: Tensor | None
    """The value head's output, to be read by `Critic.read`."""
    bootstrap: list[tuple[int, Tensor]]
    """(trajectory, output for its final observation)"""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """One optimizer batch, and what of it is the same for all its micro-batches."""

    batch: Batch
    credit: Credit
    options: LossOptions
    weights_A: np.ndarray
    """Weights of the objective: the reducer's, times the corrector's."""
    plain_A: np.ndarray
    """Weights of the regularizers: the reducer's. A token too old to learn from is still held by the KL."""
    value_parts: tuple[np.ndarray, np.ndarray] | None
    gradient_A: Tensor | None
    """∂(policy loss)/∂logprob_A, of objectives whose unit is larger than a token."""
    by_turn: tuple[np.ndarray, np.ndarray]
    """`shares_by_bin` of the batch."""

    @property
    def old_logprob_A(self) -> np.ndarray:
        """Denominator of the ratio: the weights before the update if a corrector weighs those against the engine's,
        else what sampled. (The one without the other would be the ratio to a policy that did not act, uncorrected.)"""
        return self.batch.x["prox_logprob_A"] if self.credit.corrected else self.batch.logprob_A


class Learner(TrainStep):
    """A policy, perhaps a critic, perhaps a frozen reference, and their optimizer."""

    def __init__(
        self,
        model: Any,
        optim: OptimOptions,
        *,
        temperature: float = 1.0,
        value: Critic | None = None,
        reference: Any = None,
        processes: DataParallel = SINGLE_PROCESS,
        dtype: Dtype = "float32",
    ) -> None:
        """`temperature` is the engine's: log-probabilities are those of the distribution that was sampled. Every one of
        `processes` is given the same rows, and forwards its share. A `reference` that is the model itself is the model
        with its adapters off. All models compute in `dtype`, whatever their weights are in."""
        for part in (model, value.trunk if value else None, reference):
            if part is not None:
                use_packed_attention(part)
        self.model, self.value, self.reference = model, value, reference
        self.optim, self.temperature, self.processes = optim, temperature, processes
        self.dtype: Dtype = dtype
        self.sharded = fsdp.is_sharded(model)
        self.not_finite, self.regularizers = [], {name: kind() for name, kind in losses.REGULARIZERS.items()}
        self.optimizer = make_optimizer(model, value, optim)

    def weights(self) -> Mapping[str, Tensor]:
        """The policy's, by name, as an engine samples from them: adapters are merged when they are read, until the next
        step. Sliced ones are put together in the process of rank 0, and the others get none; call it in all."""
        weights = fsdp.full_state_dict(self.model.state_dict(), self.processes)
        if self.sharded and self.processes.rank:
            return {}
        return lora.merge_lora(weights, self.model)

    def state_dict(self, *, gather: bool = True) -> dict[str, Any]:
        """All that decides how learning goes on, but the model's own weights. Of sliced models, as `weights`, or unless
        `gather` the slices of this process."""
        state = {
            "optimizer": self.optimizer.state_dict(),
            "value": self.value.state_dict() if self.value is not None else None,
            "adapters": lora.state_of(self.model.state_dict()),
            "regularizers": {name: part.state_dict() for name, part in self.regularizers.items()},
        }
        return fsdp.full_state_dict(state, self.processes) if gather else state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Raises CheckpointError where the state is of other adapters."""
        self.optimizer.load_state_dict(fsdp.shard_optimizer_state_dict(state["optimizer"], self.optimizer))
        if self.value is not None:
            self.value.load_state_dict(fsdp.shard_state_dict(state["value"], self.value.state_dict()))
        lora.load(self.model, fsdp.shard_state_dict(state.get("adapters", {}), self.model.state_dict()))
        for name, values in state["regularizers"].items():
            self.regularizers[name].load_state_dict(values)

    def set_lr(self, lr: float) -> None:
        """The policy's, from now on."""
        self.optimizer.param_groups[0]["lr"] = lr

    def end_step(self, options: LossOptions, metrics: Mapping[str, float]) -> None:
        for name, regularizer in self.regularizers.items():
            if getattr(options, name) is not None:
                regularizer.end_step(metrics)

    def annotate(self, batch: Batch, rows: Sequence[Row], *, prox: bool = False) -> Batch:
        """Add what the critic and the reference say, and with `prox` the policy, before anything is updated."""
        columns: dict[str, np.ndarray] = {}
        if self.value is not None:
            columns |= self._values(batch, rows)
        if self.reference is not None:
            with lora.disable_lora(self.reference):
                columns["ref_logprob_A"] = self.logprobs(batch, rows, self.reference)
        if prox:
            columns["prox_logprob_A"] = self.logprobs(batch, rows)
        return batch.with_columns(**columns)

    def _values(self, batch: Batch, rows: Sequence[Row]) -> dict[str, np.ndarray]:
        assert self.value is not None
        value_A, bootstrap_M = np.zeros(len(batch.turn_A)), np.zeros(len(batch.group_M))
        with torch.no_grad():
            for part in self._mine(rows):
                outputs = self._forward(part, logits=False)
                assert outputs.value is not None
                value_A[outputs.index] = self.value.read(outputs.value).cpu().numpy()
                for m, output in outputs.bootstrap:
                    bootstrap_M[m] = self.value.read(output[None])[0].item()
        for column in (value_A, bootstrap_M):
            self.processes.sum(torch.from_numpy(column))
        return {"value_A": value_A, "value_N": value_A[batch.first_A], "bootstrap_M": bootstrap_M}

    def logprobs(self, batch: Batch, rows: Sequence[Row], model: Any = None) -> np.ndarray:
        """float64[A]: each action token's log-probability under the present weights, or under another model's."""
        logprob_A = np.zeros(len(batch.turn_A))
        with torch.no_grad():
            for part in self._mine(rows):
                outputs = self._forward(part, model=model, critic=False)
                logprob_A[outputs.index] = outputs.logprob.cpu().numpy()
        self.processes.sum(torch.from_numpy(logprob_A))
        return logprob_A

    def imitate(self, rows: Sequence[Row], weights_A: np.ndarray) -> dict[str, float]:
        """One optimizer step of cross-entropy on the rows' action tokens; `weights_A` as from `token_weights`."""
        total = 0.0
        for part in self._mine(rows):
            outputs = self._forward(part, critic=False)
            weights = _tensor(weights_A[outputs.index], outputs.logprob)
            loss = (weights * losses.cross_entropy(outputs.logprob)).sum()
            loss.backward()
            total += loss.item()
        return self._stepped(self.processes.add({"loss/cross_entropy": total}))

    def update(self, batch: Batch, rows: Sequence[Row], credit: Credit, options: LossOptions) -> dict[str, float]:
        """One optimizer step on this whole batch, however many micro-batches it takes. Returns mean metrics."""
        parts = self._mine(rows)
        task, sums = self._task(batch, credit, options, parts)
        largest = set()
        for part in parts:
            outputs = self._forward(part, critic=task.value_parts is not None)
            loss, metrics = self._loss(outputs, task)
            loss.backward()
            share = len(outputs.index) / len(batch.turn_A)
            for name, (value, how) in metrics.items():
                if how == "max":
                    largest.add(name)
                    sums[name] = max(sums.get(name, 0.0), value)
                else:
                    sums[name] = sums.get(name, 0.0) + value * (share if how == "mean" else 1.0)
        return self._stepped(self.processes.add(sums, sorted(largest)))

    def fit_value(self, batch: Batch, rows: Sequence[Row], credit: Credit) -> dict[str, float]:
        """One optimizer step of the critic alone, on this whole batch."""
        value_parts = _targets(batch, credit)
        assert self.value is not None
        assert value_parts is not None
        total = 0.0
        for part in self._mine(rows):
            outputs = self._forward(part, logits=False)
            assert outputs.value is not None
            target, weight = (_tensor(column[outputs.index], outputs.value) for column in value_parts)
            loss = (weight * self.value.loss(outputs.value, target)).sum()
            loss.backward()
            total += loss.item()
        return self._stepped(self.processes.add({"loss/value": total}))

    def _task(
        self, batch: Batch, credit: Credit, options: LossOptions, parts: list[list[Row]]
    ) -> tuple[LossInputs, dict[str, float]]:
        """The optimizer batch, and the metrics of an objective that sees it whole."""
        plain_A = losses.token_weights(batch, options.reducer, options.reducer_length)
        weights_A = plain_A if credit.weight_A is None else plain_A * credit.weight_A
        value_parts = _targets(batch, credit) if self.value is not None else None
        objective = losses.OBJECTIVES[options.objective]
        task = LossInputs(batch, credit, options, weights_A, plain_A, value_parts, None, shares_by_bin(batch))
        if objective.unit == "token":
            return task, {}

        def loss_of(logprob_A: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            old, advantage, weights = (
                _tensor(column, logprob_A) for column in (task.old_logprob_A, credit.advantage_A, weights_A)
            )
            return objective.function(logprob_A, old, batch, advantage, weights, **options.options)

        def forward(part: list[Row]) -> tuple[np.ndarray, Tensor]:
            outputs = self._forward(part, critic=False)
            return outputs.index, outputs.logprob

        gradient_A, loss, extra = full_batch_gradient(forward, parts, len(batch.turn_A), loss_of, self.processes)
        metrics = {"loss/policy": loss, **{f"policy/{name}": value.item() for name, value in extra.items()}}
        return replace(task, gradient_A=gradient_A), metrics if self.processes.rank == 0 else {}

    def _loss(self, outputs: ForwardOutput, task: LossInputs) -> tuple[Tensor, dict[str, tuple[float, str]]]:
        """The rows' share of the loss, and (metric, how it adds up over shares)."""
        index, logprob, options = outputs.index, outputs.logprob, task.options
        if not len(index):  # their loss is zero, and so is its gradient, which is there all the same
            return logprob.sum() + (outputs.value.sum() if outputs.value is not None else 0.0), {}
        old = _tensor(task.old_logprob_A[index], logprob)
        weights, plain = (_tensor(column[index], logprob) for column in (task.weights_A, task.plain_A))
        change = logprob.detach() - _tensor(task.batch.logprob_A[index], logprob)  # from what the engine said
        metrics = {
            "policy/entropy": (outputs.entropy.detach().mean().item(), "mean"),
            "policy/logprob_gap": (change.abs().max().item(), "max"),
            "policy/log_ratio": (change.mean().item(), "mean"),
            **self._mismatch(outputs, task),
        }
        if task.gradient_A is not None:
            loss = (task.gradient_A[torch.from_numpy(index)].to(logprob) * logprob).sum()
        else:
            advantage = _tensor(task.credit.advantage_A[index], logprob)
            policy, extra = losses.OBJECTIVES[options.objective].function(logprob, old, advantage, **options.options)
            loss = (weights * policy).sum()
            metrics["loss/policy"] = (loss.item(), "sum")
            for name, value in extra.items():
                metrics[f"policy/{name}"] = (value.item(), "max" if name.endswith("max") else "mean")
        if options.entropy:
            loss = loss + options.entropy * (plain * losses.entropy(outputs.entropy)).sum()
        for name, regularizer in self.regularizers.items():
            if (part := getattr(options, name)) is None:
                continue
            share = _tensor(losses.token_weights(task.batch, "trajectory_mean")[index], logprob)
            metrics["policy/entropy_trajectory"] = ((share * outputs.entropy.detach()).sum().item(), "sum")
            penalty = (plain * regularizer.penalty(outputs.entropy, part)).sum()
            metrics[f"loss/{name}"] = (penalty.item(), "sum")
            loss = loss + part.coefficient * penalty
        if options.kl:
            ref = _tensor(task.batch.x["ref_logprob_A"][index], logprob)
            penalty = (plain * losses.kl(logprob, ref, options.kl_estimator)).sum()
            metrics["loss/kl"] = (penalty.item(), "sum")
            loss = loss + options.kl * penalty
        if task.value_parts is not None:
            assert outputs.value is not None
            assert self.value is not None
            target, weight = (_tensor(part[index], logprob) for part in task.value_parts)
            critic = (weight * self.value.loss(outputs.value, target)).sum()
            metrics["loss/value"] = (critic.item(), "sum")
            loss = loss + critic
        return loss, metrics

    def _mismatch(self, outputs: ForwardOutput, task: LossInputs) -> dict[str, tuple[float, str]]:
        """Mismatch of learner and engine at tokens of the newest weights, and entropy by turn.

        "prob_error" is the mean of exp|ℓ − ℓ_engine|, "mismatch_kl" k3 of KL(engine ‖ learner): 1 and 0 where both
        compute the same distribution. They say so of the engine only before the first optimizer step of an update.
        """
        index, batch = outputs.index, task.batch
        change = outputs.logprob.detach().cpu().double().numpy() - batch.logprob_A[index]
        version_A = batch.x.get("version_A")
        if version_A is not None:
            newest = version_A == version_A.max()
            change, count = change[newest[index]], int(newest.sum())
        else:
            count = len(batch.turn_A)
        bounded = np.clip(change, -20, 20)  # e^20 says enough
        bin_A, share_A = task.by_turn
        spread = outputs.entropy.detach().cpu().double().numpy() * share_A[index]
        sums = np.bincount(bin_A[index], spread, minlength=len(NAMES))
        return {
            "policy/prob_error": (float(np.exp(np.abs(bounded)).sum()) / count, "sum"),
            "policy/mismatch_kl": (float((np.exp(bounded) - 1 - bounded).sum()) / count, "sum"),
            **{f"policy/entropy_turn_{NAMES[b]}": (float(sums[b]), "sum") for b in np.unique(bin_A).tolist()},
        }

    def _stepped(self, metrics: dict[str, float]) -> dict[str, float]:
        """The metrics of an optimizer batch, with those of its step."""
        return {
            **metrics,
            **self._step(all(math.isfinite(x) for name, x in metrics.items() if name.startswith("loss/"))),
        }

    def _step(self, finite: bool = True) -> dict[str, float]:
        """Sum over processes, clip, check, step. A gradient that is not finite steps nothing, nor does a loss that is
        not (`finite`): where it was clamped, its gradient is 0 and looks well.

        Nor does one that is exactly zero, as where every attempt of every group failed: Adam's momentum would carry the
        weights on, at full speed, in the direction of batches gone by.
        """
        norms = {}
        for name, group in zip(("grad_norm", "value_grad_norm"), self.optimizer.param_groups, strict=False):
            self.processes.sum_gradients(group["params"])
            gradients = [parameter.grad for parameter in group["params"] if parameter.grad is not None]
            norm = torch.nn.utils.get_total_norm(gradients)
            norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
            norms[f"optim/{name}"] = norm.item()
            if torch.isfinite(norm):
                torch.nn.utils.clip_grads_with_norm_(group["params"], self.optim.max_grad_norm, norm)
            else:
                finite = False
            if norm == 0:
                for parameter in group["params"]:
                    parameter.grad = None  # the optimizer leaves those alone, their moments too
        if finite:
            self.set_lr((lr := self.optimizer.param_groups[0]["lr"]) * self._rise())
            self.optimizer.step()
            self.set_lr(lr)
        else:
            self.not_finite = nonfinite_gradients({"": self.model, "value.": self.value})
        self.optimizer.zero_grad(set_to_none=True)
        return {**norms, "optim/skipped": 0.0 if finite else 1.0}

    def _rise(self) -> float:
        """The share of its rate that the policy's next step has. Adam's own count of steps is kept with its moments."""
        state, parameters = self.optimizer.state, self.optimizer.param_groups[0]["params"]
        taken = next((int(state[p]["step"]) for p in parameters if p in state), 0)
        return min(1.0, (taken + 1) / max(1, self.optim.warmup))

    def _mine(self, rows: Sequence[Row]) -> list[list[Row]]:
        """This process's micro-batches."""
        return fsdp.own_micro_batches(rows, self.optim.tokens_per_micro_batch, self.processes, self.model)

    def _forward(
        self, rows: list[Row], *, model: Any = None, critic: bool = True, logits: bool = True
    ) -> ForwardOutput:
        """One packed forward. Logits are computed at the positions that predict action tokens, nowhere else."""
        model = model or self.model
        with autocast(model, self.dtype):
            return self._forwarded(rows, model, critic, logits)

    def _forwarded(self, rows: list[Row], model: Any, critic: bool, logits: bool) -> ForwardOutput:
        packed = pack(rows, model)
        value = self.value if critic else None
        logprob = entropy = torch.zeros(len(packed.at), device=model.device)
        if logits:
            scores = token_logprobs(model, packed, self.temperature)
            logprob, entropy = scores.logprob, scores.entropy
        values, bootstrap = None, []
        if value is not None:
            cut = [(row.trajectory, int(at[-1])) for row, at in zip(rows, packed.places, strict=True) if row.bootstrap]
            final = torch.tensor([p for _, p in cut], dtype=torch.int64, device=model.device)
            both = value(packed.inputs, torch.cat([packed.at, final]))
            values = both[: len(packed.at)]
            bootstrap = [(m, both[len(packed.at) + i]) for i, (m, _) in enumerate(cut)]
        return ForwardOutput(packed.index, logprob, entropy, values, bootstrap)


def _targets(batch: Batch, credit: Credit) -> tuple[np.ndarray, np.ndarray] | None:
    """The critic's (target, weight) at each action token: every token's, or only a turn's first."""
    if "value_A" in credit.targets:
        return credit.targets["value_A"], np.full(len(batch.turn_A), 1 / max(len(batch.turn_A), 1))
    if "value_N" in credit.targets:
        target_A = credit.targets["value_N"][batch.turn_A]
        return target_A, np.where(batch.first_A, losses.turn_weights(batch)[batch.turn_A], 0.0)
    return None


def _tensor(array: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(like.device, like.dtype)
