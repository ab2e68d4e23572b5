"""Judge solve.py: train on the first four fifths of train.csv, print the score on the rest.

Where inputs.csv is (the environment has it, you do not), train on all of train.csv and write out.csv, a number a line.
"""

import importlib
import json
import os

import numpy as np


def read(path):
    with open(path) as file:
        names = file.readline().strip().split(",")
        return dict(zip(names, np.loadtxt(file, delimiter=",", ndmin=2).T))


def main():
    solve = importlib.import_module("solve").solve
    train = read("train.csv")
    with open("terms.json") as file:
        terms = json.load(file)
    if os.path.exists("inputs.csv"):
        out = solve(train, read("inputs.csv"), terms)
        np.savetxt("out.csv", np.asarray(out, float), fmt="%.12g")
        return
    cut = len(train["y"]) * 4 // 5
    inputs = {name: column[cut:] for name, column in train.items() if name != "y"}
    out = np.asarray(solve({name: column[:cut] for name, column in train.items()}, inputs, terms), float)
    print(f"score {importlib.import_module('score').score(out, train['y'][cut:], terms):.4g} (less is better)")


if __name__ == "__main__":
    main()
