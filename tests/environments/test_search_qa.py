"""Questions over a corpus that can be searched: the field's multi-hop formats, a corpus file, a server."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from agentgym import registry
from agentgym.errors import ConfigError
from agentgym_environments.benchmarks.search_qa.env import SearchQuestions
from agentgym_environments.benchmarks.search_qa.make_tasks import problems

pytest.importorskip("tantivy", reason="tantivy is not installed: pip install 'turngym[search]'")

HOTPOT = {
    "_id": "5a7a",
    "question": "In which country is the town where Ann was born?",
    "answer": "Norway",
    "type": "bridge",
    "level": "hard",
    "supporting_facts": [["Ann", 0], ["Moss", 0]],
    "context": [["Ann", ["Ann was born in Moss."]], ["Moss", ["Moss is a town in Norway."]], ["Bo", ["Bo sings."]]],
}
PLAIN = {"question": "Where was Ann born?", "golden_answers": ["Moss", "the town of Moss"], "id": "q"}


def lines(path, records) -> str:
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    return str(path)


def played(env: SearchQuestions, *actions: str):
    env.reset(options={"split": "test", "task": 0})
    return [env.step(action) for action in actions]


def test_a_question_is_answered_after_reading(tmp_path):
    env = SearchQuestions(test=lines(tmp_path / "q.jsonl", [HOTPOT]))
    first, second, last = played(env, "search Ann", "Search where is Moss?", "answer norway")
    assert "Ann was born in Moss." in first[0]
    assert "Moss is a town in Norway." in second[0]
    assert [turn[1] for turn in (first, second, last)] == [0, 0, 1]
    assert last[2]
    assert last[4]["success"]


@pytest.mark.parametrize("answer", ["Sweden", "Norway or Sweden", "the country where Ann was born"])
def test_another_answer_is_wrong(tmp_path, answer):
    env = SearchQuestions(test=lines(tmp_path / "q.jsonl", [HOTPOT]))
    ((observation, reward, terminated, _, info),) = played(env, f"answer {answer}")
    assert (observation, reward, terminated, info["success"]) == ("The answer is wrong.", 0, True, False)


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        ("Action: answer Norway", "Norway"),
        ("Thought: it is U.S. soil.\nAction: Answer U.S.", "U.S."),
        ("**Action:** `answer Norway`", "Norway"),
        ("**answer Norway!**", "Norway!"),
        ("> answer 5!", "5!"),
        ('"answer Norway"', "Norway"),
        ("answer\nNorway or\nSweden", "Norway or\nSweden"),
        ('answer "Norway"', '"Norway"'),
        ("answer The Action: a Film", "The Action: a Film"),
    ],
)
def test_a_wording_of_an_answer_keeps_its_characters(tmp_path, action, answer):
    env = SearchQuestions(test=lines(tmp_path / "q.jsonl", [HOTPOT]))
    ((*_, info),) = played(env, action)
    assert (info["valid_action"], env.answer) == (True, answer)


def test_a_wording_of_a_query_keeps_its_characters(tmp_path):
    env = SearchQuestions(test=lines(tmp_path / "q.jsonl", [HOTPOT]))
    for action in ("`search Moss?`", "Action: search Moss?", "**search Moss?**", "search\nMoss?"):
        ((observation, *_),) = played(env, action)
        assert observation.startswith("2 found for: Moss?\n"), action


@pytest.mark.parametrize("action", ["", "look Ann", "search", "search ?!", "answer", "answer  ", "searchAnn", "open 1"])
def test_what_is_no_action_says_what_is(tmp_path, action):
    env = SearchQuestions(test=lines(tmp_path / "q.jsonl", [HOTPOT]))
    ((observation, reward, terminated, _, info),) = played(env, action)
    assert observation == "not an action; say search QUERY or answer TEXT"
    assert (reward, terminated, info["valid_action"]) == (0, False, False)


def test_the_last_turn_without_an_answer(tmp_path):
    env = SearchQuestions(test=lines(tmp_path / "q.jsonl", [HOTPOT]))
    *_, last = played(env, *["search Ann"] * env.env_spec.max_turns)
    assert "Ann was born in Moss." in last[0]
    assert (last[1], last[2] or last[3], last[4]["success"]) == (0, True, False)


@pytest.mark.parametrize(
    "passage",
    [
        {"id": "7", "contents": '"Ann"\nAnn was born in Moss.'},
        {"_id": "7", "title": "Ann", "text": "Ann was born in Moss."},
    ],
)
def test_a_corpus_of_its_own(tmp_path, passage):
    corpus = lines(tmp_path / "corpus.jsonl", [passage])
    env = SearchQuestions(test=lines(tmp_path / "q.jsonl", [PLAIN]), corpus=corpus)
    found, last = played(env, "search Ann", "answer The town of Moss.")
    assert found[0] == "1 found for: Ann\n(1) Ann: Ann was born in Moss."
    assert last[1] == 1


def test_a_server_is_searched(tmp_path):
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            hits = [{"document": {"id": "7", "contents": '"Ann"\nAnn was born in Moss.'}, "score": 1.0}]
            content = json.dumps({"result": [hits]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        retriever = f"http://127.0.0.1:{server.server_address[1]}/retrieve"
        env = SearchQuestions(test=lines(tmp_path / "q.jsonl", [PLAIN]), retriever=retriever, results=2)
        (found,) = played(env, "search Where was Ann born?")
        env.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert "Ann was born in Moss." in found[0]
    assert requests == [{"queries": ["Where was Ann born?"], "topk": 2, "return_scores": True}]
    assert not env.env_spec.deterministic


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"retriever": "google"}, 'retriever is "bm25" or the URL of a /retrieve'),
        ({"retriever": "http://x/retrieve", "corpus": "y.jsonl"}, "has a corpus of its own"),
        ({"results": 0}, "results is a number from 1 on"),
        ({"corpus": "none.jsonl"}, "there is no file none.jsonl"),
    ],
)
def test_wrong_arguments(arguments, problem):
    with pytest.raises(ConfigError, match=problem):
        SearchQuestions(**arguments)


def test_questions_without_paragraphs_need_a_corpus(tmp_path):
    with pytest.raises(ConfigError, match=r"name a corpus, as in corpus=wiki.jsonl, or a retriever"):
        SearchQuestions(test=lines(tmp_path / "q.jsonl", [PLAIN]))


def test_a_record_that_is_no_passage(tmp_path):
    corpus = lines(tmp_path / "c.jsonl", [{"id": 1, "title": "Ann", "text": "x"}, {"id": 2, "body": "x"}])
    with pytest.raises(ConfigError, match="record 2: a passage has contents, or title and text"):
        SearchQuestions(test=lines(tmp_path / "q.jsonl", [PLAIN]), corpus=corpus)


def test_a_snapshot_goes_on_where_it_was(tmp_path):
    env = registry.make("search-qa")
    env.reset(options={"split": "test", "task": 3})
    env.step(env.solver())
    state = env.snapshot()
    actions = [env.solver()]
    first = env.step(actions[0])
    other = registry.make("search-qa")
    other.restore(state)
    assert other.solver() == actions[0]
    assert other.step(actions[0])[0] == first[0]


def test_own_questions_are_what_the_script_makes():
    env = SearchQuestions()
    for split, records in problems().items():
        assert [record["question"] for record in records] == [
            env.tasks[split, place].prompt for place in range(env.env_spec.splits[split])
        ]


def test_no_question_holds_its_answer():
    for records in problems().values():
        for record in records:
            assert record["answer"] not in record["question"]
            texts = [one["paragraph_text"] for one in record["paragraphs"] if one["is_supporting"]]
            assert sum(record["answer"] in text for text in texts) == 1
