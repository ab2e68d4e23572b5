import math


def score(out, y, terms):
    """Root of the mean squared error."""
    return math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(out, y)) / len(y))
