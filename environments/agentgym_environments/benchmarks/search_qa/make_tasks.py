"""Writes the environment's own questions to `data/`, in MuSiQue's format: articles on invented people, towns,
bands and books, and questions that two of them answer together.

python -m agentgym_environments.benchmarks.search_qa.make_tasks
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

SIZES = {"train": 200, "validation": 40, "test": 60}
OTHERS = 3
"""Articles beside the two that answer a question."""
STARTS = (
    "Bal", "Cor", "Dun", "Elm", "Fen", "Gar", "Hol", "Ister", "Kal", "Lor", "Mer", "Nor", "Osk", "Pel",
    "Quin", "Ros", "Sel", "Tam", "Ul", "Vor", "Wes", "Yar",
)  # fmt: skip
ENDS = (
    "ana", "berg", "dale", "eth", "fjord", "gard", "ham", "ino", "ka", "lund", "mora", "nes", "oria",
    "ply", "rim", "stad", "tun", "vik", "wick", "zen",
)  # fmt: skip
FORENAMES = (
    "Agda", "Bruno", "Celia", "Doro", "Edvin", "Fenna", "Gustav", "Hedda", "Ilja", "Jonna", "Karsten",
    "Livia", "Marek", "Nadja", "Otis", "Petra", "Ruben", "Silke", "Tove", "Udo",
)  # fmt: skip
TRADES = ("painter", "chemist", "rower", "baker", "architect", "pilot", "botanist", "judge", "sculptor", "surgeon")
STYLES = ("folk", "jazz", "choral", "brass", "electronic", "baroque")


class Article(NamedTuple):
    title: str
    text: str
    facts: dict[str, str]
    """Statements of the text, by relation; values are titles of other articles or the last answers."""


QUESTIONS = (
    ("person", "born", "river", "On which river lies the town where {0} was born?"),
    ("person", "born", "founded", "In which year was the birthplace of {0} founded?"),
    ("band", "founder", "born", "In which town was the founder of the band {0} born?"),
    ("band", "founder", "trade", "What was the profession of the founder of the band {0}?"),
    ("band", "town", "mayor", "Who is the mayor of the town where the band {0} plays?"),
    ("book", "author", "trade", "What does the author of the book {0} do for a living?"),
    ("book", "author", "born", "Where was the author of the book {0} born?"),
    ("book", "set", "river", "The book {0} is set in a town; which river flows through it?"),
)


def _names(draw: random.Random, count: int, suffix: str = "") -> list[str]:
    every = [start + end for start in STARTS for end in ENDS]
    return [name + suffix for name in draw.sample(every, count)]


def articles_of(draw: random.Random) -> dict[str, list[Article]]:
    """Return the articles, by kind."""
    towns, rivers = _names(draw, 60), _names(draw, 60, " River")
    people = [f"{first} {last}" for first, last in zip(draw.choices(FORENAMES, k=140), _names(draw, 140))]
    made: dict[str, list[Article]] = {"town": [], "person": [], "band": [], "book": []}
    for town, river in zip(towns, rivers):
        year, mayor = str(draw.randint(902, 1888)), draw.choice(people)
        text = f"{town} is a town on the {river}. It was founded in {year}, and its mayor is {mayor}."
        made["town"].append(Article(town, text, {"river": river, "founded": year, "mayor": mayor}))
    for person in people:
        born, trade = draw.choice(towns), draw.choice(TRADES)
        text = f"{person} is a {trade} who grew up by the sea but was born in {born}."
        made["person"].append(Article(person, text, {"born": born, "trade": trade}))
    for name in _names(draw, 50):
        title, founder, town = f"The {name} Players", draw.choice(people), draw.choice(towns)
        text = f"{title} are a {draw.choice(STYLES)} band. {founder} founded it; it plays in {town} every spring."
        made["band"].append(Article(title, text, {"founder": founder, "town": town}))
    for name in _names(draw, 60):
        title, author, town = f"A Winter in {name}", draw.choice(people), draw.choice(towns)
        text = f"{title} is a novel by {author}. In spite of its title, all of it is set in {town}."
        made["book"].append(Article(title, text, {"author": author, "set": town}))
    return made


def _questions(made: dict[str, list[Article]]) -> Iterator[tuple[str, str, list[Article]]]:
    """(question, answer, the articles that answer it) for every article that has a question."""
    by_title = {article.title: article for articles in made.values() for article in articles}
    for kind, first, second, text in QUESTIONS:
        for article in made[kind]:
            middle = by_title[article.facts[first]]
            question, answer = text.format(article.title), middle.facts[second]
            if answer not in article.text + question:  # else one article would answer it
                yield question, answer, [article, middle]


def problems() -> dict[str, list[dict[str, Any]]]:
    """Return the records of every split. No question is in two splits; the splits share articles."""
    draw = random.Random("search-qa")
    made = articles_of(draw)
    articles = [article for some in made.values() for article in some]
    posed = sorted(_questions(made))
    draw.shuffle(posed)
    splits: dict[str, list[dict[str, Any]]] = {}
    for split, size in SIZES.items():
        some, posed = posed[:size], posed[size:]
        splits[split] = [
            _record(f"{split}-{number}", *one, draw.sample(articles, OTHERS)) for number, one in enumerate(some)
        ]
    return splits


def _record(name: str, question: str, answer: str, gold: list[Article], others: list[Article]) -> dict[str, Any]:
    articles = sorted([*gold, *(article for article in others if article not in gold)])
    return {
        "id": name,
        "question": question,
        "answer": answer,
        "paragraphs": [
            {"title": article.title, "paragraph_text": article.text, "is_supporting": article in gold}
            for article in articles
        ],
        "question_decomposition": [{"paragraph_support_idx": articles.index(article)} for article in gold],
    }


def main() -> None:
    folder = Path(__file__).with_name("data")
    folder.mkdir(exist_ok=True)
    for split, records in problems().items():
        (folder / f"{split}.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))


if __name__ == "__main__":
    main()
