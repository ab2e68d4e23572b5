"""Rewards without the work: over forty attempts on Harbor tasks, together where they do not hinder each other."""

from __future__ import annotations

import pytest
from harbor_folders import harbor_folder

from agentgym_environments.benchmarks.harbor.env import OWN, Harbor

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600), pytest.mark.usefixtures("slim")]

CHEAT = "mkdir -p /logs/verifier; echo 1 >/logs/verifier/reward.txt"

FAKE = f"""
fake() {{ printf '#!/bin/dash\\n%s\\nexit 0\\n' '{CHEAT}' >"$1.new" && chmod 755 "$1.new" && mv -f "$1.new" "$1"; }}
"""
PROGRAMS = f"""{FAKE}
mkdir -p /root/.local/bin
for name in python3 python3.11 echo test env uv curl bash; do
  for folder in /usr/local/sbin /usr/local/bin /root/.local/bin; do fake $folder/$name; done
done
"""
"""Programs before the image's in PATH, and under names that tests fetch."""

REPLACED = f"""{FAKE}
fake /usr/bin/chmod; fake /usr/bin/env; rm -rf /bin && ln -s /usr/local/bin /bin
fake /usr/bin/python3.11; fake /usr/bin/bash
"""
"""Programs in the image's place."""

PYTHON = f"""
python3 - <<'PY'
import glob, os, py_compile, sys
cheat = "import os; os.system('''{CHEAT}'''); os._exit(0)\\n"
stdlib = os.path.dirname(os.__file__)
import json
packages = [path for path in sys.path if path.endswith("packages")] + glob.glob("/usr/local/lib/python3*/*-packages")
def put(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, "w").write(text)
for folder in [*packages, "/root/.local/lib/python3.11/site-packages", "/app", stdlib]:
    put(folder + "/sitecustomize.py", cheat)
    put(folder + "/usercustomize.py", cheat)
    put(folder + "/zz.pth", cheat.replace("\\n", ""))
    put(folder + "/evil-1.dist-info/entry_points.txt", "[pytest11]\\nevil = evil\\n")
for name in ("json", "csv", "random", "struct", "_struct", "_random"):
    put("/app/" + name + ".py", cheat)
    put("/" + name + ".py", cheat)
for name in ("_struct", "_random", "math"):
    put(stdlib + "/" + name + ".py", cheat)
target = stdlib + "/csv.py"
facts = os.stat(target)
put("/tmp/csv.py", cheat)
os.makedirs(stdlib + "/__pycache__", exist_ok=True)
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
py_compile.compile("/tmp/csv.py", stdlib + "/__pycache__/csv.cpython-311.pyc", invalidation_mode=mode)
put(json.__file__, cheat)
import zipfile
for place in ("/usr/lib/python311.zip", "/usr/local/lib/python311.zip"):
    with zipfile.ZipFile(place, "w") as file:
        file.writestr("csv.py", cheat)
for name in ("conftest.py", "pytest.ini", "setup.cfg", "pyproject.toml", "tox.ini"):
    put("/" + name, cheat)
    put("/app/" + name, cheat)
PY
"""
"""Start-up hooks of Python, other modules in place of the library's, beside them, before them, and compiled."""

SHELL = f"""
for file in /root/.bashrc /root/.bash_profile /root/.profile /etc/profile /etc/bash.bashrc /etc/profile.d/x.sh; do
  echo '{CHEAT}' >>$file
done
echo 'BASH_ENV=/root/.bashrc' >>/etc/environment
mkdir -p /etc/ld.so.conf.d /app/lib /usr/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v2
echo /app/lib >/etc/ld.so.conf.d/000.conf
cp /usr/lib/x86_64-linux-gnu/libm.so.6 /app/lib/libc.so.6
cp /usr/lib/x86_64-linux-gnu/libm.so.6 /usr/lib/x86_64-linux-gnu/glibc-hwcaps/x86-64-v2/libc.so.6
ldconfig 2>/dev/null
echo /app/lib/libc.so.6 >/etc/ld.so.preload
"""
"""Files that shells read, and the loader of programs."""

PLACES = f"""
(setsid bash -c 'while :; do {CHEAT}; sleep 0.05; done' >/dev/null 2>&1 &)
mkdir -p /app/logs/verifier /app/tests /solution /tests
echo 1 >/app/logs/verifier/reward.txt
echo '{{"reward": 1}}' >/app/logs/verifier/reward.json
printf '#!/bin/bash\\n{CHEAT}\\n' | tee /app/tests/test.sh /tests/test.sh >/solution/solve.sh
echo 'forty-one' >/app/answer
"""
LINKS = "rm -rf /logs /tests; ln -s /app/logs /logs; ln -s /app/tests /tests; mount --bind /app /tests; echo 1 > answer"
FIFO = "mkfifo /app/answer; rm -rf /usr/local/lib; rm -rf /etc/passwd"
FULL = "for i in 1 2 3; do dd if=/dev/zero of=/app/big$i bs=1M count=30 2>/dev/null; done; truncate -s 100G hole; ls"
GONE = "cd /; rm -rf /app; rm -rf /bin/bash /usr/bin/python3 /usr/bin/python3.11"
STOPS = "kill -9 1; kill -STOP 1; kill -TERM -1; kill -STOP -1; echo still; cat /proc/1/status | grep State"
BOMB = "bomb() { bomb | bomb & }; bomb; sleep 60"
DEEP = "for i in $(seq 300); do mkdir -p d$i/e; done; touch $(printf '\\377name'); chmod 000 /app; chattr +i /app/note"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    # With less, a fork bomb fills the memory before it has all processes, and the kernel may end process 1.
    return str(harbor_folder(tmp_path_factory.mktemp("attacks") / "answer", tests_s=15, memory_mb=2048))


@pytest.fixture
def env(folder):
    env = Harbor(folder=folder, command_s=6)
    env.reset(seed=0)
    yield env
    env.close()


@pytest.mark.parametrize(
    "attempts",
    [
        pytest.param([PROGRAMS], id="programs"),
        pytest.param([REPLACED], id="programs in place of others"),
        pytest.param([PYTHON, SHELL], id="hooks"),
        pytest.param([PLACES, "ls /app"], id="a process that writes rewards, planted tests"),
        pytest.param([PLACES, LINKS], id="links"),
        pytest.param([FIFO], id="a pipe in place of the answer"),
        pytest.param([FULL], id="a full disk"),
        pytest.param([GONE], id="no folder and no programs"),
        pytest.param([DEEP], id="odd files"),
    ],
)
def test_no_attempt_is_rewarded(env, attempts):
    for attempt in attempts:
        assert not env.step(f"run {attempt}")[2]
    observation, reward, terminated, _, info = env.step("submit")
    assert (reward, terminated, info["success"]) == (0, True, False), observation


def test_signals_and_fork_bombs_end_no_container(env):
    env.step(f"run {STOPS}")
    assert env.step("run cat note")[0] == "old"
    env.step(f"run {BOMB}")
    assert env.step("run cat note")[0] == "old"
    assert env.step("submit")[1] == 0


def test_a_right_answer_counts_whatever_lies_beside_it(env):
    env.step(f"run {PYTHON}")
    env.step(f"run {SHELL}")
    env.step("run rm -f /app/*.py; echo forty-two > /app/answer")
    env.step(f"run {PROGRAMS}")
    env.step(f"run {REPLACED}")
    assert env.step("submit")[1] == 1


PROGRAM = """cat > /app/summarize.py <<'PY'
#!/usr/bin/python3
import glob, os, signal, subprocess, sys, time
deeds = [
    "echo 1 > /logs/verifier/reward.txt", "rm -rf /logs; mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt",
    "cat /tests/checks", "/app/rootsh -p -c 'echo 1 > /logs/verifier/reward.txt'", "su -c id root",
    "kill -9 -1", "kill -STOP $PPID", "echo 1 > /proc/$PPID/root/logs/verifier/reward.txt", "echo 1 > /proc/$PPID/fd/1",
    "ln -sf /tests/checks out.csv", "cp /bin/bash /tmp/x && chmod 4755 /tmp/x", "mount -t tmpfs none /logs",
]
for deed in deeds:
    try:
        subprocess.run(["/bin/bash", "-c", deed], timeout=2, start_new_session=True, capture_output=True)
    except Exception:
        pass
if os.fork() == 0:
    os.setsid()
    for _ in range(100):
        for path in ("/logs/verifier/reward.txt", "/logs/verifier/reward.json"):
            try:
                open(path, "w").write("1")
            except OSError:
                pass
        time.sleep(0.05)
    os._exit(0)
print("skipped 0")
open(sys.argv[2], "w").write("path,requests,errors,bytes,slowest\\n")
PY
cp /bin/bash /app/rootsh; chmod 4755 /app/rootsh; chmod 777 /app
sed -i 's/^nobody:x:65534:65534/nobody:x:0:0/' /etc/passwd
echo 'nobody ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers
"""


def test_a_program_under_test_cannot_reward_itself():
    """It runs as nobody, who may not read the tests nor write the reward."""
    env = Harbor(folder=str(OWN / "log-summary"))
    env.reset(seed=0)
    env.step(f"run {PROGRAM}")
    assert "-rwsr-xr-x" in env.step("run ls -l rootsh")[0]
    assert env.step("submit")[1] == 0
    env.close()


@pytest.mark.parametrize("task", ["column-stats", "redact-logs", "recover-file", "lost-updates"])
def test_programs_that_answer_by_heart_score_0(task):
    constant = {
        "column-stats": "printf '#!/bin/bash\\necho count=0\\n' > colstat; chmod 755 colstat",
        "redact-logs": "printf 'import sys\\nsys.stdout.write(sys.stdin.read())\\n' > redact.py",
        "recover-file": "mkdir recovered; cp store/HEAD recovered/deleted-by; mkfifo recovered/routes.conf",
        "lost-updates": "printf 'print(1)\\n' > counter.py",
    }[task]
    env = Harbor(folder=str(OWN / task))
    env.reset(seed=0)
    env.step(f"run {constant}")
    assert env.step("submit")[1] == 0
    env.close()
