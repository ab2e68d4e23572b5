"""Kuhn poker: three cards, one bet. The smallest game in which a good player bluffs (Kuhn 1950).

Each player pays an ante of 1 and gets one of J < Q < K. In turn they pass or bet 1; after a bet the other passes (and
loses the ante) or bets (and the cards are shown), after two passes the cards are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from agentgym.errors import ConfigError
from agentgym.evaluation.action_values import ActionValues
from agentgym.spec import EnvSpec
from agentgym_environments.base.text_env import split_of, task_random
from agentgym_environments.base.two_player_env import Game
from agentgym_environments.base.two_player_rules import Scores
from agentgym_environments.games.information_values import information_values

DEALS = ("JQ", "JK", "QJ", "QK", "KJ", "KQ")
"""Role 0's card and role 1's."""
WORDS = {"p": "pass", "b": "bet"}
ENDS = ("pp", "pbp", "pbb", "bp", "bb")
BLUFF = 1 / 3
"""Share of the J on which role 0 bets in the equilibrium that plays here; any number from 0 to 1/3 is one."""


@dataclass(frozen=True)
class Hand:
    deals: tuple[str, ...]
    """Cards of every hand of the episode."""
    number: int = 0
    history: str = ""
    """Actions of the present hand: "p" and "b"."""
    chips: int = 0
    """Chips that role 0 has won, and role 1 lost."""
    last: str = ""
    """End of the hand before, as both saw it."""


DEALT = tuple((1 / len(DEALS), Hand((deal,))) for deal in DEALS)
"""(probability, state) of every deal of one hand."""


class KuhnPokerRules:
    """`hands` in a row, role 0 first in each. One hand is the game of the literature; it has six deals in all, which
    leaves none to hold out, so that all its tasks are for training."""

    actions: tuple[str, ...] = ("pass", "bet")

    def __init__(self, hands: int) -> None:
        self.hands = hands
        self.moves: tuple[int, int] = (2 * hands, hands)
        self.reward_range: tuple[float, float] = (-2.0 * hands, 2.0 * hands)

    def start(self, split: str, task: int, side: int | None) -> Hand:
        if self.hands == 1:
            return Hand((DEALS[task // 2 % 6],))
        random = task_random("kuhn-poker", self.hands, split, task)
        while True:
            deals = tuple(random.choice(DEALS) for _ in range(self.hands))
            if split_of(" ".join(deals)) == split:
                return Hand(deals)

    def mover(self, state: Hand) -> int | None:
        return None if state.number == self.hands else len(state.history) % 2

    def legal(self, state: Hand) -> tuple[str, ...]:
        return () if state.number == self.hands else self.actions

    def play(self, state: Hand, action: str) -> Hand:
        history = state.history + action[0]
        if history not in ENDS:
            return replace(state, history=history)
        deal, moves = state.deals[state.number], " ".join(WORDS[move] for move in history)
        won = pay(deal, history)
        shown = f", shown {' '.join(deal)}" if history[-2:] != "bp" else ""
        summary = f"last hand {moves}{shown}: player {int(won < 0)} wins {abs(won)}"
        return replace(state, number=state.number + 1, history="", chips=state.chips + won, last=summary)

    def scores(self, state: Hand) -> Scores:
        return (float(state.chips), float(-state.chips))

    def forfeit(self, state: Hand, role: int) -> Scores:
        lost = 2.0 * (self.hands - state.number) * (1 - 2 * role)
        return (state.chips - lost, lost - state.chips)

    def success(self, state: Hand, role: int) -> bool:
        """Chips were won."""
        return self.scores(state)[role] > 0

    def observe(self, state: Hand, role: int) -> str:
        if state.number == self.hands:
            return f"{state.last}\nthe end: player 0 won {state.chips:+d}"
        moves = " ".join(WORDS[move] for move in state.history) or "nothing"
        lines = [state.last] if state.last else []
        if self.hands > 1:
            chips = int(self.scores(state)[role])
            lines.append(f"hand {state.number + 1} of {self.hands}, chips won {chips:+d}")
        return "\n".join([*lines, f"player {role} card {state.deals[state.number][role]} so far {moves}"])

    def key(self, state: Hand) -> str:
        return f"{' '.join(state.deals)} hand {state.number} {state.history or '-'} chips {state.chips:+d}"

    def information(self, state: Hand, role: int) -> str:
        """Card and moves, as in "K:pb"; of the present hand, since the ones before decide nothing."""
        return f"{state.deals[state.number][role]}:{state.history}"

    def save(self, state: Hand) -> Any:
        return asdict(state)

    def load(self, saved: Any) -> Hand:
        return Hand(**{**saved, "deals": tuple(saved["deals"])})


class KuhnPoker(Game):
    """opponent: "random"; "expert", an equilibrium, which wins 1/18 a hand as role 1 at the least; "self".
    hands: in a row; 1 is the game of the literature."""

    def __init__(
        self,
        spec: EnvSpec | None = None,
        *,
        opponent: str = "random",
        side: int | str = "alternate",
        hands: int = 5,
    ) -> None:
        if not 1 <= hands <= 50:
            raise ConfigError(f"kuhn-poker: hands is 1 to 50, not {hands}")
        changes = {"splits": {"train": 12}} if hands == 1 else {}
        spec = spec or EnvSpec.load(Path(__file__).with_name("spec.toml"))
        super().__init__(
            spec, KuhnPokerRules(hands), {"random": at_random, "expert": balanced}, opponent, side, **changes
        )

    def action_values(
        self, split: str, tasks: Sequence[int], *, epsilon: float = 0.0, discount: float | None = None
    ) -> list[ActionValues]:
        """Exact values of both actions at every card and history of one hand, under the equilibrium.

        With probability `epsilon` an action is any. A scripted opponent plays as in an episode, and "self" as the
        equilibrium does. All deals are averaged, so `split` and `tasks` choose nothing. Raises ConfigError for several
        hands, or a discount.
        """
        if self.rules.moves != (2, 1):
            raise ConfigError("exact values are those of one hand: write kuhn-poker-self:hands=1")
        if discount not in (None, 1.0):
            raise ConfigError(
                "a hand of Kuhn poker is not discounted, for it is paid at its end: leave the discount out"
            )
        alike = {action: 0.5 for action in self.rules.actions}
        reference = {
            known: {action: (1 - epsilon) * p + epsilon * alike[action] for action, p in chances.items()}
            for known, chances in equilibrium().items()
        }
        others = {"random": dict.fromkeys(reference, alike), "expert": equilibrium(), "self": reference}[self.opponent]
        noise = f"; with probability {epsilon:g} any action" if epsilon else ""
        found = []
        for role in (0, 1) if self.side == "alternate" else (int(self.side),):
            both = {known: (reference if len(known) % 2 == role else others)[known] for known in reference}
            for known, here in information_values(self.rules, DEALT, both, role).items():
                found.append(
                    ActionValues(
                        env=self.env_spec.id,
                        task=self.env_spec.instructions.strip(),
                        reference=f"equilibrium that bluffs on 1/3 of all J{noise}; opponent: {self.opponent}",
                        state_key=known,
                        state=here.observation,
                        actions=tuple(here.q),
                        q=tuple(here.q.values()),
                        probabilities=tuple(reference[known][action] for action in here.q),
                    )
                )
        return found

    def best(self, state: Hand) -> str:
        """The equilibrium's move. Its coin is the state's own: an expert that drew from the environment would change
        it."""
        role = len(state.history) % 2
        chance = equilibrium()[self.rules.information(state, role)]["bet"]
        return "bet" if task_random("kuhn-poker expert", self.rules.key(state)).random() < chance else "pass"


def pay(deal: str, history: str) -> int:
    """Return what role 0 wins by a hand that is over."""
    if history[-2:] == "bp":  # whoever passed after a bet loses the ante
        return 1 if len(history) == 2 else -1
    return (1 if "JQK".index(deal[0]) > "JQK".index(deal[1]) else -1) * (2 if "b" in history else 1)


def equilibrium(bluff: float = BLUFF) -> dict[str, dict[str, float]]:
    """A Nash equilibrium: information -> probability of each action. Role 0 bets on a J with probability `bluff`, 0 to
    1/3; all of them lose 1/18 a hand as role 0."""
    bets = {
        "J:": bluff, "Q:": 0.0, "K:": 3 * bluff, "J:pb": 0.0, "Q:pb": bluff + 1 / 3, "K:pb": 1.0,
        "J:p": 1 / 3, "Q:p": 0.0, "K:p": 1.0, "J:b": 0.0, "Q:b": 1 / 3, "K:b": 1.0,
    }  # fmt: skip
    return {information: {"pass": 1 - bet, "bet": bet} for information, bet in bets.items()}


def at_random(state: Hand, random: np.random.Generator) -> str:
    return str(random.choice(KuhnPokerRules.actions))


def balanced(state: Hand, random: np.random.Generator) -> str:
    role = len(state.history) % 2
    chance = equilibrium()[f"{state.deals[state.number][role]}:{state.history}"]["bet"]
    return "bet" if random.random() < chance else "pass"
