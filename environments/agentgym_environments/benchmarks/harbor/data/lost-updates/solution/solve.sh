#!/bin/bash
set -e
cat > /app/counter.py <<'PY'
import fcntl
import json
import os
import sys
import time


def read(path):
    try:
        with open(path) as file:
            return json.load(file)
    except FileNotFoundError:
        return {}


def add(path, name, number):
    with open(f"{path}.lock", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        counters = read(path)
        time.sleep(0.02)
        counters[name] = counters.get(name, 0) + number
        replacement = f"{path}.new"
        with open(replacement, "w") as file:
            json.dump(counters, file)
        os.replace(replacement, path)
        return counters[name]


def main(argv):
    path, command = argv[0], argv[1]
    if command == "add":
        print(add(path, argv[2], int(argv[3])))
    else:
        for name, value in sorted(read(path).items()):
            print(name, value)


main(sys.argv[1:])
PY
