"""chosen_trajectories: some of the trajectories that a run kept, as the page embeds them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agentgym.rollouts.trajectory import Branch, Trajectory, Turn
from agentgym_trainers.monitoring.metrics_file import finite_number, json_object, place_in, skipped_line
from agentgym_trainers.monitoring.report.shortened import cut, short, stretches

TRAJECTORIES = 200
"""Trajectories in a page at most, spread evenly over the steps."""
TRAJECTORY_BYTES = 8_000_000
"""All trajectories together; with the curves a page stays below 10 MB."""
TOKEN_BYTES = 2_000_000
"""A trajectory that is larger is shown without its tokens."""


class _Line(NamedTuple):
    """Position of a trajectory in its file."""

    path: Path
    number: int
    offset: int
    step: int


def chosen_trajectories(folder: Path, notes: list[str]) -> dict[str, Any]:
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
    steps = [list(lines)[places[0]] for places in stretches(len(lines), limit)] if limit else []
    if steps and limit > 1:
        steps[-1] = list(lines)[-1]
    take = dict.fromkeys(steps, 0)
    left = min(limit, sum(len(lines[step]) for step in steps))
    while left:
        for step in [step for step in steps if take[step] < len(lines[step])][:left]:
            take[step] += 1
            left -= 1
    return [lines[step][places[0]] for step in steps for places in stretches(len(lines[step]), take[step])]


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
        "score": short(trajectory.score),
        "success": trajectory.success,
        "final": cut(trajectory.final_observation),
        "error": cut(trajectory.error),
        "forks": list(trajectory.forks),
        "turns": [
            _show_turn(
                turn, short(finite_number(value[i])), short(finite_number(advantage[i])), segments.get(turn.index)
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
        "observation": cut(turn.observation),
        "reply": cut(turn.reply),
        "action": action,
        "problem": problem,
        "reward": short(finite_number(turn.reward)),
        "penalty": short(finite_number(turn.penalty)),
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
        "logprob": [short(finite_number(value)) for value in branch.logprobs.tolist()],
        "version": branch.versions.tolist(),
        "advantage": advantage and [short(finite_number(value)) for value in advantage],
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


def _step(path: Path) -> int | None:
    digits = path.stem.removeprefix("step-")
    return int(digits) if digits.isdecimal() else None
