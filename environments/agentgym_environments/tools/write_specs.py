"""Writes the TOML files of this family: `python -m agentgym_environments.tools.write_specs`.

The schemas of the tools are those of the functions; a test compares the files with what this writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentgym_environments.tools.dialogue.env import Dialogue
from agentgym_environments.tools.dialogue.policy import POLICY
from agentgym_environments.tools.env import Tools
from agentgym_environments.tools.registry import Tool

HERE = Path(__file__).parent

ERRANDS = (
    "You run an errand in a person's apps: mail, calendar, notes, contacts, shop and bank. Do all that is asked "
    "and change "
    "nothing else, then call finish. Each turn is one tool call, as JSON: "
    '{"name": "help", "arguments": {"app": "mail"}} tells how the tools of an app are called, '
    '{"name": "help", "arguments": {}} repeats the task.'
)

SERVICE = (
    "You serve a customer of a shop: you talk to him with say and act with the other tools. Each turn is one "
    "tool call, as "
    'JSON: {"name": "say", "arguments": {"text": "Hello!"}}. {"name": "policy", "arguments": {}} tells how every '
    "tool is "
    "called, and the policy once more. When all that he wants is done, answered or refused, call finish."
)


def specs() -> dict[Path, str]:
    """Every TOML file and its text."""
    tools = [*Tools.world_tools.values(), *Tools.tools.values()]
    told = {
        "tools-one": ("one", "Errands in one app of a person's, by tool calls, checked in the database.", 15),
        "tools": ("several", "Errands over several apps of a person's, by tool calls, checked in the database.", 30),
        "tools-long": (
            "long",
            "Three errands over several apps of a person's, by tool calls, checked in the database.",
            70,
        ),
    }
    talking = spec(
        "tools-dialogue",
        "Serve a shop's customer, who is simulated, by talking and by tools, under a written policy.",
        f"{SERVICE}\n\n{POLICY}",
        40,
        [*Dialogue.world_tools.values(), *Dialogue.tools.values()],
        {},
    )
    return {HERE / "dialogue" / "tools-dialogue.toml": talking} | {
        HERE / f"{name}.toml": spec(name, description, ERRANDS, turns, tools, {"level": level})
        for name, (level, description, turns) in told.items()
    }


def spec(
    name: str, description: str, instructions: str, turns: int, tools: Iterable[Tool], kwargs: dict[str, Any]
) -> str:
    """A spec's text."""
    fields = {
        "id": name,
        "family": "tools",
        "description": description,
        "instructions": instructions,
        "splits": {"train": 10000, "validation": 1000, "test": 1000},
        "max_turns": turns,
        "reward_range": [0.0, 1.0],
        "info_keys": ["success", "valid_action", "state_key", "progress", "available_actions"],
        "capabilities": ["snapshot", "expert", "hint"],
        "inline": True,
    }
    lines = [f"{key} = {toml(value)}" for key, value in fields.items()]
    for one in tools:
        said = one.spec
        lines += ["", "[[tools]]", f"name = {toml(said.name)}", f"description = {toml(said.description)}"]
        lines += [f"parameters = {toml(said.parameters)}"]
    lines += ["", "[kwargs]", *(f"{key} = {toml(value)}" for key, value in kwargs.items())] if kwargs else []
    return "\n".join(lines) + "\n"


def toml(value: Any) -> str:
    """A value as TOML on one line. JSON's strings are TOML's."""
    if isinstance(value, dict):
        inside = ", ".join(f"{json.dumps(key)} = {toml(one)}" for key, one in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    for path, text in specs().items():
        path.write_text(text, encoding="utf-8")
