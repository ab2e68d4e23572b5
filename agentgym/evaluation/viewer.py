"""write_viewer: an evaluation as one page that opens from disk without a network."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from agentgym.evaluation.export import cost_of, last_trajectories, read_price
from agentgym.evaluation.run_folder import AttemptRecord, key_of, read_attempts, read_description, read_specs
from agentgym.evaluation.summary import summarize
from agentgym.rollouts.trajectory import Trajectory, Turn

TEMPLATE = Path(__file__).with_name("viewer.html")
TEXT = 20_000
"""Characters of an observation or reply at most."""
TRAJECTORY_BYTES = 20_000_000
"""All trajectories together, screenshots included; further attempts are listed without theirs."""


def write_viewer(folder: Path, out: Path) -> int:
    """Write the page `out` and return how many attempts it lists. Raises CheckpointError for no evaluation."""
    rows, about, price = read_attempts(folder), read_description(folder), read_price(folder)
    notes: list[str] = []
    shown = _trajectories(folder, rows, notes)
    summary = summarize(rows, price=price)
    lines = [(f"{line.env} {line.split}".strip(), line) for line in (*summary.envs, summary.overall)]
    data = {
        "title": f"{about['suite']['name']}: {about['policy']}",
        "summary": [
            {"place": place, "tasks": line.tasks, "attempts": line.attempts, "success": line.cell("success")}
            for place, line in lines
        ],
        "panel": about["panel"],
        "instructions": {place: spec.instructions for place, spec in read_specs(folder).items()},
        "attempts": [_attempt(row, cost_of(row, price), shown.get(i)) for i, row in enumerate(rows)],
        "notes": notes,
    }
    # "<" is escaped wherever it stands: neither "</script>" nor "<!--" in an observation can end the data.
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    before, after = TEMPLATE.read_text(encoding="utf-8").split("{{data}}")
    page = before.replace("{{title}}", html.escape(data["title"])) + text + after
    out.write_bytes(page.encode("utf-8", errors="replace"))  # a lone surrogate in a reply becomes "?"
    return len(rows)


def _trajectories(folder: Path, rows: list[AttemptRecord], notes: list[str]) -> dict[int, dict[str, Any]]:
    """Trajectories by the number of their row, as many as fit."""
    if not (folder / "trajectories.jsonl").exists():
        notes.append("Trajectories were not kept.")
        return {}
    kept, shown, size = last_trajectories(folder), {}, 0
    for number, row in enumerate(rows):
        trajectory = kept.get(key_of(row))
        if trajectory is None:
            continue
        record = _show(trajectory)
        size += len(json.dumps(record))
        if size > TRAJECTORY_BYTES:
            notes.append(f"The first {len(shown)} trajectories are in the page; all are in trajectories.jsonl.")
            break
        shown[number] = record
    return shown


def _attempt(row: AttemptRecord, cost: float | None, shown: dict[str, Any] | None) -> dict[str, Any]:
    names = ("task", "seed", "attempt", "score", "turns", "stop", "error", "seconds")
    return {
        "place": f"{row.env} {row.split}",
        "outcome": "failed" if row.failed else "success" if row.success else "no success",
        **{name: getattr(row, name) for name in names},
        "tokens": row.tokens,
        "cost": cost,
        "trajectory": shown,
    }


def _show(trajectory: Trajectory) -> dict[str, Any]:
    return {"turns": [_show_turn(turn) for turn in trajectory.turns], "final": trajectory.final_observation[:TEXT]}


def _show_turn(turn: Turn) -> dict[str, Any]:
    message = turn.message or {}
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    if not calls:
        made = turn.action if isinstance(turn.action, list) else [turn.action]
        calls = [
            {"name": one["name"], "arguments": json.dumps(one.get("arguments") or {})}
            for one in made
            if isinstance(one, dict)
        ]
    reply = (message.get("content") or "") if turn.message else turn.reply
    return {
        "observation": turn.observation[:TEXT],
        "image": turn.image,
        "reply": reply[:TEXT],
        "calls": calls,
        "action": turn.action if isinstance(turn.action, str) else None,
        "invalid": turn.action is None or turn.info.get("valid_action") is False,
        "reward": turn.reward,
        "role": turn.role,
    }
