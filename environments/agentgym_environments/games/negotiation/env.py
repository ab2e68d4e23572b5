"""Negotiation: two players share out books, hats and balls, and each knows only what they are worth to itself.

After Lewis et al. 2017 ("Deal or No Deal"), without the talk: in turn the players say what they would keep, until one
accepts the other's last word. Without a deal both get nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from agentgym.spec import EnvSpec
from agentgym_environments.base.text_env import split_of, task_random
from agentgym_environments.base.two_player_env import Game
from agentgym_environments.base.two_player_rules import Scores

THINGS = ("books", "hats", "balls")
TOTAL = 10
"""Points that all things together are worth to each player."""
ROUNDS = 5
"""Moves of each player."""
LEAST = TOTAL // 2
"""Points that the tough opponent wants at its last move; there is always a deal in which both get this."""

Share = tuple[int, ...]


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

    def start(self, split: str, task: int, side: int | None) -> NegotiationState:
        random = task_random("negotiation", split, task)
        while True:
            counts = tuple(random.randint(1, 3) for _ in THINGS)
            worths = valuations(counts)
            if not worths:  # as for 3, 3 and 3: no whole points add up
                continue
            table = NegotiationState(counts, (random.choice(worths), random.choice(worths)))
            both = any(
                min(points(table, 0, kept), points(table, 1, rest(counts, kept))) >= LEAST for kept in shares(counts)
            )
            if both and table.worth[0] != table.worth[1] and split_of(f"negotiation {counts} {table.worth}") == split:
                return table

    def mover(self, state: NegotiationState) -> int | None:
        return None if state.deal or state.moves == 2 * ROUNDS else state.moves % 2

    def legal(self, state: NegotiationState) -> tuple[str, ...]:
        if self.mover(state) is None:
            return ()
        return (*(["accept"] if state.offer else []), *map(share_text, shares(state.counts)))

    def play(self, state: NegotiationState, action: str) -> NegotiationState:
        moves = state.moves + 1
        if action == "accept":
            deal = state.offer if state.moves % 2 else rest(state.counts, state.offer)
            return replace(state, moves=moves, deal=deal)
        return replace(state, moves=moves, offer=tuple(map(int, action.split()[1:])))

    def scores(self, state: NegotiationState) -> Scores:
        if not state.deal:
            return (0.0, 0.0)
        return (points(state, 0, state.deal) / TOTAL, points(state, 1, rest(state.counts, state.deal)) / TOTAL)

    def forfeit(self, state: NegotiationState, role: int) -> Scores:
        return (0.0, 0.0)

    def success(self, state: NegotiationState, role: int) -> bool:
        """True for at least nine tenths of the most that any deal gives which leaves the other half of its points."""
        return TOTAL * self.scores(state)[role] >= 0.9 * points(state, role, demand(state, role))

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
    """opponent: "random", which accepts every other offer that gives it anything; "expert", which gives in slowly from
    all of its points to half of them, and does not know what things are worth to you; "self"."""

    beatable = ("random", "expert")

    def __init__(self, spec: EnvSpec | None = None, *, opponent: str = "expert", side: int | str = "alternate") -> None:
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        super().__init__(spec, NegotiationRules(), {"random": at_random, "expert": tough}, opponent, side)

    def best(self, state: NegotiationState) -> str:
        """Move with both players' points in sight. Against an opponent: the most that it will agree to in the end; of
        both roles: the deal with the greatest product of points."""
        role = state.moves % 2
        if self.opponent == "self":
            wanted = fairest(state, role)
        else:
            wanted = demand(state, role, 1 if self.opponent == "random" else LEAST)
        last = state.moves == 2 * ROUNDS - 1
        return "accept" if offered(state, role) >= (1 if last else points(state, role, wanted)) else share_text(wanted)


@lru_cache
def valuations(counts: Share) -> list[Share]:
    """Every way to value the things at TOTAL points together."""
    every = product(range(TOTAL + 1), repeat=len(counts))
    return [worth for worth in every if sum(n * each for n, each in zip(counts, worth)) == TOTAL]


@lru_cache
def shares(counts: Share) -> list[Share]:
    return list(product(*(range(count + 1) for count in counts)))


def rest(counts: Share, share: Share) -> Share:
    return tuple(count - taken for count, taken in zip(counts, share))


def share_text(share: Share) -> str:
    return f"keep {' '.join(map(str, share))}"


def points(state: NegotiationState, role: int, share: Share) -> int:
    """Return what `share` is worth to `role`."""
    return sum(n * each for n, each in zip(share, state.worth[role]))


def offered(state: NegotiationState, role: int) -> int:
    """Return what the standing offer is worth to `role`, which did not make it; −1 where there is none."""
    return points(state, role, rest(state.counts, state.offer)) if state.offer else -1


def demand(state: NegotiationState, role: int, least: int = LEAST) -> Share:
    """The share that is worth most to `role` of those that leave the other `least` points."""
    fair = [share for share in shares(state.counts) if points(state, 1 - role, rest(state.counts, share)) >= least]
    return max(fair, key=lambda share: points(state, role, share))


def fairest(state: NegotiationState, role: int) -> Share:
    """The share of `role` in the deal with the greatest product of points: the same deal for both."""

    def worth(share: Share) -> tuple[int, Share]:
        other = rest(state.counts, share)
        return points(state, role, share) * points(state, 1 - role, other), share if role == 0 else other

    return max(shares(state.counts), key=worth)


def at_random(state: NegotiationState, random: np.random.Generator) -> str:
    """Accepts every other offer that gives it anything."""
    if offered(state, state.moves % 2) > 0 and random.random() < 0.5:
        return "accept"
    every = shares(state.counts)
    return share_text(every[int(random.integers(len(every)))])


def tough(state: NegotiationState, random: np.random.Generator) -> str:
    """Wants all of its points at its first move, half of them at its last, and gives away what is worth least to it."""
    role, made = state.moves % 2, state.moves // 2
    wanted = round(TOTAL - (TOTAL - LEAST) * made / (ROUNDS - 1))
    if offered(state, role) >= wanted:
        return "accept"
    enough = [share for share in shares(state.counts) if points(state, role, share) >= wanted]
    fewest = [share for share in enough if sum(share) == min(map(sum, enough))]
    return share_text(fewest[int(random.integers(len(fewest)))])
