"""A game as an environment: against a scripted opponent, or with both roles played from outside (`opponent="self"`).

Whose turn it is stands in info["role"], what a step gave to each role in info["rewards"]; `reward` is what it gave to
the role that acted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from agentgym.env import Action
from agentgym.errors import ConfigError
from agentgym.spec import EnvSpec
from agentgym_environments.base.text_env import TurnEnv
from agentgym_environments.base.two_player_rules import Rules, Scores

Choose = Callable[[Any, np.random.Generator], str]
"""(state, randomness) -> the action of whoever is to move."""

PATIENCE = 3
"""The illegal move of one role that loses its game. Were they only refused, a loser would never move again."""


class Game(TurnEnv):
    """opponent: a scripted one by name, or "self": both roles are asked, one after the other, in one session.
    side: the role that is played against an opponent, 0 or 1, or "alternate" (decided by the task)."""

    beatable: ClassVar[tuple[str, ...]] = ()
    """Opponents against whom `best` succeeds at 95 % of the tasks: there the environment claims a solver."""

    def __init__(
        self,
        spec: EnvSpec,
        rules: Rules,
        opponents: Mapping[str, Choose],
        opponent: str,
        side: int | str,
        **changes: Any,
    ) -> None:
        """`changes`: what else of the spec is another by the arguments."""
        if opponent not in (*opponents, "self"):
            raise ConfigError(f"{spec.id}: opponent is {', '.join(opponents)} or self, not {opponent!r}")
        if side not in (0, 1, "alternate") or isinstance(side, bool):
            raise ConfigError(f"{spec.id}: side is 0, 1 or alternate, not {side!r}")
        if opponent == "self" and side != "alternate":
            raise ConfigError(f"{spec.id}: with opponent=self both roles are played, so there is no side to choose")
        self.rules, self.opponent, self.side = rules, opponent, side
        self.choose = opponents.get(opponent)
        two = opponent == "self"
        solver = two or opponent in self.beatable
        changes |= {
            "actions": rules.actions,
            "reward_range": rules.reward_range,
            "max_turns": (sum(rules.moves) if two else max(rules.moves)) + (1 + two) * (PATIENCE - 1),
            "capabilities": ("snapshot", *(["solver"] if solver else []), *(["two_player"] if two else [])),
        }
        super().__init__(spec.model_copy(update=changes))
        self.state: Any = None
        self.agent: int | None = None
        """The role that is played from outside; None is both."""
        self.acted = 0
        """The role that moved last from outside."""
        self.illegal = [0, 0]
        self.forfeited: int | None = None
        self.rewards: Scores = (0.0, 0.0)

    # The game.

    def best(self, state: Any) -> str:
        """A strong move for whoever is to move."""
        raise NotImplementedError

    @property
    def role(self) -> int:
        """Return who is asked: whose turn it is, or, once the game is over, who was asked last."""
        if self.agent is not None:
            return self.agent
        mover = None if self.forfeited is not None else self.rules.mover(self.state)
        return self.acted if mover is None else mover

    @property
    def scores(self) -> Scores:
        if self.forfeited is not None:
            return self.rules.forfeit(self.state, self.forfeited)
        return self.rules.scores(self.state)

    @property
    def ended(self) -> bool:
        return self.forfeited is not None or self.rules.mover(self.state) is None

    def succeeded(self, role: int) -> bool:
        return self.ended and self.forfeited is None and self.rules.success(self.state, role)

    def begin(self, split: str, task: int) -> None:
        self.state = self.rules.start(split, task, None if self.side == "alternate" else int(self.side))
        alternate = self.side == "alternate"
        self.agent = None if self.opponent == "self" else self.seat(task) if alternate else int(self.side)
        self.illegal, self.forfeited, self.rewards = [0, 0], None, (0.0, 0.0)
        self.acted = self.role
        self._reply()

    def seat(self, task: int) -> int:
        """The agent's role where sides alternate."""
        return task % 2

    def step(self, action: Action) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.require_running("step")
        role, before, legal = self.role, self.scores, self.rules.legal(self.state)
        texts = self.readings(action)
        move = next((text for text in texts if text in legal), None)
        self.acted, valid = role, move is not None
        if move is not None:
            self.state = self.rules.play(self.state, move)
            self._reply()
        else:
            self.illegal[role] += 1
            self.forfeited = role if self.illegal[role] == PATIENCE else None
        self.end_turn(self.ended)
        self.success = self.succeeded(role) if self.agent is not None else self.over and self.forfeited is None
        self.rewards = tuple(after - was for after, was in zip(self.scores, before))  # type: ignore[assignment]
        observation = self.observe() if valid or self.over else self.refuse(texts[0])
        return observation, self.rewards[role], self.over, False, self._info(valid=valid)

    def _reply(self) -> None:
        """The opponent's moves, until the agent is asked or the game is over."""
        while self.choose is not None and self.rules.mover(self.state) == 1 - self.role:
            self.state = self.rules.play(self.state, self.choose(self.state, self.np_random))

    # What is told.

    def observe(self) -> str:
        if self.forfeited is not None:
            return f"player {self.forfeited} made {PATIENCE} illegal moves and loses"
        return self.rules.observe(self.state, self.role)

    def refuse(self, action: str) -> str:
        return f"not a legal move; say {', '.join(self.rules.legal(self.state))}\n{self.observe()}"

    def key(self) -> str:
        lost = "" if self.forfeited is None else f" lost by {self.forfeited}"
        return self.rules.key(self.state) + ("" if self.agent is None else f" as {self.agent}") + lost

    def describe(self) -> dict[str, Any]:
        info: dict[str, Any] = {"available_actions": [] if self.ended else list(self.rules.legal(self.state))}
        info |= {"role": self.role, "rewards": list(self.rewards)}
        if self.ended:
            info["successes"] = [self.succeeded(role) for role in (0, 1)]
        return info

    def solver(self) -> str:
        self.require_episode("solver")
        return self.best(self.state)

    def save(self) -> Any:
        return {
            "state": self.rules.save(self.state),
            "agent": self.agent,
            "acted": self.acted,
            "illegal": self.illegal,
            "forfeited": self.forfeited,
            "rewards": self.rewards,
        }

    def load(self, state: Any) -> None:
        self.state = self.rules.load(state["state"])
        self.agent, self.acted, self.forfeited = state["agent"], state["acted"], state["forfeited"]
        self.illegal, self.rewards = list(state["illegal"]), tuple(state["rewards"])
