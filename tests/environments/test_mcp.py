"""Tasks for the tools of an MCP server: what earns a reward, what does not, and faulty servers."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentgym import registry
from agentgym.errors import BadRequest, ConfigError, EnvironmentCrashed, MissingDependency
from agentgym.spec import EnvSpec
from agentgym_environments.backends.browser import orphans
from agentgym_environments.backends.sandbox.backends import bubblewrap_problem
from agentgym_environments.backends.tool_server.results import ToolResult
from agentgym_environments.benchmarks.mcp import make_tasks
from agentgym_environments.benchmarks.mcp.admit import main as admit
from agentgym_environments.benchmarks.mcp.checkers import MadeCall, passes
from agentgym_environments.benchmarks.mcp.env import ToolTasks, read_call
from agentgym_environments.benchmarks.mcp.stock.stock import SHELVES, TOOLS, Stock
from agentgym_environments.benchmarks.mcp.tasks import CHECKS

OWN = Path(make_tasks.__file__).parent
HERE = Path(__file__).parent
SERVER = {"command": "python", "args": ["odd_tool_server.py"], "folders": [str(HERE)]}
SUM = {"kind": "state", "tool": "add", "arguments": {"number": 0}, "equals": {"sum": 3}}
ADD = {"calls": [{"name": "add", "arguments": {"number": 3}}]}


@pytest.fixture
def own() -> Iterator[ToolTasks]:
    env = ToolTasks(sandbox=False)
    yield env
    env.close()


def task_file(folder: Path, *records: dict[str, Any], name: str = "tasks.jsonl") -> str:
    path = folder / name
    path.write_text("".join(f"{json.dumps({'instruction': 'Add up to 3.', **one})}\n" for one in records))
    return str(path)


def odd_env(folder: Path, *manner: str, options: dict[str, Any] | None = None, **fields: Any) -> ToolTasks:
    """An environment of one task for the odd server."""
    server = {**SERVER, "args": [*SERVER["args"], *manner]}
    record = {"server": server, "checker": SUM, "solution": ADD, **fields}
    return ToolTasks(test=task_file(folder, record), sandbox=False, **(options or {}))


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def play(env: ToolTasks, task: int, split: str, *actions: Any) -> float:
    """Sum of the rewards of the actions, up to the end of the episode."""
    env.reset(seed=0, options={"split": split, "task": task})
    earned = 0.0
    for action in actions:
        if not env.over:
            earned += env.step(action)[1]
    return earned


def solve(env: ToolTasks, task: int, split: str) -> tuple[float, list[Any]]:
    env.reset(seed=0, options={"split": split, "task": task})
    earned, actions = 0.0, []
    while not env.over:
        actions.append(env.solver())
        earned += env.step(actions[-1])[1]
    return earned, actions


# The environment's own tasks.


def test_the_tasks_are_those_of_their_generator():
    first = 0
    for split, size in make_tasks.SIZES_OF_SPLITS.items():
        lines = (OWN / "data" / f"{split}.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == make_tasks.records(first, size)
        first += 1000


def test_the_spec_has_the_tools_of_the_server():
    tools = {tool.name: tool.parameters for tool in EnvSpec.load(OWN / "spec.toml").tools}
    finish = tools.pop("finish")
    assert finish["properties"] == {"answer": {"type": "string"}}
    assert tools == {tool["name"]: tool["inputSchema"] for tool in TOOLS if tool["name"] != "audit"}


def test_the_solver_solves_every_task_and_laziness_none(own):
    for split, size in own.env_spec.splits.items():
        for task in range(size):
            earned, actions = solve(own, task, split)
            assert earned == 1
            reads = [one for one in actions if one["name"].startswith(("list", "get"))]
            answer = actions[-1]["arguments"].get("answer", "")
            needless = len(reads) == len(actions) - 1  # a question: its answer alone is right
            for lazy in (
                [call("finish")],
                [call("finish", answer="done, everything is as it should be")],
                [*reads, call("finish")],
                [*reads, call("finish", answer=own.task.prompt)],
                [call("finish", answer=" ".join(map(str, range(500))))],
                [call("audit"), call("finish", answer="0")],
                [call("place_order", sku="S100", quantity=1)] * 3 + [call("finish", answer="1")],
            ):
                assert play(own, task, split, *lazy) == 0, lazy
            if not needless:
                assert play(own, task, split, call("finish", answer=answer)) == 0
                assert play(own, task, split, *actions[:-2], call("finish", answer=answer)) == 0


def test_a_change_too_many_costs_the_reward(own):
    for task in range(5):
        _, actions = solve(own, task, "train")
        orders = [{"name": "list_orders", "arguments": {}}]
        own.reset(seed=0, options={"split": "train", "task": task})
        listed = json.loads(own.step(orders[0])[0])["orders"]
        extra = [call("place_order", sku=listed[0]["sku"], quantity=1), call("move_item", sku="S0", shelf=SHELVES[0])]
        assert play(own, task, "train", *actions[:-1], *extra, actions[-1]) == 0


def test_a_number_as_text_and_a_null_are_understood(own):
    stock = Stock("2")
    sku = next(sku for sku, one in stock.items.items() if one["quantity"] > 1)
    own.reset(seed=0, options={"split": "train", "task": 2})
    for action in (
        call("ship", sku=sku.lower(), quantity="1"),
        call("list_items", shelf=None, page=1.0),
        json.dumps(call("list_orders")),
        {"name": "get_item", "arguments": json.dumps({"sku": sku})},
        {"name": "list_orders"},
    ):
        observation, *_, info = own.step(action)
        assert info["valid_action"], observation


def test_odd_actions_cost_a_turn_and_change_nothing(own):
    own.reset(seed=0, options={"split": "train", "task": 1})
    before = own._info(True)["state_key"]
    odd = ["", "finish", "[]", "null", '{"name": 3}', '{"name": "ship", "arguments": []}', "{" * 5000, "\ud800"]
    odd += [call("no_such_tool"), call("audit"), call("finish", result="x"), call("finish", answer=["x"])]
    odd += [call("ship", sku="\ud800"), call("ship", quantity=float("nan")), {"name": "ship", "id": 1}]
    for action in odd:
        observation, reward, terminated, _, info = own.step(action)
        assert observation.startswith("error: "), action
        assert (reward, terminated, info["valid_action"], info["state_key"]) == (0, False, False, before)
    for action in (call("ship"), call("ship", sku="S1", quantity=True), call("move_item", sku=5, shelf="A1")):
        assert own.step(action)[4]["valid_action"] is False


def test_a_snapshot_starts_another_server_in_the_same_state(own):
    own.reset(seed=0, options={"split": "train", "task": 3})
    for _ in range(4):
        own.step(own.solver())
    state, other = own.snapshot(), ToolTasks(sandbox=False)
    try:
        other.restore(state)
        assert other.observe() == own.observe()
        while not other.over:
            _, reward, *_ = other.step(other.solver())
        assert reward == 1
        broken = json.loads(state)
        broken["state"]["history"][0][2] = "another"
        with pytest.raises(BadRequest, match="comes out otherwise"):
            other.restore(json.dumps(broken).encode())
    finally:
        other.close()


# Checkers.


def check(checker: Any, answer: str = "", made: list[MadeCall] | None = None, state: Any = None) -> bool:
    checks = CHECKS.validate_python(checker if isinstance(checker, list) else [checker])
    return passes(checks, answer, made or [], lambda name, arguments: ToolResult("", value=state))


@pytest.mark.parametrize(
    ("checker", "right", "wrong"),
    [
        ({"equals": "Oslo"}, ["Oslo", " Oslo\n"], ["oslo", "Oslo.", "", "Oslo Bergen"]),
        ({"normalized": "The Old Town"}, ["old town", "the old-town!"], ["old", "", "old town or new town"]),
        ({"number": 12}, ["12", "12.0 units", "it is 12"], ["", "twelve", "12 or 13", "-12", "112"]),
        ({"regex": "[a-c]+"}, ["abc"], ["", "abcd", "xabc"]),
    ],
)
def test_an_answer_is_compared_in_one_of_four_ways(checker, right, wrong):
    for answer in right:
        assert check({"kind": "answer", **checker}, answer), answer
    for answer in wrong:
        assert not check({"kind": "answer", **checker}, answer), answer


def test_wanted_calls_each_need_a_call_of_their_own():
    wanted = [call("add", number=1), call("add"), call("mul", by=2)]
    made = [MadeCall("mul", {"by": "2"}), MadeCall("add", {"number": 5}), MadeCall("add", {"number": 1, "more": True})]
    assert check({"kind": "calls", "calls": wanted}, made=made)
    assert not check({"kind": "calls", "calls": [*wanted, call("add")]}, made=made)  # each needs one of its own
    assert not check({"kind": "calls", "calls": wanted, "ordered": True}, made=made)
    assert check({"kind": "calls", "calls": [wanted[2], wanted[0]], "ordered": True}, made=made)
    assert not check({"kind": "calls", "calls": [call("mul", by=True)]}, made=made)
    assert not check({"kind": "calls", "calls": [call("mul", to=2)]}, made=made)


def test_a_state_is_equal_as_json_is():
    equals = {"a": [1, True, None], "b": {"c": 2.0}}
    for state in (equals, {"b": {"c": 2}, "a": [1.0, True, None]}):
        assert check({"kind": "state", "tool": "x", "equals": equals}, state=state)
    for state in (
        {**equals, "d": 1},
        {"a": [True, True, None], "b": {"c": 2}},
        {"a": [1, 1, None], "b": {"c": 2}},
        None,
    ):
        assert not check({"kind": "state", "tool": "x", "equals": equals}, state=state)


def test_a_grader_whose_tool_fails_gives_no_reward(tmp_path):
    env = odd_env(tmp_path, checker={"kind": "state", "tool": "fail", "equals": "no such thing"})
    assert play(env, 0, "test", call("finish")) == 0
    env.close()


# Servers that do something wrong.


def test_what_a_call_does_to_the_server_is_the_agents_turn(tmp_path):
    env = odd_env(tmp_path)
    assert env.env_spec.instructions.endswith("with the answer where one is asked for.\n\nAdd with add.")
    assert play(env, 0, "test", call("add", number=3), call("finish")) == 1
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(call("die"))
    assert "out of ideas" in observation
    assert (reward, terminated, truncated, info["success"]) == (0, True, False, False)
    assert play(env, 0, "test", call("add", number=3), call("print"), call("leave"), call("leave"), call("finish")) == 1
    assert play(env, 0, "test", call("add", number="3"), call("endless"), call("finish")) == 0
    assert play(env, 0, "test", *[call("add", number=0)] * 40, call("finish")) == 0  # out of turns
    env.close()


def test_a_server_that_cannot_start_again_is_a_failure(tmp_path):
    env = odd_env(tmp_path)
    env.reset(seed=0)
    episode = env.episode
    broken = episode.task.setup["server"] | {"args": ["odd_tool_server.py", "dies"]}
    episode.task = episode.task.model_copy(update={"setup": {"server": broken}})
    with pytest.raises(EnvironmentCrashed, match="it will not start"):
        env.step(call("die"))
    env.close()


def test_pictures_are_shown_where_images_is_true(tmp_path):
    env = odd_env(tmp_path, options={"images": True})
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    assert "image" in env.env_spec.capabilities
    shown = env.step(call("picture"))[0]
    assert shown["image"].tolist() == [[[255, 0, 0], [0, 0, 255]]]
    assert (env.step(call("add"))[0]["image"] == shown["image"]).all()
    env.close()


def test_nothing_is_left_of_episodes(tmp_path):
    orphans.adopt()  # as a process does that has opened a browser: a server's children come to it
    env = odd_env(tmp_path, "stubborn")
    children = len(psutil.Process().children(recursive=True))
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        play(env, 0, "test", call("spawn"), call("finish"))
        assert len(psutil.Process().children(recursive=True)) == children
    env.reset(seed=0)
    env.reset(seed=0)
    env.close()
    env.close()
    assert len(psutil.Process().children(recursive=True)) == children
    assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == (threads, files)
    with pytest.raises(BadRequest, match="closed"):
        env.step(call("add"))


# Files of tasks.


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"checker": []}, "everything would be right"),
        ({"checker": {"kind": "answer"}}, "exactly one of equals, normalized, number, regex"),
        ({"checker": {"kind": "answer", "equals": "a", "regex": "a"}}, "exactly one of"),
        ({"checker": {"kind": "answer", "regex": "("}}, "regex is no pattern"),
        ({"checker": {"kind": "calls", "calls": []}}, "at least 1 item"),
        ({"checker": {"kind": "state", "tool": "add"}}, "equals: Field required"),
        ({"checker": {"kind": "words"}}, "'answer', 'calls', 'state'"),
        ({"checker": SUM, "colour": "red"}, "colour: Extra inputs"),
        ({"checker": SUM, "instruction": ""}, "instruction"),
        ({"checker": SUM, "server": {}}, "a command or a url"),
        ({"checker": SUM, "server": {**SERVER, "folders": ["."]}}, "where the checkers are"),
        ({"checker": SUM, "server": {**SERVER, "args": ["odd_tool_server.py", "finish"]}}, "name it in server.hidden"),
    ],
)
def test_a_faulty_record_is_named_with_what_is_wrong(tmp_path, record, reason):
    with pytest.raises(ConfigError, match=reason):
        ToolTasks(test=task_file(tmp_path, {"server": SERVER, **record}), sandbox=False)


def test_tasks_of_several_servers_are_refused(tmp_path):
    other = {**SERVER, "command": "python3"}
    path = task_file(tmp_path, {"server": SERVER, "checker": SUM}, {"server": other, "checker": SUM})
    with pytest.raises(ConfigError, match="make a file of tasks for each"):
        ToolTasks(test=path, sandbox=False)


def test_admission_plays_the_solution_and_nothing(tmp_path, capsys):
    options = {"admit": True}
    odd_env(tmp_path, options=options).close()
    for fields, reason in (
        ({"checker": {**SUM, "equals": {"sum": 0}}}, "doing nothing scores 1"),
        ({"checker": {"kind": "answer", "regex": ".*"}}, "doing nothing scores 1"),
        ({"solution": {"calls": [call("add", number=2)]}}, "its solution scores 0"),
        ({"solution": {"calls": [call("fail")]}}, "call 1 of its solution, fail, fails: error: no such thing"),
        ({"solution": {"calls": [call("die")]}}, "its solution ends the server"),
        ({"solution": None}, "it has no solution"),
    ):
        with pytest.raises(ConfigError, match=reason):
            odd_env(tmp_path, options=options, **fields)
    if problem := bubblewrap_problem():
        raise MissingDependency(problem)
    assert admit(str(OWN / "data" / "test.jsonl")) == 0
    assert admit(task_file(tmp_path, {"server": SERVER, "checker": SUM})) == 1
    assert "0: it has no solution" in capsys.readouterr().out


def test_arguments_that_do_not_fit_say_so(tmp_path):
    for arguments, reason in (
        ({"sandbox": "no"}, "sandbox is true or false"),
        ({"max_turns": -1}, "max_turns is a whole number"),
        ({"command": "python x.py"}, "give train, validation or test"),
        ({"test": "none.jsonl"}, "there is no file none.jsonl"),
    ):
        with pytest.raises(ConfigError, match=reason):
            ToolTasks(**arguments)
    env = registry.make(f"mcp:test={task_file(tmp_path, {'server': SERVER, 'checker': SUM})},max_turns=3,sandbox=false")
    assert (env.env_spec.max_turns, env.env_spec.capabilities, env.env_spec.splits) == (3, (), {"test": 1})
    env.close()


def test_a_call_is_read_from_text_and_from_a_dict():
    for action in (call("a", b=1), json.dumps(call("a", b=1)), {"name": "a", "arguments": '{"b": 1}'}):
        assert read_call(action) == ("a", {"b": 1})
