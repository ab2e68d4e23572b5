"""run_curves: what a run measured, a record for each series of points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentgym.errors import CheckpointError
from agentgym_trainers.monitoring.metrics_file import read_metrics
from agentgym_trainers.monitoring.report.shortened import short, stretches

POINTS = 800
"""Points of a curve at most; a longer one keeps the lowest and the highest of each stretch."""

METRICS: dict[str, tuple[str, str, str]] = {
    # name: (title, what it is, "share" when it is a fraction shown as a percentage)
    "rollout/success": ("Success", "episodes that succeeded", "share"),
    "rollout/score": ("Score", "mean sum of an episode's rewards", ""),
    "rollout/turns": ("Turns", "mean replies an episode", ""),
    "rollout/invalid": ("Invalid", "replies without a valid action", "share"),
    "rollout/truncated": ("Truncated", "episodes cut by a limit", "share"),
    "credit/zero_fraction": ("Zero credit", "advantages that are exactly zero", "share"),
    "policy/entropy": ("Entropy", "of the policy at sampled tokens, nats", ""),
    "policy/clip_low": ("Clipped below", "tokens whose ratio was clipped from below", "share"),
    "policy/clip_high": ("Clipped above", "tokens whose ratio was clipped from above", "share"),
    "policy/kl_old": ("KL of the update", "of the policy that sampled to the present one", ""),
    "policy/engine_gap": ("Log-prob. error", "largest |learner − engine|", ""),
    "policy/prob_error": ("Probability error", "mean exp |learner − engine|: 1 where they agree", ""),
    "policy/mismatch_kl": ("Mismatch", "KL of the engine to the learner", ""),
    "prm/accuracy": ("Reward model", "outcomes or pairs that it has right", "share"),
    "prm/grad_norm": ("Reward model's gradient", "norm; 0 trains nothing", ""),
    "async/staleness_max": ("Age", "of the oldest token learned from, in updates", ""),
    "value/explained_variance": ("Explained variance", "of returns by the value head", ""),
    "loss/policy": ("Policy loss", "", ""),
    "loss/value": ("Value loss", "", ""),
    "optim/grad_norm": ("Gradient norm", "before clipping", ""),
    "time/rollout_s": ("Rollout time", "seconds a step", ""),
    "time/learn_s": ("Learning time", "seconds a step", ""),
    "eval/success": ("Success", "evaluated episodes that succeeded", "share"),
    "eval/low": ("Success, lower bound", "of the interval", "share"),
    "eval/high": ("Success, upper bound", "of the interval", "share"),
}
PHASES = {"rl": "Reinforcement learning", "sft": "Supervised warm-up", "eval": "Evaluation"}
MARKS = ("eval/success", "eval/low", "eval/high")
GROUPS = ("rollout", "eval", "credit", "policy", "value", "loss", "optim", "time")


def run_curves(path: Path, notes: list[str]) -> dict[str, Any]:
    """Phases with their series, steps ascending; of a step written twice (a resumed run) the later line counts.

    Raises CheckpointError where metrics.jsonl is not there, or empty.
    """
    if not path.is_file():
        raise CheckpointError(f"{path.parent} has no {path.name}: it is not a run folder, or the run never began.")
    rows = read_metrics(path, notes)
    if not rows:
        raise CheckpointError(f"{path} holds no line of metrics yet.")
    if any(len(steps) > POINTS for steps in rows.values()):
        notes.append(
            f"Curves of more than {POINTS} points are thinned: each stretch keeps its lowest and its highest value."
        )
    marks = _marks(rows.get("eval", {}))
    owner = next((phase for phase in ("rl", "eval") if phase in rows), None)
    phases = []
    for name in [*(phase for phase in PHASES if phase in rows), *sorted(rows.keys() - PHASES.keys())]:
        series = _series(rows[name])
        success = next((one for one in series if one["name"] == "rollout/success"), None)
        shown = {"rollout/success"} | (set(MARKS) if marks and name == "eval" else set())
        phase = {
            "title": PHASES.get(name, name),
            "steps": len(rows[name]),
            "success": success,
            "marks": marks if name == owner else [],
            "series": [one for one in series if one["name"] not in shown],
        }
        if success or phase["marks"] or phase["series"]:
            phases.append(phase)
    return {"phases": phases, "facts": _facts(rows)}


def _marks(rows: dict[int, dict[str, float | None]]) -> list[dict[str, Any]]:
    """Evaluations with their intervals, drawn into the curve of success."""
    wanted = [(step, [short(row.get(name)) for name in MARKS]) for step, row in sorted(rows.items())]
    return [{"x": step, "y": y, "low": low, "high": high} for step, (y, low, high) in wanted if y is not None]


def _facts(rows: dict[str, dict[int, dict[str, float | None]]]) -> list[tuple[str, str]]:
    """Length of the run, in steps and in time."""
    facts = []
    for name in [*(phase for phase in PHASES if phase in rows), *sorted(rows.keys() - PHASES.keys())]:
        steps = len(rows[name])
        unit = "evaluation" if name == "eval" else "step"
        facts.append((PHASES.get(name, name), f"{steps:,} {unit}{'s' * (steps != 1)}"))
    for title, name in (("Rolling out", "time/rollout_s"), ("Learning", "time/learn_s")):
        spent = sum(row.get(name) or 0.0 for steps in rows.values() for row in steps.values())
        if spent:
            unit, seconds = next(
                pair for pair in (("h", 3600), ("min", 60), ("s", 1)) if spent >= pair[1] or pair[1] == 1
            )
            facts.append((title, f"{spent / seconds:.1f} {unit}"))
    return facts


def _series(rows: dict[int, dict[str, float | None]]) -> list[dict[str, Any]]:
    """One record per metric that ever had a number, in the order of GROUPS, within a group in that of METRICS."""
    known = {name: place for place, name in enumerate(METRICS)}

    def place(name: str) -> tuple[int, int, str]:
        group = name.split("/")[0]
        return GROUPS.index(group) if group in GROUPS else len(GROUPS), known.get(name, len(known)), name

    steps = sorted(rows)
    found = []
    for name in sorted({name for row in rows.values() for name in row}, key=place):
        points = [(step, rows[step][name]) for step in steps if name in rows[step]]
        if all(value is None for _, value in points):
            continue
        title, about, kind = METRICS.get(name, (name.split("/", 1)[1], "", ""))
        x, y = zip(*_thin(points))
        found.append({"name": name, "title": title, "about": about, "kind": kind, "x": x, "y": [short(v) for v in y]})
    return found


def _thin(points: list[tuple[int, float | None]]) -> list[tuple[int, float | None]]:
    """Keep about POINTS points at most: the lowest and the highest of each stretch, so that no spike is lost."""
    if len(points) <= POINTS:
        return points
    kept: set[int] = {0, len(points) - 1}
    for places in stretches(len(points), POINTS // 2):
        numbers = [(value, place) for place in places if (value := points[place][1]) is not None]
        kept |= {min(numbers)[1], max(numbers)[1]} if numbers else {places[0]}
    return [points[place] for place in sorted(kept)]
