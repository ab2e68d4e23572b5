"""Questions and answers: the field's formats in, the field's metrics out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym import registry
from agentgym.errors import ConfigError
from agentgym_environments.backends.answers.graders import MATHEMATICS, last_number, score
from agentgym_environments.benchmarks.qa.env import QuestionAnswering
from agentgym_environments.benchmarks.qa.make_tasks import problems
from agentgym_environments.tasks.questions import boxed, questions
from agentgym_environments.tasks.records import read_records

# One record each, with the fields that the data set publishes and words of our own.
OFFICIAL = {
    "gsm8k": {
        "question": "Ann has 3 nets of 4 balls. How many balls are that?",
        "answer": "3 nets hold 3*4=<<3*4=12>>12 balls.\n#### 12",
    },
    "math": {
        "problem": "What is $1/4 + 1/4$?",
        "level": "Level 1",
        "type": "Prealgebra",
        "solution": "We add them, $\\frac14+\\frac14=\\boxed{\\frac{1}{2}}$.",
    },
    "math-500": {
        "problem": "Find $x$ with $2x=6$.",
        "solution": "$x=\\boxed{3}$",
        "answer": "3",
        "subject": "Algebra",
        "level": 1,
        "unique_id": "test/algebra/1.json",
    },
    "aime": {"ID": "2025-I-1", "Problem": "What is $10\\cdot 20+4$?", "Solution": "Add.", "Answer": 204},
    "hotpotqa": {
        "_id": "5a7a",
        "question": "In which country is the town where Ann was born?",
        "answer": "Norway",
        "type": "bridge",
        "level": "hard",
        "supporting_facts": [["Ann", 0], ["Moss", 0]],
        "context": [["Ann", ["Ann was born in Moss.", " She sang."]], ["Moss", ["Moss is a town in Norway."]]],
    },
    "hotpotqa-parquet": {
        "id": "5a7b",
        "question": "Where was Ann born?",
        "answer": "Moss",
        "type": "bridge",
        "level": "easy",
        "supporting_facts": {"title": ["Ann"], "sent_id": [0]},
        "context": {"title": ["Ann"], "sentences": [["Ann was born in Moss."]]},
    },
    "2wikimultihopqa": {
        "_id": "61a4",
        "type": "comparison",
        "question": "Who is older, Ann or Bo?",
        "context": [["Ann", ["Ann was born in 1950."]], ["Bo", ["Bo was born in 1960."]]],
        "supporting_facts": [["Ann", 0], ["Bo", 0]],
        "evidences": [["Ann", "date of birth", "1950"]],
        "answer": "Ann",
    },
    "musique": {
        "id": "2hop__1_2",
        "paragraphs": [
            {"idx": 0, "title": "Ann", "paragraph_text": "Ann sings for the Larks.", "is_supporting": True},
            {"idx": 1, "title": "Larks", "paragraph_text": "The Larks are from Oslo.", "is_supporting": True},
        ],
        "question": "Where is Ann's band from?",
        "question_decomposition": [{"id": 1, "question": "Ann >> band", "answer": "Larks"}],
        "answer": "Oslo",
        "answer_aliases": ["Kristiania"],
        "answerable": True,
    },
    "nq-open": {"question": "who sings for the larks", "answer": ["Ann", "Ann Berg"]},
    "flashrag": {"id": "test_0", "question": "who sings?", "golden_answers": ["Ann"]},
    "squad": {
        "id": "56be",
        "title": "Larks",
        "context": "Ann sings.",
        "question": "Who sings?",
        "answers": {"text": ["Ann"], "answer_start": [0]},
    },
    "mmlu": {
        "question": "Which is a bird?",
        "subject": "zoology",
        "choices": ["cod", "lark", "elm", "ant"],
        "answer": 1,
    },
    "arc": {
        "id": "Mercury_1",
        "question": "Which is a tree?",
        "choices": {"text": ["cod", "lark", "elm"], "label": ["1", "2", "3"]},
        "answerKey": "3",
    },
    "own": {"question": "Is water wet?", "answer": "yes"},
}
ANSWERS = {
    "gsm8k": ("12", "13"),
    "math": ("0.5", "0.25"),
    "math-500": ("x = 3", "4"),
    "aime": ("204", "24"),
    "hotpotqa": ("Norway.", "Sweden"),
    "hotpotqa-parquet": ("moss", "Oslo"),
    "2wikimultihopqa": ("Ann", "Bo"),
    "musique": ("Kristiania", "Bergen"),
    "nq-open": ("ann berg", "Berg"),
    "flashrag": ("Ann", "Bo"),
    "squad": ("Ann", "sings"),
    "mmlu": ("B", "A"),
    "arc": ("(C) elm", "3"),
    "own": ("Yes", "no"),
}


@pytest.fixture(scope="module", autouse=True)
def no_process_stays():
    yield
    MATHEMATICS.close()


def file_of(folder: Path, *records: dict) -> str:
    path = folder / "questions.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return str(path)


@pytest.mark.parametrize("name", OFFICIAL)
def test_a_record_of_a_data_set_is_graded(tmp_path, name):
    if name in ("math", "math-500", "aime"):
        pytest.importorskip("math_verify", reason="math-verify is not installed: pip install 'turngym[math]'")
    right, wrong = ANSWERS[name]
    env = QuestionAnswering(test=file_of(tmp_path, OFFICIAL[name]))
    for answer, reward in ((right, 1.0), (wrong, 0.0)):
        question, _ = env.reset(options={"split": "test", "task": 0})
        for secret in ("####", "boxed", "Kristiania", "supporting"):
            assert secret not in question
        assert env.step(answer)[1:3] == (reward, True)


def test_paragraphs_are_shown_with_context(tmp_path):
    source = file_of(tmp_path, OFFICIAL["musique"])
    bare, _ = QuestionAnswering(test=source).reset(options={"split": "test", "task": 0})
    full, _ = QuestionAnswering(test=source, context=True).reset(options={"split": "test", "task": 0})
    assert bare == OFFICIAL["musique"]["question"]
    assert full == f"Ann: Ann sings for the Larks.\n\nLarks: The Larks are from Oslo.\n\n{bare}"


@pytest.mark.parametrize("suffix", ["jsonl", "json", "data.json", "parquet", "arrow"])
def test_every_kind_of_file_has_the_same_records(tmp_path, suffix):
    records = [
        {"id": "a", "question": "1+1?", "answers": ["2", "two"]},
        {"id": "b", "question": "2+2?", "answers": ["4"]},
    ]
    path = tmp_path / f"x.{suffix}"
    if suffix == "jsonl":
        path.write_text("\ufeff" + "\n\n".join(map(json.dumps, records)), encoding="utf-8")
    elif suffix == "json":
        path.write_text(json.dumps(records))
    elif suffix == "data.json":
        path.write_text(json.dumps({"version": "1", "data": records}))
    else:
        pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'turngym[data]'")
        table = pyarrow.Table.from_pylist(records)
        if suffix == "parquet":
            pytest.importorskip("pyarrow.parquet").write_table(table, path)
        else:
            with pytest.importorskip("pyarrow.ipc").new_stream(path, table.schema) as writer:
                writer.write_table(table)
    assert read_records(str(path)) == records


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.jsonl", '{"question": 1}\n{', "line 2 is not JSON"),
        ("a.jsonl", "[1]", "record 1: an object is expected, not list"),
        ("a.jsonl", "\n", "has no records"),
        ("a.json", '{"a": 1}', "an object with 0 arrays"),
        ("a.json", "3", "should be an array"),
        ("a.csv", "x", "is none of .jsonl"),
        ("a.jsonl", '{"text": "?"}', r"its fields \(text\) are of no known format"),
        ("a.jsonl", '{"question": " ", "answer": "1"}', "its question is empty"),
        ("a.jsonl", '{"question": "?", "answer": ""}', "it has no answer"),
        ("a.jsonl", '{"question": "?", "answer": null}', "no known format"),
        ("a.jsonl", '{"question": "?", "choices": ["a"], "answer": 3}', "record 1 is no question of MMLU"),
        ("a.jsonl", '{"problem": "?", "solution": "none"}', "no ..?boxed answer"),
        ("a.jsonl", '{"question": "?", "answer": "1", "grader": "vibes"}', "no grader 'vibes'"),
        ("a.jsonl", '{"id": 1, "question": "?", "answer": "1"}\n' * 2, "two tasks with the id '1'"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path, name, content, problem):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ConfigError, match=problem):
        QuestionAnswering(test=str(path))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="there is no file"):
        registry.make(f"qa:test={tmp_path}/none.jsonl")


@pytest.mark.parametrize(
    ("kind", "answer", "right", "expected"),
    [
        ("number", "It costs $1,234.50.", "1234.5", 1),
        ("number", "\u22125", "-5", 1),
        ("number", "12 or 13", "12", 0),
        ("number", "none", "0", 0),
        ("number", "1 234 plums", "1234", 1),
        ("number", "1{,}234{,}567", "1234567", 1),
        ("number", r"1\,234", "1234", 1),
        ("number", "1\u202f234.5", "1234.5", 1),
        ("number", "1’234", "1234", 1),
        ("number", "1 2", "12", 0),
        ("number", "1 2345", "12345", 0),
        ("number", "2024 100", "100", 1),
        ("number", "1,234 567", "1234567", 0),
        ("number", "1e999999999", "3", 0),
        ("text", "the Eiffel tower!", "Eiffel Tower", 1),
        ("text", "no", "yes", 0),
        ("text", "yes, it is", "yes", 0),
        ("text", "Paris or Rome", "Paris", 0.5),
    ],
)
def test_scores(kind, answer, right, expected):
    assert score(answer, {"kind": kind, "answers": [right]}) == pytest.approx(expected)


@given(st.text(max_size=200), st.sampled_from(["number", "text"]))
def test_any_answer_has_a_score(answer, kind):
    assert 0 <= score(answer, {"kind": kind, "answers": ["7"]}) <= 1


@given(st.integers(-(10**12), 10**12))
def test_thousands_may_be_separated(number):
    assert last_number(f"It is {number:,}.") == last_number(str(number)) == number


@pytest.mark.parametrize("answer", ["10^{10^{10^{10^{10}}}}", "(" * 3000, "\\frac{" * 500, "$x$" * 900])
def test_mathematics_that_hangs_is_wrong(answer):
    pytest.importorskip("math_verify", reason="math-verify is not installed: pip install 'turngym[math]'")
    assert score(answer, {"kind": "math", "answers": ["3"]}) == 0
    assert score("3", {"kind": "math", "answers": ["3"]}) == 1


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        ("-1", "-1", 1),
        ("-1", "1", 0),
        ("1.5", "15", 0),
        ("+", "+", 1),
        ("+", "-", 0),
        ("+", "", 0),
        ("Aa", "AA", 0),
        ("A", "A", 0),  # the letter of another choice
        ("A", "B. A", 1),
        ("The Arctic tern", "arctic tern.", 1),
        ("The Arctic tern", "**B**", 1),
        ("x + 1", "`x + 1`", 1),
    ],
)
def test_a_choice_is_its_letter_or_its_own_text(text, answer, expected):
    assert score(answer, {"kind": "choice", "answers": ["B"], "text": text, "choices": 4}) == expected


@pytest.mark.parametrize("answer", [r"\$18.90", "$18.90", "18.90", r"$\$18.90$", r"\boxed{\$18.90}", "**18.90**"])
def test_a_price_in_latex_can_be_answered(answer):
    pytest.importorskip("math_verify", reason="math-verify is not installed: pip install 'turngym[math]'")
    assert score(answer, {"kind": "math", "answers": [r"\$18.90"]}) == 1
    assert score(answer, {"kind": "math", "answers": [r"\$18.91"]}) == 0


@pytest.mark.parametrize(
    "answer",
    [
        r"\[ 3\sqrt{2} \]",
        r"\(3\sqrt{2}\)",
        "\\[\n3\\sqrt{2}\n\\]",
        r"so \[x = 3\sqrt{2}\]",
        r"\begin{align*}x&=\sqrt{18}\\&=3\sqrt{2}\end{align*}",
        r"\begin{equation}3\sqrt{2}\end{equation}",
        r"\[\begin{aligned}x&=3\sqrt{2}\end{aligned}\]",
        r"3\sqrt{2}",
    ],
)
def test_mathematics_may_have_its_own_delimiters(answer):
    pytest.importorskip("math_verify", reason="math-verify is not installed: pip install 'turngym[math]'")
    assert score(answer, {"kind": "math", "answers": [r"3\sqrt{2}"]}) == 1
    assert score(answer, {"kind": "math", "answers": [r"3\sqrt{3}"]}) == 0


def test_boxed_answers():
    assert boxed(r"so \boxed{\frac{1}{2}} and then \boxed{\sqrt{2}}.") == r"\sqrt{2}"
    assert boxed(r"so \boxed 7.") == "7"


def test_own_questions_are_what_the_script_makes():
    env = QuestionAnswering()
    for split, records in problems().items():
        assert env.env_spec.splits[split] == len(records)
        assert [record["question"] for record in records] == [
            env.tasks[split, place].prompt for place in range(len(records))
        ]


def test_the_spec_says_which_tasks_it_has(tmp_path):
    source = file_of(tmp_path, OFFICIAL["own"])
    spec = registry.get_spec(f"qa:test={source}")
    assert spec.splits == {"test": 1}
    assert spec.task_set.startswith("sha256:")
    assert spec.task_set != registry.make("qa").env_spec.task_set


def test_records_are_read_in_their_order():
    records = [{"question": str(number), "answer": str(number)} for number in range(20)]
    assert [task.id for task in questions(records, "x")] == [str(number) for number in range(20)]
