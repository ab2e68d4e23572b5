"""swe: the tasks, the actions, an episode, and the environment's contract."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import tarfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from click.testing import CliRunner
from solving import play

from agentgym import registry
from agentgym.conformance.run import check_env
from agentgym.errors import BadRequest, ConfigError, MissingDependency
from agentgym_environments.backends.sandbox import actions
from agentgym_environments.backends.sandbox.actions import Edit, Run, Submit, View, understand
from agentgym_environments.synthetic.swe import make as maker
from agentgym_environments.synthetic.swe import source
from agentgym_environments.synthetic.swe.grading.observations import END
from agentgym_environments.synthetic.swe.grading.run import observe
from agentgym_environments.synthetic.swe.grading.template import make_template
from agentgym_environments.synthetic.swe.grading.verdict import plain_name
from agentgym_environments.synthetic.swe.issues.issue import issue
from agentgym_environments.synthetic.swe.issues.reproduce import shows_difference
from agentgym_environments.synthetic.swe.issues.rewrite import voice
from agentgym_environments.synthetic.swe.issues.symptom import symptom
from agentgym_environments.synthetic.swe.make import bugs
from agentgym_environments.synthetic.swe.mutate import apply, mutations
from agentgym_environments.synthetic.swe.outcomes import run_tests
from agentgym_environments.synthetic.swe.tasks import SPLITS, of_split, suites, tasks
from agentgym_environments.synthetic.swe.verify import grade, shows


def test_there_are_enough_tasks_and_splits_share_no_package():
    assert len(tasks()) >= 60
    assert len(suites()) >= 8
    assert {task.package for task in tasks()} == suites().keys()
    for split in SPLITS:
        for count in (1, 2):
            assert len(of_split(split, count)) >= 5
    assert sum(len(of_split(split, count)) for split in SPLITS for count in (1, 2)) == len(tasks())
    assert len({(task.package, task.edits) for task in tasks()}) == len(tasks())
    assert all(task.issue and task.fail_to_pass and task.pass_to_pass for task in tasks())


def both_ways(task):
    """Broken: the tests that should fail do, no other does, and the grader tells it from the fixed package."""
    suite, cache = suites()[task.package], source.default_cache()
    package = source.unpack(suite.package, cache)
    broken = task.broken(package)
    outcomes = run_tests(package, broken, cache, timeout_s=150)
    assert outcomes.failed.keys() - suite.unstable == task.fail_to_pass, (task.package, task.edits)
    assert len(outcomes.passed - suite.unstable) == suite.passing - len(task.fail_to_pass)
    assert set(task.pass_to_pass) <= outcomes.passed
    assert shows(task, grade(suite, package, broken, cache, task.fail_to_pass))
    fixed = {
        path: apply(content, [e for e in task.edits if e.path == path], fix=True) for path, content in broken.items()
    }
    assert fixed == {path: package.visible[path] for path in broken}  # one run of the package fixes all its tasks


def passes(name):
    suite, cache = suites()[name], source.default_cache()
    package = source.unpack(suite.package, cache)
    outcomes = run_tests(package, {}, cache, timeout_s=150)
    assert not outcomes.failed.keys() - suite.unstable
    assert len(outcomes.passed - suite.unstable) == suite.passing
    assert grade(suite, package, {}, cache).solved


def test_a_task_is_verified_both_ways():
    """Of the quickest package; `make envs` solves a task of each, `make every` verifies all."""
    task = next(task for task in tasks() if task.package == "markupsafe")
    both_ways(task)
    passes(task.package)


@pytest.mark.every
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", sorted(suites()))
def test_every_package_is_verified_both_ways(name):
    passes(name)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        assert list(threads.map(both_ways, [task for task in tasks() if task.package == name]))


@pytest.mark.parametrize(
    "chosen", [pytest.param("some", marks=pytest.mark.envs), pytest.param("all", marks=pytest.mark.every)]
)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["swe", "swe-hard"])
def test_the_solver_solves_tasks_and_submitting_at_once_none(name, chosen):
    """`-m envs`: of `swe` the first task of each package, of `swe-hard` that of each split; `-m every`: all."""
    env = registry.make(name)
    for split in env.env_spec.splits:
        packages = [task.package for task in of_split(split, 1 if name == "swe" else 2)]
        firsts = sorted({packages.index(package) for package in packages}) if name == "swe" else [0]
        for task in firsts if chosen == "some" else range(len(packages)):
            assert play(env, split, task)[-1][4]["success"], (split, task)
            env.reset(seed=0, options={"split": split, "task": task})
            assert env.step("submit")[1] == 0
    env.close()


# The actions.


@pytest.mark.parametrize(
    ("action", "meant"),
    [
        ("run ls -l", Run("ls -l")),
        (" RUN python - <<E\nprint(1)\nE", Run("python - <<E\nprint(1)\nE")),
        ("view a/b.py", View("a/b.py")),
        ("view a.py 3-9", View("a.py", 3, 9)),
        ("edit a.py 3-4\n    x = 1\n\n    y", Edit("a.py", 3, 4, "    x = 1\n\n    y")),
        ("edit a.py 3-3", Edit("a.py", 3, 3, "")),
        ("submit\n", Submit()),
        *[
            (action, None)
            for action in ("", "run", "run  ", "view", "view a b", "edit a", "edit a 1", "submit now", "ls", "\ud800")
        ],
        ({"name": "run", "arguments": {"command": "ls"}}, Run("ls")),
        ({"name": "view", "arguments": {"path": "a", "first": 2}}, View("a", 2)),
        ({"name": "edit", "arguments": {"path": "a", "first": 1, "last": 0, "text": "x"}}, Edit("a", 1, 0, "x")),
        ({"name": "submit", "arguments": {}}, Submit()),
        ({"name": "submit", "arguments": {"x": 1}}, None),
        ({"name": "view", "arguments": {"path": "a", "first": True}}, None),
        ({"name": "view", "arguments": {"path": 3}}, None),
        ({"name": "run", "arguments": {}}, None),
        ({"name": "fly", "arguments": {}}, None),
    ],
)
def test_actions_are_understood_or_not(action, meant):
    assert understand(action) == meant
    if meant is not None:
        assert understand(actions.as_text(meant)) == understand(actions.as_call(meant)) == meant


def test_edits_replace_insert_and_delete_lines():
    def edited(first, last, text):
        return actions.replace("a\nb\nc\n", Edit("f", first, last, text))

    assert edited(2, 2, "B\nBB") == "a\nB\nBB\nc\n"
    assert edited(2, 1, "new") == "a\nnew\nb\nc\n"
    assert edited(1, 3, "") == ""
    assert edited(2, 2, "\n") == "a\n\nc\n"
    assert [edited(*lines, "x") for lines in ((0, 0), (6, 6), (3, 1), (2, 9))] == [None] * 4


# Making tasks.

CODE = b"""
def clamp(value, low, high):
    '''Hold < this.'''
    if not value:
        return low
    while value < 3:
        value += 1
    items.append(value)
    return min(max(value, low), high) if low <= value and value != 1 else helper(low, high)
"""


def test_bugs_are_of_one_line_and_leave_python():
    found = list(mutations("a.py", CODE))
    kinds = {edit.kind for edit in found}
    assert kinds == {"operator", "name", "constant", "condition", "arguments", "statement"}
    assert {edit.function for edit in found} == {"clamp"}
    assert not [edit for edit in found if "while" in edit.fixed or "Hold" in edit.fixed]
    for edit in found:
        assert edit.fixed != edit.broken
        assert apply(apply(CODE, [edit]), [edit], fix=True) == CODE
    with pytest.raises(ValueError, match="line"):
        apply(apply(CODE, [found[0]]), [found[0]])
    package = source.PackageSource({"a.py": CODE}, {}, "", "a.py")
    one, other = [[e.broken for e in bugs(package, random.Random(3))] for _ in "ab"]
    assert one == other


@pytest.mark.timeout(120)
def test_a_thread_left_behind_does_not_hold_up_a_run():
    """The run's own limit is longer than the test's."""
    hidden = b"import threading\nfrom thing import f\n\n\ndef test():\n"
    hidden += b"    threading.Thread(target=threading.Event().wait).start()\n    assert f(3) == 4\n"
    code = {"thing.py": b"def f(x):\n    return x + 1\n"}
    package = source.PackageSource(code, {"tests/test_it.py": hidden}, "", "thing.py")
    template = make_template(package.hidden, "seed")
    (points,) = observe(package, {}, template, set(), source.default_cache(), timeout_s=600).values()
    assert points[END][-1].startswith("teardown")


def test_a_symptom_names_neither_the_test_nor_the_place():
    text = symptom(
        "tests/test_a.py:12: in test_pop_item\n    assert cache.pop(1) == 2\n"
        "src/a/__init__.py:3: in pop\n    raise KeyError(1)\n"
        "E   KeyError: 1",
        "src",
    )
    assert text == "This should hold and does not:\n\n    cache.pop(1) == 2\n\nI get\n\n    KeyError: 1"


def test_no_issue_shows_an_assertion_or_a_hidden_test():
    for task in tasks():
        assert not re.search(r"\bassert\w*\b|pytest|self\.assert", task.issue), task.issue
        assert not [name for name in task.fail_to_pass if plain_name(name).rpartition("::")[2] in task.issue]
        assert len(task.scripts) == len(task.edits)


def test_scripts_of_issues_show_their_bugs():
    """A few; `issues.rewrite --check` runs all."""
    shown = [task for task in tasks() if all(task.scripts)]
    assert len(shown) > len(tasks()) * 2 // 3
    for task in shown[::40]:
        package = source.unpack(suites()[task.package].package, source.default_cache())
        assert issue(task.scripts, voice(task)) == task.issue
        assert shows_difference(package, task.edits, task.scripts, source.default_cache())
        unbroken = [replace(one, got=one.expected) for one in task.scripts]
        assert not shows_difference(package, task.edits, unbroken, source.default_cache())


# Where packages come from.


def test_an_archive_that_is_not_the_one_meant_is_refused(tmp_path, monkeypatch):
    archive = tmp_path / "sdists" / "thing-1.0.tar.gz"
    archive.parent.mkdir()
    (tmp_path / "x.py").write_text("x")
    with tarfile.open(archive, "w:gz") as made:
        made.add(tmp_path / "x.py", "thing-1.0/thing.py")
    right = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert source.fetch(source.Package("thing", "1.0", right), tmp_path) == archive
    with pytest.raises(ConfigError, match="has no tests"):
        source.unpack(source.Package("thing", "1.0", right), tmp_path)
    monkeypatch.setattr(source, "download", lambda *_: archive)
    with pytest.raises(ConfigError, match="its tasks are made from another"):
        source.fetch(source.Package("thing", "1.0", "0" * 64), tmp_path)


def test_without_a_connection_one_sentence_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    env = registry.make("swe", cache=str(tmp_path))
    with pytest.raises(MissingDependency, match=r"need its source distribution, once, from PyPI: `pip download"):
        env.reset(seed=0)


# The environment.


@pytest.mark.parametrize("name", ["swe", "swe-hard"])
def test_the_spec_says_what_the_class_does(name):
    assert registry.make(name).env_spec == registry.get_spec(name)
    assert registry.get_spec("swe:bugs=2").splits == registry.get_spec("swe-hard").splits


@pytest.fixture(scope="module")
def env():
    env = registry.make("swe")
    yield env
    env.close()


def test_a_solver_looks_mends_and_submits(env):
    looked, edited, submitted = play(env, "test", 0)
    assert looked[4]["valid_action"]
    assert env.task.edits[0].broken[:200] in looked[0]
    assert env.task.edits[0].fixed[:200] in edited[0]
    assert submitted[:4] == ("solved: every hidden test passes", 1.0, True, False)
    with pytest.raises(BadRequest, match="is over"):
        env.step("submit")


def test_hints_say_more_each_time_and_see_what_is_mended(env):
    env.reset(options={"split": "test", "task": 1})
    edit = env.task.edits[0]
    hints = [env.hint() for _ in range(4)]
    assert edit.path in hints[0]
    assert edit.function in hints[1]
    assert "near line" not in hints[0]
    assert "line" in hints[2]
    assert hints[2] == hints[3]
    env.step(env.solver())
    env.step(env.solver())
    assert env.hint() == "Nothing is left to mend: submit."


def test_a_solver_mends_what_others_have_spoilt(env):
    env.reset(options={"split": "test", "task": 0})
    path = env.task.edits[0].path
    env.step(f"edit {path} 1-20")
    env.step("run echo 'x = 1' > " + next(p for p in sorted(env.source.visible) if env.source.is_code(p) and p != path))
    while not env.over:
        reward = env.step(env.solver())[1]
    assert reward == 1.0


def test_a_wrong_fix_and_no_fix_are_not_solved(env):
    env.reset(options={"split": "test", "task": 0})
    path = env.task.edits[0].path
    env.step(f"edit {path} 1-0\n# nothing")
    assert env.step("submit")[0].startswith("not solved: 0 of the ")
    env.reset(options={"split": "test", "task": 0})
    assert env.step("submit")[0] == "no file of the package has changed: not solved"


def test_the_shell_shows_what_it_did(env):
    env.reset(options={"split": "train", "task": 0})
    assert env.step("run cd /tmp; false")[0] == "[exit code 1]"
    assert env.step("run pwd")[0] == "/tmp"
    assert env.step("run true")[0] == "[no output]"
    assert "passed" in env.step("run printf 'def test(): pass' > test_a.py; python -m pytest -q test_a.py")[0]
    assert "there is no file none" in env.step("view none")[0]
    assert "lines 1 to" in env.step("edit /tmp/test_a.py 7-9\nx")[0]
    assert "was not written: Read-only file system" in env.step("edit /usr/x 1-0\nx")[0]
    assert env.step("dance")[0].startswith("not an action; say `run COMMAND`")


def test_a_snapshot_holds_files_shell_and_hints(env):
    env.reset(seed=1, options={"split": "train", "task": 1})
    env.step("run x=7; cd /tmp; echo hi > f")
    env.hint()
    state = env.snapshot()
    other = registry.make("swe")
    other.restore(state)
    assert [one.step("run echo $x; cat f")[0] for one in (env, other)] == ["7\nhi"] * 2
    assert env.hint() == other.hint()
    hard = registry.make("swe-hard")
    for bad in (b"", b"[]", b'{"id": "swe", "bugs": 1}'):
        with pytest.raises(BadRequest, match="not a snapshot"):
            other.restore(bad)
    with pytest.raises(BadRequest, match="is of swe, not of swe-hard"):
        hard.restore(state)
    other.close()


def test_tools_are_the_same_actions(env):
    tools = registry.make("swe:interface=tools")
    assert [tool.name for tool in tools.env_spec.tools] == ["run", "view", "edit", "submit"]
    tools.reset(options={"split": "test", "task": 0})
    call = tools.solver()
    assert call["name"] == "view"
    assert json.dumps(call)
    while not tools.over:
        step = tools.step(tools.solver())
    assert step[1] == 1.0
    tools.close()
    with pytest.raises(ConfigError, match="text or tools"):
        registry.make("swe:interface=voice")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("swe", marks=pytest.mark.every),  # `make envs` checks it over HTTP
        pytest.param("swe-hard", marks=pytest.mark.envs),
        pytest.param("swe:interface=tools", marks=pytest.mark.envs),
    ],
)
def test_it_keeps_the_contract(name):
    assert [str(finding) for finding in check_env(registry.env_factory(name), tasks=1) if not finding.ok] == []


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed: apt-get install bubblewrap")
def test_generated_tasks_are_loaded_and_solved(tmp_path, monkeypatch):
    package = suites()["markupsafe"].package
    monkeypatch.setattr(maker, "newest", lambda name, cache: package)  # the version that the other tests use
    options = ["--out", str(tmp_path), "--split", "validation", "--singles", "2", "--pairs", "0", "--seed", "7"]
    result = CliRunner().invoke(maker.main, ["markupsafe", *options], catch_exceptions=False)
    assert result.exit_code == 0
    env = registry.make(f"swe:tasks={tmp_path}", sandbox="bubblewrap")
    assert env.env_spec.splits == {"validation": 2}
    opening, _ = env.reset(options={"split": "validation", "task": 1})
    assert opening.startswith("markupsafe 3.0.4 in /work.")
    info = {}
    while not env.over:
        *_, info = env.step(env.solver())
    assert info["success"]
    env.close()
    with pytest.raises(ConfigError, match="has no task with 2 bugs: make some with --pairs"):
        registry.make(f"swe-hard:tasks={tmp_path}")


def test_a_folder_without_tasks_is_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"make some with `python -m agentgym_environments\.synthetic\.swe\.make PACKAGE"
    ):
        registry.make("swe", tasks=str(tmp_path))
