"""Programming tasks: the formats of HumanEval and MBPP in, answers in many wordings, values that keep their types."""

from __future__ import annotations

import gzip
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym import registry
from agentgym.errors import BadRequest, ConfigError
from agentgym_environments.benchmarks.code import admit, grader
from agentgym_environments.benchmarks.code.env import OWN, Code
from agentgym_environments.benchmarks.code.programs.values import NotData, decode, encode
from agentgym_environments.benchmarks.code.readings import LONGEST, readings
from agentgym_environments.tasks.code import code_tasks
from agentgym_environments.tasks.records import read_records

from .code_attacks import HUMANEVAL, MBPP, NODES

BODY = "    return sorted(words, key=lambda word: (len(word), word))"
FUNCTION = f"def tally(words):\n{BODY}"
LONG_BODY = "    def key(word):\n        return (len(word), word)\n\n    return sorted(words, key=key)"
FENCE = "```"
MODULES = {
    "bare": FUNCTION,
    "fenced": f"{FENCE}python\n{FUNCTION}\n{FENCE}",
    "fenced_without_language": f"{FENCE}\n{FUNCTION}\n{FENCE}",
    "fenced_capital": f"{FENCE}Python\n{FUNCTION}\n{FENCE}",
    "fenced_py_with_title": f'{FENCE}py title="a.py"\n{FUNCTION}\n{FENCE}',
    "tildes": f"~~~python\n{FUNCTION}\n~~~",
    "four_backticks": f"{FENCE}`python\n{FUNCTION}\n{FENCE}`",
    "fence_that_stays_open": f"Here it is:\n{FENCE}python\n{FUNCTION}",
    "text_around_fence": f"We sort by a key.\n\n{FENCE}python\n{FUNCTION}\n{FENCE}\n\nThis takes O(n log n).",
    "fence_in_a_list": f"1. Sort:\n   {FENCE}python\n"
    + "".join(f"   {line}\n" for line in FUNCTION.split("\n"))
    + f"   {FENCE}\n",
    "usage_in_another_block": f"{FENCE}python\n{FUNCTION}\n{FENCE}\nUse:\n{FENCE}python\nprint(tally(['b']))\n{FENCE}",
    "session_in_another_block": f"{FENCE}python\n{FUNCTION}\n{FENCE}\n{FENCE}python\n>>> tally(['b'])\n['b']\n{FENCE}",
    "shell_block_first": f"{FENCE}bash\npip install nothing\n{FENCE}\n{FENCE}python\n{FUNCTION}\n{FENCE}",
    "helper_in_another_block": f"{FENCE}python\ndef key(word):\n    return len(word), word\n{FENCE}\nThen\n"
    f"{FENCE}python\ndef tally(words):\n    return sorted(words, key=key)\n{FENCE}",
    "corrected_in_the_last_block": f"{FENCE}python\ndef tally(words):\n    return words\n{FENCE}\nWrong. Better:\n"
    f"{FENCE}python\n{FUNCTION}\n{FENCE}",
    "thought_first": f"<think>\n{FENCE}python\ndef tally(words): return 0\n{FENCE}\n</think>\n{FUNCTION}",
    "windows_lines": FUNCTION.replace("\n", "\r\n"),
    "tabs": FUNCTION.replace("    ", "\t"),
    "indented": "".join(f"    {line}\n" for line in FUNCTION.split("\n")),
    "text_around_bare": f"Sure, here is the function:\n\n{FUNCTION}\n\nIt sorts by two keys (length, then letters).",
    "text_before_import": f"Answer.\nimport math\n{FUNCTION}\nGood luck!",
    "types": f"from typing import List\n\n\ndef tally(words: List[str]) -> List[str]:\n{BODY}",
    "future": f"from __future__ import annotations\n\n\ndef tally(words: list[Unknown]) -> Unknown:\n{BODY}",
    "lambda": "tally = lambda words: sorted(words, key=lambda word: (len(word), word))",
    "alias": "def order(words):\n" + BODY + "\n\n\ntally = order",
    "method": f"class Solver:\n    @staticmethod\n    def run(words):\n    {BODY}\n\n\ntally = Solver.run",
    "partial": "from functools import partial\ntally = partial(sorted, key=lambda word: (len(word), word))",
    "own_tests": f"{FUNCTION}\n\n\nassert tally(['b', 'a']) == ['a', 'b']\nprint('passed')",
    "own_tests_that_fail": f"{FUNCTION}\n\n\nassert tally(['b', 'a']) == ['b', 'a']",
    "main_guard": f"import sys\n\n{FUNCTION}\n\n\nif __name__ == '__main__':\n    sys.exit(tally(sys.argv) or 1)",
    "reads_input": f"{FUNCTION}\n\n\nprint(tally(input().split()))",
    "exits": f"import sys\n{FUNCTION}\nsys.exit(1)",
    "unittest": f"import unittest\n{FUNCTION}\n\n\nclass T(unittest.TestCase):\n"
    "    def test(self): assert tally([]) == []\n\n\nunittest.main()",
    "prints_in_call": "def tally(words):\n    print('sorting', words)\n" + BODY,
    "docstring_with_fence": f'def tally(words):\n    """Sort.\n\n    {FENCE}x{FENCE} stays.\n    """\n{BODY}',
    "submit_first": f"submit\n{FUNCTION}",
    "dataclass": "from dataclasses import dataclass\n\n\n@dataclass(order=True)\nclass Word:\n"
    "    size: int\n    text: str\n\n\ndef tally(words):\n"
    "    return [word.text for word in sorted(Word(len(w), w) for w in words)]",
    "recursion": "def tally(w):\n    if not w: return []\n    first = min(w, key=lambda x: (len(x), x))\n"
    "    rest = list(w)\n    rest.remove(first)\n    return [first] + tally(rest)",
    "subclass_of_list": f"class Words(list): pass\n\n\ndef tally(words):\n{BODY.replace('sorted', 'Words(sorted')})",
}
BODIES = {
    "indented": BODY,
    "first_line_stripped": BODY.strip(),
    "long": LONG_BODY,
    "long_first_line_stripped": LONG_BODY.strip(),
    "dedented": "\n".join(line.removeprefix("    ") for line in LONG_BODY.split("\n")),
    "fenced": f"{FENCE}python\n{BODY}\n{FENCE}",
    "fenced_stripped": f"{FENCE}\n{LONG_BODY.strip()}\n{FENCE}",
    "goes_on": f"{BODY}\n\n\nprint(tally(['b', 'a']))",
    "goes_on_with_prose": f"{BODY}\n\nThis sorts the words.",
    "prompt_again": HUMANEVAL["prompt"] + BODY,
    "prompt_again_fenced": f"{FENCE}python\n{HUMANEVAL['prompt']}{BODY}\n{FENCE}",
    "comment_first": f"    # by length\n{BODY}",
    "loop_stripped": "out = []\n    for w in sorted(words):\n        out.append(w)\n    return sorted(out, key=len)",
}


def file_of(folder, *records: dict) -> str:
    path = folder / "tasks.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return str(path)


def play(env: Code, answer: str, split: str = "test") -> float:
    env.reset(options={"split": split, "task": 0})
    return env.step(answer)[1]


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> tuple[Code, Code]:
    """Environments of one task each: HumanEval's form, and MBPP's."""
    folders = (tmp_path_factory.mktemp("humaneval"), tmp_path_factory.mktemp("mbpp"))
    return Code(file=file_of(folders[0], HUMANEVAL)), Code(file=file_of(folders[1], MBPP))


@pytest.mark.parametrize("wording", MODULES)
def test_a_right_function_in_any_wording(both, wording):
    assert [play(env, MODULES[wording]) for env in both] == [1.0, 1.0]


@pytest.mark.parametrize("wording", BODIES)
def test_the_rest_of_the_function_in_any_wording(both, wording):
    assert play(both[0], BODIES[wording]) == 1.0


@pytest.mark.parametrize("answer", ["", "  \n", "submit", "run\n"])
def test_no_answer_is_no_valid_action(both, answer):
    both[0].reset(options={"split": "test", "task": 0})
    observation, reward, _, truncated, info = both[0].step(answer)
    assert (reward, truncated, info["valid_action"]) == (0.0, True, False)
    assert observation.startswith("no code: say the code of the function")


@pytest.mark.parametrize("answer", ["\ud800", "\0", f"{FUNCTION}\n#" + "x" * LONGEST, "def tally(words:", "(" * 5000])
def test_an_answer_that_is_no_python_is_wrong(both, answer):
    assert play(both[0], answer) == 0.0


@given(st.text(max_size=300))
def test_any_text_can_be_read(text):
    for reading in readings(text, HUMANEVAL["prompt"]):
        assert reading.source.encode()


DATA = (
    None, True, False, 0, -1, 1 << 5000, 0.5, -0.0, float("inf"), 1j, complex(-0.0, 2), "", "ä\ud800", b"\0\xff",
    bytearray(b"a"), (), (1,), [1, [2]], {1, 2}, frozenset({"a"}), {"a": (1, None)}, {(1, 2): {3}}, range(1, 9, 2),
)  # fmt: skip


@pytest.mark.parametrize("value", DATA, ids=lambda value: f"{value!r}"[:30])
def test_values_keep_their_types(value):
    found = decode(json.loads(json.dumps(encode(value))))
    assert found == value
    assert type(found) is type(value)
    assert str(found) == str(value) if not isinstance(value, int) else True


def test_not_a_number_and_iterators():
    assert math.isnan(decode(encode(float("nan"))))
    found = decode(encode(iter([1, 2])))
    assert next(found) == 1
    assert list(found) == [2]


@pytest.mark.parametrize("value", [object(), print, int, [object()], {1: lambda: 0}, ValueError("x")])
def test_other_values_are_not_sent(value):
    with pytest.raises(NotData):
        encode(value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(st.sampled_from("lstzndifcbaro"), inner).map(list),
)


@given(JSON)
def test_what_is_decoded_has_built_in_types(value):
    try:
        found = decode(value)
    except (ValueError, TypeError, OverflowError):
        return
    assert type(found).__module__ == "builtins"


@pytest.mark.parametrize(
    ("line", "examples"),
    [
        (">>> tally(['b'])\n    ['b']", [["tally(['b'])", "['b']"]]),
        ("tally(['b']) == ['b']", [["tally(['b'])", "['b']"]]),
        ("For example: tally(['b', ')']) ➞ ['b', ')'].", [["tally(['b', ')'])", "['b', ')']"]]),
        ("* tally([]) => []  # none", [["tally([])", "[]"]]),
        ("tally(['a']) should return ['a']", [["tally(['a'])", "['a']"]]),
        ("tally(words) = words", []),
        ("total(['a']) == 3, and tally is not called", []),
        (">>> tally([])\n    >>> tally([", []),
    ],
)
def test_examples_of_a_docstring(line, examples):
    record = {**HUMANEVAL, "prompt": f'def tally(words):\n    """Sort.\n\n    {line}\n    """\n'}
    [[task]] = code_tasks([record], "x").values()
    assert task.setup["examples"] == examples


def test_splits_of_mbpp_are_as_published():
    numbers = (1, 10, 11, 510, 511, 600, 601, 974)
    splits = code_tasks([{**MBPP, "task_id": number} for number in numbers], "x")
    found = {split: [int(task.id) for task in tasks] for split, tasks in splits.items()}
    assert found == {"prompt": [1, 10], "test": [11, 510], "validation": [511, 600], "train": [601, 974]}


def test_the_sanitized_form_and_packed_files(tmp_path):
    sanitized = {
        "source_file": "Benchmark Questions Verification V2.ipynb",
        "task_id": 602,
        "prompt": "Write a function to find the area of a circle.",
        "code": "import math\ndef area(r):\n  return math.pi * r ** 2",
        "test_imports": ["import math"],
        "test_list": ["assert math.isclose(area(1), 3.14159, rel_tol=0.001)", "assert area(0) == 0"],
    }
    path = tmp_path / "sanitized-mbpp.json"
    path.write_text(json.dumps([sanitized]))
    assert play(Code(file=str(path)), sanitized["code"], "train") == 1.0
    packed = tmp_path / "HumanEval.jsonl.gz"
    packed.write_bytes(gzip.compress(json.dumps(HUMANEVAL).encode()))
    assert play(Code(file=str(packed)), FUNCTION) == 1.0
    packed.write_bytes(b"x")
    with pytest.raises(ConfigError, match="cannot be unpacked"):
        Code(file=str(packed))


def test_tests_may_use_imports_of_the_solution(tmp_path):
    record = {
        **MBPP,
        "code": "import math\ndef area(r):\n  return math.pi * r ** 2",
        "test_list": ["assert math.isclose(area(1), 3.1416, rel_tol=0.001)", "assert area(0) == 0"],
    }
    assert play(Code(file=file_of(tmp_path, record)), "def area(r): return 3.14159 * r * r") == 1.0


def test_objects_of_the_answer_stay_where_it_is(tmp_path):
    env = Code(file=file_of(tmp_path, NODES))
    assert play(env, NODES["code"]) == 1.0
    assert play(env, "class Node:\n    def __init__(self, data): pass\n\n\ndef tally(node): return 3") == 0.0


@pytest.mark.parametrize("shown", [1, 3])
def test_an_mbpp_task_shows_some_of_its_tests(tmp_path, shown):
    env = Code(file=file_of(tmp_path, MBPP), shown=shown)
    observation, _ = env.reset(options={"split": "test", "task": 0})
    assert observation.startswith(MBPP["text"])
    assert [test in observation for test in MBPP["test_list"]] == [True, shown == 3, shown == 3]
    assert "tally([])" not in observation
    assert "lambda" not in observation


def test_a_wrong_answer_gets_no_word_about_the_tests(both):
    for env in both:
        env.reset(options={"split": "test", "task": 0})
        assert env.step("def tally(words): return 0")[0] == "not all tests pass"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"test": ""}, "are neither HumanEval's"),
        ({"entry_point": "other"}, "record 1 is no task: its prompt has no function other"),
        ({"prompt": "def tally(:"}, "record 1 is no task: invalid syntax"),
        ({"test": "assert True"}, "its test has no function check"),
        ({"canonical_solution": "  return (\n"}, "record 1 is no task"),
        ({"prompt": 3}, "code is text, not int"),
    ],
)
def test_a_wrong_record_says_what_is_wrong(tmp_path, change, problem):
    with pytest.raises(ConfigError, match=problem):
        Code(file=file_of(tmp_path, {**HUMANEVAL, **change}))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"test_list": []}, "are neither HumanEval's"),
        ({"test_list": ["assert 1 == 1"]}, "its tests call no function of its code"),
        ({"test_list": ["tally([])"]}, "ends with no assertion"),
        ({"code": "def"}, "record 1 is no task"),
    ],
)
def test_a_wrong_mbpp_record_says_what_is_wrong(tmp_path, change, problem):
    with pytest.raises(ConfigError, match=problem):
        Code(file=file_of(tmp_path, {**MBPP, **change}))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"file": 3}, "file is the name of a file, not 3"),
        ({"shown": 0}, "shown is a whole number of at least 1"),
        ({"judge_s": 0}, "judge_s is a number of seconds up to 60, not 0"),
        ({"file": "none.jsonl"}, "there is no file none.jsonl"),
    ],
)
def test_wrong_arguments(options, problem):
    with pytest.raises(ConfigError, match=problem):
        Code(**options)


def test_a_task_whose_solution_fails_is_not_played(tmp_path):
    env = Code(file=file_of(tmp_path, {**HUMANEVAL, "canonical_solution": "    return words\n"}))
    with pytest.raises(ConfigError, match="Stand/0 is not played: its solution does not pass its tests: Assertion"):
        env.reset(options={"split": "test", "task": 0})


def test_a_task_that_an_empty_body_passes_is_not_played(tmp_path, capsys):
    record = {**HUMANEVAL, "test": "def check(candidate):\n    assert candidate(['a']) != 3\n"}
    source = file_of(tmp_path, record, {**HUMANEVAL, "task_id": "Stand/2"})
    with pytest.raises(ConfigError, match="Stand/0 is not played: an empty body passes its tests"):
        Code(file=source).reset(options={"split": "test", "task": 0})
    assert admit.main(source) == 1
    out = capsys.readouterr().out
    assert out == "test Stand/0: an empty body passes its tests\ntest Stand/2: admitted\n"


def test_tests_that_call_nothing_pass_nobody(tmp_path):
    env = Code(file=file_of(tmp_path, {**HUMANEVAL, "test": "def check(candidate):\n    pass\n"}))
    with pytest.raises(ConfigError, match="the tests call nothing"):
        env.reset(options={"split": "test", "task": 0})


def test_a_solution_without_end_is_an_error_each_time():
    record = {**HUMANEVAL, "task_id": "Stand/endless", "canonical_solution": "    while True:\n        pass\n"}
    [[task]] = code_tasks([record], "x").values()
    before = grader._admit.cache_info().currsize
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"Stand/endless: its solution came to no end in 0\.5 s: correct it, or"):
            grader.admit(task, timeout_s=0.5)
    assert grader._admit.cache_info().currsize == before


def test_every_task_of_ours_is_admitted():
    tasks = code_tasks(read_records(str(OWN)), str(OWN))
    assert {split: len(those) for split, those in tasks.items()} == {"train": 20, "test": 10}
    assert [grader.admit(task).problem for those in tasks.values() for task in those] == [""] * 30
    assert len({task.prompt for those in tasks.values() for task in those}) == 30


@pytest.fixture
def turns():
    env = registry.make("code-turns")
    env.reset(options={"split": "test", "task": 1})
    return env


def test_examples_are_run_before_code_is_submitted(turns):
    wrong = "run\ndef column_name(number):\n    print('number', number)\n    return chr(64 + number)"
    observation, reward, terminated, _, info = turns.step(wrong)
    assert observation.split("\n")[:3] == [r"column_name(28): gave '\\', not 'AB'", "column_name(3): right", "output:"]
    assert "number 28" in observation
    assert (reward, terminated, info["valid_action"]) == (0.0, False, True)
    observation, *_ = turns.step("```python\ndef column_name(number):\n    raise KeyError(number)\n```")
    assert observation == "column_name(28): raised KeyError: '28'\ncolumn_name(3): raised KeyError: '3'"
    assert turns.step(f"submit\n{turns.task.grader['solution']}")[:3] == ("all tests pass", 1.0, True)


def test_submit_alone_is_for_the_code_that_ran_last(turns):
    assert turns.step("submit")[4]["valid_action"] is False
    turns.step(f"run\n{turns.task.grader['solution']}")
    assert turns.step("submit")[1:3] == (1.0, True)


def test_the_code_of_the_last_turn_is_submitted(turns):
    for _ in range(turns.env_spec.max_turns - 1):
        assert turns.step("say what?")[1] == 0.0
    assert turns.step(f"run\n{turns.task.grader['solution']}")[1:3] == (1.0, True)


def test_a_snapshot_keeps_the_code(turns):
    turns.step(f"run\n{turns.task.grader['solution']}")
    copy = registry.make("code-turns")
    copy.restore(turns.snapshot())
    assert copy.observe() == turns.observe()
    assert copy.step("submit")[1] == 1.0
    with pytest.raises(BadRequest):
        copy.restore(b"{}")


def test_examples_that_a_docstring_gets_wrong_are_not_run(tmp_path):
    prompt = HUMANEVAL["prompt"].replace(">>> tally", ">>> tally(['d'])\n    ['c']\n    >>> tally")
    env = Code(file=file_of(tmp_path, {**HUMANEVAL, "prompt": prompt}), turns=True)
    env.reset(options={"split": "test", "task": 0})
    assert len(env.task.setup["examples"]) == 2
    assert env.step(f"run\n{FUNCTION}")[0] == 'tally(["bb", "a"]): right'


def test_code_without_examples_is_run_all_the_same(tmp_path):
    prompt = HUMANEVAL["prompt"].replace(">>> tally", "See tally")
    env = Code(file=file_of(tmp_path, {**HUMANEVAL, "prompt": prompt}), turns=True)
    env.reset(options={"split": "test", "task": 0})
    assert env.step(f"run\n{FUNCTION}")[0] == "callable(tally): right"


def test_code_that_does_not_end_is_stopped(tmp_path):
    env = Code(file=file_of(tmp_path, HUMANEVAL), turns=True, judge_s=0.5)
    env.reset(options={"split": "test", "task": 0})
    endless = "run\ndef tally(words):\n    while True: pass"
    assert env.step(endless)[0] == 'tally(["bb", "a"]): it has ended (time)'
    assert env.step("submit")[:3] == ("not all tests pass", 0.0, True)
