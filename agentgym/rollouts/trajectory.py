"""Turn, Trajectory, Group: what an episode leaves behind.

Text is for people; tokens are authoritative. A trajectory's tokens lie in branches: a branch is one append-only
sequence that the model saw, and a new one begins only where the prompt could not be the old one extended (a template
that strips earlier thinking, a history window). Every sampled token lies in exactly one branch as its turn's own:

    turn 0: prompt p0, sampled a0        branch 0: [p0 a0 | b0 o1 a1 | b1 o2 ...]      `turn` -1 at p, b (boundary), o
    turn 1: prompt p0 a0 b0 o1, ...                 -1  0   -1 -1  1
    turn 2 (forked): prompt q2           branch 1: [q2 a2]                             q2 re-tells a0, a1: not sampled
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from agentgym.env import Action, info_problem, reward_problem
from agentgym.errors import CheckpointError


class StopReason(StrEnum):
    """The reason why an episode ended."""

    TERMINATED = "terminated"
    """The environment ended it."""
    TURN_LIMIT = "turn_limit"
    """The task's own turn limit ended it: the task is lost, and the value after it is 0."""
    TRUNCATED = "truncated"
    """The environment cut it, and its spec says that its limit is not part of the task."""
    MAX_TURNS = "max_turns"
    """The rollout's turn limit, lower than the environment's, cut it."""
    CONTEXT_FULL = "context_full"
    """The next prompt would not fit the model's context."""
    INVALID_ACTION = "invalid_action"
    """The prompt format ends an episode at a reply without an action."""
    AGENT_ENDED = "agent_ended"
    """The agent's program ended before the episode did: scored as it stands."""
    DEADLINE = "deadline"
    """The whole episode took too long."""
    ENVIRONMENT_FAILED = "environment_failed"
    """The environment, its server or the network failed: not the agent's doing, never scored."""
    POLICY_FAILED = "policy_failed"
    """The engine or the remote model failed: never scored."""

    @property
    def is_truncated(self) -> bool:
        """Cut by a limit that is not the task's own: the future is unknown, not zero, and value targets bootstrap."""
        return self in (self.TRUNCATED, self.MAX_TURNS, self.CONTEXT_FULL)

    @property
    def is_limit(self) -> bool:
        """Stopped by a limit of any kind, before the agent or the environment came to an end."""
        return self is self.TURN_LIMIT or self.is_truncated

    @property
    def is_failure(self) -> bool:
        """Infrastructure's fault (the episode deadline included): excluded from scores and from training."""
        return self in (self.ENVIRONMENT_FAILED, self.POLICY_FAILED, self.DEADLINE)


@dataclass(frozen=True, slots=True)
class Span:
    """The place of a turn's sampled tokens: branch, first and one past the last position."""

    branch: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """An image among the tokens of a sequence."""

    png: bytes
    start: int
    stop: int
    """Its placeholder tokens are at positions start to stop - 1. They are prompt tokens, as many as the model's image
    processor makes of the image."""


@dataclass(frozen=True, slots=True)
class Branch:
    """One sequence the model saw. All arrays have the length of `ids`."""

    ids: np.ndarray
    """int32[T]"""
    turn: np.ndarray
    """int32[T]: the turn that sampled the token; -1 for prompt, boundary and observation tokens."""
    logprobs: np.ndarray
    """float32[T]: of sampled tokens, under the very distribution they were drawn from; 0 elsewhere."""
    versions: np.ndarray
    """int32[T]: the policy's weight version at sampled tokens; -1 elsewhere."""
    images: tuple[ImageSpan, ...] = ()
    """Images, in the order of their positions."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One reply of the agent and what the environment made of it."""

    index: int
    observation: str
    """The observation before the response (text part)."""
    reply: str
    """The agent's whole reply, decoded."""
    action: Action | list[Action] | None
    """The parsed action, or several tool calls that were carried out in order; None when the reply held no action (the
    environment was then not stepped)."""
    reward: float
    """The environment's reward for this step, of several calls their sum."""
    penalty: float = 0.0
    """The prompt format's penalty for a reply without an action; subtracted by shaping, not part of the score."""
    info: dict[str, Any] = field(default_factory=dict)
    """The environment's info after the step: success, valid_action, state_key, progress, milestone,
    available_actions."""
    state_key: str | None = None
    """The environment's state *before* the reply, where the environment names it: the anchor of step-level groups."""
    role: int = 0
    """The role that acted, where an environment has two players: its info["role"] before the reply."""
    offered: tuple[str, ...] = ()
    """Actions that the environment listed before the reply: its info["available_actions"] there."""
    span: Span | None = None
    """The turn's sampled tokens, when a token policy acted."""
    finish: str = "stop"
    """"stop", or "length" when the reply was cut."""
    policy_s: float = 0.0
    env_s: float = 0.0
    prompt_tokens: int | None = None
    """Tokens of the prompt, where the policy knows them."""
    completion_tokens: int | None = None
    """Tokens of the reply, where the policy knows them."""
    message: dict[str, Any] | None = None
    """The assistant's message with its tool calls, where a server sent them."""
    results: tuple[str, ...] = ()
    """Result of each call that was carried out (text part), where the reply made several."""
    image: str = ""
    """The observation's image before the response: a PNG in a data URL. Kept only where the rollout is asked to."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode."""

    env: str
    split: str
    task: int
    seed: int
    attempt: int
    turns: tuple[Turn, ...]
    stop: StopReason
    final_observation: str = ""
    error: str = ""
    """The failure, when `stop.is_failure`."""
    branches: tuple[Branch, ...] = ()
    forks: tuple[str, ...] = ()
    """The reason why each branch after the first was begun."""

    @property
    def score(self) -> float:
        """The undiscounted sum of the environment's rewards."""
        return float(sum(turn.reward for turn in self.turns))

    @property
    def success(self) -> bool:
        """The environment's verdict where it gives one, else whether the score is positive."""
        last = self.turns[-1].info if self.turns else {}
        return bool(last["success"]) if "success" in last else self.score > 0

    def to_json(self, tokens: bool = True) -> dict[str, Any]:
        """A JSON-able record; `from_json` is its inverse."""
        record = {
            "env": self.env,
            "split": self.split,
            "task": self.task,
            "seed": self.seed,
            "attempt": self.attempt,
            "stop": self.stop.value,
            "score": self.score,
            "success": self.success,
            "final_observation": self.final_observation,
            "error": self.error,
            "forks": list(self.forks),
            "turns": _turns_to_json(self.turns),
        }
        if tokens:
            pngs = list(dict.fromkeys(image.png for branch in self.branches for image in branch.images))
            record["branches"] = [_branch_to_json(branch, pngs) for branch in self.branches]
            record |= {"images": [base64.b64encode(png).decode() for png in pngs]} if pngs else {}
        return record

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Trajectory:
        """Return the trajectory of a record that `to_json` made."""
        pngs = [base64.b64decode(image) for image in record.get("images", [])]
        branches = tuple(_branch_from_json(packed, pngs) for packed in record.get("branches", []))
        kept = ("env", "split", "task", "seed", "attempt", "final_observation", "error")
        return cls(
            **{name: record[name] for name in kept},
            turns=_turns_from_json(record["turns"]),
            stop=StopReason(record["stop"]),
            branches=branches,
            forks=tuple(record["forks"]),
        )


@dataclass(frozen=True, slots=True)
class Group:
    """Several attempts at one task (same environment, split, task and seed)."""

    trajectories: tuple[Trajectory, ...]

    def without_failures(self) -> Group:
        """The attempts that count: infrastructure's failures are dropped, never scored."""
        return replace(self, trajectories=tuple(t for t in self.trajectories if not t.stop.is_failure and t.turns))


def write_jsonl(path: Path, trajectories: Iterable[Trajectory], tokens: bool = True) -> None:
    """Append trajectories to a JSONL file, one a line."""
    with path.open("a", encoding="utf-8") as file:
        for trajectory in trajectories:
            file.write(json_line(trajectory.to_json(tokens)))


def json_line(record: dict[str, Any]) -> str:
    """A record as one line of JSONL. Numpy values in an environment's `info` become plain numbers and lists."""
    line = json.dumps(record, ensure_ascii=False, default=_plain)
    try:
        line.encode()
    except UnicodeEncodeError:  # half a surrogate pair in a reply: only its escape can be written
        line = json.dumps(record, default=_plain)
    return line + "\n"


def read_jsonl(path: Path, *, cut: bool = False) -> Iterator[Trajectory]:
    """Trajectories of a JSONL file. Raises CheckpointError naming the line that is not one.

    With `cut`, a last line that a kill cut short is left out."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield Trajectory.from_json(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                if cut and not line.endswith(b"\n"):
                    return
                raise CheckpointError(f"{path}, line {number} is not a trajectory: {error!r}") from error


_BRANCH_DTYPES = {"ids": np.int32, "turn": np.int32, "logprobs": np.float32, "versions": np.int32}


def _plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(f"an environment's info must be JSON-able; it holds a {type(value).__name__}")


def _pack(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _unpack(packed: str, dtype: Any) -> np.ndarray:
    return np.frombuffer(base64.b64decode(packed), dtype=dtype)


def _branch_to_json(branch: Branch, pngs: list[bytes]) -> dict[str, Any]:
    """An image is its place among the trajectory's, each of which is written once."""
    packed: dict[str, Any] = {name: _pack(getattr(branch, name)) for name in _BRANCH_DTYPES}
    images = [[pngs.index(image.png), image.start, image.stop] for image in branch.images]
    return packed | ({"images": images} if images else {})


def _branch_from_json(packed: dict[str, Any], pngs: list[bytes]) -> Branch:
    columns = {name: _unpack(packed[name], dtype) for name, dtype in _BRANCH_DTYPES.items()}
    images = tuple(ImageSpan(pngs[index], start, stop) for index, start, stop in packed.get("images", ()))
    return Branch(**columns, images=images)


def offered_in(info: dict[str, Any]) -> tuple[str, ...]:
    """Actions that an environment's `info` lists; none where it lists none."""
    return tuple(info.get("available_actions") or ())


def _turns_to_json(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Records; `offered` is in one only where it differs from the list that the turn before was answered with."""
    names = [name for name in Turn.__slots__ if name not in ("span", "offered")]  # type: ignore[attr-defined]
    records, listed = [], ()
    for turn in turns:
        span = None if turn.span is None else [turn.span.branch, turn.span.start, turn.span.stop]
        offered = {} if turn.offered == listed else {"offered": list(turn.offered)}
        records.append({**{name: getattr(turn, name) for name in names}, **offered, "span": span})
        listed = offered_in(turn.info)
    return records


def _turns_from_json(records: Sequence[dict[str, Any]]) -> tuple[Turn, ...]:
    turns: list[Turn] = []
    listed: tuple[str, ...] = ()
    for record in records:
        turns.append(_turn_from_json({**record, "offered": tuple(record.get("offered", listed))}))
        listed = offered_in(record["info"])
    return tuple(turns)


def _turn_from_json(record: dict[str, Any]) -> Turn:
    span = record["span"]
    if problem := reward_problem(record["reward"]) or info_problem(record["info"]):
        raise ValueError(problem)
    results = tuple(record.get("results", ()))
    return Turn(**{**record, "span": None if span is None else Span(*span), "results": results})
