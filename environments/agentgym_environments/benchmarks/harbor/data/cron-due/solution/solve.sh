#!/bin/bash
set -e
cat > /app/due.py <<'PY'
import datetime
import re
import sys

MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
DAYS = "sun mon tue wed thu fri sat".split()
RANGES = [(0, 59, {}), (0, 23, {}), (1, 31, {}), (1, 12, {n: i + 1 for i, n in enumerate(MONTHS)}), (0, 7, {n: i for i, n in enumerate(DAYS)})]
AT = {"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *"}


def number(text, place):
    low, high, names = RANGES[place]
    value = names[text.lower()] if text.lower() in names else int(text) if text.isdigit() else -1
    if not low <= value <= high:
        raise ValueError(text)
    return value


def values(text, place):
    found = set()
    for part in text.split(","):
        whole, slash, step = part.partition("/")
        if whole == "*":
            first, last = RANGES[place][:2]
        elif "-" in whole:
            first, last = (number(one, place) for one in whole.split("-", 1))
        elif slash:
            raise ValueError(part)
        else:
            first = last = number(whole, place)
        if first > last or (slash and (not step.isdigit() or int(step) < 1)):
            raise ValueError(part)
        found |= set(range(first, last + 1, int(step) if slash else 1))
    return found


def due(fields, now):
    minute, hour, day, month, week = (values(text, place) for place, text in enumerate(fields))
    weekday = now.isoweekday() % 7
    in_day, in_week = now.day in day, weekday in week or (weekday == 0 and 7 in week)
    date = (in_day and in_week) if fields[2].startswith("*") or fields[4].startswith("*") else (in_day or in_week)
    return now.minute in minute and now.hour in hour and now.month in month and date


now, code = datetime.datetime.strptime(sys.argv[2], "%Y-%m-%d %H:%M"), 0
for place, line in enumerate(open(sys.argv[1]).read().splitlines(), 1):
    line = line.strip()
    if not line or line.startswith("#") or re.match(r"[A-Za-z_]\w*\s*=", line):
        continue
    try:
        if line.startswith("@"):
            name, command = line.split(None, 1)
            fields = AT[name].split()
        else:
            *fields, command = line.split(None, 5)
            if len(fields) != 5:
                raise ValueError(line)
        if due(fields, now):
            print(command)
    except (ValueError, KeyError):
        print(f"line {place}: wrong", file=sys.stderr)
        code = 1
sys.exit(code)
PY
