#!/bin/bash
set -e
cat > /app/summarize.py <<'PY'
import csv
import re
import sys

LINE = re.compile(r'\S+ \S+ \S+ \[[^\]]+\] "\S+ (\S+) HTTP/[\d.]+" (\d{3}) (\d+|-) (\d+\.\d+)')
rows, skipped = {}, 0
with open(sys.argv[1]) as log:
    for line in log:
        found = LINE.fullmatch(line.rstrip("\n"))
        if not found:
            skipped += 1
            continue
        row = rows.setdefault(found[1].partition("?")[0], [0, 0, 0, 0.0])
        row[0] += 1
        row[1] += int(found[2]) >= 500
        row[2] += 0 if found[3] == "-" else int(found[3])
        row[3] = max(row[3], float(found[4]))
with open(sys.argv[2], "w", newline="") as out:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["path", "requests", "errors", "bytes", "slowest"])
    for path, row in sorted(rows.items(), key=lambda item: (-item[1][0], item[0])):
        writer.writerow([path, *row[:3], f"{row[3]:.3f}"])
print("skipped", skipped)
PY
