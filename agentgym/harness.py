"""Harness: what the agent is shown and how its reply becomes an action.

    system   the world's instructions, and how to reply
    user     observation 0
    assistant  reply 0                      <- parsed into an action by the grammar
    user     observation 1
    ...

With `window=k` only the last k turns are shown beside the present observation.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from agentgym.env import Action, Observation, ToolCall
from agentgym.spec import EnvSpec, ToolSpec
from agentgym.wire import encode_image

Message = dict[str, Any]
"""{"role", "content"}, as chat templates and OpenAI-compatible servers take it."""

ACT = ToolSpec(
    name="act",
    description="Take one action in the world.",
    parameters={"type": "object", "properties": {"action": {"type": "string"}}, "required": ["action"]},
)
"""The tool that stands for a text action where an agent speaks in tool calls."""


class Parsed(NamedTuple):
    """The action in a reply, or the reason why there is none."""

    action: Action | None
    problem: str = ""


class Harness(BaseModel):
    """Instructions, history window, action grammar, and what a reply without an action costs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    grammar: Literal["last_line", "tagged", "tool_call"] = "last_line"
    """"last_line": the last line that is not empty. "tagged": the last <action>...</action>. "tool_call": JSON
    {"name", "arguments"}, bare or in <tool_call> tags, or the server's own `tool_calls`."""
    system: str | None = None
    """Replaces the world's instructions; None keeps them, "" sends no system message."""
    window: int | None = Field(default=None, ge=0)
    """Turns of history shown; None shows all. A finite window re-tells the prompt each turn, so tokens fork."""
    on_invalid: Literal["tell", "end"] = "tell"
    """A reply without an action: "tell" the agent and let it try again (it costs a turn; the world is not stepped),
    or "end" the episode."""
    invalid_penalty: float = Field(default=0.0, ge=0)
    """Subtracted from the turn's reward in training; never from the score."""

    def tools(self, spec: EnvSpec) -> tuple[ToolSpec, ...]:
        """The tools to offer; none unless the grammar is "tool_call"."""
        return (spec.tools or (ACT,)) if self.grammar == "tool_call" else ()

    def messages(
        self, spec: EnvSpec, history: Sequence[tuple[Observation, str]], observation: Observation
    ) -> list[Message]:
        """The prompt for the next turn; `history` holds (observation, reply) of the turns before."""
        system = self.instructions(spec)
        shown = history if self.window is None else history[len(history) - min(self.window, len(history)) :]
        messages: list[Message] = [{"role": "system", "content": system}] if system else []
        for seen, reply in shown:
            messages += [{"role": "user", "content": content(seen)}, {"role": "assistant", "content": reply}]
        messages.append({"role": "user", "content": content(observation)})
        return messages

    def instructions(self, spec: EnvSpec) -> str:
        """The system message."""
        if self.system is not None:
            return self.system
        how = {
            "last_line": "Reply with one action on the last line.",
            "tagged": "Reply with one action as <action>...</action>.",
            "tool_call": 'Reply with one call as <tool_call>{"name": ..., "arguments": {...}}</tool_call>.',
        }[self.grammar]
        return f"{spec.instructions.strip()}\n{how}"

    def parse(self, reply: str, spec: EnvSpec, calls: Sequence[ToolCall] = ()) -> Parsed:
        """The action in `reply`; `calls` are tool calls that a server parsed itself."""
        if self.grammar == "last_line":
            lines = [line.strip() for line in reply.splitlines() if line.strip()]
            return Parsed(_text_action(lines[-1], spec)) if lines else Parsed(None, "the reply was empty")
        if self.grammar == "tagged":
            found = _last_between("action", reply)
            if not found:
                return Parsed(None, f"the reply had {'no' if found is None else 'an empty'} <action>...</action>")
            return Parsed(_text_action(found, spec))
        return self._parse_call(reply, spec, calls)

    def render(self, action: Action) -> str:
        """The shortest reply that `parse` reads as `action`; what scripted policies say.

        A text action comes back stripped; "last_line" has no way to say one of several lines.
        """
        if self.grammar == "tool_call":
            said: ToolCall = {"name": ACT.name, "arguments": {"action": action}} if isinstance(action, str) else action
            return render_call(said)
        text = action if isinstance(action, str) else json.dumps(action)
        return f"<action>{text}</action>" if self.grammar == "tagged" else text

    def complaint(self, spec: EnvSpec, problem: str) -> str:
        """The observation that follows a reply without an action."""
        how = self.instructions(spec).splitlines()[-1] if self.system is None else ""
        return f"No action taken: {problem}. {how}".strip()

    def _parse_call(self, reply: str, spec: EnvSpec, calls: Sequence[ToolCall]) -> Parsed:
        if calls:
            call: Any = calls[-1]
        else:
            tagged = _last_between("tool_call", reply)
            try:
                call = json.loads(reply if tagged is None else tagged)
            except (ValueError, RecursionError) as error:  # RecursionError: a reply of ten thousand brackets
                reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
                return Parsed(None, f"the reply was not a JSON tool call ({reason})")
        if not isinstance(call, dict) or not isinstance(call.get("arguments", {}), dict):
            return Parsed(None, 'a tool call is {"name": ..., "arguments": {...}}')
        name, arguments = call.get("name"), call.get("arguments", {})
        if not isinstance(name, str):
            return Parsed(None, "the tool call names no tool")
        offered = {tool.name: tool for tool in self.tools(spec)}
        if name not in offered:
            return Parsed(None, f"there is no tool {name!r}; there are {', '.join(offered)}")
        missing = [key for key in offered[name].parameters.get("required", []) if key not in arguments]
        if missing:
            return Parsed(None, f"{name} needs {', '.join(missing)}")
        if not spec.tools:
            return Parsed(str(arguments["action"]))
        return Parsed({"name": name, "arguments": arguments})


def render_call(call: ToolCall) -> str:
    """A tool call as text: JSON in <tool_call> tags. Tags inside an argument are escaped, so it ends where it ends."""
    text = json.dumps(call).replace("<tool_call>", "\\u003ctool_call>").replace("</tool_call>", "\\u003c/tool_call>")
    return f"<tool_call>{text}</tool_call>"


def _last_between(tag: str, reply: str) -> str | None:
    """What the last <tag>...</tag> holds. A tag merely mentioned before it does not count."""
    found = re.findall(rf"<{tag}>((?:(?!</?{tag}>).)*)</{tag}>", reply, flags=re.DOTALL)
    return found[-1].strip() if found else None


def _text_action(text: str, spec: EnvSpec) -> Action:
    """Text, or the tool call that it spells in JSON where the world has that tool."""
    if not spec.tools or not text.startswith("{"):
        return text
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return text
    named = isinstance(call, dict) and call.get("name") in [tool.name for tool in spec.tools]
    fits = named and set(call) == {"name", "arguments"} and isinstance(call["arguments"], dict)
    return {"name": call["name"], "arguments": call["arguments"]} if fits else text


def content(observation: Observation) -> str | list[dict[str, Any]]:
    """An observation as the content of a message: text, or text and a PNG in a data URL."""
    if isinstance(observation, str):
        return observation
    url = f"data:image/png;base64,{base64.b64encode(encode_image(observation['image'])).decode()}"
    return [{"type": "text", "text": observation["text"]}, {"type": "image_url", "image_url": {"url": url}}]


def text_of(observation: Observation) -> str:
    """The text part of an observation."""
    return observation if isinstance(observation, str) else observation["text"]
