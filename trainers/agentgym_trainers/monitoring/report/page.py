"""write_report: a run folder as one page, `report.html`, that opens from disk without a network.

    run/config.toml                       the resolved configuration
    run/metrics.jsonl                     {"phase", "step", "<group>/<name>": number | null, ...} a line
    run/trajectories/step-000010.jsonl    `Trajectory.to_json()` and "annotations" a line
    run/eval/summary.json                 {"before", "after", "difference"}

Only metrics.jsonl must be there. What cannot be read (a line cut by a crash) is skipped, and the page says so.
"""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from agentgym.errors import CheckpointError
from agentgym_trainers.monitoring.metrics_file import finite_number, json_object
from agentgym_trainers.monitoring.report.curves import run_curves
from agentgym_trainers.monitoring.report.shortened import cut
from agentgym_trainers.monitoring.report.trajectories import chosen_trajectories

CONFIG_CHARACTERS = 200_000
NOTES = 20
"""Notes in a page at most."""

TEMPLATE = Path(__file__).with_name("page.html")


def write_report(run: Path) -> Path:
    """Write `run/report.html` and return its path.

    Raises CheckpointError when there is no run folder, or no metrics in it.
    """
    run = Path(run)
    if not run.is_dir():
        raise CheckpointError(f"There is no run folder {run}.")
    notes: list[str] = []
    data = {
        "run": run.resolve().name,
        "curves": run_curves(run / "metrics.jsonl", notes),
        "evaluation": _evaluation(run / "eval" / "summary.json", notes),
        "config": _config(run / "config.toml"),
        **chosen_trajectories(run / "trajectories", notes),
        "notes": [*notes[:NOTES], *([f"And {len(notes) - NOTES} more notes."] if len(notes) > NOTES else [])],
    }
    # "<" is escaped wherever it stands: neither "</script>" nor "<!--" in an observation can end the data.
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    before, after = TEMPLATE.read_text(encoding="utf-8").split("{{data}}")
    page = before.replace("{{title}}", html.escape(data["run"])) + text + after
    path = run / "report.html"
    path.write_bytes(page.encode("utf-8", errors="replace"))  # a lone surrogate in a token's text becomes "?"
    return path


def _evaluation(path: Path, notes: list[str]) -> dict[str, Any] | None:
    """The parts of the summary that are there and complete; None when there are none."""
    if not path.is_file():
        return None
    summary = json_object(path.read_bytes())
    wanted = {
        "before": ("success", "low", "high"),
        "after": ("success", "low", "high"),
        "difference": ("estimate", "low", "high"),
    }
    found: dict[str, Any] = {}
    for part, names in wanted.items():
        record = summary.get(part)
        if not isinstance(record, dict):
            continue
        numbers = {name: finite_number(record.get(name)) for name in names}
        if numbers[names[0]] is not None:
            words = {"tasks": "tasks", "attempts": "attempts each", "failed": "failed and not counted"}
            found[part] = numbers | {"counts": ", ".join(f"{record[n]} {words[n]}" for n in words if record.get(n))}
    if not found:
        notes.append(f"{path.parent.name}/{path.name} could not be read and is left out.")
    return found or None


def _config(path: Path) -> str | None:
    if not path.is_file():
        return None
    text = path.read_text(encoding="utf-8", errors="replace")
    return cut(text, CONFIG_CHARACTERS)
