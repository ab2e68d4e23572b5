"""docs/recipes.md has every recipe and every setup, as their files have them, and says when to use a recipe.

python tests/test_recipe_docs.py      writes its tables anew
"""

from __future__ import annotations

import json
import tomllib
from importlib import resources
from pathlib import Path

from agentgym.cli.recipes import shipped
from agentgym_trainers.describe import pieces
from agentgym_trainers.recipe import resolve, setup_names

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "recipes.md"
SETUPS = "<!-- setups: python tests/test_recipe_docs.py -->\n", "<!-- end of setups -->\n"
BEGIN, END = "<!-- from the recipes: python tests/test_recipe_docs.py -->\n", "<!-- end -->\n"
WHEN = {
    "a-lol": "Episodes are given and no more can be had; the cheapest way to weigh them.",
    "archer": "Reward comes late and episodes are dear: the critic learns from a replay of all turns.",
    "archer-as-published": "To compare with the paper's own form.",
    "beacon": "Long tasks with parts that the environment names when they are done.",
    "bilevel-gae": "Many turns, each with a long reply: credit between turns and within them.",
    "carl": "Most turns of an attempt are habit, and few decide.",
    "dapo": "Many tasks are always or never solved: their groups are replaced by others.",
    "digiq": "Episodes are given; the policy is taken from the best of several actions by a critic.",
    "digirl": "Noisy environments, and tasks of unequal difficulty; from given episodes or online.",
    "direct-advantage": "As `ppo-turn`, where episodes shall be used several times without a clip.",
    "dr-grpo": "Replies grow longer without getting better.",
    "epo": "Entropy collapses, or swings, over a long run with sparse reward.",
    "eto": "There is a solver to learn from, and failures of one's own to compare with.",
    "filtered-bc": "The first thing to try: imitation of one's own successes.",
    "gagpo": "As `gigpo`, where attempts often meet: what others made of a state counts.",
    "gigpo": "The environment names its states and attempts meet in them; turns are told apart without a critic.",
    "grpo": "The usual baseline, to compare with what others report.",
    "gspo": "Ratios of single tokens are noisy: long replies, mixtures of solvers.",
    "hcapo": "The model can tell from how an attempt ended which of its turns mattered.",
    "hgpo": "As `gigpo`, where equal observations can have unlike pasts.",
    "igpo": "Tasks end in a short answer that has to be found out.",
    "istar": "Reward comes at the end; pairs of a success and a failure teach what a turn is worth.",
    "istar-as-published": "To compare with the paper's own form.",
    "loop": "Several epochs on few attempts, without critic or reference.",
    "oreo": "Episodes are given with an outcome each, and no pairs.",
    "pacs": "Outcomes are right or wrong, and groups have both.",
    "ppo-token": "Long replies, and time to train a critic.",
    "ppo-turn": "Many short turns, and time to train a critic.",
    "prime": "Only outcomes are known, and every token shall have a reward.",
    "prime-as-published": "To compare with the paper's own form.",
    "quickstart": "To see all of it work, in minutes.",
    "refuel": "The environment has snapshots: two continuations of one state are compared.",
    "reinforce": "To check others against: unbiased, and noisy.",
    "rloo": "The plain choice without a critic.",
    "rewardflow": "No chance in the environment, named states: short ways are found in the attempts of all.",
    "scaling-inter": "Long horizons: training begins with short ones.",
    "spa-rl": "Reward comes at the end of many turns; what each contributed is learned.",
    "spa-rl-as-published": "To compare with the paper's own form.",
    "spae": "Attempts go on when the answer is known.",
    "spear": "Successes are rare at first: the policy's own are imitated for a while.",
    "spiral": "A game of two players and no opponent worth playing: the policy is its own.",
    "state-score": "The environment reports progress, and reward comes late.",
    "step-dpo": "As `refuel`, where only which of two turns is better can be trusted.",
    "vineppo": "The environment has snapshots and continuations are cheap: the gold standard to compare with.",
}


def table() -> str:
    """A row for each recipe. Parts: the choices that make it, without options; `agentgym recipes show` has those."""
    lines = ["| recipe | what it does | paper | parts | when to use it |", "|---|---|---|---|---|"]
    for recipe in shipped():
        parts = [f"{piece.axis} `{piece.name}`" for piece in pieces(resolve(recipe.name)) if piece.axis != "guards"]
        cells = [f"`{recipe.name}`", recipe.summary, recipe.tree["paper"], ", ".join(parts), WHEN[recipe.name]]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def setups_table() -> str:
    """A row for each setup."""
    lines = ["| setup | where | in numbers |", "|---|---|---|"]
    for name in setup_names():
        file = resources.files("agentgym_trainers") / "setups" / f"{name}.toml"
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
        description = tables.pop("description")
        numbers = [f"{key}.{k}={json.dumps(v)}" for key, table in tables.items() for k, v in table.items()]
        lines.append(f"| `{name}` | {description} | {', '.join(f'`{number}`' for number in numbers)} |")
    return "\n".join(lines) + "\n"


def between(text: str, begin: str, end: str) -> str:
    return text.partition(begin)[2].partition(end)[0]


def test_every_recipe_names_what_it_is_and_the_paper_it_follows() -> None:
    for recipe in shipped():
        assert recipe.tree["name"] == recipe.name
        assert recipe.summary.endswith(".")
        assert recipe.tree["paper"]


def test_the_table_is_what_the_recipes_say() -> None:
    document = DOCUMENT.read_text(encoding="utf-8")
    assert between(document, BEGIN, END) == table(), "python tests/test_recipe_docs.py writes it anew"
    assert between(document, *SETUPS) == setups_table(), "python tests/test_recipe_docs.py writes it anew"


def test_every_part_of_every_recipe_is_described() -> None:
    for recipe in shipped():
        for piece in pieces(resolve(recipe.name)):
            assert piece.description, f"{piece.axis} {piece.name} of {recipe.name} has no first line"


if __name__ == "__main__":
    text = DOCUMENT.read_text(encoding="utf-8")
    for (begin, end), rows in (((BEGIN, END), table()), (SETUPS, setups_table())):
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{rows}{end}{rest.partition(end)[2]}"
    DOCUMENT.write_text(text, encoding="utf-8")
