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
from agentgym.evaluation.selection import SuiteSelection
from agentgym.evaluation.suite import ABOUT, Suite
from agentgym.rollouts.policy import EpisodeSpec, Usage
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.rollouts.runner import Limits
from agentgym.rollouts.trajectory import StopReason, Trajectory, json_line
from agentgym.spec import EnvSpec


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
    prompt_tokens: int | None = None
    """Tokens of all prompts, earlier tries that infrastructure failed included; None where one is not known."""
    completion_tokens: int | None = None
    """Tokens of all replies, likewise."""

    @classmethod
    def of(cls, trajectory: Trajectory, tokens: Usage | None = None) -> AttemptRecord:
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
            prompt_tokens=None if tokens is None else tokens.prompt,
            completion_tokens=None if tokens is None else tokens.completion,
        )

    @property
    def tokens(self) -> Usage | None:
        """Tokens of the attempt; None where they are not known."""
        if self.prompt_tokens is None or self.completion_tokens is None:
            return None
        return Usage(self.prompt_tokens, self.completion_tokens)

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
        self.specs: dict[str, EnvSpec] = {}
        self.described = False

    def wants(self, episode: EpisodeSpec, retry_failed: bool = True) -> bool:
        """Return whether the episode was never finished, or infrastructure failed it and it is to be tried again."""
        return episode not in self.rows or (retry_failed and self.rows[episode].failed)

    @property
    def tokens(self) -> Usage:
        """Tokens of all attempts, as far as they are known."""
        counts = [row.tokens for row in self.rows.values() if row.tokens is not None]
        return Usage(sum(tokens.prompt for tokens in counts), sum(tokens.completion for tokens in counts))

    def admit(self, place: str, spec: EnvSpec) -> None:
        """Take down which tasks "ENV SPLIT" plays now. Raises ConfigError when the folder's attempts were at others."""
        there, now = self.about["panel"].setdefault(place, panel_of(spec)), panel_of(spec)
        if there != now:
            raise ConfigError(
                f"{self.out} holds attempts at other tasks of {place} ({there} there, {now} now); name another folder"
            )
        self.specs[place] = spec

    def add(self, trajectory: Trajectory, tokens: Usage | None = None) -> AttemptRecord:
        """Record an attempt. Its trajectory goes first, so that a row is never without one.

        The first attempt writes run.json: a run that played nothing (a mistyped model) leaves the folder free.
        """
        before = self.rows.get(key_of(trajectory))
        if tokens is not None and before is not None and before.tokens is not None:
            tokens = tokens.plus(before.tokens)
        row = AttemptRecord.of(trajectory, tokens)
        if not self.described:
            write_json(self.out / "run.json", self.about)
            specs = {place: spec.model_dump(mode="json", exclude={"kwargs"}) for place, spec in self.specs.items()}
            write_json(self.out / "specs.json", {**read_specs_json(self.out), **specs})
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
        about = {**about, "panel": _continued_panel(out, about)}
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


SAME = ("suite", "policy", "prompt_format", "max_turns")
"""Keys of run.json that must be the same for a run to be resumed."""


def describe(
    suite: Suite, identity: str, prompt_format: PromptFormat, limits: Limits, selection: SuiteSelection | None = None
) -> dict[str, Any]:
    """run.json: what was played. `panel` says of each "ENV SPLIT" which tasks; it is filled as they are opened."""
    return {
        "suite": suite.model_dump(mode="json", exclude=set(ABOUT)),
        "policy": identity,
        "prompt_format": prompt_format.model_dump(mode="json"),
        "max_turns": limits.max_turns,
        "selection": (selection or SuiteSelection()).model_dump(mode="json"),
        "panel": {},
    }


def panel_of(spec: EnvSpec) -> str:
    """Return which tasks an environment plays: the hash of its task set, else its id and version."""
    return spec.task_set or f"{spec.id} {spec.version}"


def _continued_panel(out: Path, about: dict[str, Any]) -> dict[str, str]:
    """The panel of the run that `out` holds. Raises ConfigError where `about` does not go on with that run."""
    if not (out / "run.json").exists():
        if (out / "attempts.jsonl").stat().st_size:
            raise ConfigError(f"{out} holds attempts but no run.json to say of what; name another folder")
        return {}
    there = read_description(out)
    for key in SAME:
        if there[key] != about[key]:
            old, new = ((x[key]["name"] if key == "suite" else x[key]) for x in (there, about))
            how = f"{old} there, {new} now" if old != new else f"{new} has been edited since"
            raise ConfigError(f"{out} holds a run with another {key} ({how}); name another folder, or remove that one")
    old, new = (SuiteSelection.model_validate(x["selection"]) for x in (there, about))
    if not new.covers(old, Suite.model_validate(about["suite"])):
        raise ConfigError(
            f"{out} holds attempts at {old}, which {new} leaves out; name another folder, or ask for those and more"
        )
    return there["panel"]


def read_description(out: Path) -> dict[str, Any]:
    """run.json of a folder. One of an older form has an empty panel and plays its whole suite.

    Raises CheckpointError for a file that does not describe a run.
    """
    try:
        about = json.loads((out / "run.json").read_text(encoding="utf-8"))
        later = {"selection": about.get("selection") or {}, "panel": dict(about.get("panel") or {})}
        later["claimed"] = bool(about.get("claimed"))
        return {**{key: about[key] for key in SAME}, **later}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{out}/run.json cannot be read as a run's description: {error!r}") from error


def read_specs(out: Path) -> dict[str, EnvSpec]:
    """Specs of the environments that were played, by "ENV SPLIT". Folders of an older form have none.

    Raises CheckpointError for a file that holds something else.
    """
    try:
        return {place: EnvSpec.model_validate(spec) for place, spec in read_specs_json(out).items()}
    except (ValueError, AttributeError) as error:
        raise CheckpointError(f"{out}/specs.json does not hold specs of environments: {error}") from error


def read_specs_json(out: Path) -> dict[str, Any]:
    """specs.json as it is; {} where there is none."""
    try:
        return json.loads((out / "specs.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}


def _cut_partial_line(path: Path) -> None:
    """Drop what a kill left of a last line."""
    with path.open("rb+") as file:
        file.truncate(file.read().rfind(b"\n") + 1)


def _drop_unrecorded(path: Path, recorded: set[EpisodeSpec]) -> None:
    """Keep the last trajectory of each recorded attempt, and nothing that a kill cut short.

    Raises CheckpointError naming any other line that is not a trajectory."""
    if not path.exists():
        return
    kept: dict[EpisodeSpec, bytes] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            record = json.loads(line)
            key = EpisodeSpec(*(record[name] for name in EpisodeSpec._fields))
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path}, line {number} is not a trajectory: remove the line ({error!r})") from error
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
