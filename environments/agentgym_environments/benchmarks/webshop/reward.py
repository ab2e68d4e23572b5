"""WebShop's reward of a purchase: r_type * (attributes + options + price) / (all attributes + all options + 1).

The formula is that of WebShop's `engine/goal.py`, which does not stop at 1: every chosen option counts that is near one
of the goal's or stands in the product's text, however many the goal has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from agentgym.errors import ConfigError, MissingDependency
from agentgym_environments.base.engine_env import package
from agentgym_environments.tasks.webshop import Goal, WebShopProduct

Nouns = Callable[[str], "tuple[str, ...]"]
"""Returns the nouns of a title, in lower case, repeated ones too."""

NEAR = 85
"""Two texts are one where thefuzz's token_set_ratio is above this."""
EXACT_OPTIONS = ("size",)
NOUN_TAGS = ("NOUN", "PROPN")
COLORS = re.findall(
    r"\w+",
    """
alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo caramel
champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal dark denim
eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo ivory ivy khaki
lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor mushroom mustard
natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand sapphire seashell silver
skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut wheat white wine yellow
""",
)
"""Colors by which WebShop compares options; the first that a value holds stands for it."""
WORD = re.compile(r"(?<!\w)[^\W\d_](?:[\w'.]*\w)?")
NOT_NOUNS = frozenset(
    re.findall(
        r"\w+",
        """
    a an the and or nor but for of in on at by to from with without within into onto over under up down off out as than
    per via your you our my its it his her their this that these those all any each every both not no non is are be can
    will so very more most less new large small big long short wide full free easy best perfect great soft
    """,
    )
)
"""Words of titles that are function words, or adjectives as a rule."""


def title_nouns(title: str) -> tuple[str, ...]:
    """Return the words of a title that may be nouns: no numbers, no function words, no participles in -ed."""
    words = [word.lower() for word in WORD.findall(title)]
    return tuple(word for word in words if word not in NOT_NOUNS and not re.fullmatch(r"\w{2,}[^e\W]ed", word))


@lru_cache(maxsize=4)
def spacy_nouns(model: str) -> Nouns:
    """Return the nouns by a spaCy model, as WebShop does with en_core_web_lg."""
    try:
        tagger = package("spacy", "webshop").load(model)
    except MissingDependency:
        raise MissingDependency(f"pip install spacy, then python -m spacy download {model}") from None
    except OSError as error:
        raise ConfigError(f"spaCy has no model {model!r}: python -m spacy download {model}") from error
    return lambda title: tuple(token.text.lower() for token in tagger(title) if token.pos_ in NOUN_TAGS)


def reward(product: WebShopProduct, goal: Goal, options: Mapping[str, str], nouns: Nouns = title_nouns) -> float:
    """Return the reward of buying a product with the chosen options, by name."""
    matches = (
        attribute_matches(product, goal.attributes)
        + len(matching_options(product, goal.options, options.items()))
        + (product.price <= goal.price_upper)
    )
    return type_score(product, goal.product, nouns) * matches / (len(goal.attributes) + len(goal.options) + 1)


def type_score(product: WebShopProduct, wanted: WebShopProduct, nouns: Nouns = title_nouns) -> float:
    """Return 1 for a product of the kind that is wanted; 0.5, 0.1 or 0 for one that is less and less like it."""
    wanted_nouns = nouns(wanted.name)
    if wanted_nouns:
        title_score = len(set(wanted_nouns) & set(nouns(product.name))) / len(wanted_nouns)
    else:
        title_score = 0.2
    if title_score == 0.0:
        return 0.0
    if title_score < 0.1:
        return 0.1
    alike = product.query == wanted.query or len(_categories(product) & _categories(wanted)) >= 2
    return 1.0 if alike or title_score > 0.2 else 0.5


def attribute_matches(product: WebShopProduct, attributes: Iterable[str]) -> int:
    """Return how many attributes a product has, in its list of attributes or word for word in its text."""
    return sum(any(near(own, one) for own in product.attributes) or in_text(product, one) for one in attributes)


def matching_options(
    product: WebShopProduct, wanted: Iterable[str], chosen: Iterable[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Return the chosen options that count: near one that is wanted (a size: equal), or in the product's text."""
    goal = [normal_color(value) for value in wanted]
    return [(name, value) for name, value in chosen if _counts(product, goal, name, normal_color(value))]


def _counts(product: WebShopProduct, goal: list[str], name: str, value: str) -> bool:
    same = value in goal if name.lower() in EXACT_OPTIONS else any(near(one, value) for one in goal)
    return same or in_text(product, value)


def near(one: str, other: str) -> bool:
    return package("thefuzz.fuzz", "webshop").token_set_ratio(one, other) > NEAR


def in_text(product: WebShopProduct, words: str) -> bool:
    texts = (product.name, " ".join(product.bullets), product.description)
    return any(words in text.lower() for text in texts)


def normal_color(value: str) -> str:
    """Return the color that a value holds, or the value."""
    return next((color for color in COLORS if color in value), value)


def _categories(product: WebShopProduct) -> set[str]:
    return {part.strip() for part in product.product_category.split("›")}
