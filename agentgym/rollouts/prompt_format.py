"""Prompt format: what the agent is shown and how its reply becomes an action.

    system   the environment's instructions, and how to reply
    user     observation 0
    assistant  reply 0                      <- parsed into an action by the grammar
    user     observation 1
    ...

Where a server returned reply 0 as `tool_calls`, observation 1 is a message of the role "tool" that names the call's id.
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
from agentgym.protocol import encode_image
from agentgym.spec import ActionFormat, EnvSpec, ToolSpec

Message = dict[str, Any]
"""OpenAI's schema, as chat templates and OpenAI-compatible servers take it: {"role", "content"}, of the assistant also
"tool_calls", of a tool also "tool_call_id"."""
History = Sequence[tuple[Observation, str | Message]]
"""(observation, response) of earlier turns. A response is its text, or the assistant's message with its tool calls."""

ACT = ToolSpec(
    name="act",
    description="Take one action in the environment.",
    parameters={"type": "object", "properties": {"action": {"type": "string"}}, "required": ["action"]},
)
"""The tool that stands for a text action where an agent speaks in tool calls."""


class ParsedResponse(NamedTuple):
    """The action in a reply, or the reason why there is none."""

    action: Action | None
    problem: str = ""


class PromptFormat(BaseModel):
    """Instructions, history window, action grammar, and what a reply without an action costs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    grammar: Literal["auto"] | ActionFormat = "auto"
    """Place of the action in a response. "auto" is the environment's own `action_format`."""
    system: str | None = None
    """Replaces the environment's instructions; None keeps them, "" sends no system message."""
    window: int | None = Field(default=None, ge=0)
    """Turns of history shown; None shows all. A finite window re-tells the prompt each turn, so tokens fork."""
    on_invalid: Literal["tell", "end"] = "tell"
    """A reply without an action: "tell" the agent and let it try again (it costs a turn; the environment is not
    stepped), or "end" the episode."""
    invalid_penalty: float = Field(default=0.0, ge=0)
    """Subtracted from the turn's reward in training; never from the score."""

    def action_format(self, spec: EnvSpec) -> ActionFormat:
        """Action format in this environment."""
        return spec.action_format if self.grammar == "auto" else self.grammar

    def tools(self, spec: EnvSpec) -> tuple[ToolSpec, ...]:
        """Tools to offer; none unless the action format is "tool_call"."""
        return (spec.tools or (ACT,)) if self.action_format(spec) == "tool_call" else ()

    def messages(self, spec: EnvSpec, history: History, observation: Observation) -> list[Message]:
        """The prompt for the next turn; `history` holds (observation, reply) of the turns before."""
        system = self.instructions(spec)
        shown = history if self.window is None else history[len(history) - min(self.window, len(history)) :]
        messages: list[Message] = [{"role": "system", "content": system}] if system else []
        calls: list[str] = []
        for observed, reply in shown:
            message: Message = {"role": "assistant", "content": reply} if isinstance(reply, str) else reply
            messages += [*_observed(observed, calls), message]
            calls = [call["id"] for call in message.get("tool_calls") or ()]
        return messages + _observed(observation, calls)

    def instructions(self, spec: EnvSpec) -> str:
        """The system message."""
        if self.system is not None:
            return self.system
        how = {
            "last_line": "Reply with one action on the last line.",
            "tagged": "Reply with one action as <action>...</action>.",
            "tool_call": 'Reply with one call as <tool_call>{"name": ..., "arguments": {...}}</tool_call>.',
        }[self.action_format(spec)]
        return f"{spec.instructions.strip()}\n{how}"

    def parse(self, reply: str, spec: EnvSpec, calls: Sequence[ToolCall] = ()) -> ParsedResponse:
        """The action in `reply`; `calls` are tool calls that a server parsed itself."""
        how = self.action_format(spec)
        if how == "last_line":
            lines = [line.strip() for line in reply.splitlines() if line.strip()]
            return (
                ParsedResponse(_text_action(lines[-1], spec)) if lines else ParsedResponse(None, "the reply was empty")
            )
        if how == "tagged":
            found = _between("action", reply)
            text = _trimmed(found[-1]) if found else ""
            if not text:
                return ParsedResponse(None, f"the reply had {'an empty' if found else 'no'} <action>...</action>")
            return ParsedResponse(_text_action(text, spec))
        return self._parse_call(reply, spec, calls)

    def render(self, action: Action, spec: EnvSpec) -> str:
        """Shortest reply that `parse` reads as `action`; what scripted policies say.

        A text action of one line comes back stripped; "last_line" has no way to say one of several lines.
        """
        how = self.action_format(spec)
        if how == "tool_call":
            call = _text_action(action, spec) if isinstance(action, str) else action
            if not isinstance(call, str):
                return render_call(call)
            return call if spec.tools else render_call({"name": ACT.name, "arguments": {"action": call}})
        text = action if isinstance(action, str) else json.dumps(action)
        return f"<action>{text}</action>" if how == "tagged" else text

    def invalid_action_message(self, spec: EnvSpec, problem: str) -> str:
        """The observation that follows a reply without an action."""
        how = self.instructions(spec).splitlines()[-1] if self.system is None else ""
        return f"No action taken: {problem}. {how}".strip()

    def _parse_call(self, reply: str, spec: EnvSpec, calls: Sequence[ToolCall]) -> ParsedResponse:
        tagged = [] if calls else _between("tool_call", reply)
        count = len(calls) or len(tagged)
        if count > 1:
            return ParsedResponse(
                None, f"the reply made {count} tool calls and none was carried out; make one call a turn"
            )
        if calls:
            call: Any = calls[0]
        else:
            try:
                call = json.loads(tagged[0] if tagged else reply)
            except (ValueError, RecursionError) as error:  # RecursionError: a reply of ten thousand brackets
                reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
                return ParsedResponse(None, f"the reply was not a JSON tool call ({reason})")
        if not isinstance(call, dict) or not isinstance(call.get("arguments", {}), dict):
            return ParsedResponse(None, 'a tool call is {"name": ..., "arguments": {...}}')
        name, arguments = call.get("name"), call.get("arguments", {})
        if not isinstance(name, str):
            return ParsedResponse(None, "the tool call names no tool")
        offered = {tool.name: tool for tool in self.tools(spec)}
        if name not in offered:
            return ParsedResponse(None, f"there is no tool {name!r}; there are {', '.join(offered)}")
        missing = [key for key in offered[name].parameters.get("required", []) if key not in arguments]
        if missing:
            return ParsedResponse(None, f"{name} needs {', '.join(missing)}")
        if not spec.tools:
            return ParsedResponse(str(arguments["action"]))
        return ParsedResponse({"name": name, "arguments": arguments})


def render_call(call: ToolCall) -> str:
    """A tool call as text: JSON in <tool_call> tags. Tags inside an argument are escaped, so it ends where it ends."""
    text = json.dumps(call).replace("<tool_call>", "\\u003ctool_call>").replace("</tool_call>", "\\u003c/tool_call>")
    return f"<tool_call>{text}</tool_call>"


def _between(tag: str, reply: str) -> list[str]:
    """Return the content of each <tag>...</tag>. A tag that is opened and not closed does not count."""
    return re.findall(rf"<{tag}>((?:(?!</?{tag}>).)*)</{tag}>", reply, flags=re.DOTALL)


def _trimmed(text: str) -> str:
    """A line without the space around it. Several lines keep how they end: an edit may end with an empty line."""
    stripped = text.strip()
    return text.lstrip() if "\n" in stripped else stripped


def _observed(observation: Observation, calls: Sequence[str]) -> list[Message]:
    """An observation as messages: the user's, or the answer to each tool call by its id."""
    if not calls:
        return [{"role": "user", "content": content(observation)}]
    messages: list[Message] = [
        {"role": "tool", "tool_call_id": call, "content": text_of(observation)} for call in calls
    ]
    if not isinstance(observation, str):  # a tool's message holds text only
        messages.append({"role": "user", "content": content(observation)[1:]})
    return messages


def _text_action(text: str, spec: EnvSpec) -> Action:
    """Text, or the tool call that it spells in JSON where the environment has that tool."""
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
    picture = {"type": "image_url", "image_url": {"url": image_url(observation)}}
    return [{"type": "text", "text": observation["text"]}, picture]


def image_url(observation: Observation) -> str:
    """An observation's image as a PNG in a data URL; "" where it has none."""
    if isinstance(observation, str) or "image" not in observation:
        return ""
    return f"data:image/png;base64,{base64.b64encode(encode_image(observation['image'])).decode()}"


def text_of(observation: Observation) -> str:
    """The text part of an observation."""
    return observation if isinstance(observation, str) else observation["text"]
