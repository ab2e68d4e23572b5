#!/bin/bash
set -e
cat > /app/colstat <<'PY'
#!/usr/bin/env python3
import csv
import math
import statistics
import sys


def fail(message):
    print(message, file=sys.stderr)
    sys.exit(2)


def line(cells):
    numbers = []
    for cell in cells:
        try:
            number = float(cell)
        except ValueError:
            continue
        if math.isfinite(number):
            numbers.append(number)
    if not numbers:
        return "count=0"
    return (
        f"count={len(numbers)} mean={statistics.fmean(numbers):.2f} median={statistics.median(numbers):.2f} "
        f"min={min(numbers)} max={max(numbers)}"
    )


argv = sys.argv[1:]
if len(argv) not in (2, 4) or (len(argv) == 4 and argv[2] != "--by"):
    fail("usage: colstat FILE COLUMN [--by OTHER]")
try:
    file = sys.stdin if argv[0] == "-" else open(argv[0], newline="")
except OSError:
    fail(f"no file {argv[0]}")
if file is sys.stdin:
    sys.stdin.reconfigure(newline="")
rows = list(csv.reader(file))
header = rows[0] if rows else []
for name in argv[1::2]:
    if name not in header:
        fail(f"no column {name}")
place = header.index(argv[1])
if len(argv) == 2:
    print(line([row[place] for row in rows[1:] if row]))
else:
    other, groups = header.index(argv[3]), {}
    for row in rows[1:]:
        if row:
            groups.setdefault(row[other], []).append(row[place])
    for name, cells in groups.items():
        print(f"{name}: {line(cells)}")
PY
chmod 755 /app/colstat
