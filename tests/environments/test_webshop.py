"""WebShop on files of our own in its format: what is read of them, what pages show, and how it is played."""

from __future__ import annotations

import asyncio
import json
import random
import re
from pathlib import Path

import pytest

import agentgym_environments
from agentgym import registry
from agentgym.conformance.run import check_environment
from agentgym.errors import BadRequest
from agentgym.evaluation.baselines import baselines
from agentgym.evaluation.evaluate import evaluate
from agentgym.evaluation.suite import load_suite
from agentgym.rollouts.policy import SolverPolicy
from agentgym.session import LocalSession, Session
from agentgym_environments.benchmarks.webshop.env import WebShop
from agentgym_environments.benchmarks.webshop.lazy import LAZY_POLICIES
from agentgym_environments.benchmarks.webshop.solver import read_pages

from . import webshop_files
from .webshop_files import asin

pytest.importorskip("thefuzz", reason="thefuzz is not installed: pip install 'turngym[webshop]'")
README = Path(agentgym_environments.__file__).parent / "benchmarks" / "webshop" / "README.md"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    return str(webshop_files.write(tmp_path_factory.mktemp("webshop")))


def make(data: str, **arguments) -> WebShop:
    env = registry.make("webshop", data=data, **arguments)
    assert isinstance(env, WebShop)
    return env


def opened(data: str, name: str = f"{asin(6, 0)}-0", **arguments) -> WebShop:
    """An environment at the task of that name."""
    env = make(data, **arguments)
    places = [(split, task) for split, size in env.env_spec.splits.items() for task in range(size)]
    split, task = next(place for place in places if env.tasks[place].id == name)
    env.reset(options={"split": split, "task": task})
    return env


def play(env: WebShop, *actions: str) -> str:
    """The page after some actions, all of which are understood."""
    for action in actions:
        page, *_, info = env.step(action)
        assert info["valid_action"], action
    return str(page)


# Pages.


def test_pages_read_as_in_webshop(data):
    env = opened(data)
    instruction = (
        "i am looking for a running shoe, rubber sole and arch support and slip resistant, in coral | grey, in 7"
    )
    head = f"Instruction: [SEP] {env.task.prompt} [SEP] Back to Search [SEP] "
    assert env.task.prompt.partition(", and price")[0] == instruction
    assert env.observe() == f"WebShop [SEP] Instruction: [SEP] {env.task.prompt} [SEP] Search"
    page = play(env, "search[orlavik running shoe]")
    assert page.startswith(f"{head}Page 1 (Total results: ")
    assert f"[SEP] {asin(6, 0)} [SEP] Orlavik Running Shoe No. 2 [SEP] $" in page
    page = play(env, f"click[{asin(6, 0)}]")
    assert page.startswith(
        f"{head}< Prev [SEP] color [SEP] coral | grey [SEP] black [SEP] lilac mist [SEP] size [SEP] 6.5"
    )
    assert page.endswith("[SEP] Rating: N.A. [SEP] Description [SEP] Features [SEP] Reviews [SEP] Buy Now")
    page = play(env, "click[features]")
    assert page.startswith(f"{head}< Prev [SEP] Made by Orlavik. [SEP] Rubber sole for every day.")
    assert play(env, "click[< prev]", "click[reviews]") == f"{head}< Prev [SEP] No reviews found"
    assert "Everybody likes" in play(env, "click[< prev]", "click[description]")
    assert play(env, "click[back to search]") == f"WebShop [SEP] Instruction: [SEP] {env.task.prompt} [SEP] Search"


def test_results_come_ten_a_page(data):
    env = opened(data)
    play(env, "search[no.]")
    assert len(env.catalogue.search("no.")) == 40
    pages = [str(env.observe()), *(play(env, "click[Next >]") for _ in range(3))]
    numbers = [number for page in pages for number in re.findall(r"B0\w{8}", page)]
    assert len(numbers) == len(set(numbers)) == 40
    assert ["< Prev" in page for page in pages] == [False, True, True, True]
    assert ["Next >" in page for page in pages] == [True, True, True, False]
    assert play(env, "click[< Prev]") == pages[2]
    page = play(env, f"click[{numbers[25]}]", "click[< Prev]")
    assert page == pages[2]


def test_options_are_chosen_until_the_results(data):
    env = opened(data)
    play(env, "search[orlavik running shoe]", f"click[{asin(6, 0)}]", "click[Black]", "click[7]", "click[lilac mist]")
    assert dict(env.state.options) == {"color": "lilac mist", "size": "7"}
    play(env, "click[Features]", "click[< Prev]")
    assert dict(env.state.options) == {"color": "lilac mist", "size": "7"}
    play(env, "click[< Prev]")
    assert env.state.options == ()
    play(env, f"click[{asin(6, 0)}]", "click[7]", "search[lamp]")
    assert env.state.options == ()


def test_a_page_in_rich_text(data):
    env = opened(data, observation="text_rich")
    assert str(env.observe()).endswith("\n[button] Search [button_]\n")
    page = play(env, "search[orlavik running shoe]", f"click[{asin(6, 0)}]", "click[black]", "click[6.5]")
    assert page.startswith("You have clicked 6.5.\nYou have clicked black.\nInstruction:\n")
    assert "\ncolor\n  [button] coral | grey [button_]\n  [clicked button] black [clicked button_]\n" in page
    page = play(env, "click[< Prev]")
    assert f"\n\n[clicked button] {asin(6, 0)} [clicked button_]\nOrlavik" in page
    assert f"\n\n[button] {asin(6, 1)} [button_]\nTessmore" in page
    assert "clicked" not in play(env, "click[back to search]", "search[orlavik running shoe]")


def test_attributes_are_shown_where_that_is_wanted(data):
    env = opened(data, show_attributes=True)
    page = play(env, "search[orlavik running shoe]", f"click[{asin(6, 0)}]", "click[attributes]")
    assert (
        "rubber sole [SEP] arch support [SEP] slip resistant [SEP] running shoe [SEP] g [SEP] womens sneakers" in page
    )
    env = opened(data)
    play(env, "search[orlavik running shoe]", f"click[{asin(6, 0)}]")
    assert not env.step("click[attributes]")[4]["valid_action"]


def test_one_value_of_two_options_is_that_of_the_last(tmp_path):
    records = webshop_files.products()
    for record in records:
        record["customization_options"] = {
            "Color": [{"value": "Blue"}],
            "Trim": [{"value": "Blue [new]"}, {"value": "blue"}],
        }
    env = opened(str(webshop_files.write(tmp_path, products=records)))
    play(env, "search[running shoe]", f"click[{asin(6, 0)}]", "click[blue]")
    assert env.state.options == (("trim", "blue"),)
    play(env, "click[blue [new]]")
    assert env.state.options == (("trim", "blue [new]"),)


@pytest.mark.parametrize(
    "action",
    [
        "search", "search[]", "search[ ]", "click[search]", "click[buy now]", "click[]", "buy now", "CLICK[next >]",
        "[search]", "find[lamp]", "search lamp", "click[B000000000]", "click[< prev]", '{"name": "search"}',
        "search[\n]",
    ],
)  # fmt: skip
def test_what_is_not_on_the_page_changes_nothing(data, action):
    env = opened(data)
    before = env.observe()
    page, reward, *_, info = env.step(action)
    assert (page, reward, info["valid_action"], env.turn) == (before, 0, False, 1)


@pytest.mark.parametrize("action", ["Search[Lamp]", "search[lamp]\nthat is all", " search[ lamp ] ", "search[[lamp]]"])
def test_a_search_may_be_written_so(data, action):
    env = opened(data)
    assert env.step(action)[4]["valid_action"]
    assert asin(0, 0) in str(env.observe())


def test_a_search_that_finds_nothing(data):
    env = opened(data)
    page = play(env, "search[zzz qqq]")
    assert page.endswith("Back to Search [SEP] Page 1 (Total results: 0)")
    assert env.describe()["available_actions"] == ["click[back to search]"]


def test_a_snapshot_of_another_task_set_is_refused(data):
    env = opened(data)
    state = json.loads(env.snapshot())
    state["state"]["place"] = ["train", 3]
    with pytest.raises(BadRequest):
        env.restore(json.dumps(state).encode())


# Playing.


@pytest.mark.parametrize("arguments", ["", ",observation=text_rich,show_attributes=true", ",goals=synthetic"])
def test_the_contract_is_kept(data, arguments):
    findings = asyncio.run(check_environment(f"webshop:data={data}{arguments}", tasks=5))
    assert [str(finding) for finding in findings if not finding.ok] == []


def test_the_suite_is_played(data, tmp_path):
    suite = load_suite("webshop")
    envs = [env.model_copy(update={"tasks": 60, "kwargs": {"data": data}}) for env in suite.envs]
    report = asyncio.run(
        evaluate(suite.model_copy(update={"envs": tuple(envs)}), SolverPolicy(), tmp_path, identity="solver")
    )
    assert [row.success for row in report.rows] == [True] * 60


def test_the_solver_goes_on_from_any_page(data):
    chance = random.Random(0)
    env = make(data)
    for task in range(30):
        _, info = env.reset(options={"split": "test", "task": task})
        for _ in range(chance.randrange(12)):
            offered = [action for action in info["available_actions"] if action != "click[buy now]"]
            *_, info = env.step(chance.choice(offered))
        while not env.over:
            _, reward, *_ = env.step(env.solver())
        assert reward == 1
        assert env.success


@pytest.fixture(scope="module")
def scores(data) -> dict[str, tuple[str, str]]:
    """Mean reward times 100 and share of successes in per cent, by policy, on the sixty tasks."""

    async def open_session() -> Session:
        return LocalSession(make(data))

    async def measured() -> dict[str, tuple[str, str]]:
        lazy = {"read the pages": read_pages, **LAZY_POLICIES}
        found = {}
        async for one in baselines(open_session, make(data).env_spec, episodes=60, lazy_policies=lazy):
            assert not one.failed, one.error
            assert one.success is not None
            found[one.name or one.policy] = (f"{100 * one.score:.1f}", f"{100 * one.success.estimate:.1f}")
        return found

    return asyncio.run(measured())


def test_the_readme_has_what_is_measured(scores):
    rows = re.findall(r"(?m)^\| ([a-z ]+) \| ([\d.]+) \| ([\d.]+) \|$", README.read_text(encoding="utf-8"))
    assert {name: (score, success) for name, score, success in rows} == scores


def test_reading_earns_more_than_laziness(scores):
    read = float(scores["read the pages"][1])
    assert read >= 95
    assert max(float(scores[name][1]) for name in LAZY_POLICIES) <= read / 2
