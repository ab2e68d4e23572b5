"""ArCHer's critic as a signal: it remembers turns, learns Q and V from them, and gives the actor fresh actions.

Each RL step, before the actor moves: the step's turns enter the replay buffer; the critic takes its steps; then fresh
actions are sampled at replayed states, and the actor is trained on those with A = q_N − v_N (assigner "q_minus_v").
That is on-policy whatever the buffer holds, so the objective is the plain policy gradient: no ratio, no clip.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from agentgym_credit.batch import Batch
from agentgym_trainers.data.sequences import Row
from agentgym_trainers.engines.base import Completion
from agentgym_trainers.rollout.player import PolicyPlayer
from agentgym_trainers.signals.archer.critic import (
    CriticExamples,
    CriticOptions,
    Over,
    TwinCritic,
    action_read,
    correlation,
)
from agentgym_trainers.signals.archer.encoder import Encoder
from agentgym_trainers.signals.archer.transitions import Replay, Transition, transitions_of
from agentgym_trainers.signals.base import Signal

if TYPE_CHECKING:
    from agentgym_trainers.signals.base import ModelDependencies, SignalContext, SignalDependencies


class TwinOptions(CriticOptions):
    """ArCHer: twin Q and V over a replay buffer."""

    actor: Literal["resample", "rollout"] = "resample"
    """Actions that the policy is trained on: fresh actions at replayed states, or the step's own turns."""

    @property
    def resamples(self) -> bool:
        return self.actor == "resample"


class CriticSignal(Signal):
    """A buffer, a critic that learns from it, and the player that says what the present policy would do.

    With [scale] the critic is in the learner processes; the buffer and the replies are the loop's.
    """

    fit_first = True
    over: Over = "min"
    """Reduction over the two heads in the columns. Their training knows only each its own."""

    def __init__(self, options: CriticOptions, critic: TwinCritic, player: PolicyPlayer) -> None:
        self.options, self.critic, self.warmup, self.player = options, critic, options.warmup, player
        self.replay = Replay(options.capacity)

    async def fit(self, context: SignalContext) -> dict[str, float]:
        """Remember the step's turns; then take the critic's steps.

        `unseen`: the correlation of Q − V with what the return was beyond V, over the step's turns, before anything is
        learned from them. It is what the actor can gain from the critic; `calibration`, of replayed turns, is high for
        one that learned its buffer by heart.
        """
        options = self.options
        played = transitions_of(context.batch, context.rows, options.gamma, context.trajectories)
        q_N, v_N = self.judge(played)
        unseen = correlation(q_N - v_N, np.array([t.to_go for t in played]) - v_N)
        self.replay.add(played)
        turns = self.replay.sample(options.pool, context.rng)
        replies = await self.reply(turns, 1, context.rng)
        acted = [fresh(t, completion) for t, (completion,) in zip(turns, replies, strict=True)]
        examples = CriticExamples(turns, [action_read(t) for t in acted])
        metrics = self.critic.learn(examples, context.rng, warm=context.step >= self.warmup)
        return metrics | {"replay": float(len(self.replay)), "unseen": unseen}

    async def annotate(self, context: SignalContext) -> dict[str, np.ndarray]:
        """q_N and v_N of the turns as they were played; 0 during the warm-up, when they would say nothing."""
        if context.step < self.warmup:
            return {"q_N": np.zeros(len(context.batch.traj_N)), "v_N": np.zeros(len(context.batch.traj_N))}
        q_N, v_N = self.judge(transitions_of(context.batch, context.rows, self.options.gamma))
        return {"q_N": q_N, "v_N": v_N}

    async def training_batch(self, context: SignalContext) -> tuple[Batch, list[Row]] | None:
        """The actions that the policy is trained on, every one a trajectory of one turn; none in the warm-up."""
        if context.step < self.warmup:
            return None
        turns = await self.choose(self.replay.sample(self.options.actor_states, context.rng), context.rng)
        batch, rows = turns_batch(turns)
        q_N, v_N = self.judge(turns)
        return batch.with_columns(q_N=q_N, v_N=v_N), rows

    async def choose(self, turns: list[Transition], rng: np.random.Generator) -> list[Transition]:
        """An action for the state of each turn."""
        raise NotImplementedError

    def judge(self, turns: Sequence[Transition]) -> np.ndarray:
        """(q, v) of turns."""
        return self.critic.values(turns, self.over)

    async def reply(self, turns: Sequence[Transition], count: int, rng: np.random.Generator) -> list[list[Completion]]:
        """`count` replies of the present policy in the state of each turn, from streams that `rng` decides."""
        seeds = rng.integers(2**63, size=len(turns)).tolist()
        return await self.player.replies([t.state.tolist() for t in turns], seeds, count)

    def state_dict(self) -> dict[str, Any]:
        return {"replay": self.replay.state_dict(), "critic": self.critic.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.replay.load_state_dict(state["replay"])
        self.critic.load_state_dict(state["critic"])


class TwinSignal(CriticSignal):
    """Provides q_N and v_N, each the lower of its two heads, of fresh actions at replayed states."""

    options: TwinOptions

    @classmethod
    def build(cls, options: TwinOptions, parts: SignalDependencies) -> TwinSignal:
        return cls.around(options, parts, build_critic(options, parts))

    @classmethod
    def around(cls, options: TwinOptions, parts: SignalDependencies, critic: TwinCritic) -> TwinSignal:
        """The signal of a critic that may be elsewhere."""
        return cls(options, critic, parts.player)

    async def training_batch(self, context: SignalContext) -> tuple[Batch, list[Row]] | None:
        if self.options.actor == "rollout":
            return None
        return await super().training_batch(context)

    async def choose(self, turns: list[Transition], rng: np.random.Generator) -> list[Transition]:
        """One action that the present policy samples."""
        return [fresh(t, completion) for t, (completion,) in zip(turns, await self.reply(turns, 1, rng), strict=True)]


def fresh(turn: Transition, completion: Completion) -> Transition:
    """Another action at the turn's state, stop token included; what the environment makes of it, nobody knows."""
    ids, stop = np.concatenate([turn.state, np.array(completion.ids, np.int64)]), turn.start + len(completion.ids)
    logprobs = np.array(completion.logprobs, np.float32)
    return Transition(ids, turn.start, stop, logprobs, completion.version, 0.0, ids, 0, True, False, True, float("nan"))


def turns_batch(turns: Sequence[Transition]) -> tuple[Batch, list[Row]]:
    """A batch of these turns alone, every one a trajectory and a group of its own; rewards are 0."""
    count = len(turns)
    tokens = [t.stop - t.start for t in turns]
    firsts = np.cumsum([0, *tokens[:-1]])
    rows = [
        Row(t.ids[: t.stop], np.arange(t.start, t.stop), first + np.arange(t.stop - t.start), m, False)
        for m, (t, first) in enumerate(zip(turns, firsts.tolist(), strict=True))
    ]
    batch = Batch(
        group_M=np.arange(count),
        traj_N=np.arange(count),
        reward_N=np.zeros(count),
        turn_A=np.repeat(np.arange(count), tokens),
        truncated_M=np.zeros(count, bool),
        anchor_N=np.full(count, -1),
        logprob_A=np.concatenate([np.zeros(0, np.float32), *(t.logprobs for t in turns)]),
        x={
            "version_A": np.repeat([t.version for t in turns], tokens),
            "valid_N": np.array([t.valid for t in turns], float),
        },
    )
    return batch, rows


def build_critic(options: CriticOptions, parts: ModelDependencies) -> TwinCritic:
    """The critic on a copy of the policy's trunk as RL began, its heads drawn from the run's seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(parts.seed)
        encoder = Encoder(copy.deepcopy(parts.reference.base_model))
        return TwinCritic(encoder, options, parts.tokens_per_micro_batch, processes=parts.processes, shard=parts.shard)
