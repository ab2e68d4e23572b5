"""The sandbox: a shell that stays, files, snapshots, and its end. test_escape.py tries to get out."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentgym.errors import ConfigError, MissingDependency
from agentgym_environments.backends.sandbox import Sandbox, SandboxLimits, SandboxLost, backends, filter


@pytest.fixture
def box():
    with Sandbox({"a.py": b"print(1 + 1)\n", "d/e.txt": b"e"}) as box:
        yield box


def test_folder_variables_and_functions_of_the_shell_stay(box):
    assert box.run("python a.py; python3 a.py") == ("2\n2\n", 0, "")
    assert box.run("x='a b'; export Y=1; f() { echo \"f $1\"; }; cd d; exit 3").code == 3
    assert box.run('echo "$x" $(printenv Y); f 2; pwd; cat e.txt; cd ..').output == "a b 1\nf 2\n/work/d\ne"
    assert box.run("exec echo gone").output == "gone\n"
    assert box.run('echo "$x"; pwd').output == "a b\n/work\n"
    assert box.run("if").code != 0


def test_a_command_has_no_input_and_leaves_nothing_running(box):
    assert box.run("cat; sleep 1000 & echo said") == ("said\n", 0, "")
    assert box.run("ls -d /proc/[0-9]* | wc -l").output.strip() in ("3", "4", "5")
    start = time.monotonic()
    assert box.run("(trap '' TERM INT; sleep 1000)", timeout_s=0.3)[1:] == (124, "time")
    assert time.monotonic() - start < 3
    assert box.run("echo still here").output == "still here\n"


def test_long_output_keeps_its_ends():
    with Sandbox(limits=SandboxLimits(output_kb=1)) as box:
        text = box.run("echo begin; yes | head -c 100000; echo end").output
    assert text.startswith("begin\n")
    assert text.endswith("y\nend\n")
    assert "[... 98986 bytes left out ...]" in text
    assert len(text) < 1100


def test_files_and_what_became_of_them(box):
    first = box.digest()
    assert box.changes() == {}
    assert box.write("new/file.bin", bytes(range(256))) == ""
    assert box.run("rm d/e.txt; chmod +x a.py; mkfifo pipe").code == 0
    assert box.changes() == {"new/file.bin": bytes(range(256)), "d/e.txt": None, "a.py": b"print(1 + 1)\n"}
    assert box.read("new/file.bin") == bytes(range(256))
    assert [box.read(path) for path in ("pipe", "new", "none", "/etc/shadow", "/dev/zero")] == [None] * 5
    assert box.write("/usr/x", b"") == "Read-only file system"
    assert box.digest() != first
    box.run("rm -r new pipe; chmod -x a.py; printf e > d/e.txt")
    assert (box.changes(), box.digest()) == ({}, first)


def test_a_snapshot_restores_files_and_shell_on_another_sandbox(box):
    box.run("x=5; mkdir -p deep/er; ln -s a.py link; echo '#!/bin/sh' > deep/er/run; chmod +x deep/er/run; cd deep")
    box.run("echo t > /tmp/t; mkdir locked; touch locked/f; chmod 500 locked")
    state, digest, changes = box.snapshot(), box.digest(), box.changes()
    box.run("rm -r er; x=6; cd /tmp")
    with Sandbox({"other": b""}) as other:
        for one in (other, box):
            one.restore(state)
            assert (one.digest(), one.changes()) == (digest, changes)
            assert one.run("echo $x; pwd; cat /tmp/t; er/run && readlink ../link").output == "5\n/work/deep\nt\na.py\n"


def test_sandboxes_see_nothing_of_each_other_or_of_the_machine(box):
    with Sandbox({"mine": b"1"}, readonly={os.path.dirname(__file__): "/opt/tests"}) as other:
        box.run("echo secret > /tmp/s; echo secret > /dev/shm/s; export S=secret; sleep 5 &")
        result = other.run("ls /work /tmp /dev/shm /opt/tests; env; ls /proc; hostname")
        assert "secret" not in result.output
        assert "test_sandbox.py" in result.output
        assert other.run("touch /opt/tests/x").code != 0
        assert other.run("cat /etc/passwd /etc/shadow /etc/hostname").code != 0


def test_closing_twice_is_fine_and_use_after_close_an_error():
    box = Sandbox()
    box.close()
    box.close()
    with pytest.raises(SandboxLost, match="closed"):
        box.run("true")


def test_the_sandbox_ends_with_whoever_started_it():
    code = (
        "from agentgym_environments.backends.sandbox import Sandbox\n"
        "box = Sandbox(); print(box._process.pid, flush=True); box.run('sleep 1000', 1000)"
    )
    backends.choose("auto")  # raises here, and not in a process, where no sandbox can be made
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        sandbox = int(parent.stdout.readline())
        time.sleep(0.3)
        parent.kill()
    for _ in range(100):
        stat = Path(f"/proc/{sandbox}/stat")
        if not stat.exists() or stat.read_text().split()[2] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("the sandbox outlived its parent")


def test_a_missing_program_is_a_clear_error(monkeypatch, tmp_path):
    with pytest.raises(ConfigError, match="auto, bubblewrap or docker, not 'jail'"):
        Sandbox(backend="jail")
    backends.bubblewrap_problem.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingDependency, match="apt-get install bubblewrap"):
        Sandbox()
    with pytest.raises(MissingDependency, match=r"apt-get install docker\.io"):
        Sandbox(backend="docker")
    backends.bubblewrap_problem.cache_clear()


def test_the_filter_is_known_on_two_machines_and_empty_elsewhere():
    assert len(filter.program("x86_64")) == len(filter.program("aarch64")) > 400
    assert filter.program("riscv64") == b""
