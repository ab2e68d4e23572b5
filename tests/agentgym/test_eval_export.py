"""Exports of an evaluation: CSV, JSON, OpenAI's messages as the model saw them, and ATIF by its schema."""

from __future__ import annotations

import asyncio
import csv
import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from PIL import Image
from pydantic import BaseModel, ConfigDict

from agentgym.errors import CheckpointError
from agentgym.evaluation.atif import write_atif
from agentgym.evaluation.cost import Price
from agentgym.evaluation.evaluate import evaluate
from agentgym.evaluation.export import write_attempts_json, write_csv, write_openai
from agentgym.evaluation.run_folder import read_attempts
from agentgym.evaluation.suite import Suite
from agentgym.rollouts.policy import ModelResponse, TextActor, Usage
from agentgym.rollouts.prompt_format import render_call
from agentgym.spec import ToolSpec
from agentgym.testing import EchoEnv

WORD = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}


class ToolEcho(EchoEnv):
    """Echo whose words are said by a tool."""

    env_spec = EchoEnv.env_spec.model_copy(
        update={"tools": (ToolSpec(name="say", description="Say.", parameters=WORD),), "action_format": "tool_call"}
    )

    def step(self, action):
        return super().step(action["arguments"]["word"])


class Model:
    """Says nothing useful first, then the right word, as a server with tool calls does; remembers its prompts."""

    def __init__(self) -> None:
        self.prompts: dict[tuple, list] = {}

    def actor(self, episode):
        return _Actor(self, (episode.env, episode.task))


class _Actor(TextActor):
    def __init__(self, model, key):
        self.model, self.key = model, key

    async def act(self, ask):
        reply = await self.reply(ask)
        shown = reply.message or {"role": "assistant", "content": reply.text}
        self.model.prompts[self.key] = [*json.loads(json.dumps(ask.messages)), shown]
        return reply

    async def reply(self, ask):
        usage = Usage(50 + ask.turn, 5)
        if ask.turn == 0:
            return ModelResponse("", usage=usage)
        word = await ask.session.solver()
        if not ask.session.spec.tools:
            return ModelResponse(f"I see.\n{word}", usage=usage)
        call = {"name": "say", "arguments": {"word": word}}
        function = {"name": "say", "arguments": json.dumps(call["arguments"])}
        entry = {"id": f"call_{ask.turn}x", "type": "function", "function": function}
        message = {"role": "assistant", "content": "I see.", "tool_calls": [entry]}
        return ModelResponse(f"I see.\n{render_call(call)}", (call,), message=message, usage=usage)


ENVS = [
    {"name": f"{__name__}:ToolEcho", "tasks": 2, "kwargs": {"image": True}},
    {"name": "agentgym.testing:EchoEnv", "tasks": 2, "prompt_format": {"window": 1}},
]
SUITE = Suite.model_validate({"name": "s", "env": ENVS})


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory) -> tuple[Path, Model]:
    out, model = tmp_path_factory.mktemp("evaluation"), Model()
    asyncio.run(evaluate(SUITE, model, out, identity="tiny at home", price=Price(prompt=1.0, completion=2.0)))
    return out, model


def test_attempts_as_csv_and_json(evaluation, tmp_path):
    folder, _ = evaluation
    rows = read_attempts(folder)
    assert write_csv(folder, tmp_path / "a.csv") == write_attempts_json(folder, tmp_path / "a.json") == 4
    with (tmp_path / "a.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(line["env"], int(line["task"]), line["success"]) for line in lines] == [
        (row.env, row.task, "True") for row in rows
    ]
    assert [float(line["cost"]) for line in lines] == pytest.approx([(50 + 51 + 52 + 53 + 4 * 5 * 2) / 1e6] * 4)
    record = json.loads((tmp_path / "a.json").read_text())
    assert record["policy"] == "tiny at home"
    assert [attempt["score"] for attempt in record["attempts"]] == [1.0] * 4


def test_openai_messages_are_those_that_the_model_saw(evaluation, tmp_path):
    folder, model = evaluation
    assert write_openai(folder, tmp_path / "a.jsonl") == 4
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    for line in lines:
        shown, messages = model.prompts[line["metadata"]["env"], line["metadata"]["task"]], line["messages"]
        if line["metadata"]["env"].endswith("ToolEcho"):
            assert messages == shown
            assert [m["role"] for m in messages[-3:]] == ["tool", "user", "assistant"]
            assert messages[-2]["content"][0]["image_url"]["url"].startswith("data:image/png;base64,")
            assert line["tools"][0]["function"]["name"] == "say"
        else:  # the model saw a window of one turn, the export has all
            assert (messages[0], messages[-4:]) == (shown[0], shown[-4:])
            assert len(messages) == 1 + 2 * 4
            assert "tools" not in line
        assert line["metadata"]["final_observation"].endswith("Well said.")


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class AtifSource(Strict):
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    path: str


class AtifPart(Strict):
    type: Literal["text", "image"]
    text: str | None = None
    source: AtifSource | None = None


class AtifCall(Strict):
    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]


class AtifResult(Strict):
    source_call_id: str | None = None
    content: str | list[AtifPart] | None = None


class AtifObservation(Strict):
    results: list[AtifResult]


class AtifMetrics(Strict):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: float | None = None


class AtifStep(Strict):
    step_id: int
    source: Literal["system", "user", "agent"]
    message: str | list[AtifPart]
    tool_calls: list[AtifCall] | None = None
    observation: AtifObservation | None = None
    metrics: AtifMetrics | None = None
    extra: dict[str, Any] | None = None


class AtifAgent(Strict):
    name: str
    version: str
    model_name: str | None = None
    tool_definitions: list[dict[str, Any]] | None = None


class AtifTotals(Strict):
    total_prompt_tokens: int | None = None
    total_completion_tokens: int | None = None
    total_cost_usd: float | None = None
    total_steps: int | None = None
    extra: dict[str, Any] | None = None


class AtifTrajectory(Strict):
    """Fields of ATIF 1.8 that may be there, as Harbor's schema has them."""

    schema_version: Literal["ATIF-v1.8"]
    session_id: str | None = None
    trajectory_id: str | None = None
    agent: AtifAgent
    steps: list[AtifStep]
    final_metrics: AtifTotals | None = None
    extra: dict[str, Any] | None = None


def test_atif_follows_its_schema(evaluation, tmp_path):
    folder, _ = evaluation
    assert write_atif(folder, tmp_path) == 4
    files = sorted(tmp_path.glob("*.json"))
    assert len(files) == 4
    for file in files:
        found = AtifTrajectory.model_validate_json(file.read_text())
        assert [step.step_id for step in found.steps] == list(range(1, len(found.steps) + 1))
        assert [step.source for step in found.steps] == ["system", "user", *["agent"] * 4]
        for step in found.steps[:2]:
            assert (step.tool_calls, step.metrics) == (None, None)
        for step in found.steps[2:]:
            calls = {call.tool_call_id for call in step.tool_calls or ()} or {None}
            assert {result.source_call_id for result in step.observation.results} == calls
        assert found.final_metrics.total_prompt_tokens == 50 + 51 + 52 + 53
        assert found.final_metrics.total_cost_usd == pytest.approx(246e-6)
        assert found.final_metrics.extra["success"] is True
        assert found.extra["stop"] == "terminated"


def test_atif_keeps_tool_calls_and_screenshots(evaluation, tmp_path):
    folder, _ = evaluation
    write_atif(folder, tmp_path)
    (file,) = tmp_path.glob("*ToolEcho-test-task0-*.json")
    found = AtifTrajectory.model_validate_json(file.read_text())
    assert [(call.function_name, call.tool_call_id) for call in found.steps[3].tool_calls] == [("say", "call_1x")]
    assert found.steps[3].message == "I see."
    assert found.agent.tool_definitions[0]["function"]["name"] == "say"
    (result,) = found.steps[3].observation.results
    picture = np.asarray(Image.open(tmp_path / result.content[1].source.path))
    assert (picture.shape, picture.max()) == ((8, 8, 3), 40)


def test_exports_of_folders_without_trajectories_are_refused(tmp_path):
    asyncio.run(evaluate(SUITE, Model(), tmp_path, identity="x", keep_trajectories=False))
    with pytest.raises(CheckpointError, match="holds no trajectories"):
        write_openai(tmp_path, tmp_path / "a.jsonl")
    (tmp_path / "trajectories.jsonl").touch()
    (tmp_path / "specs.json").write_text('{"a": 1}')
    with pytest.raises(CheckpointError, match=r"specs\.json does not hold specs"):
        write_openai(tmp_path, tmp_path / "a.jsonl")


def test_trajectories_of_an_older_form_say_what_is_missing(evaluation, tmp_path):
    folder, _ = evaluation
    for name in ("run.json", "attempts.jsonl", "trajectories.jsonl"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    assert write_csv(tmp_path, tmp_path / "a.csv") == 4
    with pytest.raises(CheckpointError, match=r"is of an older form: it has no specs\.json"):
        write_openai(tmp_path, tmp_path / "a.jsonl")
