import numpy as np


def solve(train, inputs, terms):
    """Stock level of each day of inputs: one for all, by the demand of `lead` + 1 days. Arguments: column -> array."""
    asked = np.convolve(train["y"], np.ones(terms["lead"] + 1), "valid")
    level = np.quantile(asked, terms["short"] / (terms["short"] + terms["hold"]))
    return np.full(len(inputs["day"]), level)
