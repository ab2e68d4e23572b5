"""Solvers of some games, from the game's own state (Mastermind's and the number's from what was told alone)."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from typing import Any

WAYS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


def frozen_lake(game: Any) -> str:
    """The first move of a shortest way round the holes."""
    state = game.state.game_state
    start, goal, grid = tuple(state["player_pos"]), tuple(state["goal_pos"]), state["grid"]

    def moves(here: tuple) -> list[tuple[str, tuple]]:
        around = [(way, (here[0] + down, here[1] + right)) for way, (down, right) in WAYS.items()]
        inside = [(way, to) for way, to in around if 0 <= to[0] < len(grid) and 0 <= to[1] < len(grid)]
        return [(way, to) for way, to in inside if grid[to[0]][to[1]] != "H"]

    return f"[{_first(start, goal.__eq__, moves)}]"


def hanoi(game: Any) -> str:
    """The first move of a shortest solution from these towers."""
    towers = game.state.game_state["towers"]
    start = tuple(tuple(towers[peg]) for peg in "ABC")
    disks = sum(map(len, start))

    def moves(here: tuple) -> list[tuple[str, tuple]]:
        found = []
        for one, other in itertools.permutations(range(3), 2):
            if here[one] and (not here[other] or here[other][-1] > here[one][-1]):
                pegs = list(here)
                pegs[other], pegs[one] = (*here[other], here[one][-1]), here[one][:-1]
                found.append((f"{'ABC'[one]} {'ABC'[other]}", tuple(pegs)))
        return found

    return f"[{_first(start, lambda pegs: len(pegs[2]) == disks, moves)}]"


def guess(game: Any) -> str:
    """The middle of what is left."""
    low, high = game.min_number, game.max_number
    for number, hint in game.state.game_state["guess_history"]:
        low, high = (max(low, number + 1), high) if hint == "higher" else (low, min(high, number - 1))
    return f"[{(low + high) // 2}]"


def mastermind(game: Any) -> str:
    """The first code that every answer so far allows."""
    state = game.state.game_state
    digits, length = range(1, state["num_numbers"] + 1), state["code_length"]
    codes = (
        itertools.product(digits, repeat=length)
        if state["duplicate_numbers"]
        else itertools.permutations(digits, length)
    )
    for code in codes:
        if all(_pegs(code, past["guess"]) == (past["black"], past["white"]) for past in state["history"]):
            break
    return f"[{' '.join(map(str, code))}]"


def _pegs(code: tuple[int, ...], other_code: list[int]) -> tuple[int, int]:
    black = sum(one == other for one, other in zip(code, other_code))
    common = sum(min(code.count(digit), other_code.count(digit)) for digit in set(other_code))
    return black, common - black


def _first(start: Any, done: Callable[[Any], bool], moves: Callable[[Any], list[tuple[str, Any]]]) -> str:
    """Breadth first: the first word of a shortest way to where `done` is true."""
    queue, visited = deque((word, to) for word, to in moves(start)), {start}
    while queue:
        word, here = queue.popleft()
        if done(here):
            return word
        if here not in visited:
            visited.add(here)
            queue.extend((word, to) for _, to in moves(here) if to not in visited)
    return "up"


SOLVERS: dict[str, Callable[[Any], str]] = {
    "FrozenLake-v0": frozen_lake,
    "FrozenLake-v0-hardcore": frozen_lake,
    "FrozenLake-v0-random": frozen_lake,
    "GuessTheNumber-v0": guess,
    "GuessTheNumber-v0-hardcore": guess,
    "Mastermind-v0": mastermind,
    "TowerOfHanoi-v0": hanoi,
    "TowerOfHanoi-v0-medium": hanoi,
    "TowerOfHanoi-v0-hard": hanoi,
}
