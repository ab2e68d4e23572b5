"""Harbor tasks on a real engine: solved and not, commands, snapshots, and containers that are lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from harbor_folders import harbor_folder

from agentgym import registry
from agentgym.errors import EnvironmentCrashed, MissingDependency
from agentgym_environments.backends.containers.engine import OWNER, ContainerLost, DockerEngine, owner
from agentgym_environments.benchmarks.harbor.admit import admit
from agentgym_environments.benchmarks.harbor.env import OWN, Harbor
from agentgym_environments.tasks.harbor import harbor_tasks

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600), pytest.mark.usefixtures("slim")]

NAMES = sorted(path.parent.name for path in OWN.glob("*/task.toml"))


@pytest.fixture(scope="module")
def engine(slim):
    engine = DockerEngine()
    yield engine
    engine.close()


@pytest.fixture
def env(tmp_path):
    env = Harbor(folder=str(harbor_folder(tmp_path / "answer")), command_s=30)
    env.reset(seed=0)
    yield env
    env.close()


def ours(kit, label: str = "") -> list[str]:
    """Ids of this process's containers of tasks, or of all that bear a label; stopped ones too."""
    label = label or f"{OWNER}={owner()}"
    return kit.docker("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={label}").split()


@pytest.mark.parametrize("name", NAMES)
def test_the_solution_scores_1_and_nothing_scores_0(engine, name):
    (task,), _ = harbor_tasks(OWN / name)
    admission = admit(engine, task)
    assert (admission.solution, admission.nothing, admission.problem) == (1, 0, "")


def test_tasks_that_are_not_admitted_say_why(tmp_path, engine):
    given = harbor_folder(tmp_path / "a" / "given", tests="echo 1 > /logs/verifier/reward.txt")
    wrong = harbor_folder(tmp_path / "a" / "wrong", solution="echo 41 > /app/answer")
    for folder, problem in ((given, "doing nothing scores 1"), (wrong, "its solution scores 0")):
        (task,), _ = harbor_tasks(folder)
        assert admit(engine, task).problem.startswith(problem)


def test_an_agent_works_in_the_tasks_folder(env):
    def does(action):
        return env.step(action)[0]

    assert does("run pwd; id -u; cat note; ls /tests /solution /logs 2>&1 | grep -c 'No such'") == "/app\n0\nold\n3"
    assert does("run mkdir -p deep && cd deep && export X=1") == "[no output]"
    assert does("run pwd; echo ${X-unset}; exit 3") == "/app/deep\nunset\n[exit code 3]"
    assert does("view note") == "    1  old\n    2  "
    assert "    1  new" in does("edit note 1-1\nnew")
    assert does("run cat /app/note; (exec -a served sleep 300 >/dev/null 2>&1 &)") == "new"
    assert "served" in does("run cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    long = does("run seq 100000")
    assert "bytes left out" in long
    assert len(long) < 17_000
    assert does("view /etc") == "there is no file /etc that can be viewed; `run ls` lists a folder"
    assert does("view /nowhere").startswith("there is no file /nowhere")
    assert does("edit new/file 1-0\nx\ny") == "    1  x\n    2  y\n    3  "
    assert does(f"run echo {'x' * 200_000}") == "the command could not be started: it is too long\n[exit code 126]"
    env.command_s = 2
    assert "time limit of 2 s" in does("run (trap '' TERM; sleep 301) & sleep 302")
    assert "30" not in does("run cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o 'sleep 30[12]' | cat")
    assert does("run cat /app/new/file") == "x\ny"
    observation, reward, terminated, truncated, info = env.step("submit")
    assert (reward, terminated, truncated, info["success"]) == (0, True, False, False)
    assert observation == "not solved: the reward is 0"


def test_a_right_answer_is_rewarded_by_tools_too(tmp_path, kit):
    env = Harbor(folder=str(harbor_folder(tmp_path / "answer")), interface="tools")
    env.reset(seed=0)
    assert "bash" in env.env_spec.tools[0].description
    edit = {"path": "answer", "first": 1, "last": 0, "text": "forty-two"}
    env.step({"name": "edit", "arguments": edit})
    assert env.step({"name": "submit", "arguments": {}})[:4] == ("solved: every test passes", 1.0, True, False)
    env.close()
    assert not ours(kit)


def test_the_last_turn_and_the_end_of_time_are_graded(tmp_path):
    folder = str(harbor_folder(tmp_path / "answer", agent_s=30))
    env = Harbor(folder=folder, max_turns=2)
    env.reset(seed=0)
    env.step("run echo forty-two > answer")
    observation, reward, terminated, truncated, _ = env.step("run true")
    assert (reward, terminated, truncated) == (1, True, False)
    assert observation == "[no output]\n[this was the last turn]\nsolved: every test passes"
    env.close()
    env = Harbor(folder=folder, time_factor=0.1)
    env.reset(seed=0)
    observation, reward, terminated, *_ = env.step("run sleep 20")
    assert (reward, terminated) == (0, True)
    assert "[the time for the task is over]" in observation
    env.close()


def test_a_snapshot_is_the_files_in_a_new_container(env, tmp_path):
    env.step("run rm other; echo x > 'a b'; ln -s 'a b' link; chmod 600 note; mkdir -m 700 d; chown 7:8 d; cd d")
    state = env.snapshot()
    listing = "run pwd; ls -ln --time-style=+ /app | tail -n +2; cat /app/link"
    before = env.step(listing)
    env.step("run echo forty-two > /app/answer; rm -r /app/d")
    copy = Harbor(folder=str(tmp_path / "answer"), command_s=30)
    copy.restore(state)
    assert copy.step(listing) == before
    env.restore(state)
    assert env.step(listing)[4]["state_key"] == before[4]["state_key"]
    assert env.step("submit")[1] == 0
    copy.step("run echo forty-two > /app/answer")
    assert copy.step("submit")[1] == 1
    copy.close()


def test_a_reward_may_be_json_and_the_agent_a_plain_user(tmp_path):
    tests = """if [ "$(cat /app/answer)" = forty-two ]; then x=1; else x=0; fi
[ "$(id -u):$MODE$FOR" = 1000:strict ] && echo "{\\"a\\": $x, \\"b\\": 0.5}" > /logs/verifier/reward.json
echo 0 > /logs/verifier/reward.txt"""
    folder = harbor_folder(
        tmp_path / "plain",
        dockerfile="RUN useradd --uid 1000 worker && chown worker /app && echo s > /secret && chmod 600 /secret",
        tests=tests,
        agent='user = "worker"\nenv = { FOR = "agent" }',
        verifier='user = "1000"\nenv = { MODE = "strict" }',
    )
    env = Harbor(folder=str(folder))
    env.reset(seed=0)
    assert env.step("run id -un; echo $FOR")[0] == "worker\nagent"
    assert "Permission denied" in env.step("run cat /secret")[0]
    assert env.step("view /secret")[0].startswith("there is no file")
    assert "Permission denied" in env.step("edit /etc/x 1-0\ny")[0]
    env.step("edit answer 1-0\nforty-two")
    observation, reward, *_ = env.step("submit")
    assert (reward, observation) == (0.75, "not solved: the reward is 0.75")
    env.close()


def test_an_image_that_cannot_be_built_is_no_reward(tmp_path):
    env = Harbor(folder=str(harbor_folder(tmp_path / "broken", dockerfile="RUN echo the reason; false")))
    with pytest.raises(EnvironmentCrashed, match=r"cannot be built(.|\n)*the reason"):
        env.reset(seed=0)
    env.close()


def test_tests_that_write_no_reward_are_the_tasks_fault(tmp_path):
    env = Harbor(folder=str(harbor_folder(tmp_path / "mute", tests="echo nothing")))
    env.reset(seed=0)
    with pytest.raises(EnvironmentCrashed, match="wrote no reward"):
        env.step("submit")
    env.close()


def soon(kit, deed, old: set[str], seconds: float = 60) -> threading.Thread:
    """Do `deed` to each container of ours that is not in `old`, from the moment it runs, until the thread is joined."""

    def watch() -> None:
        end = time.monotonic() + seconds
        while not thread.over and time.monotonic() < end:  # type: ignore[attr-defined]
            for name in set(ours(kit)) - old:
                deed(name)
            time.sleep(0.2)

    thread = threading.Thread(target=watch)
    thread.over = False  # type: ignore[attr-defined]
    thread.start()
    return thread


@pytest.mark.parametrize("end", ["kill", "rm --force"])
def test_an_agents_container_that_is_ended_is_an_error(env, kit, end):
    timer = threading.Timer(2, lambda: kit.docker(*end.split(), env.box.container.id))
    timer.start()
    with pytest.raises(EnvironmentCrashed):
        env.step("run sleep 25")
    timer.join()
    with pytest.raises(EnvironmentCrashed):
        env.step("submit")
    env.reset(seed=0)
    assert env.step("run cat note")[0] == "old"


def test_a_graders_container_that_is_killed_is_an_error(tmp_path, kit):
    env = Harbor(folder=str(harbor_folder(tmp_path / "slow", tests="sleep 5\necho 0 > /logs/verifier/reward.txt")))
    env.reset(seed=0)
    watching = soon(kit, lambda name: kit.docker("kill", name, check=False), set(ours(kit)))
    with pytest.raises(EnvironmentCrashed):
        env.step("submit")
    watching.over = True  # type: ignore[attr-defined]
    watching.join()
    env.close()
    assert not ours(kit)


def test_an_engine_that_is_gone_is_an_error(env, monkeypatch):
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere.sock")
    with pytest.raises(ContainerLost, match="engine is gone"):
        env.reset(seed=0)
    other = registry.make("harbor")
    with pytest.raises(MissingDependency, match=r"apt-get install docker\.io"):
        other.reset(seed=0)


def test_what_a_killed_worker_left_is_removed(tmp_path, kit):
    code = f"""
import sys, time
from agentgym_environments.benchmarks.harbor.env import Harbor
env = Harbor(folder={str(harbor_folder(tmp_path / "answer"))!r})
env.reset(seed=0)
print(env.box.container.id, flush=True)
time.sleep(300)
"""
    worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    name = worker.stdout.readline().strip()
    engine = DockerEngine()
    assert name in ours(kit, OWNER)
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()
    worker.stdout.close()
    engine.sweep()
    assert name not in ours(kit, OWNER)
    engine.close()


def test_a_second_episode_builds_nothing_and_limits_hold(env, kit):
    facts = kit.docker("inspect", "--format", "{{json .HostConfig}}", env.box.container.id)
    for part in (
        '"Memory":268435456',
        '"MemorySwap":268435456',
        '"PidsLimit":1024',
        '"NetworkMode":"none"',
        "no-new-privileges",
    ):
        assert part in facts
    image = env.box.image.id
    env.reset(seed=0)
    assert env.box.image.id == image
    assert re.search(r"^CapEff:\s*0*[0-9a-f]{0,8}$", env.step("run grep CapEff /proc/self/status")[0])
    assert env.step("run grep -c : /proc/net/dev")[0] == "1"
