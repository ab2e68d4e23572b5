import numpy as np

CLUES = []


def solve(train, inputs, terms, clues=CLUES):
    """Least squares on columns that are transformed by what they are, without the rows that do not fit the others."""

    def features(columns):
        found = [np.ones(len(columns[clues[0][1]]))]
        for kind, name, more in clues:
            x = columns[name]
            if kind == "plain":
                found.append(x)
            elif kind == "log":
                found.append(np.log(x))
            elif kind == "cycle":
                found += [np.sin(2 * np.pi * x / more), np.cos(2 * np.pi * x / more)]
            elif kind == "code":
                found += [x == code for code in range(1, int(more))]
            elif kind == "bend":
                found += [x, np.maximum(x - more, 0)]
            elif kind == "missing":
                found += [x == more, np.where(x == more, 0, x)]
            elif kind == "ratio":
                found.append(x / columns[more])
            elif kind == "product":
                found.append(x * columns[more])
        return np.column_stack(found).astype(float)

    known, y = features(train), train["y"]
    keep = np.ones(len(y), bool)
    for _ in range(6):
        weights = np.linalg.lstsq(known[keep], y[keep], rcond=None)[0]
        off = np.abs(known @ weights - y)
        keep = off <= 6 * np.median(off)
    return features(inputs) @ weights
