"""The environment `harbor` where no engine is needed: arguments, what is kept of an agent's changes, streams."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest
from harbor_folders import harbor_folder

from agentgym import registry
from agentgym.errors import ConfigError
from agentgym_environments.backends.containers import engine
from agentgym_environments.backends.containers.images import _parts
from agentgym_environments.backends.containers.streams import ROOM, Attached, Kept
from agentgym_environments.benchmarks.harbor.env import OWN
from agentgym_environments.benchmarks.harbor.grader import _number, _of_json
from agentgym_environments.benchmarks.harbor.kept import keeper

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def test_it_is_made_without_an_engine():
    env = registry.make("harbor")
    assert env.env_spec.splits == {"test": 10}
    assert env.env_spec.task_set.startswith("sha256:")
    assert env.env_spec.step_deadline_s == 900 + 3 * 120 + 120
    assert {env.tasks["test", i].id for i in range(10)} == {f"agentgym/{place.name}" for place in OWN.iterdir()}
    env.close()


def test_a_folder_of_ones_own_is_played(tmp_path):
    folder = harbor_folder(tmp_path / "one")
    env = registry.make(f"harbor:folder={folder},max_turns=7,interface=tools")
    assert (env.env_spec.splits, env.env_spec.max_turns, env.env_spec.action_format) == ({"test": 1}, 7, "tool_call")
    first = env.env_spec.task_set
    (folder / "tests" / "check.py").write_text("changed")
    os.utime(folder / "tests" / "check.py", (time.time() + 5,) * 2)
    assert registry.make("harbor", folder=str(folder)).env_spec.task_set != first


def test_tasks_are_divided_by_share_or_names(tmp_path):
    for name in "abcdefgh":
        harbor_folder(tmp_path / "all" / name)
    folder = str(tmp_path / "all")

    def names(env, split):
        return {env.tasks[split, i].id for i in range(env.env_spec.splits[split])}

    half = registry.make("harbor", folder=folder, train=0.5)
    before = names(half, "train"), names(half, "test")
    assert all(before)
    assert before[0] | before[1] == {f"test/{name}" for name in "abcdefgh"}
    harbor_folder(tmp_path / "all" / "i")
    after = registry.make("harbor", folder=folder, train=0.5)
    assert before[0] <= names(after, "train")
    assert before[1] <= names(after, "test")
    (tmp_path / "names").write_text("b\n\ntest/c\n")
    env = registry.make(f"harbor:folder={folder},train={tmp_path / 'names'}")
    assert names(env, "train") == {"test/b", "test/c"}
    assert env.env_spec.splits == {"train": 2, "test": 7}
    (tmp_path / "names").write_text("z\n")
    with pytest.raises(ConfigError, match=r"no task is called z; there are a, b"):
        registry.make("harbor", folder=folder, train=str(tmp_path / "names"))
    with pytest.raises(ConfigError, match="none would be left for 'train'"):
        registry.make("harbor", folder=folder, train=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"folder": "/nowhere"}, "there is no folder"),
        ({"folder": 3}, "folder is the name of a folder"),
        ({"train": 1.5}, "train is a share between 0 and 1 or a file of names"),
        ({"train": "/nowhere"}, "train names a file that cannot be read"),
        ({"command_s": 0}, "command_s is a number of at least 1"),
        ({"max_turns": -1}, "max_turns is a number of at least 0"),
        ({"time_factor": 0}, "time_factor is a number above 0"),
        ({"interface": "mouse"}, "interface is text or tools"),
    ],
)
def test_arguments_that_cannot_be_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        registry.make("harbor", **arguments)


KEPT = """
added /app/answer | changed /app/note | removed /app/note | added /app/conftest.py | changed /etc/passwd
added /etc/nginx/nginx.conf | added /usr/bin/newprogram | added /usr/local/bin/mine | added /root/data.csv
added /usr/lib/python3/dist-packages/flask/__init__.py | added /usr/local/lib/python3.11/site-packages/flask/app.py
added /usr/share/nginx/index.html | added /srv/x | changed /usr/src/project/a.py | added /opt/tool/bin/cat
added /usr/src/project/json.py.txt | added /usr/src/project/data/json.py | changed /usr/src/project/json.py
added /usr/src/project/html/index.html | added /usr/src/project/test/__init__.py | added /app/lib/csv.py
changed /root/.gitconfig | added /opt/tests/x | changed /home/user/logs/x
"""
LEFT_OUT = """
added /tests/test.sh | changed /tests | added /logs/verifier/reward.txt | added /logs | added /solution/x
changed /proc/x | changed /usr/bin/bash | removed /usr/bin/bash | changed /bin | added /usr/local/bin/python3
added /usr/local/sbin/chmod | added /bin/python3 | added /usr/local/bin/uv | added /root/.local/bin/python3
added /usr/lib/python3.11/_struct.py | added /usr/lib/python311.zip | added /usr/local/lib/python312.zip
added /usr/lib/python3.11/__pycache__/csv.cpython-311.pyc | changed /usr/lib/python3.11/json/__init__.py
removed /usr/lib/python3.11/csv.py | added /etc/ld.so.preload | changed /etc/ld.so.cache
added /etc/ld.so.conf.d/a.conf | changed /etc/profile | added /etc/profile.d/x.sh | changed /etc/environment
changed /root/.bashrc | added /home/u/.profile | added /app/sitecustomize.py
added /usr/lib/python3/dist-packages/usercustomize.py | added /app/x/a.pth
added /usr/lib/python3/dist-packages/zz.pth | added /conftest.py | added /pytest.ini | added /pyproject.toml
added /setup.cfg | added /tox.ini | added /root/.local/lib/python3.11/site-packages/x.py
added /usr/lib/x86_64-linux-gnu/glibc-hwcaps/x/libc.so.6 | added /root/.config/pip/pip.conf | added /etc/pip.conf
changed /etc/apt/sources.list | added /etc/perl/strict.pm | changed /lib
added /usr/local/share/perl/5.36.0/strict.pm | added /usr/lib/python3.11/sitecustomize/__init__.py
added /usr/src/project/json.py | added /usr/src/project/csv/__init__.py | added /random.py
added /usr/src/project/_struct.cpython-311-x86_64-linux-gnu.so
changed /etc/hosts | added /usr/local/lib/python3.11/site-packages/evil-1.dist-info/entry_points.txt
"""


def verdicts(lines: str) -> dict[str, bool]:
    keep = keeper(frozenset({"bash", "python3", "chmod"}), PATH, "/usr/src/project")
    changes = [change.split() for change in lines.replace("\n", "|").split("|") if change.strip()]
    return {f"{kind} {path}": keep(path, kind, lambda: b"[pytest11]\nevil = evil") for kind, path in changes}  # type: ignore[arg-type]


def test_work_is_kept():
    assert [change for change, kept in verdicts(KEPT).items() if not kept] == []


def test_what_changes_how_tests_run_is_left_out():
    assert [change for change, kept in verdicts(LEFT_OUT).items() if kept] == []


def test_rewards_are_read_as_harbor_reads_them():
    assert _of_json({"reward": 0.5, "other": 1}) == 0.5
    assert _of_json({"a": 1, "b": 0}) == 0.5
    for wrong in (1.0, {}, [1], {"a": "1"}, {"a": float("nan")}, {"a": None}):
        with pytest.raises(ValueError):
            _of_json(wrong)
    assert _number(True) == 1
    with pytest.raises(ValueError):
        _number(float("inf"))


def test_the_middle_of_a_long_output_is_left_out():
    kept = Kept(10)
    for piece in (b"abc", b"defgh", b"ij"):
        kept.add(piece)
    assert (kept.text(), kept.content()) == ("abcdefghij", b"abcdefghij")
    for _ in range(1000):
        kept.add(b"0123456789")
    assert kept.text() == "abcde\n[... 10000 bytes left out ...]\n56789"
    assert len(kept.last) <= 20 + ROOM
    with pytest.raises(ValueError, match="longer"):
        kept.content()


@pytest.mark.parametrize("before", [b"", b"abc", b"abcdefgh", b"abcdefghij", b"0123456789" * 3000])
def test_a_mark_at_the_end_is_cut_off(before):
    kept, plain = Kept(10), Kept(10)
    plain.add(before)
    for place in range(0, len(before), 7):
        kept.add(before[place : place + 7])
    assert kept.after(b"MARK") is None
    kept.add(b"MA")
    kept.add(b"RK0 /app\0")
    assert kept.ends(b"\0")
    assert kept.after(b"MARK") == b"0 /app\0"
    assert kept.after(b"MARK", cut=True) == b"0 /app\0"
    assert kept.text() == plain.text()


def test_streams_end_by_what_is_written_or_by_time():
    ours, theirs = socket.socketpair()
    with theirs:
        attached = Attached(ours, 100)
        for piece in (b"\1\0\0\0\0\0\0\3ou", b"t\2\0\0\0\0\0\0\4", b"done\1\0\0\0\0\0\0\1x"):
            theirs.sendall(piece)
        begun = time.monotonic()
        assert attached.read(begun + 20, lambda one: one.errors.length == 4, lambda: False)
        assert attached.errors.text() == "done"
        assert not attached.read(time.monotonic() + 0.1, lambda _: False, lambda: False)
        assert attached.read(time.monotonic() + 20, lambda _: False, lambda: True)  # its pipes are held by another
        assert time.monotonic() - begun < 15
        attached.close()
    assert attached.output.text() == "outx"


def test_output_that_comes_after_the_end_of_its_process_is_read():
    """The engine knows that a process has ended before it has passed on what the process wrote."""
    ours, theirs = socket.socketpair()

    def pass_on() -> None:
        theirs.sendall(b"\1\0\0\0\0\0\0\3old")
        theirs.close()

    def ended() -> bool:
        threading.Timer(0.5, pass_on).start()
        return True

    attached = Attached(ours, 100)
    assert attached.read(time.monotonic() + 20, lambda _: False, ended)
    attached.close()
    assert attached.output.text() == "old"


def test_containers_of_processes_that_are_gone_are_abandoned():
    mine = engine.owner()
    machine, pid, started = mine.split("/")
    assert pid == str(os.getpid())
    assert not engine._abandoned(mine, 10**6)
    assert engine._abandoned(f"{machine}/{pid}/{int(started) + 1}", 0)  # another process had the number
    assert engine._abandoned(f"{machine}/4194304/1", 0)
    assert not engine._abandoned(f"elsewhere/{pid}/{started}", 3600)
    assert engine._abandoned(f"elsewhere/{pid}/{started}", 10**6)


def test_an_image_without_a_tag_is_the_latest():
    assert _parts("python") == ("python", "latest")
    assert _parts("localhost:5000/a/b") == ("localhost:5000/a/b", "latest")
    assert _parts("localhost:5000/a/b:1") == ("localhost:5000/a/b", "1")
    assert _parts("a/b@sha256:0") == ("a/b@sha256:0", None)
