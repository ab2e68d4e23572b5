"""The single-player games of TextArena that work as environments, which was measured, and why the others do not."""

from __future__ import annotations

import re
from typing import Any

MOVES = ("[up]", "[down]", "[left]", "[right]")
PEGS = tuple(f"[{one} {other}]" for one in "ABC" for other in "ABC" if one != other)

GAMES: dict[str, tuple[str, ...]] = {
    "2048-v0": MOVES,
    "2048-v0-easy": MOVES,
    "2048-v0-very-easy": MOVES,
    "2048-v0-super-easy": MOVES,
    "2048-v0-ultra-easy": MOVES,
    "2048-v0-mega-easy": MOVES,
    "Blackjack-v0": ("[hit]", "[stand]"),
    "Blackjack-v0-long": ("[hit]", "[stand]"),
    "Countdown-v0": (),
    "Crosswords-v0": (),
    "Cryptarithm-v0": (),
    "FrozenLake-v0": MOVES,
    "FrozenLake-v0-hardcore": MOVES,
    "FrozenLake-v0-random": MOVES,
    "GuessTheNumber-v0": tuple(f"[{number}]" for number in range(1, 21)),
    "GuessTheNumber-v0-hardcore": tuple(f"[{number}]" for number in range(1, 51)),
    "LightsOut-v0": tuple(f"[{row} {column}]" for row in range(5) for column in range(5)),
    "Mastermind-v0": (),
    "Mastermind-v0-hard": (),
    "Mastermind-v0-extreme": (),
    "Minesweeper-v0": (),
    "Minesweeper-v0-small": (),
    "Minesweeper-v0-medium": (),
    "Minesweeper-v0-hard": (),
    "PegJump-v0": (),
    "Secretary-v0": ("[accept]", "[continue]"),
    "Secretary-v0-long": ("[accept]", "[continue]"),
    "Slitherlink-v0": (),
    "Sudoku-v0": (),
    "Sudoku-v0-very-easy": (),
    "Sudoku-v0-easy": (),
    "Sudoku-v0-medium": (),
    "TowerOfHanoi-v0": PEGS,
    "TowerOfHanoi-v0-medium": PEGS,
    "TowerOfHanoi-v0-hard": PEGS,
}
"""Game: its actions, when they are few and fixed."""

KEYS = {"w": "up", "a": "left", "s": "down", "d": "right"}
"""Short names that FrozenLake's rules offer."""


def move_of(game: str, action: str) -> str | None:
    """Return the move of a game with few moves that an action has in its one pair of brackets, as the game writes it:
    "I go [Up]." is "[up]", "[a, c]" is "[A C]". None where there is none, or more than one pair.
    """
    marked = re.findall(r"\[([^\[\]]*)\]", action)
    if len(marked) != 1:
        return None
    word = " ".join(marked[0].replace(",", " ").lower().split())
    if game.startswith("FrozenLake"):
        word = KEYS.get(word, word)
    return next((move for move in GAMES[game] if move.lower() == f"[{word}]"), None)


TURNS = {"2048-v0": 1500, "2048-v0-easy": 750, "2048-v0-very-easy": 200, "Slitherlink-v0": 200}
"""Turns of the games that more than MOST_TURNS are needed or promised for. A turn of 2048 adds 2.2 to the sum of all
tiles on average, so that the tile 2048 needs 930 turns, 1024 needs 465 and 256 needs 116."""
MOST_TURNS = 100

RULES = {
    "Blackjack": "The game is won with more hands won than lost.",
    "Minesweeper": "A mine ends the game.",
    "Sudoku": "The third wrong digit ends the game.",
}
"""Rules that TextArena's own text lacks, by the beginning of a game's name."""

MISTAKES = {"Minesweeper": ("hit a mine", 1), "Sudoku": ("violates Sudoku rules", 3)}
"""Words of the game's answer to a mistake, and how many mistakes lose the game. Were they free, as other refused moves
are, what is hidden could be found by trying everything."""


def is_won(game: str, inner: Any) -> bool:
    """Return whether a game that has ended is won: it gives the reward 1, or is Blackjack, which gives 1 only where
    every hand is won."""
    if game.startswith("Blackjack"):
        results = inner.state.game_state["results_summary"]
        return results["win"] > results["lose"]
    return float((inner.state.rewards or {}).get(0, 0.0)) >= 1.0


LEFT_OUT = {
    "2048-v0-3x3": "nine fields hold no tile above 1024",
    "Bandit": "its state cannot be told from its history, and nothing in it is ever solved",
    "FifteenPuzzle": "its code fails when it is solved",
    "LogicPuzzle": "it prints to the terminal",
    "RushHour": "a reset takes seconds",
    "Set": "its reward counts Sets, so that nothing in it is ever solved, and one card three times is a Set",
    "Sokoban": "a reset takes seconds",
    "Sudoku-v0-hard": "a reset takes seconds",
    "ThreeCardMonte": "the winner is drawn after the guess",
    "Hangman": "it needs a list of words that nltk would download",
    "SpellingBee": "it needs a list of words that nltk would download",
    "Wordle": "it needs a list of words that nltk would download; there is an environment `wordle`",
    "WordLadder": "it needs a list of words that nltk would download",
    "WordSearch": "it needs a list of words that nltk would download",
}

ALIKE = ("Minesweeper",)
"""Games that draw their chance at the first move: every task opens alike."""

SINGLE = ("Countdown", "Cryptarithm", "PegJump", "TowerOfHanoi")
"""Games with one opening: one task, one split."""
