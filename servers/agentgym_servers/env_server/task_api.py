"""OpenEnv's Task API over `EnvSpec.splits`: a task is what `reset` takes, `{"split": ..., "index": ...}`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException

from agentgym.spec import EnvSpec
from agentgym_servers.web.backend import EnvBackend, env_of
from agentgym_servers.web.parsing import parse
from agentgym_servers.web.responses import body_of, handle_errors, reply_dump

TASKS_LISTED = 100_000
"""The most tasks of one reply."""
SPLIT_TYPES = ("train", "validation", "test")


class SplitRequest(BaseModel):
    model_config = ConfigDict(extra="ignore")

    split: str


class TaskRequest(SplitRequest):
    index: int


class RangeRequest(SplitRequest):
    start: int | None = None
    stop: int | None = None


def add_task_routes(app: FastAPI, verbs: EnvBackend, prefix: str, max_body_bytes: int) -> None:
    """The routes under `prefix`: at the root for every environment of the server, under /envs/{name} for that one."""

    def listed(request: Request) -> dict[str, str]:
        names = verbs.names() if not prefix else [env_of(verbs, request.path_params["name"])]
        return {name.lower(): name for name in names}

    async def list_environments(request: Request) -> Response:
        return reply_dump(list(listed(request).values()))

    def spec_of(request: Request) -> EnvSpec:
        wanted = request.path_params["env"]
        name = listed(request).get(wanted.lower())
        if name is None:
            raise HTTPException(404, f"unknown environment '{wanted}'")
        return verbs.spec(name)

    async def splits(request: Request) -> Response:
        return reply_dump(
            [{"name": name, "type": name if name in SPLIT_TYPES else "validation"} for name in spec_of(request).splits]
        )

    app.add_api_route(
        f"{prefix}/list_environments", handle_errors(list_environments), methods=["GET"], response_model=None
    )
    app.add_api_route(f"{prefix}/{{env}}/splits", handle_errors(splits), methods=["GET"], response_model=None)
    for path, (model, reply) in _REPLIES.items():

        async def handle(request: Request, model: Any = model, reply: Callable[..., Any] = reply) -> Response:
            spec = spec_of(request)
            body = parse(model, await body_of(request, max_body_bytes))
            if body.split not in spec.splits:
                raise HTTPException(400, f"{spec.id} has no split {body.split[:80]!r}; it has {', '.join(spec.splits)}")
            return reply_dump(reply(spec, body, range(spec.splits[body.split])))

        handle.__name__ = path
        app.add_api_route(
            f"{prefix}/{{env}}/{path}",
            handle_errors(handle),
            methods=["POST"],
            response_model=None,
            openapi_extra={"requestBody": {"content": {"application/json": {"schema": model.model_json_schema()}}}},
        )


def _tasks(spec: EnvSpec, body: SplitRequest, indices: range) -> dict[str, Any]:
    return {"tasks": _described(body.split, indices), "env_name": spec.id}


def _num_tasks(spec: EnvSpec, body: SplitRequest, indices: range) -> dict[str, Any]:
    return {"num_tasks": len(indices)}


def _task(spec: EnvSpec, body: TaskRequest, indices: range) -> dict[str, Any]:
    if body.index not in indices:
        raise HTTPException(400, "Invalid task index")
    return {"task": {"split": body.split, "index": body.index}}


def _task_range(spec: EnvSpec, body: RangeRequest, indices: range) -> dict[str, Any]:
    return {"tasks": _described(body.split, indices[body.start : body.stop])}


def _described(split: str, indices: range) -> list[dict[str, Any]]:
    if len(indices) > TASKS_LISTED:
        raise HTTPException(400, f"{len(indices)} tasks are too many for one reply; ask for a task_range")
    return [{"split": split, "index": index} for index in indices]


_REPLIES: dict[str, tuple[type[SplitRequest], Callable[..., dict[str, Any]]]] = {
    "tasks": (SplitRequest, _tasks),
    "num_tasks": (SplitRequest, _num_tasks),
    "task": (TaskRequest, _task),
    "task_range": (RangeRequest, _task_range),
}
