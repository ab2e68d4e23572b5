"""research: the tasks, an episode, and the attempts to get the reward without a better program."""

from __future__ import annotations

import numpy as np
import pytest
from solving import play

from agentgym import registry
from agentgym.conformance.run import check_env
from agentgym.errors import BadRequest, MissingDependency
from agentgym_environments.backends.sandbox.packages import installed
from agentgym_environments.synthetic.research import env as research
from agentgym_environments.synthetic.research.grader import MOST_FILES, numbers
from agentgym_environments.synthetic.research.tasks import GAP, KINDS, SIZES, SOLVE, task

ALL = [(hard, split, number) for hard in (False, True) for split, size in SIZES.items() for number in range(size)]


# The tasks.


def test_tasks_are_reproducible_and_splits_share_no_solution():
    task.cache_clear()
    before = [task(*where) for where in ALL[:4]]
    task.cache_clear()
    assert before == [task(*where) for where in ALL[:4]]
    places = {}
    for hard, split, number in ALL:
        one = task(hard, split, number)
        assert one.kind == KINDS[number % 2]
        places.setdefault(str((one.clues, one.terms)), []).append(split)
    assert all(len(splits) == 1 for splits in places.values())


def test_reward_is_the_share_of_the_way_to_the_reference():
    for where in ALL:
        one = task(*where)
        assert 0 < one.reference <= GAP * one.baseline
        assert [one.share(score) for score in (one.baseline, 2 * one.baseline, one.reference, 0.0)] == [0, 0, 1, 1]
        assert one.share(one.needed(0.5)) == 0.5


def arrays(columns):
    return {name: np.array(column) for name, column in columns.items()}


def test_what_solves_one_task_solves_no_other_of_its_kind():
    for hard, split, number in ALL:
        one, other = task(hard, split, number), task(hard, "train", (number + 2) % 10)
        if one.clues != other.clues:
            with pytest.raises(KeyError):
                SOLVE[one.kind][1](arrays(one.train), arrays(one.inputs), one.terms, other.clues)


def test_the_stock_score_is_what_a_day_costs():
    score = SOLVE["stock"][2]
    assert score([5, 5, 5], [3, 7, 5], {"lead": 0, "hold": 1, "short": 10}) == (2 + 20 + 0) / 3
    assert score([6, 6, 6], [2, 3, 4], {"lead": 1, "hold": 1, "short": 10}) == (1 + 10) / 2


def test_hints_tell_each_thing_that_is_to_be_found():
    for where in ALL:
        one = task(*where)
        text = " ".join(one.hints())
        columns = [one.clues[1]] if one.kind == "stock" else [name for _, name, _ in one.clues]
        assert all(name in text for name in columns)
        assert ("residual" in text) == (one.kind == "table" and where[0])


# The environment.


@pytest.fixture(scope="module")
def env():
    env = registry.make("research")
    yield env
    env.close()


@pytest.mark.parametrize("name", ["research", "research-hard"])
def test_the_spec_says_what_the_class_does(name):
    assert registry.make(name).env_spec == registry.get_spec(name)
    assert registry.get_spec(name).splits == SIZES


@pytest.mark.parametrize(("name", "numbers"), [("research:hard=true", (0, 1)), ("research:interface=tools", (1,))])
def test_the_solver_looks_writes_and_submits(name, numbers):
    other = registry.make(name)
    for number in numbers:
        *_, wrote, submitted = play(other, "validation", number)
        assert "CLUES" in wrote[0]
        assert submitted[0].startswith("solved: the score is ")
        assert submitted[1:4] == (1.0, True, False)
        with pytest.raises(BadRequest, match="is over"):
            other.step("submit")
    other.close()


@pytest.mark.parametrize(
    "stride", [pytest.param(5, marks=pytest.mark.envs), pytest.param(1, marks=pytest.mark.every)], ids=["some", "all"]
)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["research", "research-hard"])
def test_the_solver_solves_its_tasks(name, stride):
    env = registry.make(name)
    for split, size in SIZES.items():
        for number in range(0, size, stride):
            assert play(env, split, number)[-1][1] >= research.SOLVED, (split, number)
    env.close()


@pytest.mark.envs
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["research", "research-hard"])
def test_it_keeps_the_contract(name):
    assert [str(finding) for finding in check_env(registry.env_factory(name), tasks=1) if not finding.ok] == []


def test_part_of_the_way_is_part_of_the_reward(env):
    env.reset(options={"split": "test", "task": 1})
    assert env.step("submit")[:3] == ("nothing has changed: the score is the baseline's", 0.0, True)
    env.reset(options={"split": "test", "task": 1})
    program = env.task.reference_program().replace('terms["short"] /', "1.0 /").replace('(terms["short"] +', "(1.0 +")
    env.box.write("solve.py", program.encode())
    assert "less is better" in env.step("run python run.py")[0]
    observation, reward, over, _, info = env.step("submit")
    assert observation.startswith("not solved: ")
    assert 0.1 < reward < research.SOLVED
    assert (over, info["success"]) == (True, False)


def test_a_snapshot_goes_on_elsewhere(env):
    env.reset(seed=1, options={"split": "train", "task": 3})
    for _ in range(3):
        env.step(env.solver())
    other = registry.make("research")
    other.restore(env.snapshot())
    assert other.step(other.solver())[1] == env.step(env.solver())[1] == 1.0
    hard = registry.make("research:hard=true")
    with pytest.raises(BadRequest, match="this snapshot is of research"):
        hard.restore(env.snapshot())
    other.close()


def test_each_hint_says_more(env):
    env.reset(options={"split": "test", "task": 0})
    assert [env.hint() for _ in range(8)] == [*(texts := env.task.hints()), *[texts[-1]] * (8 - len(texts))]


def test_a_package_that_is_missing_is_named():
    with pytest.raises(MissingDependency, match="pip install nothing_like_it"):
        installed("nothing_like_it")


# Cheating.


def submit(env, program, **files):
    env.reset(options={"split": "test", "task": 0})
    for path, content in {"solve": program, **files}.items():
        assert env.box.write(f"{path}.py", content.encode()) == ""
    return env.step("submit")


HEAD = "import numpy as np, os, sys\ndef solve(train, inputs, terms):\n    n = len(next(iter(inputs.values())))\n    "
PROGRAMS = {
    "return np.full(n, np.nan)": "not finite",
    "return np.full(n, np.inf)": "not finite",
    "return np.full(n, 1e300)": "far too large",
    "return np.zeros(n - 1)": "has 299 numbers, not 300",
    "return np.zeros((n, 2))": "not a number a line",
    "return np.zeros(0)": "has 0 numbers",
    "return None": "the program failed: ValueError",
    "return 'best'": "the program failed: ValueError",
    "raise SystemExit(0)": "out.csv is not there",
    "raise SystemExit(3)": "the program failed",
    "while True: pass": "was stopped (time)",
    "return np.ones(1 << 40)": "the program failed: ",
    "x = [bytearray(1 << 24) for _ in range(99)]": "the program failed: MemoryError",
    "[os.fork() for _ in range(20)]; return np.zeros(n)": "the program",
    "os.mkfifo('out.csv'); os._exit(0)": "out.csv is not there",
    "os.symlink('/dev/zero', 'out.csv'); os._exit(0)": "out.csv is not there",
    "open('out.csv', 'w').truncate(30 << 20); os._exit(0)": "or too large",
    "open('out.csv', 'w').write('score 0\\n' * n); os._exit(0)": "not a number a line",
    "return np.zeros(n)": "0 % of the way",
    "import score; score.score = lambda *_: -1e9; return np.zeros(n)": "0 % of the way",
}


@pytest.mark.parametrize("line", PROGRAMS)
def test_what_is_no_solution_gets_nothing(env, line, monkeypatch):
    monkeypatch.setattr(env, "judge_s", 1 if "while" in line else 30)
    observation, reward, over, _, info = submit(env, HEAD + line)
    assert PROGRAMS[line] in observation
    assert (reward, over, info["success"]) == (0.0, True, False)


def test_changed_scorers_and_runners_stay_behind(env):
    cheat = "def score(*_):\n    return -1e9\n"
    run = "import numpy as np; np.savetxt('out.csv', np.zeros(3)); print('score 0')"
    observation, reward, *_ = submit(env, HEAD + "return np.zeros(n)", score=cheat, run=run, sitecustomize="x = 1")
    assert reward == 0.0
    assert observation.startswith("not solved: the score is ")


LOOK = """
    hidden = [a + b for a, b in {hidden!r}]
    paths = [os.path.join("/proc", one, name) for one in os.listdir("/proc") for name in ("environ", "cmdline")]
    for root in ("/work", "/tmp", "/etc", "/dev/shm"):
        paths += [os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names]
    for path in paths:
        try:
            found = open(path, "rb").read() if os.path.isfile(path) else b""
        except OSError:
            continue
        if sum(h in found for h in hidden) > 2:
            raise KeyError(path)
    import importlib.util
    assert not importlib.util.find_spec("agentgym_environments") and not importlib.util.find_spec("agentgym")
    assert os.listdir("/opt/packages") and {{*os.listdir("/opt/packages")}} <= {{"numpy", "numpy.libs"}}
    return np.zeros(n)
"""


def test_the_held_out_answers_are_in_no_sandbox(env):
    """A program that looks for them finds none, in the agent's sandbox and in the judge's."""
    one = task(False, "test", 0)
    hidden = [f"{y:.6g}".encode() for y in one.held_out if y not in one.train["y"] and len(f"{y:.6g}") > 7][:20]
    halves = [(bytes(h[:3]), bytes(h[3:])) for h in hidden]  # so that the program does not find itself
    look = LOOK.format(hidden=halves)
    assert len(hidden) == 20
    assert submit(env, HEAD + look)[0].startswith("not solved: the score is ")
    env.reset(options={"split": "test", "task": 0})
    patterns = " ".join(f"-e {h.decode()}" for h in hidden)
    assert env.step(f"run grep -rFl {patterns} /work /tmp /etc /dev/shm 2>/dev/null | cat")[0] == "[no output]"


def test_what_cannot_be_submitted_costs_a_turn(env):
    env.reset(options={"split": "test", "task": 0})
    env.step("run mkdir many; for i in $(seq 1100); do echo > many/$i; done")
    observation, reward, over, *_ = env.step("submit")
    assert (observation, reward, over) == (
        f"not submitted: the files you made are more than 16 MB or {MOST_FILES}: remove some",
        0,
        False,
    )
    env.step("run rm -r many; head -c 20000000 /dev/zero > big")
    assert env.step("submit")[0].startswith("not submitted: the files")
    env.step("run rm big solve.py; mkdir solve.py; touch solve.py/x")
    assert env.step("submit")[0] == "not submitted: there is no solve.py"


def test_odd_files_harm_nobody(env):
    env.reset(options={"split": "test", "task": 0})
    env.step(
        "run rm run.py terms.json; mkdir run.py out.csv; touch {run.py,out.csv}/x $'odd \\xff\\nname'; mkfifo pipe"
    )
    env.step(
        "run ln -s /dev/zero inputs.csv; mkdir shut; touch shut/x; chmod 0 shut; ln -s / root; mv solve.py real.py"
    )
    env.step("run ln -s real.py solve.py; echo '# my own' >> real.py")
    assert env.step("submit")[0].startswith("not solved: the score is ")


def test_numbers_are_read_strictly():
    assert numbers(b"1\n2.5e1\n\n", 2) == [1.0, 25.0]
    for bad in (None, b"", b"1\n", b"1,2\n", b"nan\n1\n", b"1\n-inf\n", b"\xff\n1\n", b"1\n" * 600_000, b"1e10\n1\n"):
        assert isinstance(numbers(bad, 2), str)
