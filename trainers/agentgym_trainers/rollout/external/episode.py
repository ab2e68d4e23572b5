"""One episode of an external agent: ask, record, tell the reward, finish."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from agentgym.errors import EpisodeRefused, PolicyFailure
from agentgym.rollouts.policy import EpisodeSpec
from agentgym.rollouts.trajectory import StopReason, Trajectory, Turn
from agentgym_trainers.rollout.external.nodes import CallNode, branches_of
from agentgym_trainers.rollout.external.reconcile import Kind, PromptRequest, mark, reconcile, same
from agentgym_trainers.rollout.tokens import ChatTemplate, difference

MAX_TURNS = 4096


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A prompt that may be answered now. Its reply is given to `RecordedEpisode.record`."""

    kind: Kind
    prompt: list[int]
    """All tokens, as the engine is to see them."""
    parent: CallNode | None
    boundary: list[int]
    """The end of `prompt`, that nobody sampled and no node has."""
    text: str
    """The prompt, as the client told it."""
    shown: str
    """The new part of the prompt, for people."""
    why: str
    """Reason why a branch begins here, if one does."""


class RecordedEpisode:
    """The calls of one agent, and what it was told of rewards. Sub-agents may ask at the same time."""

    def __init__(
        self, name: str, template: ChatTemplate, rng: np.random.Generator, played: EpisodeSpec | None, strict: bool
    ) -> None:
        """`played` says which episode of the trainer this is, where the trainer started the agent."""
        self.name, self.rng, self.played, self.strict = name, rng, played, strict
        self.template = template
        self.turns: list[Turn] = []
        self.nodes: list[CallNode] = []
        self.kinds: Counter[str] = Counter()
        self.running = 0
        """Calls that are being answered."""
        self.trajectory: Trajectory | None = None
        """Once it is finished."""
        self.ending: dict[str, Any] = {}
        self._covered = ""
        """The text of the newest call, for the sentence that shows a difference."""
        stop = template.end_id
        self._end = template.decode([stop]) if stop is not None else ""

    def ask(self, request: PromptRequest, shown: str) -> PreparedCall:
        """Find where the prompt continues, and the tokens that the engine is given.

        Raises EpisodeRefused: the episode is over or full, or it is strict and the prompt no plain continuation.
        """
        if self.trajectory is not None:
            raise EpisodeRefused(f"the episode {self.name!r} is finished; begin another one under another name")
        if len(self.nodes) >= MAX_TURNS:
            raise EpisodeRefused(f"the episode {self.name!r} has {MAX_TURNS} turns; finish it, and begin another")
        place = reconcile(request, self.nodes, self._end)
        change = difference(self._covered, request.text) if place.kind is not Kind.CLEAN else ""
        if self.strict and change:
            raise EpisodeRefused(
                f"the episode {self.name!r} is strict, and this prompt does not begin with an earlier prompt and the "
                f"reply to it ({place.kind}): {change}; send messages back as they were, or serve without --strict"
            )
        before = place.node.tokens if place.node is not None else []
        boundary = list(place.ids) if place.ids is not None else list(self.template.encode(place.text, *before[-1:]))
        beside = f"turn {place.node.turn} is gone on from once more" if place.node is not None else "asked once more"
        why = change if place.kind is Kind.FORK else beside
        return PreparedCall(place.kind, [*before, *boundary], place.node, boundary, request.text, shown, why)

    def record(
        self,
        call: PreparedCall,
        ids: Sequence[int],
        logprobs: Sequence[float],
        versions: Sequence[int],
        text: str,
        finish: str,
    ) -> dict[str, Any]:
        """The reply, exactly as it left the engine, as the episode's next turn; returns what the client is told.

        Raises PolicyFailure for what no engine may answer, EpisodeRefused when the episode ended meanwhile.
        """
        if not ids or not len(ids) == len(logprobs) == len(versions) or not all(map(math.isfinite, logprobs)):
            raise PolicyFailure(
                f"the engine answered {len(ids)} tokens, {len(logprobs)} log-probabilities and {len(versions)} "
                "versions; a reply has at least one token, and each token a finite log-probability and a version"
            )
        if self.trajectory is not None:
            raise EpisodeRefused(f"the episode {self.name!r} was finished while this reply was sampled; it is dropped")
        turn, last = len(self.turns), ids[-1]
        stopped = last in self.template.stop_ids()
        response = self.template.decode(ids[:-1] if stopped else ids, call.prompt[-1:])
        covered = call.text + response + (self.template.decode([last]) if stopped else "")
        closed = last == self.template.end_id
        ends, alike = same(covered, self._end, closed)
        depth = 1 if call.parent is None else call.parent.depth + 1
        self.nodes.append(
            CallNode(
                turn, call.parent, depth, call.boundary, list(ids), list(logprobs), list(versions),
                mark(call.text), mark(covered), ends, alike, closed, call.why,
            )
        )  # fmt: skip
        self.turns.append(Turn(turn, call.shown, text, text, 0.0, finish=finish))
        self.kinds[call.kind] += 1
        self._covered = covered
        return {"episode": self.name, "turn": turn, "kind": str(call.kind)}

    def tell(self, turn: int | None, reward: float | None, state_key: str | None, valid_action: bool | None) -> int:
        """Record the environment's answer to a turn; None is the last one. Raises EpisodeRefused."""
        if self.trajectory is not None:
            raise EpisodeRefused(f"the episode {self.name!r} is finished; tell of its turns before")
        at = len(self.turns) - 1 if turn is None else turn
        if not 0 <= at < len(self.turns):
            raise EpisodeRefused(f"the episode {self.name!r} has {len(self.turns)} turns, and none has number {at}")
        old = self.turns[at]
        info = old.info if valid_action is None else {**old.info, "valid_action": valid_action}
        change = {} if state_key is None else {"state_key": state_key}
        self.turns[at] = replace(old, reward=old.reward if reward is None else reward, info=info, **change)
        return at

    def finish(
        self,
        reward: float | Sequence[float] | None,
        success: bool | None,
        truncated: bool,
        played: EpisodeSpec,
    ) -> Trajectory:
        """The whole episode. A reward is added to the last turn's; several are every turn's. Raises EpisodeRefused."""
        if self.running:
            raise EpisodeRefused(
                f"the episode {self.name!r} has {self.running} calls under way; wait for their replies"
            )
        if not self.turns:
            raise EpisodeRefused(f"the episode {self.name!r} has no turns: nothing was asked in it")
        if isinstance(reward, Sequence) and len(reward) != len(self.turns):
            raise EpisodeRefused(
                f"{len(reward)} rewards were told, and the episode {self.name!r} has {len(self.turns)} turns: send one "
                "for each, or a single number"
            )
        rewards = [turn.reward for turn in self.turns]
        if isinstance(reward, Sequence):
            rewards = [float(one) for one in reward]
        elif reward is not None:
            rewards[-1] += reward
        branches, spans, forks = branches_of(self.nodes)
        turns = [
            replace(turn, reward=reward, span=span)
            for turn, reward, span in zip(self.turns, rewards, spans, strict=True)
        ]
        if success is not None:
            turns[-1] = replace(turns[-1], info={**turns[-1].info, "success": success})
        stop = StopReason.TRUNCATED if truncated else StopReason.TERMINATED
        self.trajectory = Trajectory(
            **played._asdict(), turns=tuple(turns), stop=stop, branches=tuple(branches), forks=tuple(forks)
        )
        self.nodes = []
        return self.trajectory
