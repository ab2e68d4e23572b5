"""Reading of metrics.jsonl: whatever can be read, and a note for what cannot."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

LINE_END = b"\n"
Numbers = dict[str, float | None]


def read_metrics(path: Path, notes: list[str]) -> dict[str, dict[int, Numbers]]:
    """Numbers by phase and step; of a step written twice (a resumed run) the later line counts. Notes name the lines
    that were skipped. Raises FileNotFoundError."""
    rows: dict[str, dict[int, Numbers]] = {}
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            record = json_object(line)
            step, phase = record.get("step"), record.get("phase")
            if isinstance(step, int) and isinstance(phase, str):
                numbers = {name: finite_number(value) for name, value in record.items() if "/" in name}
                rows.setdefault(phase, {}).setdefault(step, {}).update(numbers)
            elif line.strip():
                notes.append(skipped_line(path, number, line, "a line of metrics"))
    return rows


def json_object(line: bytes) -> dict[str, Any]:
    """A line's JSON object; empty when it is not one."""
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def finite_number(value: Any) -> float | None:
    """The value where it is a finite number."""
    finite = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value if finite else None


def place_in(path: Path, number: int) -> str:
    return f"{path.name}, line {number}"


def skipped_line(path: Path, number: int, line: bytes, what: str) -> str:
    return f"{place_in(path, number)} is {f'not {what}' if line.endswith(LINE_END) else 'cut off'} and was skipped."
