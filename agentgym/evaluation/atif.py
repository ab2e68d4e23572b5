"""Trajectories in ATIF, the Agent Trajectory Interchange Format of Harbor (version 1.8 of its schema)."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from agentgym import __version__
from agentgym.evaluation.cost import Price
from agentgym.evaluation.export import AttemptTranscript, cost_of, read_price, read_transcripts
from agentgym.evaluation.run_folder import read_description
from agentgym.rollouts.openai_policy import as_openai_tool
from agentgym.rollouts.policy import Usage
from agentgym.rollouts.prompt_format import UNDONE
from agentgym.rollouts.trajectory import Turn, json_line

SCHEMA = "ATIF-v1.8"


def write_atif(folder: Path, out: Path) -> int:
    """Write a JSON file for each attempt into the folder `out`, and images beside them. Return the number of files."""
    about, price = read_description(folder), read_price(folder)
    out.mkdir(parents=True, exist_ok=True)
    count = 0
    for transcript in read_transcripts(folder):
        record = atif_record(transcript, about["policy"], price)
        (out / f"{transcript.name}.json").write_text(json_line(record), encoding="utf-8")
        _write_images(transcript, out)
        count += 1
    return count


def atif_record(transcript: AttemptTranscript, policy: str, price: Price | None = None) -> dict[str, Any]:
    """An attempt as ATIF: a step for the instructions, one for the first observation, and one for each turn.

    A turn's observation is the environment's answer. Rewards and the attempt's outcome are in `extra`.
    """
    row, trajectory, spec = transcript.row, transcript.trajectory, transcript.spec
    system = transcript.prompt_format.instructions(spec)
    steps: list[dict[str, Any]] = [{"source": "system", "message": system}] if system else []
    first = trajectory.turns[0]
    steps.append({"source": "user", "message": _content(first.observation, transcript, first)})
    for turn, after in zip(trajectory.turns, [*trajectory.turns[1:], None]):
        shown = _content(after.observation, transcript, after) if after else trajectory.final_observation
        steps.append(_agent_step(turn, shown, price))
    tools = [as_openai_tool(tool) for tool in transcript.prompt_format.tools(spec)]
    totals = {
        "total_prompt_tokens": row.prompt_tokens,
        "total_completion_tokens": row.completion_tokens,
        "total_cost_usd": cost_of(row, price),
        "total_steps": len(steps),
        "extra": {"success": row.success, "score": row.score, "seconds": row.seconds},
    }
    agent = {"name": "agentgym", "version": __version__, "model_name": policy, "tool_definitions": tools or None}
    outcome = {name: getattr(row, name) for name in ("env", "split", "task", "seed", "attempt", "stop", "error")}
    return {
        "schema_version": SCHEMA,
        "session_id": transcript.name,
        "trajectory_id": transcript.name,
        "agent": _known(agent),
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)],
        "final_metrics": _known(totals),
        "extra": outcome,
    }


def _agent_step(turn: Turn, shown: str | list[dict[str, Any]], price: Price | None) -> dict[str, Any]:
    calls = _tool_calls(turn)
    ids = [call["tool_call_id"] for call in calls] or [None]
    message = turn.reply if turn.message is None else turn.message.get("content") or ""
    results = [_known({"source_call_id": call, "content": shown}) for call in ids]
    if turn.results:
        *others, last = turn.results
        last = last if isinstance(shown, str) else [{"type": "text", "text": last}, *shown[1:]]
        contents = [*others, last, *[UNDONE] * (len(ids) - len(turn.results))]
        results = [_known({"source_call_id": call, "content": c}) for call, c in zip(ids, contents, strict=True)]
    step = {
        "source": "agent",
        "message": message,
        "tool_calls": calls or None,
        "observation": {"results": results},
        "metrics": _metrics(turn, price),
        "extra": {"reward": turn.reward, "action": turn.action, "role": turn.role, "finish": turn.finish},
    }
    return _known(step)


def _tool_calls(turn: Turn) -> list[dict[str, Any]]:
    """The calls that a server sent, else the action where it is a call."""
    if turn.message is not None:
        return [
            {
                "tool_call_id": call["id"],
                "function_name": call["function"]["name"],
                "arguments": json.loads(call["function"]["arguments"]),
            }
            for call in turn.message.get("tool_calls") or ()
        ]
    actions = turn.action if isinstance(turn.action, list) else [turn.action]
    ids = [f"call_{turn.index}"] if len(actions) == 1 else [f"call_{turn.index}_{i}" for i in range(len(actions))]
    return [
        {
            "tool_call_id": call,
            "function_name": action["name"],
            "arguments": action.get("arguments") or {},
        }
        for call, action in zip(ids, actions, strict=True)
        if isinstance(action, dict)
    ]


def _metrics(turn: Turn, price: Price | None) -> dict[str, Any] | None:
    if turn.prompt_tokens is None or turn.completion_tokens is None:
        return None
    tokens = Usage(turn.prompt_tokens, turn.completion_tokens)
    cost = None if price is None else price.of(tokens)
    return _known({"prompt_tokens": tokens.prompt, "completion_tokens": tokens.completion, "cost_usd": cost})


def _content(text: str, transcript: AttemptTranscript, turn: Turn) -> str | list[dict[str, Any]]:
    if not turn.image:
        return text
    source = {"media_type": "image/png", "path": _image_path(transcript, turn)}
    return [{"type": "text", "text": text}, {"type": "image", "source": source}]


def _image_path(transcript: AttemptTranscript, turn: Turn) -> str:
    return f"images/{transcript.name}-{turn.index}.png"


def _write_images(transcript: AttemptTranscript, out: Path) -> None:
    for turn in transcript.trajectory.turns:
        if turn.image:
            path = out / _image_path(transcript, turn)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(base64.b64decode(turn.image.partition(",")[2]))


def _known(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}
