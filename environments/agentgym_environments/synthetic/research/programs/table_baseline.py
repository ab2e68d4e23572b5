import numpy as np


def solve(train, inputs, terms):
    """Predict y of each row of inputs: least squares on the columns as they are. Arguments: column name -> array."""

    def features(columns):
        return np.column_stack([np.ones(len(columns[names[0]])), *(columns[name] for name in names)])

    names = [name for name in train if name != "y"]
    weights = np.linalg.lstsq(features(train), train["y"], rcond=None)[0]
    return features(inputs) @ weights
