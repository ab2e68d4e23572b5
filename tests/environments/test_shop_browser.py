"""The shop's web application, and the environment in a browser: the same customer as in text."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from agentgym import registry
from agentgym.conformance import run
from agentgym.errors import BadRequest, ConfigError
from agentgym_environments.backends.browser.browser import find_program
from agentgym_environments.synthetic.shop.app import Customer, event_of, here, url_of
from agentgym_environments.synthetic.shop.catalogue import products, search
from agentgym_environments.synthetic.shop.env import understand
from agentgym_environments.synthetic.shop.shop import State, go
from agentgym_environments.synthetic.shop.tasks import make_task
from agentgym_environments.synthetic.shop.views import view

pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'turngym[shop]'")
pytest.importorskip("playwright", reason="Playwright is not installed: pip install 'turngym[shop]'")

from agentgym_environments.synthetic.shop.app import application
from agentgym_environments.synthetic.shop.browse import elements, on_page
from agentgym_environments.synthetic.shop.site import ShopSite

in_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(not find_program(), reason="no Chromium is installed: apt-get install chromium-headless-shell"),
]
NUMBER = search("hiking boots")[0]
SHOP = "http://shop"


def ask(customer, *requests):
    """Status and text of the last of some requests (method, path, form) to the application."""

    async def talk():
        transport = httpx.ASGITransport(application({"token": customer}))
        async with httpx.AsyncClient(transport=transport, base_url=SHOP) as client:
            answers = [await client.get("/enter/token", follow_redirects=True)]
            for method, path, form in requests:
                answers.append(await client.request(method, path, data=form, follow_redirects=True))
            return answers[-1].status_code, answers[-1].text

    return asyncio.run(talk())


def anyone():
    return Customer(make_task("one", "train", 0))


# The web application.


def test_an_order_by_forms_is_the_order_of_the_state_machine():
    customer, boots = anyone(), products()[NUMBER]
    chosen = {name: values[-1] for name, values in boots.options}
    status, text = ask(
        customer,
        ("GET", "/search?q=hiking+boots", None),
        ("GET", f"/product/{NUMBER}", None),
        ("POST", f"/product/{NUMBER}", {**chosen, "do": "add"}),
        ("POST", "/account", {"address": "office"}),
        ("POST", "/checkout", {"do": "order"}),
    )
    events = [("search", "hiking boots"), ("product", str(NUMBER))]
    events += [*(("choose", name, value) for name, value in chosen.items()), ("add",), ("account",)]
    events += [("choose", "address", "office"), ("checkout",), ("order",)]
    state = State()
    for event in events:
        state = go(state, event)
    assert customer.state == state
    assert (status, "Thank you" in text) == (200, True)


@pytest.mark.parametrize(
    ("method", "path", "form"),
    [
        ("GET", "/product/1", None),
        ("GET", "/product/1001/more", None),
        ("GET", "/thanks", None),
        ("GET", "/search?q=", None),
        ("GET", "/search?q=boots&page=-1", None),
        ("POST", "/checkout", {"do": "order"}),
        ("POST", "/", {"do": "order"}),
        ("POST", f"/product/{NUMBER}", {"size": "99", "do": "add"}),
        ("POST", f"/product/{NUMBER}", {"price": "1", "do": "add"}),
        ("POST", f"/product/{NUMBER}", {"do": "steal"}),
        ("POST", "/basket", {"do": "remove-1"}),
        ("POST", "/account", {"address": "moon"}),
    ],
)
def test_what_is_not_offered_is_refused_and_changes_nothing(method, path, form):
    customer = anyone()
    status, _ = ask(customer, (method, path, form))
    assert (status, customer.state) == (409, State())


def test_who_has_not_entered_is_shown_nothing():
    customer = anyone()
    status, _ = ask(customer, ("GET", "/enter/another", None))
    assert (status, customer.state) == (403, State())


def test_after_the_order_nothing_changes_any_more():
    customer = anyone()
    steps = [("POST", f"/product/{NUMBER}", {"do": "buy"}), ("POST", "/checkout", {"do": "order"})]
    ask(customer, *steps)
    before = customer.state
    assert before.ordered
    ask(customer, *steps, ("GET", "/", None))
    assert customer.state == before


def test_what_is_searched_for_is_shown_as_text():
    _, text = ask(anyone(), ("GET", "/search?q=%3Cscript%3Ealert(1)%3C/script%3E%22boots", None))
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_every_page_has_an_address_of_its_own():
    for event in [("home",), ("search", "a&b=c #1/2", "1"), ("product", "1001"), ("basket",), ("account",)]:
        url = httpx.URL(SHOP + url_of(event))
        assert event_of(url.path.removeprefix("/"), dict(url.params)) == event
        if event[0] != "search":
            assert here(go(State(), event)) == event


# The environment in a browser.


@pytest.fixture(scope="module")
def envs():
    """Makes environments, and closes them."""
    made = []

    def make(name):
        made.append(registry.make(name))
        return made[-1]

    yield make
    for env in made:
        env.close()


def browse(env, text_action):
    """Do with the page what an action of the text environment does; the last step."""
    goal, state = env.customer.goal, env.customer.state
    event = understand(text_action.lower(), view(state, goal))
    while True:
        action = on_page(event, text_action, elements(env.tree))
        step = env.step(action)
        if action.startswith("click") or (action.startswith("select") and state.page == "product"):
            return step


@pytest.mark.parametrize("name", [pytest.param(name, marks=in_browser) for name in ("shop-browser",)])
def test_a_purchase_gets_equal_reward_in_text_and_browser(envs, name):
    """Right and wrong ones, of one product and of two, with detours."""
    for level, index in (("one", 1), ("two", 0)):
        text, pages = envs(f"shop:level={level}"), envs(f"{name}:level={level}")
        for spoil in (False, True):
            for env in (text, pages):
                env.reset(options={"split": "test", "task": index})
            script = ["search cardigan", "click Next page", "click Basket"] if spoil else []
            while not text.over:
                action = script.pop(0) if script else text.solver()
                if spoil and action.startswith("choose"):
                    action = "click Add to basket"  # as preselected
                    script = ["click Checkout", "click Place order"]
                *_, info = one = text.step(action)
                *_, other_info = other = browse(pages, action)
                assert one[1:4] == other[1:4]
                assert (info["success"], info["progress"]) == (other_info["success"], other_info["progress"])
                if not action.startswith("choose"):  # a list's choice is sent with the form's button
                    assert text.state == pages.customer.state
            assert info["success"] is not spoil
            assert one[1] == info["progress"] == 1 if not spoil else one[1] < info["progress"] < 1


@pytest.mark.parametrize("level", [pytest.param(level, marks=in_browser) for level in ("easy", "one", "two")])
def test_the_solver_orders_by_clicks(envs, level):
    env = envs(f"shop-browser:level={level}")
    assert env.env_spec.max_turns == {"easy": 24, "one": 40, "two": 80}[level]
    for split in ("train", "test"):
        env.reset(options={"split": split, "task": 3})
        while not env.over:
            assert env.hint()
            action = env.solver()
            _, reward, _, _, info = env.step(action)
        assert (reward, info["success"], info["available_actions"]) == (1.0, True, [])
    with pytest.raises(BadRequest):
        env.step(action)


@pytest.mark.parametrize("name", [pytest.param(name, marks=in_browser) for name in ("shop-browser",)])
def test_two_sessions_have_two_baskets_and_reach_nothing_else(envs, name):
    one, other = envs(name), envs(name)
    for env in (one, other):
        env.reset(options={"task": 0})
    browse(one, "search boots")
    browse(one, f"click P{search('boots')[0]}")
    browse(one, "click Add to basket")
    assert "[" not in browse(other, "click Basket")[0].split("Your basket is empty")[1].split("\n")[0]
    assert (len(one.customer.state.basket), len(other.customer.state.basket)) == (1, 0)
    for url in ("http://127.0.0.1:9/", "https://example.com/", "file:///etc/passwd"):
        with pytest.raises(ValueError, match="none of this tab's pages"):
            one.page.tab.goto(url)


@pytest.mark.parametrize("name", [pytest.param(name, marks=in_browser) for name in ("shop-browser",)])
def test_going_back_works_and_a_snapshot_continues_there(envs, name):
    env, copy = envs(name), envs(name)
    env.reset(options={"task": 1})
    browse(env, "search boots")
    browse(env, f"click P{search('boots')[0]}")
    assert env.customer.state.page == "product"
    observation, *_, info = env.step("back")
    assert env.customer.state.page == "results"
    assert info["valid_action"]
    assert env.step("click 9999")[4]["valid_action"] is False
    assert "not an action" in env.step("dance")[0]
    state = env.snapshot()
    copy.restore(state)
    assert json.loads(state)["turn"] == copy.turn == 6
    assert copy.customer.state == env.customer.state
    again = [environment.step(environment.solver()) for environment in (env, copy)]
    assert again[0] == again[1]
    assert "Results for boots" in observation


@pytest.mark.parametrize("name", [pytest.param(name, marks=in_browser) for name in ("shop-browser",)])
def test_a_page_can_be_observed_as_html_or_image(envs, name):
    html = envs(f"{name}:observation=html").reset(options={"task": 2})[0]
    assert '<input type="search"' in html
    env = envs(f"{name}:observation=screenshot")
    observation, _ = env.reset(options={"task": 2})
    assert observation["image"].shape == (600, 800, 3)
    assert observation["image"].std() > 5
    assert "image" in env.env_spec.capabilities
    with pytest.raises(ConfigError, match='observation is "tree"'):
        registry.make(f"{name}:observation=smell")


@pytest.mark.every
@pytest.mark.parametrize("name", [pytest.param(name, marks=in_browser) for name in ("shop-browser",)])
def test_the_conformance_suite_passes_in_the_browser(name):
    assert [finding for finding in run.check_env(registry.env_factory(name), tasks=3) if not finding.ok] == []


@pytest.mark.parametrize(
    "tasks",
    [pytest.param(4, marks=pytest.mark.envs), pytest.param(15, marks=pytest.mark.every)],
    ids=["some", "many"],
)
@pytest.mark.parametrize("level", [pytest.param(level, marks=in_browser) for level in ("easy", "one", "two")])
def test_the_solver_orders_the_tasks_it_is_given_in_the_browser(envs, level, tasks):
    env, won = envs(f"shop-browser:level={level}"), []
    for split in env.env_spec.splits:
        for index in range(tasks):
            env.reset(options={"split": split, "task": index})
            while not env.over:
                *_, info = env.step(env.solver())
            won.append(info["success"])
    assert won.count(False) <= max(1, 0.05 * len(won))


def test_a_closed_site_serves_no_more():
    shop = ShopSite()
    assert httpx.get(shop.url).status_code < 500
    shop.close()
    with pytest.raises(httpx.ConnectError):
        httpx.get(shop.url)
