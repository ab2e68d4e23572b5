"""RunFolder: the folder that records, attempt by attempt, what an evaluation has played."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

from agentgym.errors import CheckpointError, ConfigError, UsageError
from agentgym.evaluation.suite import ABOUT, Suite
from agentgym.rollouts.policy import EpisodeSpec
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits
from agentgym.rollouts.trajectory import StopReason, Trajectory, json_line


@dataclass(frozen=True, slots=True)
class AttemptRecord:
    """One finished attempt: a line of attempts.jsonl."""

    env: str
    split: str
    task: int
    seed: int
    attempt: int
    success: bool | None
    """None when infrastructure failed the attempt."""
    score: float | None
    turns: int
    invalid: int
    """Turns without a valid action."""
    stop: str
    error: str
    seconds: float
    """Spent waiting for the policy and the environment."""

    @classmethod
    def of(cls, trajectory: Trajectory) -> AttemptRecord:
        failed, turns = trajectory.stop.is_failure, trajectory.turns
        return cls(
            *key_of(trajectory),
            success=None if failed else trajectory.success,
            score=None if failed else trajectory.score,
            turns=len(turns),
            invalid=sum(turn.action is None or turn.info.get("valid_action") is False for turn in turns),
            stop=trajectory.stop.value,
            error=trajectory.error,
            seconds=round(sum(turn.policy_s + turn.env_s for turn in turns), 6),
        )

    @property
    def failed(self) -> bool:
        return StopReason(self.stop).is_failure


def key_of(thing: AttemptRecord | Trajectory | EpisodeSpec) -> EpisodeSpec:
    """(env, split, task, seed, attempt): what a run resumes by."""
    return EpisodeSpec(thing.env, thing.split, thing.task, thing.seed, thing.attempt)


class RunFolder:
    """A run's folder while attempts are added to it."""

    def __init__(
        self,
        out: Path,
        about: dict[str, Any],
        rows: dict[EpisodeSpec, AttemptRecord],
        attempts: BinaryIO,
        trajectories: BinaryIO | None,
    ) -> None:
        self.out, self.about = out, about
        self.rows, self.attempts, self.trajectories = rows, attempts, trajectories
        self.described = (out / "run.json").exists()

    def wants(self, episode: EpisodeSpec) -> bool:
        """Return whether the episode was never finished, or infrastructure failed it."""
        return episode not in self.rows or self.rows[episode].failed

    def add(self, trajectory: Trajectory) -> AttemptRecord:
        """Record an attempt. Its trajectory goes first, so that a row is never without one.

        The first attempt writes run.json: a run that played nothing (a mistyped model) leaves the folder free.
        """
        row = AttemptRecord.of(trajectory)
        if not self.described:
            write_json(self.out / "run.json", self.about)
            self.described = True
        if self.trajectories is not None:
            _append(self.trajectories, trajectory.to_json(tokens=False))
        _append(self.attempts, asdict(row))
        self.rows[key_of(row)] = row
        return row


@contextmanager
def open_folder(out: Path, about: dict[str, Any], keep_trajectories: bool) -> Iterator[RunFolder]:
    """Take hold of a new folder, or of one that holds the beginning of this very run."""
    with ExitStack() as stack:
        try:
            out.mkdir(parents=True, exist_ok=True)
            attempts = stack.enter_context((out / "attempts.jsonl").open("ab"))
        except OSError as error:
            raise UsageError(f"{out} cannot be written ({error.strerror}); name another folder") from error
        lock(attempts, f"another process evaluates into {out}; wait for it, or name another folder")
        _refuse_another_run(out, about)
        _cut_partial_line(out / "attempts.jsonl")
        rows = {key_of(row): row for row in read_attempts(out)}
        trajectories = None
        if keep_trajectories:
            _drop_unrecorded(out / "trajectories.jsonl", {key for key, row in rows.items() if not row.failed})
            trajectories = stack.enter_context((out / "trajectories.jsonl").open("ab"))
        yield RunFolder(out, about, rows, attempts, trajectories)


def lock(file: IO[Any], message: str) -> None:
    """Lock an open file until it is closed. Raises UsageError with `message` where another process has the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UsageError(message) from error


def read_attempts(out: Path) -> list[AttemptRecord]:
    """The attempts of a run's folder, the last line of each; a line that a kill cut short is left out.

    Raises CheckpointError naming any other line that is not an attempt.
    """
    rows: dict[EpisodeSpec, AttemptRecord] = {}
    try:
        lines = (out / "attempts.jsonl").read_bytes().split(b"\n")[:-1]
    except FileNotFoundError as error:
        raise CheckpointError(f"{out} holds no evaluation: there is no attempts.jsonl") from error
    for number, line in enumerate(lines, 1):
        try:
            row = AttemptRecord(**json.loads(line))
            StopReason(row.stop)
        except (ValueError, TypeError) as error:
            raise CheckpointError(f"{out}/attempts.jsonl, line {number} is not an attempt: {error}") from error
        rows[key_of(row)] = row
    return [rows[key] for key in sorted(rows)]


def describe(suite: Suite, identity: str, prompt_format: PromptFormat, limits: Limits) -> dict[str, Any]:
    """run.json: what must be the same for a run to be resumed."""
    return {
        "suite": suite.model_dump(mode="json", exclude=set(ABOUT)),
        "policy": identity,
        "prompt_format": prompt_format.model_dump(mode="json"),
        "max_turns": limits.max_turns,
    }


def _refuse_another_run(out: Path, about: dict[str, Any]) -> None:
    if not (out / "run.json").exists():
        if (out / "attempts.jsonl").stat().st_size:
            raise ConfigError(f"{out} holds attempts but no run.json to say of what; name another folder")
        return
    there = read_description(out)
    for key in about:
        if there[key] != about[key]:
            old, new = ((x[key]["name"] if key == "suite" else x[key]) for x in (there, about))
            how = f"{old} there, {new} now" if old != new else f"{new} has been edited since"
            raise ConfigError(f"{out} holds a run with another {key} ({how}); name another folder, or remove that one")


def read_description(out: Path) -> dict[str, Any]:
    try:
        about = json.loads((out / "run.json").read_text(encoding="utf-8"))
        return {key: about[key] for key in ("suite", "policy", "prompt_format", "max_turns")}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CheckpointError(f"{out}/run.json cannot be read as a run's description: {error!r}") from error


def _cut_partial_line(path: Path) -> None:
    """Drop what a kill left of a last line."""
    with path.open("rb+") as file:
        file.truncate(file.read().rfind(b"\n") + 1)


def _drop_unrecorded(path: Path, recorded: set[EpisodeSpec]) -> None:
    """Keep the last trajectory of each recorded attempt, and nothing that a kill cut short."""
    if not path.exists():
        return
    kept: dict[EpisodeSpec, bytes] = {}
    for line in path.read_bytes().split(b"\n")[:-1]:
        record = json.loads(line)
        key = EpisodeSpec(*(record[name] for name in EpisodeSpec._fields))
        if key in recorded:
            kept[key] = line + b"\n"
    _write(path, b"".join(kept.values()))


def _append(file: BinaryIO, record: dict[str, Any]) -> None:
    file.write(json_line(record).encode())
    file.flush()


def write_json(path: Path, record: dict[str, Any]) -> None:
    _write(path, (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode())


def _write(path: Path, text: bytes) -> None:
    (partial := path.with_name(path.name + ".part")).write_bytes(text)
    os.replace(partial, path)
