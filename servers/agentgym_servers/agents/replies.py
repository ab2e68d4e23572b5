"""Prompts and replies of a model as text, in each shape of its API, whole or streamed; for transcripts and counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from agentgym.rollouts.openai_policy import parse_reply
from agentgym.rollouts.policy import Usage
from agentgym.rollouts.prompt_format import render_call


class ReadReply(NamedTuple):
    """A model's reply."""

    text: str
    finish: str
    """"stop" or "length"."""
    usage: Usage | None


def prompt_text(body: dict[str, Any]) -> str:
    """Text of a request's last message."""
    messages = body.get("messages") or body.get("input") or body.get("prompt") or ""
    last = messages[-1] if isinstance(messages, list) else messages
    return _text(last)


def read_reply(path: str, body: bytes, streamed: bool) -> ReadReply:
    """The reply in a body of /chat/completions, /responses, /messages or /completions. Raises ValueError."""
    try:
        reader = next((read for name, read in _READERS.items() if path.endswith(name)), None)
        if reader is None:
            raise ValueError(f"{path} is no call of a model")
        answer = _joined(path, list(_events(body))) if streamed else json.loads(body)
        return reader(answer)
    except (LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no reply can be read in the answer of {path}: {error!r}") from error


def _chat(answer: dict[str, Any]) -> ReadReply:
    reply = parse_reply(answer)
    return ReadReply(reply.text, reply.finish, reply.usage)


def _completion(answer: dict[str, Any]) -> ReadReply:
    choice = answer["choices"][0]
    finish = "length" if choice.get("finish_reason") == "length" else "stop"
    return ReadReply(choice["text"], finish, _usage(answer, "prompt_tokens", "completion_tokens"))


def _responses(answer: dict[str, Any]) -> ReadReply:
    texts = []
    for item in answer["output"]:
        if item["type"] == "function_call":
            texts.append(_call(item["name"], item["arguments"]))
        elif item["type"] == "message":
            texts.append(_text(item))
    finish = "length" if answer.get("status") == "incomplete" else "stop"
    return ReadReply("\n".join(filter(None, texts)), finish, _usage(answer, "input_tokens", "output_tokens"))


def _messages(answer: dict[str, Any]) -> ReadReply:
    texts = [
        _call(block["name"], block["input"]) if block["type"] == "tool_use" else _text(block)
        for block in answer["content"]
    ]
    finish = "length" if answer.get("stop_reason") == "max_tokens" else "stop"
    return ReadReply("\n".join(filter(None, texts)), finish, _usage(answer, "input_tokens", "output_tokens"))


_READERS = {
    "/chat/completions": _chat,
    "/completions": _completion,
    "/responses": _responses,
    "/messages": _messages,
}


def _usage(answer: dict[str, Any], prompt: str, completion: str) -> Usage | None:
    counted = answer.get("usage") or {}
    read, sampled = counted.get(prompt), counted.get(completion)
    return Usage(read, sampled) if isinstance(read, int) and isinstance(sampled, int) else None


def _call(name: str, arguments: Any) -> str:
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return f"<tool_call>{name} {arguments}</tool_call>"
    return render_call({"name": name, "arguments": arguments})


def _text(part: Any) -> str:
    """Text in a message or a part of one."""
    if isinstance(part, str):
        return part
    if isinstance(part, list):
        return "\n".join(filter(None, map(_text, part)))
    if not isinstance(part, dict):
        return ""
    return _text(part.get("text") or part.get("content") or part.get("output") or "")


def _events(body: bytes) -> Iterator[dict[str, Any]]:
    """Data of server-sent events. Bytes are split: a text also ends a line at characters that JSON may hold."""
    for line in body.splitlines():
        if line.startswith(b"data:") and (data := line[5:].decode(errors="replace").strip()) not in ("", "[DONE]"):
            yield json.loads(data)


def _joined(path: str, events: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole answer that a stream adds up to."""
    if path.endswith("/responses"):
        return next(event["response"] for event in reversed(events) if "response" in event)
    if path.endswith("/messages"):
        return _joined_messages(events)
    usage = next((event["usage"] for event in reversed(events) if event.get("usage")), None)
    choices = [event["choices"][0] for event in events if event.get("choices")]
    finish = next((choice["finish_reason"] for choice in choices if choice.get("finish_reason")), None)
    if not path.endswith("/chat/completions"):
        text = "".join(choice.get("text") or "" for choice in choices)
        return {"choices": [{"text": text, "finish_reason": finish}], "usage": usage}
    deltas = [choice.get("delta") or {} for choice in choices]
    calls: dict[int, dict[str, Any]] = {}
    for part in (part for delta in deltas for part in delta.get("tool_calls") or ()):
        call = calls.setdefault(part["index"], {"id": part.get("id"), "function": {"name": "", "arguments": ""}})
        for key, value in (part.get("function") or {}).items():
            call["function"][key] += value or ""
    content = "".join(delta.get("content") or "" for delta in deltas)
    message = {"content": content, "tool_calls": list(calls.values())}
    return {"choices": [{"message": message, "finish_reason": finish}], "usage": usage}


def _joined_messages(events: list[dict[str, Any]]) -> dict[str, Any]:
    answer: dict[str, Any] = {"usage": {}}
    blocks: dict[int, dict[str, Any]] = {}
    for event in events:
        if event["type"] == "message_start":
            answer["usage"] |= event["message"].get("usage") or {}
        elif event["type"] == "content_block_start":
            blocks[event["index"]] = {**event["content_block"], "json": ""}
        elif event["type"] == "content_block_delta":
            block, delta = blocks[event["index"]], event["delta"]
            block["json"] += delta.get("partial_json", "")
            block["text"] = block.get("text", "") + delta.get("text", "")
        elif event["type"] == "message_delta":
            answer["usage"] |= event.get("usage") or {}
            answer["stop_reason"] = event["delta"].get("stop_reason")
    for block in blocks.values():
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["json"] or "{}")
    return {**answer, "content": list(blocks.values())}
