"""The solver: of the words that fit everything seen, or that split those best, the one that tells most."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from agentgym_environments.diagnostics.wordle.feedback import feedback, patterns
from agentgym_environments.diagnostics.wordle.tasks import words

MANY = 200
"""Number of candidates beyond which a few of them stand for all as guesses."""
FEW = 40


def letters(some: Sequence[str]) -> np.ndarray:
    """uint8[words, letters]"""
    return np.frombuffer("".join(some).encode(), np.uint8).reshape(len(some), -1)


@lru_cache(maxsize=8192)
def best_guess(answers: str, history: tuple[tuple[str, str], ...], turns_left: int) -> str:
    """The guess of greatest expected information; a word that may be the answer wins a tie.

    history: (guess, marks) of the turns so far. Takes under 50 ms.
    """
    fitting = [word for word in words(answers) if all(feedback(guess, word) == marks for guess, marks in history)]
    if len(fitting) <= 2 or turns_left <= 1:
        return fitting[0]
    pool = fitting[:: len(fitting) // FEW] if len(fitting) > MANY else fitting
    if len(fitting) <= FEW:
        pool = [*fitting, *words(answers)]
    pattern_GA = patterns(letters(pool), letters(fitting))
    information = [_entropy(np.bincount(row)) for row in pattern_GA]
    return pool[int(np.argmax(information))]


def _entropy(counts: np.ndarray) -> float:
    share = counts[counts > 0] / counts.sum()
    return round(float(-(share * np.log2(share)).sum()), 9)
