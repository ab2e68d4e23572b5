"""Feedback on a guess: G right letter in the right place, Y elsewhere in the answer, - not (or not as often).

A letter guessed more often than the answer holds it is marked only as often as the answer holds it, right places first.
"""

from __future__ import annotations

import numpy as np


def feedback(guess: str, answer: str) -> str:
    """`feedback("speed", "abide") == "--Y-Y"`."""
    left = [letter for mine, letter in zip(guess, answer) if mine != letter]
    marks = []
    for mine, letter in zip(guess, answer):
        if mine == letter:
            marks.append("G")
        elif mine in left:
            left.remove(mine)
            marks.append("Y")
        else:
            marks.append("-")
    return "".join(marks)


def patterns(guesses_GL: np.ndarray, answers_AL: np.ndarray) -> np.ndarray:
    """Feedback of every guess on every answer as numbers [G, A], base 3: - is 0, Y is 1, G is 2.

    G guesses, A answers, L letters: uint8 codes of letters.
    """
    length = guesses_GL.shape[1]
    guess, answer = guesses_GL[:, None, :], answers_AL[None, :, :]
    right = guess == answer
    total = np.zeros(right.shape[:2], np.int16)
    for i in range(length):
        holds = np.zeros(total.shape, np.int8)
        for j in range(length):
            holds += (guess[..., i] == answer[..., j]) & ~right[..., j]
            if j < i:
                holds -= (guess[..., i] == guess[..., j]) & ~right[..., j]
        total = total * 3 + np.where(right[..., i], 2, holds > 0).astype(np.int16)
    return total
