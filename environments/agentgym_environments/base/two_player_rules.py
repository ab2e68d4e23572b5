"""Rules of a game on immutable states, with two roles, 0 and 1. No opponent, no episode, no text grammar beyond
the names of actions; `env.py` makes an environment of them and `exploitability.py` walks their tree."""

from __future__ import annotations

from typing import Any, Protocol

Scores = tuple[float, float]
"""Points that role 0 and role 1 have won so far."""


class Rules(Protocol):
    actions: tuple[str, ...]
    """Every action of the game; empty where they are too many to list."""
    moves: tuple[int, int]
    """The most moves that each role can make in an episode."""
    reward_range: tuple[float, float]
    """Least and greatest reward of a single step."""

    def start(self, split: str, task: int, side: int | None) -> Any:
        """The state that a task begins with. `side` is the role of the agent where it is the same in all tasks."""
        ...

    def mover(self, state: Any) -> int | None:
        """Return whose turn it is; None once the game is over."""
        ...

    def legal(self, state: Any) -> tuple[str, ...]: ...

    def play(self, state: Any, action: str) -> Any:
        """The state after a legal action."""
        ...

    def scores(self, state: Any) -> Scores: ...

    def forfeit(self, state: Any, role: int) -> Scores:
        """The scores if `role` now loses by its own fault: the worst that could still come."""
        ...

    def success(self, state: Any, role: int) -> bool:
        """Return whether a game that was played to its end went well for `role`."""
        ...

    def observe(self, state: Any, role: int) -> str:
        """Return what `role` may see, and nothing else."""
        ...

    def key(self, state: Any) -> str:
        """The whole state, hidden parts included."""
        ...

    def information(self, state: Any, role: int) -> str:
        """All that `role` knows: states that it cannot tell apart have the same."""
        ...

    def save(self, state: Any) -> Any: ...

    def load(self, saved: Any) -> Any: ...
