"""Tools: apps over a database, jobs judged by its last state, no reward without reading, sessions over MCP."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import httpx
import pytest
from mcp.types import Tool

from agentgym import registry
from agentgym.errors import BadRequest, ConfigError
from agentgym.rollouts.prompt_format import PromptFormat
from agentgym.spec import EnvSpec
from agentgym_environments.synthetic.tools.database import Change, Database, changes
from agentgym_environments.synthetic.tools.env import Tools
from agentgym_environments.synthetic.tools.goals import ANY, Says, StateGoal, match, numbers_in, says
from agentgym_environments.synthetic.tools.registry import render
from agentgym_environments.synthetic.tools.tasks import KINDS, ONE_APP, SEVERAL
from agentgym_environments.synthetic.tools.write_specs import specs
from agentgym_servers.env_server.app import create_app
from agentgym_servers.web.run import serve_in_thread

IDS = ("tools-one", "tools", "tools-long", "tools-dialogue")
ERRANDS = IDS[:3]


def new_env(kind: str = "", task: int = 0, split: str = "train", name: str = "tools") -> Any:
    env = registry.make(name, **({"kind": kind} if kind else {}))
    env.reset(seed=0, options={"split": split, "task": task})
    return env


def do(env: Any, name: str, /, **arguments: Any) -> Any:
    """A call's result, read."""
    text, *_ = env.step({"name": name, "arguments": arguments})
    return text if text.startswith("error") else json.loads(text)


def there(env: Any) -> int:
    """A product in stock."""
    return env.db.rows("SELECT id FROM products WHERE in_stock ORDER BY id")[0]["id"]


def play(env: Any, calls: int | None = None) -> dict[str, Any]:
    """The solver's episode; with `calls`, only so many calls of it."""
    info: dict[str, Any] = {}
    while not env.over and calls != 0:
        *_, info = env.step(env.solver())
        assert info["valid_action"], env.output
        calls = None if calls is None else calls - 1
    return info


def draw(chance: random.Random, schema: dict[str, Any]) -> Any:
    """A value that fits a JSON schema of a tool, drawn without looking at anything."""
    if "enum" in schema:
        return chance.choice(schema["enum"])
    if schema["type"] == "array":
        return [draw(chance, schema["items"]) for _ in range(chance.randrange(3))]
    if schema["type"] == "integer":
        return chance.randrange(schema["minimum"], min(schema["maximum"], chance.choice((10, 10**4, 10**5))) + 1)
    if schema["type"] == "number":
        return chance.randrange(1, 90000) / 100
    day = f"2026-{chance.randrange(1, 13):02d}-{chance.randrange(1, 29):02d}"
    pattern = schema.get("pattern", "")
    if "@" in pattern:
        return f"{chance.choice(('ada.adler', 'hugo.holm'))}@mail.example"
    if "A-Z" in pattern:
        return f"DE{chance.randrange(10**19, 10**20)}"
    if "d{4}" in pattern:
        return f"{day} {chance.randrange(24):02d}:00" if ":" in pattern else day
    return chance.choice(("inbox", "archive", "current", "I will be there", "12.50", "yes", "x", day, "noted"))


def blind(spec: EnvSpec, chance: random.Random) -> dict[str, Any]:
    """A call that is well formed, by somebody who does not read. He rarely ends the episode."""
    tool = chance.choice([tool for tool in spec.tools if tool.name != "finish" or chance.random() < 0.3])
    properties, required = tool.parameters["properties"], tool.parameters.get("required", [])
    given = {key: draw(chance, value) for key, value in properties.items() if key in required or chance.random() < 0.5}
    return {"name": tool.name, "arguments": given}


# What every id owes.


def test_the_toml_files_are_those_of_the_code():
    for path, text in specs().items():
        assert path.read_text(encoding="utf-8") == text, (
            "run python -m agentgym_environments.synthetic.tools.write_specs"
        )


@pytest.mark.parametrize("name", IDS)
def test_the_spec_matches_the_class_and_tools_have_schemas(name):
    spec, env = registry.get_spec(name), registry.make(name)
    assert env.env_spec == spec
    assert (spec.id, spec.family, spec.inline) == (name, "tools", True)
    assert {tool.name for tool in spec.tools} == {*env.tools, *env.env_tools}
    for tool in spec.tools:
        assert tool.description
        assert tool.parameters["additionalProperties"] is False
        assert not any("title" in one for one in tool.parameters["properties"].values())


@pytest.mark.parametrize("name", IDS)
def test_the_solver_wins_in_every_split(name):
    env = registry.make(name)
    for split in env.env_spec.splits:
        for task in range(15):
            env.reset(seed=task, options={"split": split, "task": task})
            assert play(env)["success"], (split, task)
            assert env.turn < env.env_spec.max_turns - 5


@pytest.mark.parametrize(
    "tasks", [pytest.param(100, marks=pytest.mark.envs), pytest.param(400, marks=pytest.mark.every)]
)
@pytest.mark.parametrize("name", IDS)
def test_the_solver_wins_hundreds(name, tasks):
    env = registry.make(name)
    for split in env.env_spec.splits:
        for task in range(tasks):
            env.reset(seed=task, options={"split": split, "task": task})
            assert play(env)["success"], (split, task)


@pytest.mark.parametrize("name", IDS)
def test_well_formed_calls_without_reading_win_nothing(name):
    env, understood = registry.make(name), 0
    for task in range(15):
        env.reset(seed=task, options={"task": task})
        chance = random.Random(task)
        while not env.over:
            _, reward, *_, info = env.step(blind(env.env_spec, chance))
            understood += info["valid_action"]
            assert (reward, info["success"]) == (0.0, False)
    assert understood > 30  # they are calls, not nonsense


@pytest.mark.parametrize("name", IDS)
def test_nobody_is_in_two_splits(name):
    env, people = registry.make(name), {}
    for split in env.env_spec.splits:
        for task in range(20):
            env.reset(options={"split": split, "task": task})
            person = env.case.caller.name if name == "tools-dialogue" else env.desk.name
            assert people.setdefault(person, split) == split


@pytest.mark.parametrize("name", IDS)
def test_random_legal_calls_are_valid_and_rarely_win(name):
    env, chance, won = registry.make(name), random.Random(0), 0
    for task in range(15):
        _, info = env.reset(options={"task": task})
        while not env.over:
            *_, info = env.step(chance.choice(info["available_actions"]))
            assert info["valid_action"], env.output
        won += info["success"]
    assert won <= 1


# The database and the goals.


def test_changes_are_listed_by_row_and_undone_ones_are_none():
    db = Database("CREATE TABLE things (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, size INTEGER);")
    one, two = db.add("things", name="ball", size=1), db.add("things", name="box", size=2)
    before = db.dump()
    db.change("things", one, size=3)
    db.delete("things", two)
    three = db.add("things", name="box", size=2)
    assert three != two  # an id is never used twice

    def found() -> list[Change]:
        return changes(db.columns["things"], "things", before["things"], db.table("things"))

    box = {"name": "box", "size": 2}
    assert found() == [
        Change("things", "update", one, {"size": 3}),
        Change("things", "delete", two, {"id": two, **box}),
        Change("things", "insert", three, {"id": three, **box}),
    ]
    db.change("things", one, size=1)
    assert [change.kind for change in found()] == ["delete", "insert"]
    copy = Database(image=db.image())
    assert copy.dump() == db.dump()
    copy.load(db.save())
    with pytest.raises(ValueError, match="damaged"):
        copy.load("00000")


def test_a_goal_names_all_columns_and_one_row_meets_one_goal():
    rows = [Change("mails", "insert", 5, {"id": 5, "to": "a", "body": "12.50 euros"})]
    goal = StateGoal("mails", "insert", {"to": "a", "body": Says((12.5,))})
    assert match([goal], rows) == {0: 0}
    assert len(match([goal, goal], rows)) == 1
    assert match([StateGoal("mails", "insert", {"to": "a"})], rows) == {}  # a column that nobody spoke of
    assert match([StateGoal("mails", "update", {"to": "a", "body": ANY}, 5)], rows) == {}
    loose = StateGoal("mails", "insert", {"to": "a", "body": ANY})
    other = Change("mails", "insert", 6, {"id": 6, "to": "a", "body": "?"})
    assert match([loose, goal], [*rows, other]) == {0: 1, 1: 0}  # the loose one makes room


def test_numbers_and_phrases_are_found_however_they_are_written():
    assert numbers_in("paid 1,012.50 and 12.5; 3x on 2026-01-05") == [1012.5, 12.5, 3.0, 2026.0, 1.0, 5.0]
    assert says("It costs EUR 1,012.50.", Says((1012.5,)))
    assert not says("It costs 1012.05", Says((1012.5,)))
    assert says("so:  i will\nbe THERE!", Says(("I will be there",)))
    assert not says("12.5 " + "x" * 700, Says((12.5,)))
    assert not says(12.5, Says((12.5,)))


# Calls.


def test_space_around_a_text_does_not_matter():
    goal = StateGoal("notes", "update", {"text": "- rope\n- map"}, 1)
    for text, met in (("- rope\n- map\n", True), (" - rope\n- map", True), ("- rope\n\n- map", False)):
        assert goal.met_by(Change("notes", "update", 1, {"text": text})) is met


def test_a_wrong_call_costs_a_turn_and_explains_the_error():
    env = new_env()
    before = env.key()
    for action, message in [
        ("dance", "not a tool call: write one JSON object"),
        ('{"name": "mail_read"', "not a tool call"),
        ("[" * 5000, "not a tool call"),
        ('{"name": 3}', "not a tool call"),
        ('{"name": "mail_read", "arguments": [1]}', "not a tool call"),
        ({"name": "mail_fly", "arguments": {}}, "there is no tool 'mail_fly'; call help"),
        ({"name": "mail_read", "arguments": {}}, "mail: Field required. Usage: mail_read(mail)"),
        ({"name": "mail_read", "arguments": {"mail": "x"}}, "mail: Input should be a valid integer"),
        ({"name": "mail_read", "arguments": {"mail": 10**30}}, "less than or equal"),
        ({"name": "mail_read", "arguments": {"mail": 7}}, "no mail has id 7"),
        ({"name": "mail_read", "arguments": {"mail": 7, "loud": True}}, "loud: Extra inputs are not permitted"),
        ({"name": "calendar_day", "arguments": {"day": "tomorrow"}}, "day: String should match pattern"),
        ({"name": "notes_add", "arguments": {"title": "\ud800", "text": "x"}}, "title: Input should be a valid string"),
        ({"name": "help", "arguments": {"app": "radio"}}, "there is no app 'radio'"),
        ({"name": "mail_search", "arguments": {"text": "'; DROP TABLE mails; --"}}, '"found": []'),
    ]:
        observation, reward, *_, info = env.step(action)
        assert message in observation
        assert (reward, info["valid_action"]) == (0.0, "error" not in observation)
        assert info["state_key"] == before
    assert env.turn == 15


def test_a_call_may_be_text_or_a_tool_call():
    env = new_env()
    call = {"name": "mail_folders", "arguments": {}}
    assert env.step(call)[0] == env.step(json.dumps(call))[0]
    spec = env.env_spec
    assert PromptFormat(grammar="last_line").parse(f"I look.\n{json.dumps(call)}", spec).action == call
    assert PromptFormat().parse(PromptFormat().render(call, spec), spec).action == call


def test_help_tells_the_task_and_every_tool():
    env = new_env()
    text = env.step({"name": "help", "arguments": {}})[0]
    assert env.opening in text
    usages = "\n".join(
        env.step({"name": "help", "arguments": {"app": app}})[0]
        for app in text.split("Apps: ")[1].split(". ")[0].split(", ")
    )
    assert all(f"{name}(" in usages for name in Tools.tools)
    assert 'calendar_add(title, start (YYYY-MM-DD HH:MM), end (YYYY-MM-DD HH:MM), place="", guests=[]' in usages


def test_a_call_that_is_refused_half_way_changes_nothing():
    env = new_env("pay_someone")
    account, *_ = do(env, "bank_accounts")
    key = env.key()
    payee = do(env, "bank_payees")[0]
    given = {"account": account["id"], "iban": payee["iban"], "reference": "x"}
    assert "has only" in do(env, "bank_pay", **given, amount=10**6)
    assert "two decimals" in do(env, "bank_pay", **given, amount=0.001)
    assert "is no payee" in do(env, "bank_pay", **{**given, "iban": "DE12345678"}, amount=1)
    assert env.key() == key
    do(env, "bank_pay", **given, amount=12.5)
    assert do(env, "bank_accounts")[0]["balance"] == round(account["balance"] - 12.5, 2)


def test_the_apps_keep_their_books():
    env = new_env("return_item")
    account = do(env, "bank_accounts")[0]
    product = next(row for row in do(env, "shop_search")["found"] if row["in_stock"])
    assert "the basket is empty" in do(env, "shop_checkout", account=account["id"])
    line = do(env, "shop_add", product=product["id"], quantity=2)["line"]
    assert do(env, "shop_basket")["total"] == round(2 * product["price"], 2)
    do(env, "shop_remove", line=line)
    do(env, "shop_add", product=product["id"])
    order = do(env, "shop_checkout", account=account["id"])["ordered"]
    assert do(env, "bank_transactions", text=f"order {order}")["found"][0]["amount"] == -product["price"]
    assert "only what was delivered" in do(env, "shop_return", order=order, product=product["id"])
    do(env, "shop_cancel", order=order)
    assert "is cancelled" in do(env, "shop_cancel", order=order)
    assert do(env, "bank_accounts")[0]["balance"] == account["balance"]
    assert "cannot end at" in do(env, "calendar_add", title="x", start="2026-03-03 10:00", end="2026-03-03 09:00")
    assert "no such moment" in do(env, "calendar_add", title="x", start="2026-02-30 10:00", end="2026-03-03 09:00")


# Jobs.


def test_levels_draw_from_all_kinds_of_tasks():
    assert len(ONE_APP) >= 10
    assert len(SEVERAL) >= 10
    tools = {step.name for task in range(30) for step in new_env(task=task, name="tools").job.plan}
    assert len(tools) > 15
    assert re.search(r"\n1\. .*\n2\. .*\n3\. ", new_env(name="tools-long").opening)


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_is_solved_and_nothing_less_or_more_will_do(kind):
    for task in range(2):
        env = new_env(kind, task)
        assert env.score() == (0, 0)
        calls = len(env.job.plan)
        assert play(env)["success"]
        half = new_env(kind, task)
        if half.job.goals:
            play(half, calls - 1)  # all but the last call
            info = half.step({"name": "finish", "arguments": {}})[4]
        else:
            info = half.step({"name": "finish", "arguments": {"answer": "I do not know"}})[4]
        assert not info["success"]
        more = new_env(kind, task)
        play(more, calls)
        do(more, "notes_add", title="Done", text="I was here")
        info = more.step(more.solver())[4]
        assert (info["success"], more.over) == (False, True)
        assert 0 < info["progress"] < 1


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("mail_delete", lambda env: {"mail": env.ids("mails")[0]}),
        ("contacts_change", lambda env: {"contact": env.ids("contacts")[0], "phone": "1"}),
        ("mail_send", lambda env: {"to": "all@env.example", "subject": "x", "body": "y"}),
        ("bank_add_payee", lambda env: {"name": "Me", "iban": "DE123456789"}),
        ("shop_add", lambda env: {"product": there(env)}),
    ],
)
def test_any_other_row_that_changes_is_a_failure(call, arguments):
    env = new_env("move_money", 3)
    play(env, len(env.job.plan))
    assert env.score() == (2, 0)
    do(env, call, **arguments(env))
    assert env.score() == (2, 1)
    assert "1 rows were changed that should not be" in env.hint()
    assert env.step({"name": "finish", "arguments": {}})[1] == 0.0


def test_a_mistake_that_is_undone_is_forgiven():
    env = new_env("move_money", 3)
    line = do(env, "shop_add", product=there(env))["line"]
    person = do(env, "contacts_search")["found"][0]
    do(env, "contacts_change", contact=person["id"], phone="1")
    do(env, "contacts_change", contact=person["id"], phone=person["phone"])
    do(env, "shop_remove", line=line)
    assert play(env)["success"]


def test_what_the_agent_says_of_itself_is_worth_nothing():
    env = new_env("pay_invoice")
    assert env.step({"name": "finish", "arguments": {"answer": "success: True, reward 1, done perfectly"}})[1] == 0.0
    assert env.over
    late = new_env("pay_invoice")
    play(late, len(late.job.plan))
    for _ in range(late.env_spec.max_turns - late.turn):
        *_, truncated, info = late.step({"name": "mail_folders", "arguments": {}})
    assert (truncated, info["success"]) == (True, False)  # never finished


def test_a_question_wants_the_answer_and_a_quiet_database():
    env = new_env("spent", 1)
    play(env, len(env.job.plan))
    right = env.job.answer_text
    assert env.step({"name": "finish", "arguments": {"answer": f"{right} euros"}})[1] == 1.0
    wrong = new_env("spent", 1)
    dump = " ".join(str(number / 100) for number in range(0, 3000, 7))
    assert "at most 200" in wrong.step({"name": "finish", "arguments": {"answer": dump}})[0]
    assert wrong.step({"name": "finish", "arguments": {"answer": "12.34"}})[1] == 0.0


def test_the_solver_takes_up_what_others_began():
    env = new_env("shopping_list", 2)
    for call in (step for step in env.job.plan if not step.goals):
        env.step({"name": call.name, "arguments": call.arguments})
    checkout = env.solver()
    assert checkout["name"] == "shop_checkout"
    env.step(checkout)
    assert env.hint().startswith(
        f"{len(env.job.goals) - 1} of {len(env.job.goals)} changes are made. Next: notes_delete("
    )
    assert play(env)["success"]


def test_the_key_names_the_state_not_the_way_to_it():
    one, other = new_env("new_details", 4), new_env("new_details", 4)
    first = one.key()
    do(one, "mail_search", text="details")
    assert one.key() == first
    move = next(step for step in one.job.plan if step.name == "mail_move")
    change = next(step for step in one.job.plan if step.name == "contacts_change")
    for env, steps in ((one, (move, change)), (other, (change, move))):
        for step in steps:
            do(env, step.name, **step.arguments)
    assert one.key() == other.key() != first
    assert new_env("new_details", 5).key() != first


@pytest.mark.parametrize("name", IDS)
def test_a_snapshot_of_any_moment_goes_on_as_the_episode_did(name):
    env, copy = registry.make(name), registry.make(name)
    env.reset(seed=3, options={"split": "test", "task": 7})
    while not env.over:
        state, action = env.snapshot(), env.solver()
        step = env.step(action)
        copy.restore(state)
        assert copy.solver() == action
        assert copy.step(action) == step
    with pytest.raises(BadRequest, match="not a snapshot"):
        copy.restore(state.replace(b'"db": "', b'"db": "!'))
    copy.restore(state)
    copy.close()
    env.close()
    with pytest.raises(BadRequest, match="call reset"):
        env.step("x")


def test_arguments_that_do_not_exist_are_refused():
    with pytest.raises(ConfigError, match="level is one of one, several, long"):
        registry.make("tools", level="huge")
    with pytest.raises(ConfigError, match="kind is one of reply_mail"):
        registry.make("tools:kind=nap")
    assert registry.get_spec("tools:kind=sick_day").id == "tools"


# MCP.


@pytest.mark.parametrize("name", ["tools-one", "tools-dialogue"])
def test_a_full_task_over_mcp(name):
    """A session of the server is reset to a task over HTTP and then driven by tools/call alone."""
    env = registry.make(name)
    with serve_in_thread(create_app([name], max_sessions=4)) as url:

        def rpc(method: str, **params: Any) -> Any:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            return httpx.post(f"{url}/mcp", json=body).json()

        tools = rpc("tools/list")["result"]["tools"]
        assert [tool["name"] for tool in tools] == [*env.env_tools, *env.tools]
        assert all(tool["inputSchema"]["type"] == "object" for tool in tools)
        session_id = rpc("openenv/session/create")["result"]["session_id"]
        begin = {"session_id": session_id, "seed": 0, "split": "test", "index": 5}
        response = httpx.post(f"{url}/reset", json=begin).json()
        opening, _ = env.reset(seed=0, options={"split": "test", "task": 5})
        assert response["observation"]["text"] == opening
        wrong = rpc("tools/call", session_id=session_id, name=tools[2]["name"], arguments={"no": 1})["result"]
        assert wrong["data"].startswith("error: ")
        env.step({"name": tools[2]["name"], "arguments": {"no": 1}})
        while not env.over:
            call = env.solver()
            observation, reward, *_, info = env.step(call)
            result = rpc("tools/call", session_id=session_id, **call)["result"]
            assert result["content"][0]["text"] == observation == render(observation)
            assert result["structured_content"]["info"] == info
        assert (result["structured_content"]["reward"], info["success"]) == (reward, True) == (1.0, True)


def test_an_agent_that_has_only_mcp_can_ask_for_its_task():
    with serve_in_thread(create_app(["tools"], max_sessions=4)) as url:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "help", "arguments": {}}}
        assert "who asks:" in httpx.post(f"{url}/mcp", json=body).json()["result"]["data"]


def test_the_tools_are_what_the_mcp_package_takes_for_tools():
    for name in IDS:
        for tool in registry.get_spec(name).tools:
            Tool.model_validate({"name": tool.name, "inputSchema": tool.parameters})
