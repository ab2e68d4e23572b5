"""ArCHer's critic (Zhou et al. 2024, 2402.19446): twin utterance-level Q and V, learned off-policy by TD.

    L_Q = Σ_i mean (Q_i(s, a) − sg[r + γ (1 − d) V̄_i(s')])²    on replayed turns; d = 0 where a limit cut the episode
    L_V = Σ_i mean (V_i(s) − sg[Q̄_i(s, ã)])²,  ã ~ π(·|s)       freshly sampled: V is the present policy's value
    θ̄  ← (1 − τ) θ̄ + τ θ                                        after each step of the critic

V is NOT regressed on the buffer's actions: that would make it the value of the policies that filled the buffer. The
actor is trained on fresh actions at replayed states with A = min_i Q_i − min_i V_i (the difference of mins, not the min
of differences).

As released: one optimizer step a critic "epoch", on fresh draws from the buffer, then Polyak. Different on purpose: the
fresh actions of an iteration are sampled once, for a pool of replayed states that all its steps draw from; the stop
token belongs to the action; a cut episode bootstraps.

Shapes: i the two heads, B transitions, F features.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from agentgym_trainers.learner.fsdp import own_micro_batches, shard_optimizer_state_dict
from agentgym_trainers.nn.process_group import SINGLE_PROCESS, DataParallel
from agentgym_trainers.signals.archer.encoder import Read, features, reading_rows, row_index
from agentgym_trainers.signals.archer.transitions import Transition
from agentgym_trainers.signals.fitting import clip_gradients, load_module

Over = Literal["min", "max"]


class CriticOptions(BaseModel):
    """The twin critic and its replay buffer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    encoder: Literal["frozen", "trained", "warmed_up"] = "frozen"
    """A copy of the policy's trunk as RL began. "trained": learns with the heads, and has a slow copy of its own.
    "warmed_up": does so in the warm-up, and is frozen from then on."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of each head's ReLU layers; none makes it linear."""
    gamma: float = Field(default=0.95, gt=0, le=1)
    tau: float = Field(default=0.1, gt=0, le=1)
    """Step of the slow targets towards the weights."""
    lr: float = Field(default=1e-3, gt=0)
    """Learning rate of Adam. 2e-5 as published, for a pre-trained encoder that is trained."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    capacity: int = Field(default=100_000, gt=0)
    """Turns that are remembered."""
    pool: int = Field(default=1024, gt=0)
    """Turns drawn from the buffer an iteration, a fresh action sampled at each."""
    updates: int = Field(default=50, gt=0)
    """Optimizer steps an iteration, each on `batch` draws from the pool."""
    batch: int = Field(default=256, gt=0)
    warmup: int = Field(default=10, ge=0)
    """RL steps at the start in which only the critic learns: until then q_N and v_N are 0."""
    actor_states: int = Field(default=256, gt=0)
    """Replayed states an iteration at which the actor is trained."""


class Heads(nn.Module):
    """Two Q, which read state and state-action features side by side, and two V, which read state features.

    The last layers begin at 0, so that nothing has an advantage before something was learned.
    """

    def __init__(self, width: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.q_heads = nn.ModuleList(_mlp(2 * width, hidden) for _ in range(2))
        self.v_heads = nn.ModuleList(_mlp(width, hidden) for _ in range(2))

    def q(self, state_BF: Tensor, action_BF: Tensor) -> Tensor:
        """[2, B]"""
        both = torch.cat([state_BF, action_BF], dim=-1)
        return torch.stack([head(both)[:, 0] for head in self.q_heads])

    def v(self, state_BF: Tensor) -> Tensor:
        """[2, B]"""
        return torch.stack([head(state_BF)[:, 0] for head in self.v_heads])


def _mlp(width: int, hidden: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(width, size), nn.ReLU()]
        width = size
    last = nn.Linear(width, 1)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(*layers, last)


def q_targets(reward_B: Tensor, done_B: Tensor, next_v_iB: Tensor, gamma: float) -> Tensor:
    """[2, B]: r + γ (1 − d) V̄_i(s'). Each head has its own target; after `done` V̄ is not even read (it may be NaN)."""
    return reward_B + gamma * torch.where(done_B, 0.0, next_v_iB)


def q_loss(q_iB: Tensor, target_iB: Tensor) -> Tensor:
    """[B]: Σ_i (Q_i − target_i)²."""
    return ((q_iB - target_iB.detach()) ** 2).sum(dim=0)


def v_loss(v_iB: Tensor, q_iB: Tensor) -> Tensor:
    """[B]: Σ_i (V_i − Q̄_i)²."""
    return ((v_iB - q_iB.detach()) ** 2).sum(dim=0)


@torch.no_grad()
def polyak(slow: nn.Module, online: nn.Module, tau: float) -> None:
    """θ̄ ← (1 − τ) θ̄ + τ θ."""
    for old, new in zip(slow.parameters(), online.parameters(), strict=True):
        old.lerp_(new, tau)


@dataclass(frozen=True)
class CriticExamples:
    """Replayed turns; `acted` are the actions that V is regressed on, as (ids, last position)."""

    turns: list[Transition]
    acted: list[Read]

    def take(self, index: np.ndarray) -> CriticExamples:
        return CriticExamples([self.turns[i] for i in index], [self.acted[i] for i in index])

    @property
    def reads(self) -> list[Read]:
        """state, action, acted, next state of every turn, in four runs; after the end of an episode the state again,
        whose value nobody uses."""
        after = [(t.ids, t.start - 1) if t.done else (t.next_ids, t.next_stop - 1) for t in self.turns]
        return [*map(state_read, self.turns), *map(action_read, self.turns), *self.acted, *after]


def state_read(t: Transition) -> Read:
    return t.ids, t.start - 1


def action_read(t: Transition) -> Read:
    return t.ids, t.stop - 1


class Features(NamedTuple):
    """[B, F] each."""

    state: Tensor
    action: Tensor
    acted: Tensor
    after: Tensor


class TwinCritic:
    """Encoder, heads, their slow copies and the optimizer. A frozen encoder has no copy: it is its own.

    Of several processes each reads its share of the rows; the heads are whole in all of them, and take the same steps.
    """

    def __init__(
        self,
        encoder: Any,
        options: CriticOptions,
        budget: int,
        optimizer: Any = None,
        processes: DataParallel = SINGLE_PROCESS,
        shard: Callable[[Any], None] = lambda module: None,
    ) -> None:
        """`encoder` maps reads to [.., encoder.width]; `budget`: tokens a forward; `optimizer` makes one of parameters
        (Adam unless given); `shard` slices an encoder between the processes, in place."""
        self.options, self.budget, self.processes = options, budget, processes
        self.trained = options.encoder != "frozen"
        self.encoder = encoder.requires_grad_(self.trained)
        like = next(encoder.parameters(), torch.zeros(0))
        self.heads = Heads(encoder.width, options.hidden).to(
            like.device, torch.promote_types(like.dtype, torch.float32)
        )
        self.slow_encoder = copy.deepcopy(self.encoder).requires_grad_(False) if self.trained else self.encoder
        self.slow_heads = copy.deepcopy(self.heads).requires_grad_(False)
        for part in {id(part): part for part in (self.encoder, self.slow_encoder)}.values():
            shard(part)
        self.parameters = [*self.heads.parameters(), *(self.encoder.parameters() if self.trained else ())]
        self._make = optimizer or (lambda parameters: torch.optim.Adam(parameters, lr=options.lr))
        self.optimizer: torch.optim.Optimizer = self._make(self.parameters)

    def learn(self, pool: CriticExamples, rng: np.random.Generator, warm: bool = False) -> dict[str, float]:
        """An iteration's steps; `warm`: the warm-up is over. Metrics are means over the steps; `calibration` is of the
        last step's draws."""
        if warm and self.trained and self.options.encoder == "warmed_up":
            self._freeze()
        features = None if self.trained else self.see(pool)
        steps = []
        for _ in range(self.options.updates):
            index = rng.integers(len(pool.turns), size=self.options.batch)
            at = torch.from_numpy(index)
            steps.append(
                self.update(pool.take(index), None if features is None else Features(*(part[at] for part in features)))
            )
        metrics = {name: sum(step[name] for step in steps) / len(steps) for name in steps[0]}
        return metrics | {"calibration": steps[-1]["calibration"], "skipped": sum(step["skipped"] for step in steps)}

    def update(self, examples: CriticExamples, features: Features | None = None) -> dict[str, float]:
        """One optimizer step on the mean over these turns, then Polyak. `features`: their features, where fixed."""
        turns, size = examples.turns, len(examples.turns)
        fixed = features if features is not None else self.see(examples)
        done = torch.tensor([t.done for t in turns], device=fixed.state.device)
        reward = torch.tensor([t.reward for t in turns], device=done.device).to(self.dtype)
        with torch.no_grad():
            target_q = q_targets(reward, done, self.slow_heads.v(fixed.after), self.options.gamma)
            target_v = self.slow_heads.q(fixed.state, fixed.acted)
        sums = {"q_loss": 0.0, "v_loss": 0.0, "td_error": 0.0}
        lowest_q = torch.zeros(size, dtype=self.dtype)
        for at, state, action in self._online(turns, fixed):
            q, v = self.heads.q(state, action), self.heads.v(state)
            of_q = q_loss(q, target_q[:, at]).sum() / size
            of_v = v_loss(v, target_v[:, at]).sum() / size
            (of_q + of_v).backward()
            sums["q_loss"] += of_q.item()
            sums["v_loss"] += of_v.item()
            sums["td_error"] += (q.detach() - target_q[:, at]).abs().mean(dim=0).sum().item() / size
            lowest_q[at.cpu()] = q.detach().amin(dim=0).cpu()
        if self.trained:  # each process had its share of the turns
            sums = self.processes.add(sums)
            self.processes.sum(lowest_q)
            self.processes.sum_gradients(self.parameters)
        norm, skipped = self._step()
        calibration = correlation(lowest_q.double().numpy(), np.array([t.to_go for t in turns]))
        return {
            **sums, "loss": sums["q_loss"] + sums["v_loss"], "grad_norm": norm, "skipped": skipped,
            "q_mean": lowest_q.mean().item(), "calibration": calibration,
        }  # fmt: skip

    def see(self, examples: CriticExamples) -> Features:
        """Inputs of the targets: features by the slow encoder, without gradient."""
        found = features(self.slow_encoder, examples.reads, self.budget, self.processes).to(self.dtype)
        return Features(*found.reshape(4, len(examples.turns), -1))

    @torch.no_grad()
    def values(self, turns: Sequence[Transition], over: Over = "min") -> np.ndarray:
        """float64[2, B]: (Q(s, a), V(s)) of turns, each the min (or max) over its own two heads."""
        reads = [*map(state_read, turns), *map(action_read, turns)]
        found = features(self.encoder, reads, self.budget, self.processes).to(self.dtype)
        state, action = found.reshape(2, len(turns), -1)
        reduce = torch.amin if over == "min" else torch.amax
        both = torch.stack([reduce(self.heads.q(state, action), 0), reduce(self.heads.v(state), 0)])
        return both.double().cpu().numpy()

    @property
    def dtype(self) -> torch.dtype:
        return self.parameters[0].dtype

    def _online(self, turns: list[Transition], fixed: Features) -> Iterable[tuple[Tensor, Tensor, Tensor]]:
        """Yield (which turns, their state and action features with gradient), as many as fit the budget at a time; of
        a trained encoder those of this process's share."""
        if not self.trained:
            yield torch.arange(len(turns), device=fixed.state.device), fixed.state, fixed.action
            return
        reads = [*map(state_read, turns), *map(action_read, turns)]
        for part in own_micro_batches(reading_rows(reads), self.budget, self.processes, self.encoder):
            index = torch.from_numpy(row_index(part)).to(fixed.state.device)
            found, of_state = self.encoder(part).to(self.dtype), index < len(turns)
            yield index[of_state], found[of_state], found[~of_state]  # a turn's two reads are of one row, in this order

    def _freeze(self) -> None:
        """Leave the encoder as it is, its own slow copy; the heads get an optimizer of their own."""
        self.trained, self.slow_encoder = False, self.encoder.requires_grad_(False)
        self.slow_heads.load_state_dict(self.heads.state_dict())  # what they read was another encoder's
        self.parameters = [*self.heads.parameters()]
        self.optimizer = self._make(self.parameters)

    def _step(self) -> tuple[float, float]:
        """(gradient norm, 1 if it was not finite, which steps nothing)."""
        norm = clip_gradients(self.parameters, self.options.max_grad_norm)
        finite = math.isfinite(norm)
        if finite:
            self.optimizer.step()
            polyak(self.slow_heads, self.heads, self.options.tau)
            if self.trained:
                polyak(self.slow_encoder, self.encoder, self.options.tau)
        self.optimizer.zero_grad(set_to_none=True)
        return norm, 0.0 if finite else 1.0

    def state_dict(self) -> dict[str, Any]:
        """An encoder that never learned is left out: it is the policy as RL began."""
        parts = {"heads": self.heads, "slow_heads": self.slow_heads}
        if self.options.encoder != "frozen":
            parts["encoder"] = self.encoder
        if self.trained:
            parts["slow_encoder"] = self.slow_encoder
        return {name: part.state_dict() for name, part in parts.items()} | {"optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.trained and "slow_encoder" not in state:
            self._freeze()
        for name, saved in state.items():
            if name == "optimizer":
                self.optimizer.load_state_dict(shard_optimizer_state_dict(saved, self.optimizer))
            else:
                load_module(getattr(self, name), saved)


def correlation(prediction: np.ndarray, was: np.ndarray) -> float:
    """Pearson's, over the rows where `was` is known; 0 where either does not vary."""
    known = np.isfinite(was)
    x, y = prediction[known], was[known]
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    return float(np.corrcoef(x, y)[0, 1])
