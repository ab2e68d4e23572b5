"""swe: how hidden tests are rewritten, varied and compared; no sandbox is needed."""

from __future__ import annotations

import ast
import random
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentgym_environments.synthetic.swe.grading import make_reference, observer
from agentgym_environments.synthetic.swe.grading.checks import CheckRewriter
from agentgym_environments.synthetic.swe.grading.make_reference import agreed
from agentgym_environments.synthetic.swe.grading.observations import END, digest
from agentgym_environments.synthetic.swe.grading.reference import Reference, as_json, from_json
from agentgym_environments.synthetic.swe.grading.template import draw, make_template
from agentgym_environments.synthetic.swe.grading.vary import variant
from agentgym_environments.synthetic.swe.grading.verdict import compare, decide, junit_name, plain_name
from agentgym_environments.synthetic.swe.source import PackageSource

REWRITTEN = {
    "assert f(3) == 4": "o.operand('@0', f(3))",
    "assert 'x' * 3 != f(3)": "o.operand('@0', f(3))",
    "assert f(3) is None": "o.operand('@0', f(3))",
    "assert f(3) == pytest.approx(4.5)": "o.operand('@0', f(3))",
    "assert f(3) == g(4)": "o.compare('@0', ('==',), f(3), g(4))",
    "assert 3 in f(3)": "o.compare('@0', ('in',), 3, f(3))",
    "assert not f(3)": "o.call('@0', f, 3)",
    "assert x.done": "o.value('@0', x.done)",
    "self.assertEqual(4, f(3))": "o.operand('@0', f(3))",
    "self.assertIs(f(3), True)": "o.operand('@0', f(3))",
    "self.assertTrue(f(3))": "o.call('@0', f, 3)",
    "self.assertIn(3, f(3))": "o.check('@0', self.assertIn, 3, f(3))",
    "assert_equal('x', f(3))": "o.operand('@0', f(3))",
    "with pytest.raises(KeyError):\n    f(3)": "with o.raises('@0'):\n    f(3)",
    "with pytest.raises(KeyError, match='no'):\n    f(3)": "with o.raises('@0', True):\n    f(3)",
    "with self.assertRaises(KeyError) as e:\n    f(3)": "with o.raises('@0') as e:\n    f(3)",
    "self.assertRaises(KeyError, f, 3)": "o.raising('@0', f, 3)",
    "assert raises(KeyError, lambda: f(3))": "o.call('@0', raises, KeyError, lambda: f(3))",
}


def rewritten(code, kept=()):
    text = ast.unparse(CheckRewriter(kept, 0, set()).visit(ast.parse(code)))
    return text.replace("observer_module_", "o").replace("@point:", "@")


@pytest.mark.parametrize("code", REWRITTEN)
def test_checks_report_and_expected_literals_are_gone(code):
    assert rewritten(code) == REWRITTEN[code]


def test_names_that_stand_for_literals_are_gone():
    code = "def test():\n    expected = 'a' * 3\n    assert f() == expected"
    assert rewritten(code) == "def test():\n    pass\n    o.operand('@0', f())"
    used = "def test():\n    expected = 'a' * 3\n    assert f(expected) == expected"
    assert "expected = 'a' * 3" in rewritten(used)
    rows = "@pytest.mark.parametrize('a, b', [(1, 2), (3, 4)])\ndef test(a, b):\n    assert f(a) == b"
    assert "[(1, None), (3, None)]" in rewritten(rows)


def test_a_literal_stays_where_the_other_side_does_not_say_all():
    assert rewritten("assert f(3) == 4", kept={0}) == "o.compare('@0', ('==',), f(3), 4)"


def test_variants_are_other_programs():
    test = ast.parse("def test():\n    assert f(3, 'abc') == 4").body[0]
    texts = {ast.unparse(variant(test, random.Random(i))) for i in range(9)}
    assert len(texts) > 3
    assert ast.unparse(test) not in texts
    steps = ast.parse("def test():\n    a.begin()\n    assert a.x").body[0]
    assert len(variant(steps, random.Random(1)).body) in (1, 3)
    assert variant(ast.parse("def test():\n    assert f(x)").body[0], random.Random(1)) is None


HIDDEN = {
    "tests/test_a.py": b"import a\n\n\ndef test_one_thing():\n    assert a.f(1) == 2\n\n\nclass TestB:\n    x = 3\n"
    b"    def test_other_thing(self):\n        assert a.g('x') == a.g('y')\n",
    "tests/data.txt": b"x",
}


def test_each_script_has_names_keys_and_an_order_of_its_own():
    template = make_template(HIDDEN, "seed")
    assert template.variants() == {(name, i) for name in template.names for i in range(4)}
    one, other = (draw(template, template.variants(), "/tmp/c", random.Random(i)) for i in range(2))
    assert not one.keys.keys() & other.keys.keys()
    assert sorted(one.keys.values()) == sorted(other.keys.values())
    assert one.plugin != other.plugin
    text = one.files["tests/test_a.py"].decode()
    ast.parse(text)
    assert "test_one_thing" not in text.replace("test_one_thing_", "") or one.names.get("test_one_thing")
    assert len(re.findall("def test_", text)) == 8
    drawn = next(name for name, test in one.names.items() if test == ("test_other_thing", 2))
    assert one.identity(f"tests/test_a.py::TestB::{drawn}") == ("tests/test_a.py::TestB::test_other_thing", 2)
    assert one.files["tests/data.txt"] == b"x"
    few = draw(template, (), "/tmp/c", random.Random(0)).files["tests/test_a.py"].decode()
    assert len(re.findall("def test_", few)) == 2


def test_a_fix_is_solved_when_all_that_counts_is_the_same():
    real, planted, flaky = ("t.py::test_a", 0), ("t.py::test_a", 1), ("t.py::test_b", 0)
    runs = [{real: {0: ["1", "2"], 1: [str(i)]}, planted: {2: ["3"]}, flaky: {3: ["x"]}} for i in range(3)]
    expected = {test: agreed([run[test] for run in runs]) for test in runs[0]}
    assert expected[real] == {0: digest(["1", "2"]), 1: ""}
    reference = Reference(make_template(HIDDEN, "seed"), expected)
    assert from_json(as_json(reference)) == reference
    ended = {**runs[0], real: {**runs[0][real], 0: ["another day"], END: ["call passed"]}}
    assert reference.unchanged(ended).expected[real] == {0: "", 1: "", END: ""}
    assert reference.unchanged({real: {0: ["cut"]}}) == reference

    def solved(found, chosen=frozenset({("test_a", 1)}), unstable=frozenset()):
        return compare(reference, found, set(chosen), frozenset(unstable)).solved

    assert solved(runs[0])
    assert not solved({})
    assert not solved({**runs[0], planted: {2: ["4"]}})
    assert solved({**runs[0], planted: {2: ["4"]}}, chosen=())
    assert not solved({**runs[0], real: {0: ["1"]}})
    assert not solved({**runs[0], real: {0: ["1", "2"], 9: ["more"]}})
    assert not solved({real: runs[0][real], planted: runs[0][planted]})
    assert solved({real: runs[0][real], planted: runs[0][planted]}, unstable=["t::test_b"])


def test_a_timeout_elsewhere_does_not_undo_a_fix():
    """A test of sockets timed out once in sixty runs, of the package without a bug too: then a right fix was wrong."""
    finder, sockets = ("t.py::test_a", 0), ("t.py::test_b", 0)
    right = {finder: {0: ["1"]}, sockets: {1: ["2"], END: ["call passed"]}}
    late = {**right, sockets: {END: ["call Timeout"]}}
    wrong = {**right, finder: {0: ["0"]}}
    expected = {test: agreed([right[test]] * 3) for test in right}
    reference = Reference(make_template(HIDDEN, "seed"), expected)

    def solved(found, control=right, more=()):
        runs = iter(more)
        verdict = decide(reference, found, set(), ["t::test_a"], [], lambda: control, lambda: next(runs))
        assert next(runs, None) is None
        return verdict.solved

    assert solved(right)
    assert solved(late, more=[right])
    assert not solved(late, more=[late])
    assert not solved(late, more=[wrong])
    assert not solved(wrong)
    assert not solved({})
    dated = {**right, sockets: {1: ["today"], END: ["call passed"]}}
    assert solved(dated, control=dated)
    assert solved({**dated, sockets: {1: ["today"], END: ["call Timeout"]}}, control=dated, more=[dated])


def test_names_are_those_of_the_task_files():
    assert junit_name("a/tests/test_x.py::TestB::test_c") == "a.tests.test_x.TestB::test_c"
    assert plain_name("tests.test_a::test_b[1[\n]") == "tests.test_a::test_b"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (True, "True"),
        (0.1 + 0.2, "0.3"),
        ("é", '"\\u00e9"'),
        (b"a", "b61"),
        ({"b": 1, "a": [None, (1,)]}, '{"a": [None, (1)], "b": 1}'),
        ({3, 1}, "{1, 3}"),
        (ValueError("x"), "<ValueError>"),
        (int, "<type int>"),
        (object(), "<object>"),
    ],
)
def test_values_are_written_as_what_they_are(value, text):
    assert observer.plain(value) == text


def test_an_object_that_lies_is_written_by_its_type():
    lies = {"__eq__": lambda self, other: True, "__hash__": int.__hash__, "__repr__": lambda self: "2"}
    lying = type("Lying", (int,), {**lies, "__class__": property(lambda self: str)})
    assert observer.plain(lying(5)) == "Lying:5"


def test_texts_of_large_and_endless_values_end():
    endless: list = []
    endless.append(endless)
    assert len(observer.short(observer.plain(endless))) < 100
    assert len(observer.plain(list(range(100_000)))) < 20_000
    assert observer.short("a" * 1_000_000).startswith("#")


def test_a_reference_is_made_once_however_many_want_it(tmp_path, monkeypatch):
    """Workers that judged their first fix at the same time each ran the tests, until a step's deadline passed."""
    package = PackageSource({}, {"test_it.py": b"def test(): assert f(3) == 4"}, "", "thing/")
    made = []

    def make(package, cache, backend):
        made.append(cache)
        time.sleep(0.3)
        return Reference(make_template(package.hidden, "seed"), {})

    monkeypatch.setattr(make_reference, "make_reference", make)
    uncached = make_reference.reference.__wrapped__
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: uncached(package, tmp_path), range(4)))
    assert len(made) == 1
    assert found == [found[0]] * 4
    nowhere = tmp_path / "file"
    nowhere.write_text("no folder can be made here")
    assert uncached(package, nowhere) == found[0]
