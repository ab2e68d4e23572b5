"""write_report: a run folder as one page, `report.html`, that opens from disk without a network.

    run/config.toml                       the resolved configuration
    run/metrics.jsonl                     {"phase", "step", "<group>/<name>": number | null, ...} a line
    run/trajectories/step-000010.jsonl    `Trajectory.to_json()` and "annotations" a line
    run/eval/summary.json                 {"before", "after", "difference"}

Only metrics.jsonl must be there. What cannot be read (a line cut by a crash) is skipped, and the page says so.
"""

from __future__ import annotations

import html
import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agentgym.errors import CheckpointError
from agentgym.rollouts.trajectory import Branch, Trajectory, Turn
from agentgym_trainers.monitoring.metrics_file import (
    finite_number,
    json_object,
    place_in,
    read_metrics,
    skipped_line,
)

TRAJECTORIES = 200
"""Trajectories in a page at most, spread evenly over the steps."""
POINTS = 800
"""Points of a curve at most; a longer one keeps the lowest and the highest of each stretch."""
TEXT = 20_000
"""Characters of an observation or reply at most."""
TRAJECTORY_BYTES = 8_000_000
"""All trajectories together; with the curves a page stays below 10 MB."""
TOKEN_BYTES = 2_000_000
"""A trajectory that is larger is shown without its tokens."""
CONFIG_CHARACTERS = 200_000
NOTES = 20
"""Notes in a page at most."""

TEMPLATE = Path(__file__).with_name("report.html")

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
        "curves": _curves(run / "metrics.jsonl", notes),
        "evaluation": _evaluation(run / "eval" / "summary.json", notes),
        "config": _config(run / "config.toml"),
        **_trajectories(run / "trajectories", notes),
        "notes": [*notes[:NOTES], *([f"And {len(notes) - NOTES} more notes."] if len(notes) > NOTES else [])],
    }
    # "<" is escaped wherever it stands: neither "</script>" nor "<!--" in an observation can end the data.
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    before, after = TEMPLATE.read_text(encoding="utf-8").split("{{data}}")
    page = before.replace("{{title}}", html.escape(data["run"])) + text + after
    path = run / "report.html"
    path.write_bytes(page.encode("utf-8", errors="replace"))  # a lone surrogate in a token's text becomes "?"
    return path


def _curves(path: Path, notes: list[str]) -> dict[str, Any]:
    """Phases with their series, steps ascending; of a step written twice (a resumed run) the later line counts."""
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
    wanted = [(step, [_short(row.get(name)) for name in MARKS]) for step, row in sorted(rows.items())]
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
        found.append({"name": name, "title": title, "about": about, "kind": kind, "x": x, "y": [_short(v) for v in y]})
    return found


def _thin(points: list[tuple[int, float | None]]) -> list[tuple[int, float | None]]:
    """Keep about POINTS points at most: the lowest and the highest of each stretch, so that no spike is lost."""
    if len(points) <= POINTS:
        return points
    kept: set[int] = {0, len(points) - 1}
    for places in _stretches(len(points), POINTS // 2):
        numbers = [(value, place) for place in places if (value := points[place][1]) is not None]
        kept |= {min(numbers)[1], max(numbers)[1]} if numbers else {places[0]}
    return [points[place] for place in sorted(kept)]


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
    return _cut(text, CONFIG_CHARACTERS)


class _Line(NamedTuple):
    """Position of a trajectory in its file."""

    path: Path
    number: int
    offset: int
    step: int


def _trajectories(folder: Path, notes: list[str]) -> dict[str, Any]:
    """Chosen trajectories, and of how many."""
    files = {step: path for path in folder.glob("step-*.jsonl") if (step := _step(path)) is not None}
    lines = {step: list(_lines(files[step], step, notes)) for step in sorted(files)}
    lines = {step: found for step, found in lines.items() if found}
    total = sum(len(found) for found in lines.values())
    limit = TRAJECTORIES
    while True:
        chosen = _choose(lines, limit)
        skipped: list[str] = []
        records = [record for line in chosen if (record := _read(line, skipped)) is not None]
        size = sum(record.pop("bytes") for record in records)
        if size <= TRAJECTORY_BYTES or not chosen:
            break
        limit = min(len(chosen) - 1, int(limit * 0.95 * TRAJECTORY_BYTES / size))
    notes += skipped
    left_out = total - len(records)
    about = (
        f"Here are {len(records):,} of the {total:,} trajectories that the run kept, spread over the steps; "
        f"{left_out:,} are left out."
    )
    return {
        "trajectories": records,
        "total": total,
        "kept": about
        if left_out
        else f"All {total:,} trajectories that the run kept are here; it keeps those of some steps.",
    }


def _lines(path: Path, step: int, notes: list[str]) -> Iterator[_Line]:
    """Lines of a file; a last one that was cut is not one."""
    offset = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n") or json_object(line):
                if line.strip():
                    yield _Line(path, number, offset, step)
            else:
                notes.append(skipped_line(path, number, line, "a trajectory"))
            offset += len(line)


def _choose(lines: dict[int, list[_Line]], limit: int) -> list[_Line]:
    """Choose `limit` lines at most: steps evenly spaced, the same number of each where it has so many, evenly
    spaced."""
    steps = [list(lines)[places[0]] for places in _stretches(len(lines), limit)] if limit else []
    if steps and limit > 1:
        steps[-1] = list(lines)[-1]
    take = dict.fromkeys(steps, 0)
    left = min(limit, sum(len(lines[step]) for step in steps))
    while left:
        for step in [step for step in steps if take[step] < len(lines[step])][:left]:
            take[step] += 1
            left -= 1
    return [lines[step][places[0]] for step in steps for places in _stretches(len(lines[step]), take[step])]


def _read(line: _Line, skipped: list[str]) -> dict[str, Any] | None:
    """A trajectory as the page wants it, with the "bytes" it takes there."""
    with line.path.open("rb") as file:
        file.seek(line.offset)
        raw = file.readline()
    try:
        record = json_object(raw)
        trajectory = Trajectory.from_json(record)
        shown = _show(trajectory, record.get("annotations") or {}, line, skipped)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        skipped.append(skipped_line(line.path, line.number, raw, "a trajectory"))
        return None
    size = _size(shown)
    if size > TOKEN_BYTES:
        skipped.append(f"{place_in(line.path, line.number)} is too large to be shown with its tokens.")
        shown["branches"], shown["loose"] = [], []
        for turn in shown["turns"]:
            turn["tokens"] = None
        size = _size(shown)
    if size > TOKEN_BYTES:
        skipped.append(f"{place_in(line.path, line.number)} is too large to be shown at all.")
        return None
    return {**shown, "bytes": size}


def _show(trajectory: Trajectory, annotations: dict[str, Any], line: _Line, skipped: list[str]) -> dict[str, Any]:
    turns, branches = trajectory.turns, trajectory.branches
    misfit = False

    def per_turn(name: str) -> list[Any]:
        nonlocal misfit
        values = annotations.get(name)
        misfit |= values is not None and len(values) != len(turns)
        return values if values is not None and len(values) == len(turns) else [None] * len(turns)

    def per_token(name: str, branch: int) -> list[Any] | None:
        nonlocal misfit
        values = annotations.get(name)
        if values is None:
            return None
        fits = len(values) == len(branches) and len(values[branch]) == len(branches[branch].ids)
        misfit |= not fits
        return values[branch] if fits else None

    value, advantage = per_turn("value"), per_turn("advantage")
    segments, loose = _segments(branches)
    shown = {
        "step": line.step,
        "env": trajectory.env,
        "split": trajectory.split,
        "task": trajectory.task,
        "seed": trajectory.seed,
        "attempt": trajectory.attempt,
        "stop": trajectory.stop.value,
        "failed": trajectory.stop.is_failure,
        "score": _short(trajectory.score),
        "success": trajectory.success,
        "final": _cut(trajectory.final_observation),
        "error": _cut(trajectory.error),
        "forks": list(trajectory.forks),
        "turns": [
            _show_turn(
                turn, _short(finite_number(value[i])), _short(finite_number(advantage[i])), segments.get(turn.index)
            )
            for i, turn in enumerate(turns)
        ],
        "branches": [
            _show_branch(branch, per_token("token_advantage", i), per_token("token_text", i))
            for i, branch in enumerate(branches)
        ],
        "loose": loose,
    }
    if misfit:
        skipped.append(
            f"{place_in(line.path, line.number)}: annotations that do not fit its turns or tokens are left out."
        )
    return shown


def _show_turn(
    turn: Turn, value: float | None, advantage: float | None, tokens: tuple[int, int, int] | None
) -> dict[str, Any]:
    if turn.action is None:
        problem = "no action in the reply"
    elif turn.info.get("valid_action") is False:
        problem = "the environment refused the action"
    else:
        problem = ""
    action = turn.action if turn.action is None or isinstance(turn.action, str) else json.dumps(turn.action)
    return {
        "index": turn.index,
        "observation": _cut(turn.observation),
        "reply": _cut(turn.reply),
        "action": action,
        "problem": problem,
        "reward": _short(finite_number(turn.reward)),
        "penalty": _short(finite_number(turn.penalty)),
        "value": value,
        "advantage": advantage,
        "state": turn.state_key,
        "finish": turn.finish,
        "tokens": tokens,
    }


def _show_branch(branch: Branch, advantage: list[Any] | None, text: list[Any] | None) -> dict[str, Any]:
    return {
        "id": branch.ids.tolist(),
        "turn": branch.turn.tolist(),
        "logprob": [_short(finite_number(value)) for value in branch.logprobs.tolist()],
        "version": branch.versions.tolist(),
        "advantage": advantage and [_short(finite_number(value)) for value in advantage],
        "text": text and [str(piece) for piece in text],
    }


def _segments(branches: Sequence[Branch]) -> tuple[dict[int, tuple[int, int, int]], list[tuple[int, int, int]]]:
    """Segments of each turn (branch, start, stop): what was put before its sampled tokens, and these; what follows the
    last turn of a branch is that turn's too. And branches in which no turn sampled. Every token lies in exactly one."""
    segments: dict[int, tuple[int, int, int]] = {}
    loose = []
    for number, branch in enumerate(branches):
        turn = branch.turn.tolist()
        last = {index: place for place, index in enumerate(turn) if index >= 0}
        start = 0
        for index, place in sorted(last.items(), key=lambda item: item[1]):
            segments[index] = (number, start, place + 1)
            start = place + 1
        if last:
            index = max(last, key=last.__getitem__)
            segments[index] = (number, segments[index][1], len(turn))
        else:
            loose.append((number, 0, len(turn)))
    return segments, loose


def _size(shown: dict[str, Any]) -> int:
    return len(json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode(errors="replace"))


def _short(value: float | None) -> float | None:
    """Five significant digits: what a page can show."""
    return None if value is None else float(f"{value:.5g}")


def _cut(text: str, limit: int = TEXT) -> str:
    return text if len(text) <= limit else f"{text[:limit]}\n… {len(text) - limit} more characters"


def _step(path: Path) -> int | None:
    digits = path.stem.removeprefix("step-")
    return int(digits) if digits.isdecimal() else None


def _stretches(length: int, count: int) -> list[range]:
    """`range(length)` in at most `count` stretches, none empty."""
    count = min(length, count)
    edges = [length * i // count for i in range(count + 1)] if count else []
    return [range(a, b) for a, b in itertools.pairwise(edges)]
