"""Negotiation: two players share out books, hats, balls and pens, and each knows only what they are worth to itself.

After Lewis et al. 2017 ("Deal or No Deal"), without the talk: in turn the players say what they would keep, until one
accepts the other's last word. Without a deal both get nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from agentgym.spec import EnvSpec
from agentgym_environments.base.two_player_env import Game
from agentgym_environments.base.two_player_rules import Scores
from agentgym_environments.games.negotiation.lazy import LAZY_POLICIES
from agentgym_environments.games.negotiation.tables import (
    LEAST,
    THINGS,
    TOTAL,
    Share,
    draw_table,
    shares,
)

ROUNDS = 5
"""Moves of each player."""
POINT = 0.25
"""Factor of the reward for each point less than the best deal."""


@dataclass(frozen=True)
class NegotiationState:
    counts: Share
    worth: tuple[Share, Share]
    """Points of one book, hat, ball to role 0, and to role 1."""
    moves: int = 0
    offer: Share = ()
    """Share that the last speaker would keep."""
    deal: Share = ()
    """Share of role 0, once there is a deal."""


class NegotiationRules:
    actions: tuple[str, ...] = ()
    moves: tuple[int, int] = (ROUNDS, ROUNDS)
    reward_range: tuple[float, float] = (0.0, 1.0)

    def __init__(self, *, against_best: bool = True) -> None:
        """Score a deal against the best one that leaves the other half of its points; if False, by its points."""
        self.against_best = against_best

    def start(self, split: str, task: int, side: int | None) -> NegotiationState:
        return NegotiationState(*draw_table(split, task, task % 2 if side is None else side))

    def mover(self, state: NegotiationState) -> int | None:
        return None if state.deal or state.moves == 2 * ROUNDS else state.moves % 2

    def legal(self, state: NegotiationState) -> tuple[str, ...]:
        if self.mover(state) is None:
            return ()
        return (*(["accept"] if state.offer else []), *_sayings(state.counts))

    def play(self, state: NegotiationState, action: str) -> NegotiationState:
        moves = state.moves + 1
        if action == "accept":
            deal = state.offer if state.moves % 2 else rest(state.counts, state.offer)
            return replace(state, moves=moves, deal=deal)
        return replace(state, moves=moves, offer=tuple(map(int, action.split()[1:])))

    def scores(self, state: NegotiationState) -> Scores:
        if not state.deal:
            return (0.0, 0.0)
        return (self._score(state, 0, state.deal), self._score(state, 1, rest(state.counts, state.deal)))

    def _score(self, state: NegotiationState, role: int, share: Share) -> float:
        gained = points(state, role, share)
        if not self.against_best:
            return gained / TOTAL
        return POINT ** max(0, points(state, role, demand(state, role)) - gained)

    def forfeit(self, state: NegotiationState, role: int) -> Scores:
        return (0.0, 0.0)

    def success(self, state: NegotiationState, role: int) -> bool:
        """True for the most that any deal gives which leaves the other half of its points; nine tenths of it where
        points are the score."""
        if not state.deal:
            return False
        gained = points(state, role, state.deal if role == 0 else rest(state.counts, state.deal))
        return gained >= (1.0 if self.against_best else 0.9) * points(state, role, demand(state, role))

    def observe(self, state: NegotiationState, role: int) -> str:
        if self.mover(state) is None:
            if not state.deal:
                return "no deal"
            return f"deal: player 0 gets {' '.join(map(str, state.deal))}, player 1 the rest"
        left = (2 * ROUNDS - state.moves + 1) // 2
        there = " ".join(f"{n} {thing}" for n, thing in zip(state.counts, THINGS))
        lines = [f"player {role}, there are {there}", f"worth to you {' '.join(map(str, state.worth[role]))}"]
        if state.offer:
            yours = " ".join(map(str, rest(state.counts, state.offer)))
            lines.append(f"you are offered {yours}")
        return "\n".join([*lines, f"moves left {left}"])

    def key(self, state: NegotiationState) -> str:
        offer = f" keep {' '.join(map(str, state.offer))}" if state.offer else ""
        deal = f" deal {' '.join(map(str, state.deal))}" if state.deal else ""
        worth = " and ".join(" ".join(map(str, worth)) for worth in state.worth)
        return f"{' '.join(map(str, state.counts))} worth {worth} left {2 * ROUNDS - state.moves}{offer}{deal}"

    def information(self, state: NegotiationState, role: int) -> str:
        """Name the present turn: earlier offers, which might tell of the other's mind, are not in it."""
        return self.observe(state, role)

    def save(self, state: NegotiationState) -> Any:
        return asdict(state)

    def load(self, saved: Any) -> NegotiationState:
        first, second = map(tuple, saved["worth"])
        return NegotiationState(
            tuple(saved["counts"]), (first, second), saved["moves"], tuple(saved["offer"]), tuple(saved["deal"])
        )


class Negotiation(Game):
    """opponent: "expert", which gives in from all of its points to half of them, keeps as few things as it can, and
    does not know what things are worth to you; "random", which keeps any things that are worth as much to it; "self".
    """

    beatable = ("random", "expert")
    lazy_policies = LAZY_POLICIES

    def __init__(self, spec: EnvSpec | None = None, *, opponent: str = "expert", side: int | str = "alternate") -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        rules = NegotiationRules(against_best=opponent != "self")
        super().__init__(spec, rules, {"random": at_random, "expert": tough}, opponent, side)

    def best(self, state: NegotiationState) -> str:
        """Move with both players' points in sight. Against an opponent: the most that it will agree to in the end; of
        both roles: the deal with the greatest product of points."""
        role = state.moves % 2
        wanted = fairest(state, role) if self.opponent == "self" else demand(state, role)
        last = state.moves == 2 * ROUNDS - 1
        return "accept" if offered(state, role) >= (1 if last else points(state, role, wanted)) else share_text(wanted)


def rest(counts: Share, share: Share) -> Share:
    return tuple(count - taken for count, taken in zip(counts, share))


@lru_cache
def _sayings(counts: Share) -> tuple[str, ...]:
    return tuple(map(share_text, shares(counts)))


def share_text(share: Share) -> str:
    return f"keep {' '.join(map(str, share))}"


def points(state: NegotiationState, role: int, share: Share) -> int:
    """Return what `share` is worth to `role`."""
    return _value(state.worth[role], share)


def offered(state: NegotiationState, role: int) -> int:
    """Return what the standing offer is worth to `role`, which did not make it; −1 where there is none."""
    return points(state, role, rest(state.counts, state.offer)) if state.offer else -1


def demand(state: NegotiationState, role: int) -> Share:
    """The share that is worth most to `role` of those that leave the other half of its points."""
    return _best_share(state.counts, state.worth[role], state.worth[1 - role])


@lru_cache(maxsize=1024)
def _best_share(counts: Share, own: Share, others: Share) -> Share:
    fair = [share for share in shares(counts) if _value(others, rest(counts, share)) >= LEAST]
    return max(fair, key=lambda share: _value(own, share))


def _value(worth: Share, share: Share) -> int:
    return sum(n * each for n, each in zip(share, worth))


def fairest(state: NegotiationState, role: int) -> Share:
    """The share of `role` in the deal with the greatest product of points: the same deal for both."""

    def worth(share: Share) -> tuple[int, Share]:
        other = rest(state.counts, share)
        return points(state, role, share) * points(state, 1 - role, other), share if role == 0 else other

    return max(shares(state.counts), key=worth)


def wanted_points(state: NegotiationState) -> int:
    """Return the points that a scripted opponent wants now: all at its first move, half of them at its last."""
    return round(TOTAL - (TOTAL - LEAST) * (state.moves // 2) / (ROUNDS - 1))


def at_random(state: NegotiationState, random: np.random.Generator) -> str:
    """Wants as much as `tough`, and says any share that is worth it."""
    return _answer(state, random, fewest=False)


def tough(state: NegotiationState, random: np.random.Generator) -> str:
    """Wants all of its points at its first move, half of them at its last, and gives away what is worth least to it."""
    return _answer(state, random, fewest=True)


def _answer(state: NegotiationState, random: np.random.Generator, *, fewest: bool) -> str:
    role, wanted = state.moves % 2, wanted_points(state)
    if offered(state, role) >= wanted:
        return "accept"
    enough = [share for share in shares(state.counts) if points(state, role, share) >= wanted]
    if fewest:
        enough = [share for share in enough if sum(share) == min(map(sum, enough))]
    return share_text(enough[int(random.integers(len(enough)))])
