import numpy as np


def score(out, y, terms):
    """Root of the mean squared error."""
    return float(np.sqrt(np.mean((np.asarray(out) - y) ** 2)))
