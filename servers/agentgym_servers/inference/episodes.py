"""Episodes over HTTP: an agent that knows only an OpenAI base URL acts, and its calls are recorded as turns.

base_url = http://HOST:PORT/episodes/ID/v1           or the header X-AgentGym-Episode: ID
POST /episodes/ID/turn                               what the environment made of one turn (optional)
POST /episodes/ID/finish                             the reward, and the end
GET  /episodes     GET /episodes/ID                  the list; one as a trajectory
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from agentgym.env import MAX_REWARD
from agentgym.errors import EpisodeRefused
from agentgym.rollouts.trajectory import Trajectory
from agentgym_servers.inference.generation import Generation
from agentgym_servers.inference.parsing import ApiError
from agentgym_servers.inference.schemas import add_post, read_body

EPISODE_HEADER = "X-AgentGym-Episode"
MAX_BYTES = 2**18
"""Largest body of a turn's report or an episode's result."""
MAX_NUMBER = 2**63 - 1
MAX_NAME = 256
MAX_KEY = 2**16
Reward = Annotated[float, Field(ge=-MAX_REWARD, le=MAX_REWARD, allow_inf_nan=False)]
_NAME = re.compile(r"[\w.:-]{1,128}", re.ASCII)


class RecordedCall(Protocol):
    """A prompt that the episode takes."""

    @property
    def prompt(self) -> list[int]:
        """All its tokens, as the engine is to see them."""
        ...


class EpisodeRecording(Protocol):
    running: int
    """Calls that are being answered."""
    rng: np.random.Generator
    trajectory: Trajectory | None
    """Once it is finished."""

    def record(
        self,
        call: Any,
        ids: Sequence[int],
        logprobs: Sequence[float],
        versions: Sequence[int],
        text: str,
        finish: str,
    ) -> dict[str, Any]: ...

    def tell(self, turn: int | None, reward: float | None, state_key: str | None, valid_action: bool | None) -> int: ...


class EpisodeRecorder(Protocol):
    """Interface of a recorder; `agentgym_trainers.rollout.external.recorder.Recorder` is one. All raise
    EpisodeRefused."""

    def chat(self, name: str, text: str, ids: list[int], shown: str) -> tuple[EpisodeRecording, RecordedCall]:
        """Find where a conversation continues: `text` and `ids` are the whole of it, `shown` its last message. An
        episode of a new name exists once `begin` is called."""
        ...

    def complete(self, name: str, prompt: str | list[int], ids: list[int]) -> tuple[EpisodeRecording, RecordedCall]: ...

    def begin(self, name: str, episode: Any) -> None:
        """Keep the episode of a call that will be answered."""
        ...

    def get(self, name: str) -> EpisodeRecording: ...

    def finish(
        self,
        name: str,
        *,
        reward: float | Sequence[float] | None,
        success: bool | None,
        truncated: bool,
        env: str | None,
        split: str | None,
        task: int | None,
        group: int | None,
    ) -> Trajectory: ...

    def list(self) -> list[dict[str, Any]]: ...

    def summary(self) -> dict[str, int]: ...


@dataclass(frozen=True)
class Recording:
    """A call that becomes a turn once it is answered."""

    name: str
    episode: EpisodeRecording
    call: RecordedCall

    def record(self, reply: Generation, versions: list[int]) -> dict[str, Any]:
        return self.episode.record(self.call, reply.ids, reply.logprobs, versions, reply.text, reply.finish)


class TurnReport(BaseModel):
    """Report of the environment's result of a turn."""

    model_config = ConfigDict(extra="forbid", strict=True)

    turn: int | None = Field(default=None, ge=0, le=MAX_NUMBER)
    """Its number, as the reply's `agentgym.turn` said it; None is the last one."""
    reward: Reward | None = None
    state_key: str | None = Field(default=None, max_length=MAX_KEY)
    """Names the environment's state before the turn: the anchor of credit that compares equal states."""
    valid_action: bool | None = None


class EpisodeResult(BaseModel):
    """Result of an episode."""

    model_config = ConfigDict(extra="forbid", strict=True)

    reward: Reward | list[Reward] | None = None
    """A number is added to the last turn's reward; a list has the reward of every turn."""
    success: bool | None = None
    """None: whether the rewards' sum is positive."""
    truncated: bool = False
    """It was cut by a limit: its future is unknown, not zero."""
    env: str | None = Field(default=None, max_length=MAX_NAME)
    split: str | None = Field(default=None, max_length=MAX_NAME)
    task: int | None = Field(default=None, ge=0, le=MAX_NUMBER)
    group: int | None = Field(default=None, ge=0, le=MAX_NUMBER)
    """Episodes of one task and group are compared with one another."""


class Episodes:
    """The handlers."""

    def __init__(self, recorder: EpisodeRecorder, authorize: Callable[[Request], None]) -> None:
        self.recorder, self._authorize = recorder, authorize

    async def list(self, request: Request) -> Response:
        self._authorize(request)
        return JSONResponse({"object": "list", "data": self.recorder.list(), "counts": self.recorder.summary()})

    async def show(self, request: Request, episode: str) -> Response:
        self._authorize(request)
        found = self.recorder.get(episode_name(episode))
        if found.trajectory is None:
            raise EpisodeRefused(f"the episode {episode!r} is not finished: POST /episodes/{episode}/finish ends it")
        return JSONResponse(found.trajectory.to_json())

    async def turn(self, request: Request, episode: str) -> Response:
        self._authorize(request)
        report = await read_body(request, TurnReport, MAX_BYTES, "what is told of a turn is short")
        at = self.recorder.get(episode_name(episode)).tell(**report.model_dump())
        return JSONResponse({"episode": episode, "turn": at})

    async def finish(self, request: Request, episode: str) -> Response:
        self._authorize(request)
        ending = await read_body(request, EpisodeResult, MAX_BYTES, "an ending is short")
        done = self.recorder.finish(episode_name(episode), **ending.model_dump())
        counts = {"turns": len(done.turns), "branches": len(done.branches), "score": done.score}
        return JSONResponse({"episode": episode, **counts, "success": done.success})


def add_episodes(app: FastAPI, handlers: Episodes) -> None:
    app.add_api_route("/episodes", handlers.list, methods=["GET"], response_model=None)
    app.add_api_route("/episodes/{episode}", handlers.show, methods=["GET"], response_model=None)
    add_post(app, "/episodes/{episode}/turn", TurnReport, handlers.turn)
    add_post(app, "/episodes/{episode}/finish", EpisodeResult, handlers.finish)


def episode_name(name: str) -> str:
    """Raises ApiError for what is no name."""
    if not _NAME.fullmatch(name):
        message = "an episode's name has 1 to 128 letters, digits, dots, colons, hyphens or underscores"
        raise ApiError(400, message, code="invalid_value", param="episode")
    return name
