"""Rewards without the work: every way tried here ends in a reward of 0, and none in an episode that is not scored."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from agentgym import registry
from agentgym.errors import EnvironmentCrashed
from agentgym_environments.base.grading import run_submission
from agentgym_environments.synthetic.research import grader as research
from agentgym_environments.synthetic.research.tasks import task as research_task
from agentgym_environments.synthetic.swe import source as sources
from agentgym_environments.synthetic.swe.grader import judge
from agentgym_environments.synthetic.swe.grading.make_reference import reference
from agentgym_environments.synthetic.swe.grading.observations import read_log
from agentgym_environments.synthetic.swe.grading.template import Script
from agentgym_environments.synthetic.swe.tasks import of_split, suites

here = importlib.util.spec_from_file_location("grading_attacks", Path(__file__).with_name("grading_attacks.py"))
assert here is not None
assert here.loader is not None
attacks = importlib.util.module_from_spec(here)
here.loader.exec_module(attacks)

TASK = 0
"""Number of the test split's task that is attacked: `escape_silent` of markupsafe has its condition the wrong way."""
LIMIT_S = 40.0
SLOW = {"recursion", "channel_is_fifo", "second_process"}


@pytest.fixture(scope="module")
def broken():
    task = of_split("test", 1)[TASK]
    assert task.package == "markupsafe"
    cache = sources.default_cache()
    package = sources.unpack(suites()[task.package].package, cache)
    reference(package, cache, "bubblewrap")
    return task, package, cache


def verdict(broken, files):
    task, package, cache = broken
    return judge(package, files, cache, fail_to_pass=task.fail_to_pass, timeout_s=LIMIT_S)


def test_the_fix_is_solved_and_the_bug_is_not(broken):
    task, package, _ = broken
    assert verdict(broken, {}).solved
    found = verdict(broken, task.broken(package))
    assert not found.solved
    assert found.differing == {"tests.test_markupsafe::test_escape_silent"}


def test_another_fix_than_the_package_has_is_solved(broken):
    task, package, _ = broken
    path = task.edits[0].path
    other = package.visible[path].decode().replace("    if s is None:\n", "    if not (s is not None and True):\n")
    assert other != package.visible[path].decode()
    assert verdict(broken, {path: other.encode()}).solved


@pytest.mark.parametrize("name", sorted(attacks.DEFEATED))
def test_code_that_mends_nothing_solves_nothing(broken, name):
    task, package, _ = broken
    path = task.edits[0].path
    content = task.broken(package)[path] + attacks.DEFEATED[name].encode()
    assert not verdict(broken, {path: content}).solved


@pytest.mark.parametrize("path", sorted(attacks.OUTSIDE))
def test_files_that_are_not_code_of_the_package_change_nothing(broken, path):
    env = registry.make("swe", sandbox="bubblewrap")
    env.reset(seed=0, options={"split": "test", "task": TASK})
    env.box.write(path, attacks.OUTSIDE[path].encode())
    observation, reward, terminated, _, info = env.step("submit")
    env.close()
    assert (reward, terminated, info["success"]) == (0.0, True, False)
    assert observation == "no file of the package has changed: not solved"


def test_an_attack_submitted_as_an_agent_would_is_scored(broken):
    """By actions, from reset to the verdict: the string-driven attack of the report, on a task of each id."""
    for name in ("swe", "swe-hard"):
        env = registry.make(name, sandbox="bubblewrap")
        env.reset(seed=0, options={"split": "test", "task": TASK})
        env.step(f"run cat >> {env.task.edits[0].path} <<'END'\n{attacks.DEFEATED['formatter_get_field']}\nEND")
        observation, reward, terminated, _, info = env.step("submit")
        env.close()
        assert (reward, terminated, info["success"]) == (0.0, True, False), observation
        assert observation.startswith("not solved: ")


# What the grading sandbox holds.


def test_the_script_holds_no_literal_that_a_test_expects(broken):
    """And planted copies, whose checks come out either way, differ from tests neither by name nor by key."""
    _, package, cache = broken
    template = reference(package, cache, "bubblewrap").template
    text = "\n".join(one.text for parts in template.files.values() for one in parts if not one.variant)
    assert "&lt;script&gt;" not in text
    assert "&amp;&gt;&lt;&#39;&#34;" in b"".join(package.hidden.values()).decode()
    numbers = {number for _, number in template.variants()}
    assert numbers == {0, 1, 2, 3}
    assert "planted" not in text
    assert "variant" not in text


def test_planted_checks_come_out_either_way(broken):
    from agentgym_environments.synthetic.swe.grading.observations import OUTCOME
    from agentgym_environments.synthetic.swe.grading.run import observe

    _, package, cache = broken
    template = reference(package, cache, "bubblewrap").template
    found = observe(package, {}, template, template.variants(), cache)
    outcomes = [
        text
        for (_, number), points in found.items()
        for p, texts in points.items()
        if number and p <= OUTCOME
        for text in texts
    ]
    assert outcomes.count("False") >= 10
    assert outcomes.count("True") >= 10


def test_logs_are_bounded_and_keys_are_of_one_run():
    script = Script({}, "m", {"test_x": ("test_a", 0)}, {"k": 3})
    log = (
        b"> tests/a.py::test_x\nk 1\nold 1\nk= True\n\xff\xfe\n< call passed\n"
        + b"k 2\n" * 400_000
        + b"k "
        + b"x" * 10_000_000
    )
    found = read_log(log, script)[("tests/a.py::test_a", 0)]
    assert set(found) == {3, -5, -1}
    assert len(found[3]) < 300_000
    assert found[-5] == ["True"]
    assert read_log(b"{" * 1000, script) == {}


# What ends a sandbox.


def test_a_sandbox_that_the_submission_ends_is_its_own_doing():
    def ends():
        raise EnvironmentCrashed("lost")

    runs = iter([ends, lambda: 3])
    assert run_submission(lambda: next(runs)(), ends) == 3
    assert run_submission(ends, lambda: None) is None
    with pytest.raises(EnvironmentCrashed):
        run_submission(ends, ends)


# research.

SOLVE = "import numpy as np, os, sys\ndef solve(train, inputs, terms):\n    n = len(inputs[next(iter(inputs))])\n"
ZEROS = f"{SOLVE}    return np.zeros(n)\n"
PROGRAMS = {
    "sitecustomize": {"sitecustomize.py": "import os; open('/work/out.csv', 'w').write('0\\n' * 300); os._exit(0)"},
    "own_numpy": {"numpy/__init__.py": "def savetxt(*a, **k): open('out.csv', 'w').write('0\\n' * 300)"},
    "own_json": {"json.py": "raise SystemExit(0)"},
    "own_score": {"score.py": "def score(*a): return -1e9", "solve.py": ZEROS},
    "own_run": {"run.py": "print('score 0')", "solve.py": ZEROS},
    "own_inputs": {"inputs.csv": "x\n1\n", "solve.py": ZEROS},
    "own_terms": {"terms.json": "{}", "solve.py": ZEROS},
    "ready_output": {"out.csv": "0\n" * 300, "solve.py": "raise SystemExit(0)"},
    "output_is_link": {"solve.py": f"{SOLVE}    os.symlink('/proc/self/attr/exec', 'out.csv'); os._exit(0)"},
    "output_is_folder": {"solve.py": f"{SOLVE}    os.mkdir('out.csv'); os._exit(0)"},
    "prlimit": {"solve.py": f"import resource\nresource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3))\n{ZEROS}"},
    "kill_all": {"solve.py": f"{SOLVE}    os.kill(-1, 9)"},
    "deep_folder": {"solve.py": ZEROS, "/".join(["d" * 200] * 22) + "/x": "x"},
    "long_name": {"solve.py": ZEROS, "n" * 300: "x"},
    "numbers_that_lie": {"solve.py": f"class F(float):\n    __sub__ = lambda s, o: 0.0\n{SOLVE}    return [F(0)] * n"},
    "answers_on_disk": {
        "solve.py": f"""{SOLVE}
    import glob, re
    paths = filter(os.path.isfile, glob.glob("/tmp/**", recursive=True))
    texts = [open(path, errors="ignore").read() for path in paths]
    return np.array(([float(x) for x in re.findall("[0-9.]{{6,}}", "".join(texts))] + [0.0] * n)[:n])
"""
    },
}


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_programs_that_learn_nothing_earn_nothing(name):
    one = research_task(False, "test", 0)
    files = {path: content.encode() for path, content in PROGRAMS[name].items()}
    found = research.judge(one, files, "bubblewrap", 20.0)
    assert found.score is None or one.share(found.score) == 0.0


def test_no_held_out_answer_is_in_the_files_of_a_sandbox():
    one = research_task(False, "test", 0)
    text = b"".join([*one.files().values(), research.csv(one.inputs)]).decode()
    held = [f"{y:.6g}" for y in one.held_out if y not in one.train["y"] and len(f"{y:.6g}") > 6]
    assert len(held) > 100
    assert not [y for y in held if y in text]
