"""Digi-Q (Bai et al. 2025, 2502.15760): a Q function over fixed features, from which a policy is drawn by best of N.

The critic is ArCHer's, and while the policy learns its encoder is frozen: TD on features alone. The policy imitates, at
each replayed state, the best of N actions, the buffer's own among them, if its advantage clears a threshold (assigner
"digiq"):

    a* = argmax_a A(s, a),  a ∈ {a_buffer, ã_1 .. ã_{N−1} ~ π(·|s)},   A = max_i Q_i − max_i V_i

N = 1 is filtered imitation of the buffer. The maximum over heads is as released, and optimistic; heads = "min" is not.
A reply without an action that the environment has is never imitated: its A is 0. Neither is one that was refused in
this state, nor, where the environment lists all of its actions, one that the state does not offer: Q of what nobody
plays there is a guess that often flatters.

Published on the features of a model that was first taught whether an action changes the screen. Here the encoder can
learn by TD, with the heads, in the warm-up (encoder = "warmed_up"): on the oracle in words features taught as published
did not suffice, and on the policy's own nothing was learned (docs/signals.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.spec import EnvSpec
from agentgym_trainers.rollout.player import PolicyPlayer
from agentgym_trainers.rollout.tokens import ChatTemplate
from agentgym_trainers.signals.archer.critic import CriticOptions, TwinCritic
from agentgym_trainers.signals.archer.signal import CriticSignal, build_critic, fresh
from agentgym_trainers.signals.archer.transitions import Transition

if TYPE_CHECKING:
    from agentgym_trainers.signals.base import SignalDependencies

Valid = Callable[[Transition, Sequence[int]], bool]
"""(a turn, the ids of a reply) -> whether the reply holds an action that the environment has in the turn's state."""


class DigiQOptions(CriticOptions):
    """Digi-Q: best of N by a Q function over frozen features."""

    encoder: Literal["frozen", "warmed_up"] = "frozen"
    candidates: int = Field(default=16, gt=0)
    """N: actions compared at a state, the buffer's own among them."""
    heads: Literal["max", "min"] = "max"
    """Reduction over the two heads when the best is chosen; "max" is as released, and optimistic."""

    @property
    def resamples(self) -> bool:
        return True


class DigiQSignal(CriticSignal):
    """Provides q_N and v_N of the best action at each replayed state; q = v for one that is no action."""

    options: DigiQOptions

    def __init__(self, options: DigiQOptions, critic: TwinCritic, player: PolicyPlayer, valid: Valid) -> None:
        super().__init__(options, critic, player)
        self.over, self.valid = options.heads, valid

    @classmethod
    def build(cls, options: DigiQOptions, parts: SignalDependencies) -> DigiQSignal:
        return cls.around(options, parts, build_critic(options, parts))

    @classmethod
    def around(cls, options: DigiQOptions, parts: SignalDependencies, critic: TwinCritic) -> DigiQSignal:
        """The signal of a critic that may be elsewhere."""
        valid = validity(parts.template, parts.player.runner.prompt_format, parts.spec)
        return cls(options, critic, parts.player, valid)

    async def choose(self, turns: list[Transition], rng: np.random.Generator) -> list[Transition]:
        """The best of N; of equal ones the buffer's, then the first that was sampled."""
        replies = await self.reply(turns, self.options.candidates - 1, rng)
        refused = self.replay.refused()
        every: list[Transition] = []
        ends: list[int] = []
        for turn, completions in zip(turns, replies, strict=True):
            distinct = {tuple(turn.action.tolist()): turn}
            for one in completions:
                if tuple(one.ids) not in distinct:
                    other = fresh(turn, one)
                    possible = (other.state.tobytes(), other.action.tobytes()) not in refused
                    distinct[tuple(one.ids)] = replace(other, valid=possible and self.valid(turn, one.ids))
            every += distinct.values()
            ends.append(len(every))
        q, v = self.judge(every)
        best = [first + int(np.argmax((q - v)[first:end])) for first, end in zip([0, *ends[:-1]], ends, strict=True)]
        return [every[i] for i in best]

    def judge(self, turns: Sequence[Transition]) -> np.ndarray:
        """(q, v) of turns; q = v where the action was none."""
        q, v = super().judge(turns)
        return np.stack([np.where([t.valid for t in turns], q, v), v])


def validity(template: ChatTemplate, prompt_format: PromptFormat, spec: EnvSpec) -> Valid:
    """Validity by the prompt format's grammar and, where the environment lists all of its actions, what it offers."""
    stops = template.stop_ids()

    def valid(turn: Transition, ids: Sequence[int]) -> bool:
        kept = ids[:-1] if ids[-1] in stops else ids
        action = prompt_format.parse(template.decode(kept, turn.state[-1:].tolist()), spec).action
        return action is not None and (not spec.actions or action in (turn.offered or spec.actions))

    return valid
