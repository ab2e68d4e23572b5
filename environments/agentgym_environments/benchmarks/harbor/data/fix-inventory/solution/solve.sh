#!/bin/bash
set -e
cat > /app/inventory.py <<'PY'
import json
import re
import sys


def load(path):
    try:
        with open(path) as file:
            return json.load(file)
    except FileNotFoundError:
        return {}


def save(path, stock):
    with open(path, "w") as file:
        json.dump(stock, file)


def euros(cents):
    return f"{cents // 100}.{cents % 100:02d}"


def main(argv):
    path, command = argv[0], argv[1]
    stock = load(path)
    if command == "report":
        total = 0
        for name in sorted(stock, key=str.lower):
            item = stock[name]
            if item["count"] > 0:
                total += item["count"] * item["price"]
                print(name, item["count"], euros(item["count"] * item["price"]))
        print("total", euros(total))
        return 0
    name = argv[2]
    if not re.fullmatch("[0-9]+", argv[3]) or int(argv[3]) < 1:
        print("bad count", file=sys.stderr)
        return 2
    count = int(argv[3])
    if command == "add":
        item = stock.setdefault(name, {"count": 0, "price": 0})
        item["count"] += count
        if "--price" in argv:
            item["price"] = int(argv[argv.index("--price") + 1])
    else:
        if name not in stock or stock[name]["count"] < count:
            print("not enough", name, file=sys.stderr)
            return 1
        stock[name]["count"] -= count
    save(path, stock)
    return 0


sys.exit(main(sys.argv[1:]))
PY
