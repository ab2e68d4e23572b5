import numpy as np

CLUES = []


def solve(train, inputs, terms, clues=CLUES):
    """Demand by its cycle, growth and what raises it; the level is the share of it that costs ask for."""
    period, name, delay = clues
    day = np.concatenate([train["day"], inputs["day"]])
    raised = np.concatenate([np.zeros(delay), train[name], inputs[name]])[: len(day)]
    known = np.column_stack([*(day % period == i for i in range(period)), raised, day / 365]).astype(float)
    n = len(train["y"])
    weights = np.linalg.lstsq(known[:n], np.log(train["y"]), rcond=None)[0]
    expected = np.exp(known @ weights)
    window = np.ones(terms["lead"] + 1)
    needed = np.convolve(np.append(expected, np.repeat(expected[-1], terms["lead"])), window, "valid")
    ratios = np.convolve(train["y"], window, "valid") / needed[: n - terms["lead"]]
    return needed[n:] * np.quantile(ratios, terms["short"] / (terms["short"] + terms["hold"]))
