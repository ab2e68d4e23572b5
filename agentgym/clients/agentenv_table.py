"""The protocol of each agentenv server: one record an environment, as their servers and clients behave."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


def _plain(text: str) -> str:
    return text


def _letters(text: str) -> str:
    """The single `Action:` line, or the whole text, with nothing but letters, digits, commas and single spaces."""
    return " ".join(re.sub(r"[^A-Za-z0-9,\s]+", "", _action_line(text)).split())


def _action_line(text: str) -> str:
    """Return the text after the single `Action:`, or the whole text. Raises ValueError when there are several."""
    parts = re.split(r"Action:", text)
    if len(parts) > 2:
        raise ValueError("Only one 'Action:' is allowed in a reply; please try again.")
    return parts[-1].strip()


def _sql(text: str) -> str:
    blocks = re.findall(r"```sql\s*\n?(.*?)```", text, flags=re.DOTALL)
    return (blocks[-1] if blocks else text).strip()


def _no_body(_: int) -> dict[str, Any] | None:
    return None


def _empty_body(_: int) -> dict[str, Any] | None:
    return {}


def _item_body(item: int) -> dict[str, Any] | None:
    return {"id": item}


def _read_id(reply: Any) -> int:
    """The session of a bare integer, `{"id": ...}` or `{"env_idx": ...}`."""
    number = reply.get("id", reply.get("env_idx")) if isinstance(reply, dict) else reply
    if type(number) is not int:
        raise ValueError(f"no session in {reply!r}")
    return number


def _observation(reply: Any) -> Any:
    """A bare string, or an object's `observation`."""
    return reply if isinstance(reply, str) else reply["observation"]


def _state(reply: Any) -> Any:
    return reply["state"]


def _with_actions(reply: Any) -> str:
    return f"{reply['observation']}\nAVAILABLE ACTIONS: {','.join(reply['available_actions'])}"


def _with_task(reply: Any) -> str:
    return f"{reply['task_description']}\n{reply['observation']}"


def _never(_: Mapping[str, Any]) -> bool:
    return False


def _timed_out(reply: Mapping[str, Any]) -> bool:
    return reply.get("observation") == "TimeoutError" and reply.get("sites") == "Error"


def _react(name: str, arguments: Mapping[str, Any]) -> str:
    return f"Action: {name} with Action Input: {json.dumps(arguments, ensure_ascii=False)}"


@dataclass(frozen=True)
class AgentEnvDialect:
    """The protocol of one of the servers."""

    name: str
    description: str
    instructions: str
    key: Literal["id", "env_idx"]
    """The field of a session's number in bodies and queries."""
    reset_body: Callable[[int], dict[str, Any]]
    """The body of a reset to an item."""
    create_body: Callable[[int], dict[str, Any] | None] = _no_body
    read_id: Callable[[Any], int] = _read_id
    first_observation: Callable[[Any], Any] = _observation
    observes: bool = False
    """The first observation is asked for by GET /observation."""
    step_observation: Callable[[Any], Any] = _observation
    reward_key: Literal["reward", "score"] = "reward"
    cumulative: bool = False
    """`reward_key` is the sum so far; a step's reward is what it added."""
    ends: Literal["done", "terminated"] = "done"
    """"terminated": with `truncated` beside it, and a reward that counts only in the end."""
    closes: bool = True
    """There is a POST /close. Without, a session's number is used again."""
    failed: Callable[[Mapping[str, Any]], bool] = _never
    """True if a reply with status 200 and no `error` is a failure all the same."""
    prepare: Callable[[str], str] = _plain
    """The action to send for a text. Raises ValueError, in words for the agent."""
    tool_text: Callable[[str, Mapping[str, Any]], str] = _react
    """A tool call as text."""
    splits: Mapping[str, range] = field(default_factory=lambda: {"train": range(1)})
    """Items by split, as far as they are known."""
    max_turns: int = 30
    reward_range: tuple[float, float] = (0.0, 1.0)


def _tool_env(name: str, what: str) -> AgentEnvDialect:
    return AgentEnvDialect(
        name,
        f"Answer questions with the tools of {what}.",
        'Act with one line: "Action: TOOL with Action Input: JSON"; finish with the tool that the task names.',
        key="env_idx",
        create_body=_item_body,
        reset_body=_item_body_of("id"),
        closes=False,
    )


def _item_body_of(key: str, **more: Any) -> Callable[[int], dict[str, Any]]:
    return lambda item: {key: item, **more}


_ALL = (
    AgentEnvDialect(
        "generic",
        "An environment of AgentGym's second-development tutorial.",
        "Reply with one action.",
        key="id",
        reset_body=_item_body_of("data_idx"),
    ),
    AgentEnvDialect(
        "textcraft",
        "Craft an item from the recipes that are given.",
        "Reach the goal with actions such as 'get 1 oak log', 'craft 4 oak planks using 1 oak log' and 'inventory'.",
        key="id",
        create_body=_empty_body,
        reset_body=_item_body_of("data_idx"),
        prepare=_letters,
    ),
    AgentEnvDialect(
        "babyai",
        "Follow an instruction in a grid environment of rooms, doors and keys.",
        "Reach the goal with one of the available actions.",
        key="id",
        reset_body=_item_body_of("data_idx"),
        reward_key="score",
        cumulative=True,
        prepare=_letters,
    ),
    AgentEnvDialect(
        "sciworld",
        "Carry out an elementary-school science experiment in a text environment.",
        "Carry out the task with one action at a time, such as 'open door to kitchen' or 'focus on thermometer'.",
        key="id",
        reset_body=_item_body_of("data_idx"),
        first_observation=_with_task,
        reward_key="score",
        cumulative=True,
        prepare=_action_line,
        reward_range=(-200.0, 200.0),
        max_turns=100,
    ),
    AgentEnvDialect(
        "alfworld",
        "Do a household task in a text environment.",
        "Do the task with one of the available actions.",
        key="id",
        reset_body=_item_body_of("game", env_type="Text"),
        first_observation=_with_actions,
        step_observation=_with_actions,
        closes=False,
        prepare=_action_line,
        max_turns=50,
    ),
    AgentEnvDialect(
        "maze",
        "Find the way through a maze that is described in words (LMRL-Gym); the URL ends in /maze.",
        "Reach the goal with 'move up', 'move down', 'move left' and 'move right'.",
        key="id",
        reset_body=_item_body_of("game"),
        closes=False,
        prepare=_action_line,
        splits={"train": range(26)},
        reward_range=(-10.0, 10.0),
    ),
    AgentEnvDialect(
        "wordle",
        "Guess a five-letter word (LMRL-Gym); the URL ends in /wordle.",
        "Guess with five letters, separated by spaces.",
        key="id",
        reset_body=_item_body_of("seed"),
        closes=False,
        prepare=_action_line,
        splits={"train": range(2**31)},
    ),
    AgentEnvDialect(
        "webshop",
        "Buy the product that an instruction asks for.",
        "Act with search[words] or click[what can be clicked].",
        key="env_idx",
        reset_body=_item_body_of("session_id"),
        observes=True,
        step_observation=_state,
        closes=False,
        prepare=_action_line,
    ),
    AgentEnvDialect(
        "sqlgym",
        "Answer questions about a database in SQL.",
        "Answer with one query in a ```sql block.",
        key="env_idx",
        reset_body=_item_body_of("item_id"),
        observes=True,
        step_observation=_state,
        closes=False,
        prepare=_sql,
        splits={"train": range(9428), "test": range(9428, 10962)},
    ),
    AgentEnvDialect(
        "searchqa",
        "Answer questions with a search engine.",
        "Search with <search>query</search>; answer with <answer>answer</answer>.",
        key="env_idx",
        create_body=_item_body,
        reset_body=_item_body_of("id"),
        splits={"train": range(51713, 221328), "test": range(51713)},
    ),
    AgentEnvDialect(
        "webarena",
        "Carry out a task on a web site.",
        "Act with one action in a ``` block, such as ```click [12]``` or ```stop [answer]```.",
        key="env_idx",
        reset_body=_item_body_of("idx", seed=0),
        ends="terminated",
        failed=_timed_out,
    ),
    _tool_env("weather", "a weather service"),
    _tool_env("movie", "a movie database"),
    _tool_env("academia", "a graph of papers and authors"),
    _tool_env("sheet", "a spreadsheet"),
    _tool_env("todo", "a to-do list"),
)

DIALECTS: Mapping[str, AgentEnvDialect] = {dialect.name: dialect for dialect in _ALL}
