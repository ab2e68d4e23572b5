"""WebShop's reward: equal to a computation that shares no code with it, on random purchases; and its odd cases."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym import registry
from agentgym.errors import ConfigError
from agentgym_environments.benchmarks.webshop.env import WebShop
from agentgym_environments.benchmarks.webshop.reward import (
    COLORS,
    attribute_matches,
    matching_options,
    near,
    spacy_nouns,
    title_nouns,
    type_score,
)
from agentgym_environments.tasks.webshop import WebShopProduct

from . import webshop_files

COMMON_WORDS = {"no", "of", "with", "for"}


@pytest.fixture(scope="module")
def env(tmp_path_factory) -> WebShop:
    pytest.importorskip("thefuzz", reason="thefuzz is not installed: pip install 'turngym[webshop]'")
    folder = webshop_files.write(tmp_path_factory.mktemp("webshop"))
    env = registry.make("webshop", data=str(folder))
    assert isinstance(env, WebShop)
    return env


def product(**fields) -> WebShopProduct:
    plain = WebShopProduct("B000000000", "", "", (), (10.0,), (), (), "", "", "")
    return plain._replace(**fields)


# A second computation, from the records of the files and by loops alone.


def subsequence(one: str, other: str) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(other) + 1)
    for letter in one:
        before = 0
        for place, another in enumerate(other, 1):
            before, row[place] = row[place], before + 1 if letter == another else max(row[place], row[place - 1])
    return row[-1]


def similarity(one: str, other: str) -> float:
    words = [set(re.sub(r"[\W]", " ", text.lower()).split()) for text in (one, other)]
    if not (words[0] and words[1]):
        return 0
    common, first, second = words[0] & words[1], words[0] - words[1], words[1] - words[0]
    if common and not (first and second):
        return 100
    texts = [" ".join([*sorted(common), *sorted(rest)]) for rest in (set(), first, second)]
    pairs = [(1, 2), (0, 1), (0, 2)] if common else [(1, 2)]
    found = [200 * subsequence(texts[a], texts[b]) / (len(texts[a]) + len(texts[b])) for a, b in pairs]
    return round(max(found))


def color(value: str) -> str:
    held = [one for one in COLORS if one in value]
    return held[0] if held else value


def text_of(record: dict) -> list[str]:
    bullets = record["small_description"]
    bullets = bullets if isinstance(bullets, str) else " ".join(bullets)
    return [record["name"].lower(), bullets.lower(), record["full_description"].lower()]


def by_hand(bought: dict, goal: dict, wish: dict, limit: float, price: float, chosen: dict[str, str]) -> float:
    listed = webshop_files.attributes().get(bought["asin"], {}).get("attributes", ["DUMMY_ATTR"])
    points = int(price <= limit)
    for attribute in wish["instruction_attributes"]:
        alike = [own for own in listed if similarity(own, attribute) > 85]
        points += bool(alike) or any(attribute in text for text in text_of(bought))
    wanted = [color(option) for option in wish["instruction_options"]]
    for name, value in chosen.items():
        value = color(value)
        alike = [one for one in wanted if (one == value if name == "size" else similarity(one, value) > 85)]
        points += bool(alike) or any(value in text for text in text_of(bought))
    words = [[w for w in re.split(r"\W+", r["name"].lower()) if w.isalpha()] for r in (goal, bought)]
    wanted_words, words = [[w for w in some if w not in COMMON_WORDS] for some in words]
    share = len(set(wanted_words) & set(words)) / len(wanted_words)
    same = bought["query"] == goal["query"] or share > 0.2
    same = same or len(set(bought["product_category"].split(" › ")) & set(goal["product_category"].split(" › "))) >= 2
    kind = 0 if share == 0 else 0.1 if share < 0.1 else 1 if same else 0.5
    return kind * points / (len(wish["instruction_attributes"]) + len(wish["instruction_options"]) + 1)


RECORDS = {record["asin"]: record for record in reversed(webshop_files.products()) if len(record["asin"]) == 10}


@settings(max_examples=300)
@given(st.integers(0, 59), st.sampled_from(sorted(RECORDS)), st.randoms())
def test_reward_of_random_purchases(env, task, asin, chance: random.Random):
    env.reset(options={"split": "test", "task": task})
    bought = env.catalogue.products[asin]
    env.step(f"search[{bought.name}]")
    while f"click[{asin.lower()}]" not in env.describe()["available_actions"]:
        env.step("click[Next >]")
    env.step(f"click[{asin}]")
    chosen: dict[str, str] = {}
    for name, values in chance.sample(bought.options, chance.randint(0, len(bought.options))):
        chosen[name] = chance.choice(values)
        env.step(f"click[{chosen[name]}]")
    _, reward, terminated, _, info = env.step("click[Buy Now]")
    number, _, place = env.task.id.partition("-")
    wish, limit = webshop_files.instructions()[number][int(place)], env.goal.price_upper
    assert terminated
    assert reward == pytest.approx(by_hand(RECORDS[asin], RECORDS[number], wish, limit, bought.price, chosen))
    assert info["success"] == (reward == 1)


@given(st.text("abc ", max_size=12), st.text("abc ", max_size=12))
def test_texts_are_near_as_counted_by_hand(one, other):
    pytest.importorskip("thefuzz", reason="thefuzz is not installed: pip install 'turngym[webshop]'")
    assert near(one, other) == (similarity(one, other) > 85)


def test_attributes_are_found_in_list_title_features_and_text(env):
    found = product(
        name="Oak Tray",
        bullets=("Has two handles.",),
        description="Safe in the dishwasher.",
        attributes=("food grades",),
    )
    assert attribute_matches(found, ["food grade", "oak", "two handles", "safe in the dishwasher"]) == 4
    assert attribute_matches(found, ["gold rim"]) == 0


@pytest.mark.parametrize(
    ("wanted", "chosen", "count"),
    [
        (["dark grey", "7"], {"color": "grey stripes", "size": "7"}, 1),  # "dark" comes first
        (["light grey"], {"color": "dark grey"}, 0),
        (["7"], {"size": "7 wide"}, 0),  # sizes are equal or not
        (["7 wide"], {"fit": "wide 7"}, 1),
        ([], {"color": "oak"}, 1),  # in the title
        (["pack of 12"], {"count": "24 jars"}, 0),
        (["pack of 12"], {"count": "pack of 12 bags"}, 1),
    ],
)
def test_options_count(env, wanted, chosen, count):
    assert len(matching_options(product(name="Oak Tray"), wanted, chosen.items())) == count


@pytest.mark.parametrize(
    ("bought", "wanted", "score"),
    [
        (product(name="Oak Tray"), product(name="Oak Tray"), 1.0),
        (product(name="Steel Hammer"), product(name="Oak Tray"), 0.0),
        (product(name="Steel Hammer", query="tray"), product(name="Oak Tray", query="tray"), 0.0),
        (product(name="Tray"), product(name="Oak Serving Board Bowl Cup Tray"), 0.5),
        (product(name="Tray", query="q"), product(name="Oak Serving Board Bowl Cup Tray", query="q"), 1.0),
        (product(name="Tray"), product(name="a b c d e f g h j k l m n o p q r s tray"), 0.1),
        (product(name="Tray", product_category="a › b › c"), product(name="12 45", product_category="b › a"), 1.0),
        (product(name="Tray", product_category="a › b › c"), product(name="12 45", product_category="c › d"), 0.5),
    ],
)
def test_kind_of_a_product(bought, wanted, score):
    wanted = wanted._replace(query=wanted.query or "other")
    assert type_score(bought, wanted) == score


def test_words_that_count_as_nouns():
    title = "2pcs Non-Slip Tray with Handles, 12x8 Inches, Waterproofed & Red Seed Bed for the VCR/DVD"
    words = "slip tray handles inches red seed bed vcr dvd"
    assert " ".join(title_nouns(title)) == words


def test_options_beyond_the_goal_count_as_in_webshop(tmp_path):
    """Its sum has no upper end: the reward is above 1, and that is no success."""
    pytest.importorskip("thefuzz", reason="thefuzz is not installed: pip install 'turngym[webshop]'")
    records = webshop_files.products()
    for record in records:
        record["full_description"] += " in black with 6.5 and small"
    webshop_files.write(tmp_path, products=records)
    env = registry.make("webshop", data=str(tmp_path))
    tasks = range(env.env_spec.splits["test"])
    task = next(n for n in tasks if env.tasks["test", n].id == f"{webshop_files.asin(6, 0)}-1")
    env.reset(options={"split": "test", "task": task})
    for action in (f"search[{env.goal.product.name}]", f"click[{env.goal.product.asin}]", "click[coral | grey]"):
        env.step(action)
    env.step("click[6.5]")
    _, reward, _, _, info = env.step("click[Buy Now]")
    assert reward == pytest.approx(5 / 4)
    assert reward <= env.env_spec.reward_range[1]
    assert not info["success"]


def test_nouns_by_a_spacy_model(tmp_path: Path):
    spacy = pytest.importorskip("spacy", reason="spaCy is not installed: pip install spacy")
    model = spacy.blank("en")
    ruler = model.add_pipe("attribute_ruler")
    ruler.add(patterns=[[{"LOWER": {"IN": ["oak", "tray"]}}]], attrs={"POS": "NOUN"})
    model.to_disk(tmp_path / "model")
    assert spacy_nouns(str(tmp_path / "model"))("Fine Oak Tray with Oak") == ("oak", "tray", "oak")
    with pytest.raises(ConfigError, match="spaCy has no model 'none_such': python -m spacy download none_such"):
        spacy_nouns("none_such")
