"""Rows of a prompted judge, and scores of candidate actions, against a real HTTP server that the test scripts."""

from __future__ import annotations

import asyncio
import io
import json
import re
import threading
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from agentgym import registry
from agentgym.cli.main import main
from agentgym.errors import ConfigError, PolicyFailure
from agentgym.evaluation.action_values import ActionValues, write_action_values
from agentgym.rollouts.trajectory import StopReason, Trajectory, Turn
from agentgym_environments.diagnostics.oracle.env import ACTIONS, ADVANTAGE, ROOMS
from agentgym_trainers import run
from agentgym_trainers.credit_bench import prompted
from agentgym_trainers.credit_bench.pair_scores import PairScores, compare, score_pairs, spearman, within
from agentgym_trainers.credit_bench.policy_scores import policy_scores
from agentgym_trainers.credit_bench.prompted import places, prompted_judge_at, read_ranking, read_score, turn_scores
from agentgym_trainers.credit_bench.report import pair_table, to_json
from agentgym_trainers.credit_bench.run import BenchOptions, Result, bench
from agentgym_trainers.recipe import resolve


class JudgeServer(ThreadingHTTPServer):
    """Answers `answer(system message, user message)`: a text, or a status."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, answer: Callable[[str, str], str | int]) -> None:
        super().__init__(("127.0.0.1", 0), JudgeHandler)
        self.answer, self.requests, self.keys = answer, [], []
        self.url = f"http://127.0.0.1:{self.server_port}/v1"

    def __enter__(self) -> JudgeServer:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class JudgeHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        server: Any = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server.requests.append(body)
        server.keys.append(self.headers.get("Authorization"))
        response = server.answer(body["messages"][0]["content"], body["messages"][1]["content"])
        message = {"role": "assistant", "content": response}
        content = {"choices": [{"index": 0, "finish_reason": "stop", "message": message}]}
        data = json.dumps(content if isinstance(response, str) else {"error": "no"}).encode()
        self.send_response(200 if isinstance(response, str) else response)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("SCORE: 7", 7),
        ("Because.\n**Score:** -3.5", -3.5),
        ("SCORE: 2\nNo, wait.\nSCORE: −4.", -4),
        ("Score = 8/10", 8),
        ("<think>\nSCORE: 9\n</think>\nSCORE: 1", 1),
        ("SCORE: +2\n\n", 2),
        ("SCORE: 11", None),
        ("SCORE: 7/100", None),
        ("SCORE: good", None),
        ("the SCORE: 7 is what the agent wrote", None),
        ("<think>it never ends\nSCORE: 7", None),
        ("", None),
    ],
)
def test_a_score_is_read_from_its_last_line(text, score):
    assert read_score(text, -10, 10) == score


@pytest.mark.parametrize(
    ("text", "order"),
    [
        ("RANKING: 2, 1, 3", [2, 1, 3]),
        ("First 1, 2, 3.\n**RANKING:** [3, 2, 1].", [3, 2, 1]),
        ("Ranking: 1 > 3 > 2", [1, 3, 2]),
        ("RANKING: 1, 2\nRANKING: 2, 1", [2, 1]),
        ("RANKING: **4**, **1**", [4, 1]),
        ("1, 2, 3", None),
        ("RANKING: best is the first", None),
        ("<think>RANKING: 1, 2", None),
    ],
)
def test_a_ranking_is_read_from_its_last_line(text, order):
    assert read_ranking(text) == order


def test_places_run_from_one_to_minus_one():
    np.testing.assert_allclose(places([3, 1, 2]), [0, -1, 1])
    np.testing.assert_allclose(places([1]), [0])


@pytest.fixture(scope="module")
def states() -> list[ActionValues]:
    made: Any = registry.make("frozenlake:make_kwargs={is_slippery=true}")
    return made.action_values("train", range(3))


def value_in(states: list[ActionValues], question: str) -> dict[str, float]:
    state = next(s for s in states if json.dumps(s.state) in question)
    return dict(zip(state.actions, state.q, strict=True))


def knows(states: list[ActionValues]) -> Callable[[str, str], str]:
    """A judge that knows the values, and answers in the form that is wanted."""

    def answer(system: str, question: str) -> str:
        q = value_in(states, question)
        if "RANKING" in system:
            shown = re.findall(r'^\d+\. "(\w+)"$', question, re.MULTILINE)
            assert sorted(shown) == sorted(q)
            order = sorted(range(4), key=lambda i: -q[shown[i]])
            return "Reasons.\nRANKING: " + ", ".join(str(i + 1) for i in order)
        action = re.search(r'^Last action: "(\w+)"$', question, re.MULTILINE)
        assert action
        return f"Reasons.\nSCORE: {100 * q[action[1]]:.6f}"

    return answer


def scored(url: str, states: list[ActionValues], votes: int = 1) -> tuple[dict[str, PairScores], dict[str, Any]]:
    def judge() -> Any:
        made = prompted_judge_at(url, "m", votes, None)
        made.judge.remote.retries = 0
        return made

    rows, metrics = asyncio.run(score_pairs(states, (), judge))
    return {row.name: row for row in rows}, metrics


def test_a_judge_that_knows_the_values_orders_them(states):
    with JudgeServer(knows(states)) as server:
        rows, metrics = scored(server.url, states)
    assert rows["judge-direct"].kendall.value == pytest.approx(1)
    assert rows["judge-direct"].pooled == pytest.approx(1, abs=1e-3)
    assert rows["judge-ranking"].best.value == 1
    assert 0.8 < rows["judge-ranking"].kendall.value < 1  # values that tie have no order
    assert np.isnan(rows["judge-ranking"].pooled)
    assert metrics["judge-direct"] == {"calls": 4 * len(states), "cached": 0, "unread": 0, "failed": 0}
    assert metrics["judge-ranking"]["calls"] == len(states)
    assert {body["temperature"] for body in server.requests} == {0}


def test_a_judge_that_repeats_the_order_is_at_chance(states):
    """Candidates are shuffled, so their order says nothing."""
    with JudgeServer(lambda system, question: "RANKING: 1, 2, 3, 4\nSCORE: 50") as server:
        rows, _ = scored(server.url, states)
    assert abs(rows["judge-ranking"].kendall.value) < 0.3
    assert rows["judge-direct"].kendall.value == 0
    assert rows["judge-direct"].best.value == pytest.approx(
        np.mean([np.isclose(s.q, max(s.q)).mean() for s in states if max(s.q) - min(s.q) > 1e-9])
    )


def test_unread_answers_leave_their_states_out(states):
    first = states[0].state

    def answer(system: str, question: str) -> str:
        if json.dumps(first) in question:
            return "RANKING: 1, 2, 3" if "RANKING" in system else "SCORE: 101"
        return knows(states)(system, question)

    with JudgeServer(answer) as server:
        rows, metrics = scored(server.url, states)
    for name, unread in (("judge-direct", 4), ("judge-ranking", 1)):
        assert metrics[name]["unread"] == unread
        assert rows[name].unread == 1
        assert rows[name].states == rows["random"].states - 1
    with JudgeServer(lambda system, question: "no idea") as server:
        rows, _ = scored(server.url, states)
    assert rows["judge-direct"].states == 0
    assert np.isnan(rows["judge-direct"].kendall.value)


def test_several_votes_are_averaged(states):
    counts: dict[str, int] = {}
    lock = threading.Lock()

    def answer(system: str, question: str) -> str:
        with lock:
            counts[question] = counts.get(question, 0) + 1
            return f"SCORE: {[10, 20, 60][counts[question] - 1]}"

    with JudgeServer(answer) as server:
        judge = prompted_judge_at(server.url, "m", 3, None)
        case = prompted.ActionCase((("before", "wait"),), "here", "go")
        assert asyncio.run(judge.scores([case, case], "Leave.", prompted.VALUE)) == [30, 30]
    assert len(server.requests) == 3  # equal questions are asked once
    shown = server.requests[0]["messages"][1]["content"]
    assert shown == 'Task: "Leave."\nObserved: "before"\nAction: "wait"\nObserved: "here"\nLast action: "go"'


def test_a_silent_judge_stops_with_the_reason(states):
    with JudgeServer(lambda system, question: 400) as server, pytest.raises(PolicyFailure, match="answered none of"):
        scored(server.url, states[:2])


def episode(actions: str, success: bool) -> Trajectory:
    turns = tuple(
        Turn(i, f"room {i}", f"I say {a}", None if a == "?" else a, 0.0, info={}) for i, a in enumerate(actions)
    )
    turns[-1].info["success"] = success
    return Trajectory("e", "train", 0, 0, 0, turns, StopReason.TERMINATED, final_observation="the end")


def test_turns_are_scored_without_their_future():
    def answer(system: str, question: str) -> str:
        return f"SCORE: {5 if question.splitlines()[-2].endswith(chr(34) + 'a' + chr(34)) else -5}"

    with JudgeServer(answer) as server:
        judge = prompted_judge_at(server.url, "m", 1, None)
        scores = asyncio.run(turn_scores(judge, "judge-direct", [episode("ab", True), episode("?a", False)], "Leave."))
    np.testing.assert_allclose(scores, [0.5, -0.5, -0.5, 0.5])
    questions = sorted((body["messages"][1]["content"] for body in server.requests), key=len)
    assert 'Last action: "I say ?"' in "".join(questions)
    assert not any("the end" in q and 'Observed: "room 1"' not in q for q in questions)
    assert questions[0].splitlines() == [
        'Task: "Leave."', 'Observed: "room 0"', 'Last action: "a"', 'Observed after it: "room 1"',
    ]  # fmt: skip


def test_turns_of_an_episode_are_ordered_at_once():
    def answer(system: str, question: str) -> str:
        assert '2. Observed: "room 1"; action: "b"' in question
        return "RANKING: 3, 1, 2" if question.count("action:") == 3 else "RANKING: 1"

    with JudgeServer(answer) as server:
        judge = prompted_judge_at(server.url, "m", 1, None)
        scores = asyncio.run(turn_scores(judge, "judge-ranking", [episode("abc", True), episode("xb", True)], ""))
    np.testing.assert_allclose(scores, [0, -1, 1, 0, 0])
    assert judge.metrics["unread"] == 1


def test_rank_correlations_are_those_of_scipy():
    rng = np.random.default_rng(1)
    for _ in range(30):
        x, y = rng.integers(0, 4, 6).astype(float), rng.integers(0, 4, 6).astype(float)
        if np.ptp(x) and np.ptp(y):
            rho, tau, _ = within(x, y)
            assert rho == pytest.approx(stats.spearmanr(x, y)[0])
            assert tau == pytest.approx(stats.kendalltau(x, y)[0])
    assert spearman(np.ones(3), np.arange(3.0)) == 0


def test_states_of_equal_actions_have_no_order():
    fields = {"schema": "agentgym.action_values/1", "env": "e", "reference": "r", "state": "s", "actions": ["a", "b"]}
    tied = ActionValues.model_validate(fields | {"q": [0.3, 0.1 + 0.2]})
    clear = ActionValues.model_validate(fields | {"q": [0, 1]})
    row = compare("x", [tied, clear], [np.array([0, 1.0]), np.array([0, 1.0])])
    assert (row.states, row.kendall.value) == (1, 1)
    with pytest.raises(ConfigError, match="worth the same: write states whose actions differ"):
        compare("x", [tied], [np.zeros(2)])


OWN = """
def first(state):
    return [-k for k in range(len(state.actions))]


def short(state):
    return [1]
"""


def test_the_command_scores_a_file(states, tmp_path, monkeypatch, capsys):
    (tmp_path / "my_scorer.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    file, out = tmp_path / "pairs.jsonl", tmp_path / "table.json"
    write_action_values(states, file)
    options = ["--scorer", "my_scorer:first", "--scorer", "reference", "--out", str(out)]
    main(["credit", "score", str(file), *options])
    printed = capsys.readouterr().out
    assert "not measured: judge-direct, judge-ranking: give --judge URL" in printed
    rows = {row["name"]: row for row in json.loads(out.read_text())["rows"]}
    assert list(rows) == [
        "reference",
        *sorted(("my_scorer:first", "random"), key=lambda n: -rows[n]["kendall"]["value"]),
    ]
    assert rows["reference"]["best"]["value"] == 1
    with JudgeServer(knows(states)) as server:
        given = ["--judge", server.url, "--judge-model", "m", "--judge-key", "secret", "--cache", str(tmp_path / "c")]
        main(["credit", "score", str(file), *given])
        first = capsys.readouterr().out
        assert f"judge-direct: {4 * len(states)} answers (0 from the cache), 0 unread; 0 requests failed" in first
        assert set(server.keys) == {"Bearer secret"}
        main(["credit", "score", str(file), *given])
        assert f"({4 * len(states)} from the cache)" in capsys.readouterr().out
        assert len(server.requests) == 5 * len(states)


def test_a_checkpoint_orders_actions_by_probability(warm_oracle, tmp_path, capsys):
    fields = {"schema": "agentgym.action_values/1", "env": "oracle", "reference": "either word alike"}
    fork = {"observation": "you are at the fork: left or right", "action": "left"}
    amber = {"observation": "you are in the amber room: gold or blue", "action": "gold"}
    lines = [([], fork, (0.25, 0.125)), ([fork], amber, (0.5, 0))]
    found = [
        ActionValues.model_validate(
            fields | {"history": past, "state": here["observation"], "q": q, "actions": ACTIONS[room]}
        )
        for (past, here, q), room in zip(lines, ("fork", "amber"), strict=True)
    ]
    scores = policy_scores(warm_oracle[1], found)
    for score in scores:
        assert score.max() < 0
        assert 0.5 < np.exp(score).sum() <= 1 + 1e-6
    write_action_values(found, tmp_path / "pairs.jsonl")
    main(["credit", "score", str(tmp_path / "pairs.jsonl"), "--policy", str(warm_oracle[1])])
    assert "log-probability" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["credit", "score", str(tmp_path / "pairs.jsonl"), "--policy", str(tmp_path / "none")])
    assert "is no checkpoint's folder" in capsys.readouterr().err


def test_the_table_fits_a_page(states):
    with JudgeServer(knows(states)) as server:
        rows, _ = scored(server.url, states)
    out = io.StringIO()
    Console(file=out, width=120).print(pair_table(list(rows.values()), "pairs.jsonl"))
    assert "…" not in out.getvalue()
    for name in rows:
        assert name in out.getvalue()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--judge", "http://x/v1"], "name the model that judges at http://x/v1: --judge-model NAME"),
        (["--judge-model", "m"], "--judge-model needs a server: --judge URL"),
        (["--judge", "x", "--judge-model", "m"], "--judge is a URL that begins with http:// or https://"),
        (["--judge-votes", "0"], "--judge-votes is at least 1"),
        (["--scorer", "magic"], "there is no scorer 'magic'"),
        (["--scorer", "short_scorer:short"], "gives 1 numbers for 4 actions: return one for each action"),
    ],
)
def test_the_command_refuses_what_cannot_be(arguments, sentence, states, tmp_path, monkeypatch, capsys):
    (tmp_path / "short_scorer.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    write_action_values(states, tmp_path / "pairs.jsonl")
    with pytest.raises(SystemExit) as ended:
        main(["credit", "score", str(tmp_path / "pairs.jsonl"), *arguments])
    assert ended.value.code == 2
    assert sentence in " ".join(capsys.readouterr().err.split())


SMALL = BenchOptions(
    groups=2, group_size=3, continuations=8, second=2, learn_groups=2, passes=1, width=0, draws=50, only=("rloo",)
)


def bench_with(warm_oracle: tuple[str, Path], folder: Path, options: BenchOptions) -> Result:
    plain = ("eval.tasks=0", "eval.split=train", "run.steps=0", "env.serve=false", "env.name=oracle", "sft=")
    config = resolve("quickstart", [*plain, f"model.path={warm_oracle[1]}", "rollout.max_length=256"])
    with run.bars() as progress:
        progress.disable = True
        return asyncio.run(bench(config, folder, options, progress))


def knows_the_oracle(system: str, question: str) -> str:
    """A judge that knows the advantages of a policy that says either word of a room."""

    def advantage(line: str, action: str) -> float:
        room = next((room for room in ROOMS if f" {room}" in line), "dark")
        return ADVANTAGE[room] * {0: 1, 1: -1}.get([*ACTIONS[room], action].index(action), 0)

    if "RANKING" in system:
        turns = [line.split("; action: ") for line in question.splitlines() if "; action: " in line]
        worth = [advantage(shown, rest.split('"')[1]) for shown, rest in turns]
        return "RANKING: " + ", ".join(str(i + 1) for i in sorted(range(len(worth)), key=lambda i: -worth[i]))
    shown, action = question.splitlines()[-3:-1]
    return f"SCORE: {10 * advantage(shown, action.split(chr(34))[1])}"


def test_bench_has_rows_of_the_judge(warm_oracle, tmp_path):
    """A judge that knows the advantages is near to the truth; its answers are kept in the run's folder."""
    with JudgeServer(knows_the_oracle) as server:
        more = replace(SMALL, groups=4, group_size=4, continuations=40)
        options = replace(more, judge_url=server.url, judge_model="m")
        result = bench_with(warm_oracle, tmp_path / "run", options)
        requests = len(server.requests)
        rows = {scored.contestant.name: scored for scored in result.scored}
        assert set(rows) == {"rloo", "judge-direct", "judge-ranking"}
        for name, least in (("judge-direct", 0.7), ("judge-ranking", 0.5)):
            assert rows[name].figures["spearman"].value > least
            assert result.signals[name]["unread"] == 0
        assert rows["judge-direct"].figures["sign"].value > 0.8
        assert list((tmp_path / "run" / "judge").rglob("*.json"))
        again = bench_with(warm_oracle, tmp_path / "run", options)
        assert len(server.requests) == requests
        assert {s.contestant.name for s in again.scored} == set(rows)
    record = to_json(result)
    assert record["options"]["judge_model"] == "m"
    judged = next(row for row in record["assigners"] if row["name"] == "judge-direct")
    assert judged["assigner"] == prompted.ASSIGNER


def test_bench_names_a_judge_that_cannot_be_read(warm_oracle, tmp_path):
    with JudgeServer(lambda system, question: "no idea" if "SCORE" in system else 400) as server:
        result = bench_with(warm_oracle, tmp_path / "run", replace(SMALL, judge_url=server.url, judge_model="m"))
    turns = len(
        {body["messages"][1]["content"] for body in server.requests if "SCORE" in body["messages"][0]["content"]}
    )
    assert result.refused == {
        "judge-direct": f"it gives no turn of these any credit; {turns} of its answers could not be read",
        "judge-ranking": result.refused["judge-ranking"],
    }
    assert result.refused["judge-ranking"].startswith("the judge answered none of")


def test_the_bench_command_counts_the_answers(warm_oracle, tmp_path, capsys):
    sizes = ["--groups", "2", "--group-size", "4", "--continuations", "30", "--learn-groups", "2", "--no-gradient"]
    chosen = ["--policy", str(warm_oracle[1]), "--assigner", "rloo", "--out", str(tmp_path / "run"), "env.name=oracle"]
    with JudgeServer(knows_the_oracle) as server:
        main(["credit", "bench", *chosen, *sizes, "--judge", server.url, "--judge-model", "m"])
    printed = capsys.readouterr().out
    requests = sum("RANKING" in body["messages"][0]["content"] for body in server.requests)
    assert 1 <= requests <= 8
    assert f"judge-ranking: {requests} answers (0 from the cache), 0 unread; 0 requests failed" in printed
    with pytest.raises(SystemExit):
        main(["credit", "bench", *chosen, *sizes, "--judge", "http://x/v1"])
    assert "name the model that judges" in capsys.readouterr().err


def test_bench_of_one_assigner_names_no_judge(warm_oracle, tmp_path):
    assert not {"judge-direct", "judge-ranking"} & set(bench_with(warm_oracle, tmp_path / "run", SMALL).refused)
