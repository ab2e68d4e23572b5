"""The text environments' own rules; what every environment of turns owes is in test_envs.py."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import agentgym_environments
from agentgym import registry
from agentgym.errors import ConfigError
from agentgym_environments.base.guessing_env import plain
from agentgym_environments.synthetic.car_dealer.deal import PERSONAS
from agentgym_environments.synthetic.guess_city import atlas
from agentgym_environments.synthetic.maze.solver import walk
from agentgym_environments.synthetic.maze.tasks import plan
from agentgym_environments.synthetic.twenty_questions import knowledge

HERE = Path(agentgym_environments.__file__).parent / "text"


def begin(name, task=0, split="train", **kwargs):
    env = registry.make(name, **kwargs)
    env.reset(seed=0, options={"split": split, "task": task})
    return env


def play(env):
    while not env.over:
        step = env.step(env.solver())
    return step


# Mazes


def test_a_wall_costs_a_turn_and_nothing_else():
    env = begin("maze")
    shut = next(way for way in ("north", "east", "south", "west") if way not in env.plan.ways(env.here))
    here = env.here
    *_, info = env.step(f"go {shut}")
    assert (env.here, env.turn, info["valid_action"]) == (here, 1, True)


@pytest.mark.parametrize("name", ["maze", "maze-hard"])
def test_with_hidden_walls_the_solver_uses_visited_cells_only(name):
    """It goes the same way in any maze that agrees with what it has seen: here, one with all other passages shut."""
    for task in range(6):
        env = begin(name, task)
        while not env.over:
            known = {door for door in env.plan.doors if door[0] in env.visited}
            full_plan, action = env.plan, env.solver()
            env.plan = type(full_plan)(full_plan.size, frozenset(known), full_plan.start, full_plan.exit)
            assert env.solver() == action
            env.plan = full_plan
            env.step(action)
        assert env.success


def test_a_map_is_drawn_as_it_is_walked():
    env = begin("maze-observed")
    rows = env.observe().splitlines()
    assert len(rows) == len(rows[0]) == 13
    x, y = 2 * env.here[0] + 1, 2 * env.here[1] + 1
    assert rows[y][x] == "@"
    assert ("go east" in env.describe()["available_actions"]) == (rows[y][x + 1] == "_")
    assert env.observe().count("X") == 1


def test_mazes_of_other_sizes_give_time_enough():
    for view in ("map", "compass", "ways"):
        env = begin("maze", size=9, view=view)
        assert env.env_spec.max_turns >= 45
        assert play(env)[1] == 1
    assert len(walk(plan(4, 0, "ways", 30, "train", 0), False, 99)) <= 30
    for bad in ({"size": 2}, {"view": "sky"}):
        with pytest.raises(ConfigError, match="maze: size is 3 to 20"):
            registry.make("maze", **bad)


# Navigation


def test_one_thing_is_carried_and_closed_things_show_nothing():
    env = begin("navigation-hard", 1, "test")
    assert "drawer: closed" in env.observe()
    env.step("take rope")  # it lies in the drawer
    assert env.state.carried is None
    env.step("open the drawer")
    env.step("take rope")
    assert env.state.carried == "rope"
    env.step("take knife")
    assert env.state.carried == "rope"
    *_, info = env.step("put rope onto bed")
    assert env.state.carried is None
    assert info["progress"] == 0
    assert "bed: knife, rope" in env.observe()


def test_milestones_of_a_house_never_go_back():
    env = begin("navigation", 37, "test")
    actions = ["go north", "take hat", "put hat on sofa", "take map", "put map on sofa", "take map", "go south"]
    named = [env.step(action)[-1]["milestone"] for action in [*actions, "put map on shelf"]]
    assert named == [""] * 3 + ["map taken"] * 4 + ["map in place, map taken"]


def test_a_house_of_any_size_is_tidied_up_even_after_wrong_turns():
    for kwargs in ({"rooms": 2}, {"rooms": 9, "goals": 3, "closed": True}):
        for task in range(10):
            env = begin("navigation", task, **kwargs)
            for _ in range(4):
                env.step(env.describe()["available_actions"][-1])
            env.turn = 0
            assert env.over or play(env)[1] == 1
    with pytest.raises(ConfigError, match="rooms is 2 to 9"):
        registry.make("navigation", rooms=10)


# Guessing

GUESSING = ["twenty-questions", "twenty-questions-hard", "twenty-questions-mini"]
GUESSING += ["guess-city", "guess-city-hard", "guess-city-mini"]


@pytest.mark.parametrize("name", GUESSING)
def test_every_question_is_understood_and_names_are_distinct(name):
    env = begin(name)
    for question in env.table.answers:
        assert env.question(plain(question)) == question
    rows = list(zip(*env.table.answers.values()))
    assert len(set(rows)) == len(env.table.names)
    assert sum(env.env_spec.splits.values()) == len(env.table.names)


@pytest.mark.parametrize("name", GUESSING)
def test_a_guess_has_three_forms_and_wrong_ones_run_out(name):
    for way in ("guess {}", "is it {}?", "{}"):
        env = begin(name)
        assert env.step(way.format(env.secret))[1] == 1
    env = begin(name)
    wrong = [one for one in env.table.names if one != env.secret][: env.guesses]
    steps = [env.step(f"Guess {one}!") for one in wrong]
    assert [step[2] for step in steps] == [False] * (len(wrong) - 1) + [True]
    assert steps[-1][0].endswith(f"it was {env.secret}")
    assert steps[-1][1] == 0


def test_nonsense_after_every_question_is_refused():
    env = begin("twenty-questions-tiny")
    for question in env.table.answers:
        env.step(question)
    observation, reward, ended, _, info = env.step("no idea")
    assert (reward, ended, info["valid_action"]) == (0, True, False)
    assert observation.startswith("not a question or guess that is understood; say for example: guess aeroplane")


@pytest.mark.parametrize(
    ("name", "secret", "guess"),
    [
        ("twenty-questions", "ice-cream", "guess ice cream"),
        ("twenty-questions", "washing-machine", "Is it a washing machine?"),
        ("twenty-questions", "aeroplane", "My guess is: airplane"),
        ("twenty-questions-mini", "cat", "**Guess: cat**"),
        ("twenty-questions-tiny", "key", "“key”"),
        ("guess-city", "sao paulo", "guess São Paulo"),
        ("guess-city", "zurich", "`guess Zürich`"),
        ("guess-city", "saint petersburg", "Guess St. Petersburg"),
        ("guess-city", "washington", "I guess Washington, D.C."),
    ],
)
def test_a_guess_may_be_written_as_people_do(name, secret, guess):
    env = begin(name)
    env.secret = secret
    assert env.step(guess)[1] == 1


@pytest.mark.parametrize("name", GUESSING)
def test_another_name_means_one_thing(name):
    table = begin(name).table
    for text in table.named:
        assert text == plain(text)
        assert text not in table.answers
    assert {table.named[plain(one)] for one in table.names} == set(table.names)


def test_a_place_may_have_another_name_in_a_question():
    env = begin("guess-city")
    env.secret = "chicago"
    answers = {
        "Is it in the USA?": "is it in united states: yes",
        "is it in the UK": "is it in united kingdom: no",
        "which continent is it in?": "which continent is it on: north america",
        "Is it north of Bogotá?": "is it north of bogota: yes",
        "is it bigger than Washington, DC": "is it bigger than washington: yes",
    }
    assert {question: env.step(question)[0].split("\n")[0] for question in answers} == answers


def test_questions_are_understood_in_other_words_too():
    env = begin("twenty-questions")
    env.secret = "cat"
    assert env.step("Is it an animal?")[0].startswith("is it an animal: yes")
    assert env.step("is it larger than a person?")[0].startswith("is it bigger than a person: no")
    assert env.step("is it clothing")[0].startswith("can you wear it: no")
    assert env.describe()["progress"] > 0.3


def test_the_order_of_questions_does_not_change_the_state():
    one, other = begin("twenty-questions"), begin("twenty-questions")
    for env, order in ((one, (0, 1)), (other, (1, 0))):
        for number in order:
            env.step(("can it fly", "is it food")[number])
    assert one.key() == other.key()


@pytest.mark.parametrize(
    ("name", "question"), [("twenty-questions", "is it an animal"), ("guess-city", "is it a capital")]
)
def test_offered_guesses_can_be_those_that_fit_the_answers(name, question):
    def guesses(**kwargs):
        env = begin(name, **kwargs)
        env.step(question)
        return {one for one in env.describe()["available_actions"] if one.startswith("guess ")}, env

    all_of_them, env = guesses()
    fitting, env = guesses(fitting_only=True)
    assert all_of_them == {f"guess {one}" for one in env.table.names}
    assert fitting == {f"guess {one}" for one in env.left()} < all_of_them
    assert env.step("guess " + next(one for one in env.table.names if one not in env.left()))[4]["valid_action"]


def test_instructions_name_every_question_and_attribute():
    assert {one for has in knowledge.things("all").values() for one in has} == set(knowledge.questions())
    for name in GUESSING[:3]:
        env, text = registry.make(name), registry.get_spec(name).instructions.replace("\n", " ")
        for question in env.table.offered:
            words = question.split()
            heads = [" ".join(words[:cut]) + ": " for cut in range(1, len(words))]
            assert any(head in text and question[len(head) - 1 :] in text for head in heads), question
    for name in ("twenty-questions-mini", "twenty-questions-tiny", "guess-city-mini"):
        text = registry.get_spec(name).instructions.replace("\n", " ")
        assert all(one in text for one in registry.make(name).table.names)
    assert all(
        one in registry.get_spec("twenty-questions-tiny").instructions.replace("\n", " ")
        for one in registry.make("twenty-questions-tiny").table.answers
    )


def test_facts_about_cities():
    env = begin("guess-city")
    env.secret = "lima"
    answers = {
        "Is it in South America?": "yes",
        "is it in peru": "yes",
        "do they speak spanish": "yes",
        "is it the capital?": "yes",
        "is it on the coast": "yes",
        "is it larger than Tokyo": "no",
        "is it north of quito": "no",
        "is it east of cairo": "no",
        "which continent is it on": "south america",
        "what language do they speak": "spanish",
        "how far is it from tokyo": "15 to 16 thousand km",
    }
    assert {question: env.step(question)[0].split("\n")[0].split(": ")[1] for question in answers} == answers
    assert begin("guess-city-hard").step("which continent is it on")[4]["valid_action"] is False
    assert atlas.far(atlas.cities(False)[0], atlas.cities(False)[0]) == "0 to 1 thousand km"


# Car dealer


def first(persona, name="car-dealer"):
    return next(env for task in range(400) if (env := begin(name, task, personas=persona)).deal.persona == persona)


@pytest.mark.parametrize("persona", PERSONAS)
def test_the_solver_earns_all_from_every_persona(persona):
    for task in range(25):
        step = play(begin("car-dealer-hard", task, personas=persona))
        assert (step[1], step[4]["success"]) == (1, True), (task, step)


def test_she_pays_what_she_would_pay_and_not_more():
    frank = (begin("car-dealer", task, personas="frank") for task in range(100))
    env = next(env for env in frank if env.deal.own > 0.8)  # it is over the cost
    car = max(env.deal.cars, key=lambda car: env.deal.most(car) - car.cost)
    state, most = env.snapshot(), env.deal.most(car)
    observation, reward, over, *_ = env.step(f"Offer {car.name} at {most}")
    assert (reward, over) == (1, True)
    assert f"the {car.name} for {most}" in observation
    env.restore(state)
    observation, reward, over, *_ = env.step(f"offer {car.name} {most + 1}")
    assert (reward, over) == (0, False)
    assert f"I would give you {int(most * env.deal.own)} for the {car.name}" in observation
    missed = 1 - (int(most * env.deal.own) - car.cost) / env.deal.best
    _, reward, over, _, info = env.step("accept")
    assert reward == pytest.approx(0.5 ** (missed / 0.05))
    assert (over, info["success"]) == (True, missed <= 0.1)


def test_instructions_say_that_a_buyer_rounds_down():
    for name in ("car-dealer", "car-dealer-hard"):
        deals = [begin(name, task).deal for task in range(20)]
        assert all(deal.most(car) % 100 == 0 for deal in deals for car in deal.cars)
        assert "rounded down to a full hundred" in registry.get_spec(name).instructions.replace("\n", " ")


def test_a_dealer_may_write_sentences():
    env = begin("car-dealer")
    car = env.deal.cars[0]
    for words in ("Ask kind.", "ask wishes!", "Ask budget?", f"Praise the {car.name}’s {car.features[0]}."):
        assert env.step(words)[4]["valid_action"], words
    assert env.questions == {"ask kind", "ask wishes", "ask budget"}
    assert env.step(f"Offer the {car.name} at {car.cost - 1:,} euros.")[0].startswith("buyer: (the house does not sell")


def test_unwanted_cars_low_prices_and_patience():
    for persona, patience in (("frank", 2), ("hurried", 1)):
        env = first(persona, "car-dealer-hard")
        other = next(car for car in env.deal.cars if car.kind != env.deal.kind)
        assert "below its cost" in env.step(f"offer {other.name} 1")[0]
        assert not env.refused
        assert "not offered anything" in env.step("accept")[0]
        steps = [env.step(f"offer {other.name} {other.price}") for _ in range(patience)]
        assert [step[2] for step in steps] == [False] * (patience - 1) + [True]
        assert steps[-1][1] == 0
    env = first("frank")
    other = next(car for car in env.deal.cars if car.kind != env.deal.kind)
    assert f"I do not want a {other.kind}" in env.step(f"offer {other.name} {other.price}")[0]


def test_manners_of_buyers():
    haggler = first("haggler", "car-dealer-hard")
    assert haggler.step("ask budget")[0] == f"buyer: I can spend {int(haggler.deal.budget * 0.8)}."
    car = max(haggler.deal.cars, key=lambda one: haggler.deal.most(one) - one.cost)
    assert "too much" in haggler.step(f"offer {car.name} {car.cost}")[0]
    assert haggler.step(f"offer {car.name} {car.cost}")[2]
    coy = first("coy")
    named = re.search("you ask for the (\\w+)", coy.step("ask budget")[0])
    assert coy.deal.car(named[1]).price == coy.deal.budget
    frank = first("frank")
    parts = [int(number) for number in re.findall(r"\d+", frank.step("ask budget")[0])]
    assert (len(parts), sum(parts)) == (2, frank.deal.budget)
    dreamer = first("dreamer")
    for car in dreamer.deal.cars:
        for wish in set(dreamer.deal.wishes) & set(car.features):
            before = dreamer.limit(car)
            assert "love" in dreamer.step(f"praise {car.name} {wish}")[0]
            assert dreamer.limit(car) >= before
            dreamer.turn = 0
    assert registry.make("car-dealer", personas="frank+coy").personas == ("frank", "coy")
    assert registry.make("car-dealer", cars=2).alike == 2
    with pytest.raises(ConfigError, match="personas some of frank"):
        registry.make("car-dealer", personas="nobody")


# All of them

PURE = [
    name
    for name, target in registry.list_envs().items()
    if ".synthetic." in target and registry.get_spec(name).family == "text" and not name.startswith("kitchen")
]


@pytest.mark.parametrize("name", PURE)
def test_a_snapshot_half_way_goes_on_as_the_solver_did(name):
    for task in range(3):
        env, copy = begin(name, task), registry.make(name)
        for _ in range(2):
            if not env.over:
                env.step(env.solver())
        if env.over:
            continue
        copy.restore(json.dumps(json.loads(env.snapshot())).encode())
        assert (copy.observe(), copy.key(), copy.describe()) == (env.observe(), env.key(), env.describe())
        assert copy.solver() == env.solver()
        assert play(copy) == play(env)


@pytest.mark.parametrize(
    "tasks", [pytest.param(100, marks=pytest.mark.envs), pytest.param(400, marks=pytest.mark.every)]
)
@pytest.mark.parametrize("name", PURE)
def test_the_solver_wins_hundreds_of_tasks(name, tasks):
    env = registry.make(name)
    for split, size in env.env_spec.splits.items():
        won = 0
        for task in range(min(size, tasks)):
            env.reset(seed=0, options={"split": split, "task": task})
            won += play(env)[4]["success"]
        assert won == min(size, tasks)
