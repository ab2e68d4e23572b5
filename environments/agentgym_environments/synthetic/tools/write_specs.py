"""Writes the `spec.toml` files of this family: `python -m agentgym_environments.synthetic.tools.write_specs`.

The schemas of the tools are those of the functions; a test compares the files with what this writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentgym_environments.synthetic.tools.env import Tools
from agentgym_environments.synthetic.tools_dialogue.env import Dialogue
from agentgym_environments.synthetic.tools_dialogue.policy import POLICY

HERE = Path(__file__).parent

ERRANDS = (
    "You do a task in a person's apps: mail, calendar, notes, contacts, shop and bank. Do everything the task asks "
    "for and change nothing else, then call finish. Each turn is one tool call, as JSON: "
    '{"name": "help", "arguments": {"app": "mail"}} describes the tools of an app, '
    '{"name": "help", "arguments": {}} repeats the task.'
)

SERVICE = (
    "You serve a customer of a shop: you talk to them with say and act with the other tools. Each turn is one tool "
    'call, as JSON: {"name": "say", "arguments": {"text": "Hello!"}}. {"name": "policy", "arguments": {}} lists the '
    "tools and repeats the policy. When everything the customer wants is done, answered or refused, call finish."
)


def specs() -> dict[Path, str]:
    """Both files and their texts."""
    described = {
        "tools": ("several", "Tasks across a person's apps, by tool calls, checked in the database.", 30),
        "tools-one": ("one", "Tasks in one of a person's apps, by tool calls, checked in the database.", 15),
        "tools-long": (
            "long",
            "Three tasks in one, across a person's apps, by tool calls, checked in the database.",
            70,
        ),
    }
    variants = {
        name: {"description": description, "max_turns": turns, "kwargs": {"level": level}}
        for name, (level, description, turns) in described.items()
    }
    talking = {
        "id": "tools-dialogue",
        "description": "Serve a simulated customer of a shop by talking and by tools, under a written policy.",
        "max_turns": 40,
        "text_tool": "say",
    }
    return {
        HERE.parent / "tools_dialogue" / "spec.toml": text(Dialogue, f"{SERVICE}\n\n{POLICY}", talking, {}),
        HERE / "spec.toml": text(Tools, ERRANDS, {"version": "2.0.0"}, variants),
    }


def text(cls: type[Tools | Dialogue], instructions: str, own: dict[str, Any], variants: dict[str, Any]) -> str:
    """A file's text: the fields that all environments of `cls` share, its tools, and what is of each variant alone."""
    fields = {
        "entry_point": f"{cls.__module__}:{cls.__name__}",
        "family": "tools",
        "instructions": instructions,
        "splits": {"train": 10000, "validation": 1000, "test": 1000},
        "reward_range": [0.0, 1.0],
        "info_keys": ["success", "valid_action", "state_key", "progress", "available_actions"],
        "capabilities": ["snapshot", "solver", "hint"],
        "inline": True,
    }
    lines = list(pairs(own | fields))
    for tool in [*cls.env_tools.values(), *cls.tools.values()]:
        lines += ["", "[[tools]]", *pairs(tool.spec.model_dump())]
    for name, different in variants.items():
        lines += ["", f"[variants.{name}]", *pairs(different)]
    return "\n".join(lines) + "\n"


def pairs(fields: dict[str, Any]) -> Iterator[str]:
    """A line for each field."""
    return (f"{key} = {toml(value)}" for key, value in fields.items())


def toml(value: Any) -> str:
    """A value as TOML on one line. JSON's strings are TOML's."""
    if isinstance(value, dict):
        inside = ", ".join(f"{json.dumps(key)} = {toml(one)}" for key, one in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    for path, written in specs().items():
        path.write_text(written, encoding="utf-8")
