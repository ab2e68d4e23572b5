"""The shop: its catalogue and search, what pages and buttons do, what an order is worth, and the environment of
text."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest

from agentgym import registry
from agentgym.errors import BadRequest, ConfigError
from agentgym_environments.synthetic.shop.catalogue import kinds, products, search, wares
from agentgym_environments.synthetic.shop.env import understand
from agentgym_environments.synthetic.shop.goals import ShoppingGoal, Wanted, reward, score
from agentgym_environments.synthetic.shop.shop import BASKET, EventRefused, Line, State, go
from agentgym_environments.synthetic.shop.tasks import LEVELS, make_task
from agentgym_environments.synthetic.shop.views import plain, view

CHOOSES = 1
"""A test task of `shop` whose options are not those that are preselected."""
ENVS = ("shop-easy", "shop", "shop-hard")
SPLITS = ("train", "validation", "test")


def visit(state, *events):
    for event in events:
        state = go(state, event)
    return state


# The catalogue.


def test_the_catalogue_is_large_and_every_product_complete():
    assert len(products()) == 1800
    assert len(kinds()) == 60
    assert len({one.title for one in products().values()}) > 1190
    for one in products().values():
        assert one.kind in one.title
        assert 5 <= len(one.features) == len(set(one.features)) <= 7
        assert len(one.options) == 2
        assert all(3 <= len(values) <= 6 for _, values in one.options)
        assert 300 <= one.cents <= 26000


def test_names_of_kinds_do_not_contain_each_other():
    names = [kind["name"] for category in wares()["categories"] for kind in category["kinds"]]
    assert len(set(names)) == 60
    for category in wares()["categories"]:
        for kind in category["kinds"]:
            words = [*category["materials"], *category["features"], *kind["own"]]
            assert len(set(words)) == len(words)


def test_search_matches_stems_and_ranks_full_matches_first():
    first = products()[search("waterproof sandal")[0]]
    assert first.kind == "sandals"
    assert "waterproof" in first.title
    assert [products()[number].kind for number in search("hiking boots")[:20]] == ["hiking boots"] * 20
    assert search("Hiking BOOTS") == search("hiking boots")
    assert search('"; DROP TABLE wares; -- NEAR(boots)')
    assert search("xyzzy") == search("the of a") == search("!!!") == ()


def test_search_ignores_features_that_titles_leave_out():
    hidden = [
        (one, one.features[-1]) for one in products().values() if one.features[-1] == "ankle support" in one.untitled
    ]
    assert hidden
    for one, feature in hidden:
        assert feature not in one.title
        assert one.number not in search(feature)
    assert "ankle support" in products()[search("ankle support hiking boots")[0]].title


# The state machine.


def test_an_order_from_search_to_checkout():
    number = search("hiking boots")[0]
    size = products()[number].options[0][1][-1]
    state = visit(State(), ("search", "hiking boots"), ("product", str(number)), ("choose", "size", size), ("add",))
    assert (state.page, dict(state.basket[0].options)["size"]) == ("basket", size)
    state = visit(state, ("account",), ("choose", "address", "office"), ("basket",), ("checkout",), ("order",))
    assert (state.page, state.address, state.ordered) == ("thanks", "office", True)
    with pytest.raises(EventRefused, match="is placed"):
        go(state, ("home",))


def test_what_is_not_on_the_page_is_refused():
    number = str(search("hiking boots")[0])
    there = visit(State(), ("search", "hiking boots"), ("product", number))
    for state, event in [
        (State(), ("search", "  ")),
        (State(), ("search", "hiking boots", "99")),
        (State(), ("search", "hiking boots", "-1")),
        (State(), ("product", "1")),
        (State(), ("product", "²")),
        (State(), ("choose", "size", "42")),
        (State(), ("add",)),
        (State(), ("remove", "1")),
        (State(), ("checkout", "order")[1:]),
        (visit(State(), ("checkout",)), ("order",)),
        (visit(there, ("add",)), ("order",)),
        (visit(there, ("add",)), ("remove", "2")),
        (there, ("choose", "size", "99")),
        (there, ("choose", "address", "office")),
        (visit(there, ("account",)), ("choose", "address", "moon")),
    ]:
        with pytest.raises(EventRefused):
            go(state, event)


def test_a_basket_is_bounded_and_lines_can_be_removed():
    state = visit(State(), ("product", "1001"))
    for _ in range(BASKET):
        state = visit(state, ("add",), ("product", "1001"))
    with pytest.raises(EventRefused, match="holds 5"):
        go(state, ("add",))
    assert "Add to basket" not in plain(view(state, make_task("one", "train", 0)))
    state = visit(state, ("basket",), ("remove", "5"))
    assert len(state.basket) == BASKET - 1


def test_a_product_keeps_its_options_until_another_is_looked_at():
    state = visit(State(), ("search", "t-shirt"), ("product", str(search("t-shirt")[0])))
    name, values = products()[state.product].options[1]
    state = visit(state, ("choose", name, values[1]), ("search", "t-shirt"), ("product", str(state.product)))
    assert dict(state.chosen)[name] == values[1]
    other = visit(state, ("product", str(search("t-shirt")[1])))
    assert dict(other.chosen)[name] == dict(products()[other.product].options)[name][0]


# What an order is worth.


def goal_of(product, cents, *, address="", count=1):
    options = ((product.options[0][0], product.options[0][1][0]),)
    wanted = Wanted(product.kind, product.features[:2], options, product.number)
    return ShoppingGoal("", (wanted,) * count, cents, address)


def order(*lines, address="home"):
    return State("thanks", basket=lines, address=address, ordered=True)


def bought(product, value=0):
    return Line(product.number, ((product.options[0][0], product.options[0][1][value]),))


def test_kind_price_and_every_feature_and_option_score_a_point():
    one = products()[search("hiking boots")[0]]
    goal = goal_of(one, one.cents)
    assert goal.points == 5
    assert score(goal, order(bought(one))) == 1.0
    assert score(goal, order(bought(one, 1))) == 4 / 5
    assert score(replace(goal, cents=one.cents - 1), order(bought(one))) == 4 / 5
    strange = replace(goal, wanted=(replace(goal.wanted[0], features=("waterproof?", one.features[1])),))
    assert score(strange, order(bought(one))) == 4 / 5
    assert score(goal, State()) == 0.0


def test_another_kind_of_thing_is_worth_nothing_however_cheap():
    boots, cream = products()[search("hiking boots")[0]], products()[search("hand cream")[0]]
    assert score(goal_of(boots, 10**6), order(bought(cream))) == 0.0


def test_products_beyond_the_goal_divide_the_score():
    boots, cream = products()[search("hiking boots")[0]], products()[search("hand cream")[0]]
    goal = goal_of(boots, 10**6)
    assert score(goal, order(bought(boots), bought(cream))) == 0.5
    everything = order(*(bought(products()[number]) for number in search("hiking boots")[:5]))
    assert score(goal, everything) <= 0.2


def test_two_products_match_in_any_order_and_address_counts():
    boots, cream = products()[search("hiking boots")[0]], products()[search("hand cream")[0]]
    wanted = (*goal_of(boots, 0).wanted, *goal_of(cream, 0).wanted)
    goal = ShoppingGoal("", wanted, boots.cents + cream.cents, "office")
    assert goal.points == 10
    assert score(goal, order(bought(cream), bought(boots), address="office")) == 1.0
    assert score(goal, order(bought(cream), bought(boots))) == 9 / 10
    assert score(goal, order(bought(cream), address="office")) == 4 / 10  # price and address need both products
    assert score(goal_of(boots, 10**6, count=2), order(bought(boots), bought(boots))) == 1.0
    assert reward(goal, order(bought(cream), bought(boots), address="office")) == 1.0
    assert reward(goal, order(bought(cream, 1), bought(boots), address="office")) == 0.5
    assert reward(goal, order(bought(cream), bought(boots))) == 0.0


# Tasks.


@pytest.mark.parametrize("level", LEVELS)
def test_every_task_can_be_had_and_says_what_it_wants(level):
    for split in SPLITS:
        for index in range(60):
            goal = make_task(level, split, index)
            assert goal == make_task(level, split, index)
            targets = [products()[one.target] for one in goal.wanted]
            assert all(one.has(product) for one, product in zip(goal.wanted, targets))
            assert sum(product.cents for product in targets) <= goal.cents
            assert str(goal.cents // 100) in goal.text
            for one in goal.wanted:
                assert one.kind in goal.text
                assert all(feature in goal.text for feature in one.features)
                assert all(f"{name} {value}" in goal.text for name, value in one.options)
            assert len(goal.wanted) == (2 if level == "two" else 1)


def test_splits_share_no_kind_with_features_at_any_level():
    contents = {
        split: {
            one.content for level in LEVELS for index in range(100) for one in make_task(level, split, index).wanted
        }
        for split in SPLITS
    }
    assert not contents["train"] & contents["validation"]
    assert not contents["train"] & contents["test"]
    assert not contents["validation"] & contents["test"]
    assert len(contents["test"]) > 200


def test_goals_cover_all_kinds_and_addresses():
    goals = [make_task("two", "train", index) for index in range(400)]
    assert len({one.kind for goal in goals for one in goal.wanted}) == 60
    assert all(count > 100 for count in Counter(goal.address for goal in goals).values())


# The environment of text.


@pytest.mark.parametrize("name", ENVS)
def test_the_solver_orders_what_the_goal_wants(name):
    env = registry.make(name)
    for split in SPLITS:
        for index in range(20):
            env.reset(options={"split": split, "task": index})
            while not env.over:
                assert env.hint()
                _, reward, _, _, info = env.step(env.solver())
            assert (reward, info["success"], info["progress"]) == (1.0, True, 1.0)


def test_the_solver_takes_up_what_others_began():
    env = registry.make("shop-hard")
    for index in range(10):
        env.reset(options={"task": index})
        for action in ("search blanket", f"click P{search('blanket')[1]}", "click buy now", "click home", "nonsense"):
            env.step(action)
        while not env.over:
            *_, info = env.step(env.solver())
        assert info["success"]


def test_a_nearly_right_order_gets_nothing_and_ends():
    env = registry.make("shop")
    env.reset(options={"split": "test", "task": CHOOSES})
    while "choose" not in env.solver():
        env.step(env.solver())
    env.step("click buy now")
    _, reward, terminated, truncated, info = env.step("click place order")
    assert reward == 0 < info["progress"] < 1
    assert (terminated, truncated, info["success"], info["available_actions"]) == (True, False, False, [])
    with pytest.raises(BadRequest):
        env.solver()


def test_actions_ignore_case_and_brackets_and_must_be_offered():
    goal = make_task("one", "train", 0)
    state = visit(State(), ("search", "t-shirt"))
    code = products()[search("t-shirt")[0]].code.lower()
    page = view(state, goal)
    assert understand(f"click [{code}]", page) == understand(f"click {code}", page) == ("product", code[1:])
    assert understand("click next page", page) == ("search", "t-shirt", "2")
    assert understand("click previous page", page) is None
    assert understand("search", page) is None
    assert understand("choose size m", page) is None
    there = view(visit(state, ("product", code[1:])), goal)
    name, values = there.groups[0].name, there.groups[0].values
    assert understand(f"choose {name} {values[0]}".lower(), there) == ("choose", name, values[0])


def test_snapshots_are_small_and_another_level_is_an_argument():
    env, copy = registry.make("shop:level=two"), registry.make("shop:level=two")
    env.reset(options={"task": 5})
    for _ in range(4):
        env.step(env.solver())
    copy.restore(env.snapshot())
    assert (copy.state, copy.goal) == (env.state, env.goal)
    assert len(env.snapshot()) < 2000
    with pytest.raises(ConfigError, match="level is one of easy, one, two"):
        registry.make("shop:level=three")


def test_a_snapshot_is_json():
    env = registry.make("shop")
    env.reset()
    assert json.loads(env.snapshot())["state"]["state"]["page"] == "home"
