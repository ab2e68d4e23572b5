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

from agentgym.env import Action, CallResults, Display, Observation, ToolCall
from agentgym.protocol import encode_image
from agentgym.spec import ActionFormat, EnvSpec, ToolSpec

Message = dict[str, Any]
"""OpenAI's schema, as chat templates and OpenAI-compatible servers take it: {"role", "content"}, of the assistant also
"tool_calls", of a tool also "tool_call_id"."""
History = Sequence[tuple[Display, str | Message]]
"""(observation, response) of earlier turns. A response is its text, or the assistant's message with its tool calls."""
FENCE = re.compile(r"`{3,}\w*")
UNDONE = "not carried out: the episode had ended"
"""Result of a call after one that ended the episode."""

ACT = ToolSpec(
    name="act",
    description="Take one action in the environment.",
    parameters={"type": "object", "properties": {"action": {"type": "string"}}, "required": ["action"]},
)
"""The tool that stands for a text action where an agent speaks in tool calls."""


class ParsedResponse(NamedTuple):
    """The action in a reply, several where it makes several tool calls, or the reason why there is none."""

    action: Action | list[Action] | None
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

    def messages(self, spec: EnvSpec, history: History, observation: Display) -> list[Message]:
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
        if spec.text_tool and self.action_format(spec) == "tool_call":
            how += f" A reply without a call counts as {spec.text_tool} with its text."
        return f"{spec.instructions.strip()}\n{how}"

    def parse(self, reply: str, spec: EnvSpec, calls: Sequence[ToolCall] = ()) -> ParsedResponse:
        """The action in `reply`; `calls` are tool calls that a server parsed itself.

        Of several calls either all are an action or none is.
        """
        how = self.action_format(spec)
        if how == "last_line":
            line = _last_line(reply)
            problem = "the reply had nothing after its thoughts" if "think>" in reply else "the reply was empty"
            return ParsedResponse(_text_action(line, spec)) if line else ParsedResponse(None, problem)
        if how == "tagged":
            found = _between("action", reply)
            text = _trimmed(found[-1]) if found else ""
            if not text:
                return ParsedResponse(None, f"the reply had {'an empty' if found else 'no'} <action>...</action>")
            return ParsedResponse(_text_action(text, spec))
        found = list(calls) or _between("tool_call", reply)
        if not found and spec.text_tool and (text := _without_call(reply)):
            (argument,) = next(t for t in spec.tools if t.name == spec.text_tool).parameters["required"]
            return ParsedResponse({"name": spec.text_tool, "arguments": {argument: text}})
        if len(found) < 2:
            return self._parse_call(found[0] if found else reply, spec)
        actions: list[Action] = []
        for number, call in enumerate(found, 1):
            parsed = self._parse_call(call, spec)
            if not isinstance(parsed.action, str | dict):
                problem = f"the reply made {len(found)} tool calls and none was carried out; in call {number} "
                return ParsedResponse(None, problem + parsed.problem)
            actions.append(parsed.action)
        return ParsedResponse(actions)

    def render(self, action: Action | list[Action], spec: EnvSpec) -> str:
        """Shortest reply that `parse` reads as `action`; what scripted policies say.

        A text action of one line comes back stripped; "last_line" has no way to say one of several lines.
        """
        if isinstance(action, list):
            return "\n".join(self.render(one, spec) for one in action)
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

    def _parse_call(self, call: Any, spec: EnvSpec) -> ParsedResponse:
        """The action of one call, a text of JSON or what was read from one. Llama's models say "parameters"."""
        if isinstance(call, str):
            try:
                call = json.loads(call)
            except (ValueError, RecursionError) as error:  # RecursionError: a reply of ten thousand brackets
                reason = error.msg if isinstance(error, json.JSONDecodeError) else type(error).__name__
                return ParsedResponse(None, f"the reply was not a JSON tool call ({reason})")
        arguments = call.get("arguments", call.get("parameters", {})) if isinstance(call, dict) else None
        if not isinstance(arguments, dict):
            return ParsedResponse(None, 'a tool call is {"name": ..., "arguments": {...}}')
        name = call.get("name")
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


def _last_line(reply: str) -> str:
    """The last line with text in it, after the thoughts, but not the mark that ends a block of code; "" where there is
    none, or the reply thinks on."""
    lines = [line.strip() for line in reply.rpartition("</think>")[2].splitlines() if line.strip()]
    if lines and lines[0].startswith("<think>"):
        return ""
    return next((line for line in reversed(lines) if not FENCE.fullmatch(line)), lines[-1] if lines else "")


def _without_call(reply: str) -> str:
    """The text of a reply after its thoughts; "" where it has none, or tries to make a call, or thinks on."""
    text = reply.rpartition("</think>")[2].strip()
    return "" if text.startswith(("{", "[", "```", "<think>")) or "<tool_call>" in text else text


def _trimmed(text: str) -> str:
    """A line without the space around it. Several lines keep how they end: an edit may end with an empty line."""
    stripped = text.strip()
    return text.lstrip() if "\n" in stripped else stripped


def _observed(observation: Display, calls: Sequence[str]) -> list[Message]:
    """An observation as messages: the user's, or the answer to each tool call by its id."""
    if not calls:
        return [{"role": "user", "content": content(observation)}]
    if isinstance(observation, dict) and "results" in observation:
        texts = [text_of(result) for result in observation["results"]]
        texts += [UNDONE] * (len(calls) - len(texts))
    else:
        texts = [text_of(observation)] * len(calls)
    messages: list[Message] = [
        {"role": "tool", "tool_call_id": call, "content": text} for call, text in zip(calls, texts, strict=True)
    ]
    if pictures := _pictures(observation):  # a tool's message holds text only
        messages.append({"role": "user", "content": pictures})
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


def content(observation: Display) -> str | list[dict[str, Any]]:
    """An observation as the content of a message: text, or text and PNGs in data URLs."""
    pictures = _pictures(observation)
    return [{"type": "text", "text": text_of(observation)}, *pictures] if pictures else text_of(observation)


def _pictures(observation: Display) -> list[dict[str, Any]]:
    """The images of an observation as parts of a message."""
    every = observation["results"] if isinstance(observation, dict) and "results" in observation else [observation]
    urls = [image_url(one) for one in every]
    return [{"type": "image_url", "image_url": {"url": url}} for url in urls if url]


def image_url(observation: Display) -> str:
    """An observation's image, of several the last, as a PNG in a data URL; "" where it has none."""
    if isinstance(observation, str):
        return ""
    if "results" in observation:
        return next((url for one in reversed(observation["results"]) if (url := image_url(one))), "")
    if "image" not in observation:
        return ""
    return f"data:image/png;base64,{base64.b64encode(encode_image(observation['image'])).decode()}"


def text_of(observation: Display) -> str:
    """The text part of an observation."""
    return observation if isinstance(observation, str) else observation["text"]


def results_of(observations: Sequence[Observation]) -> CallResults:
    """Several calls' results as one observation."""
    texts = [f"Result of call {number}: {text_of(one)}" for number, one in enumerate(observations, 1)]
    return {"text": "\n".join(texts), "results": list(observations)}
