"""The sandbox: a shell that stays, files, snapshots, and its end. test_escape.py tries to get out."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import time

import pytest
from running import alive

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
        if not alive(sandbox):
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


def verdict(machine: str, number: int, *arguments: int, control_group: bool = False) -> str:
    """What the filter answers to a call, by running its code."""
    mark = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "i386": 0x40000003}[machine]
    code = filter.program(machine.replace("i386", "x86_64"), control_group=control_group)
    data = struct.pack("=IIQ6Q", number, mark, 0, *arguments, *(0,) * (6 - len(arguments)))
    loaded, at = 0, 0
    while True:
        kind, yes, no, value = struct.unpack_from("=HBBI", code, 8 * at)
        at += 1
        if kind == 0x06:
            return {0x7FFF0000: "allowed", 0x50001: "refused", 0x50026: "absent", 0x80000000: "killed"}[value]
        if kind == 0x20:
            (loaded,) = struct.unpack_from("=I", data, value)
        else:
            true = {0x15: loaded == value, 0x45: loaded & value, 0x25: loaded > value, 0x35: loaded >= value}[kind]
            at += yes if true else no


@pytest.mark.parametrize(
    ("expected", "call", "x86_64", "aarch64", "arguments"),
    [
        ("allowed", "read", 0, 63, (0,)),
        ("refused", "ptrace", 101, 117, ()),
        ("refused", "mount", 165, 40, ()),
        ("refused", "io_uring_setup", 425, 425, ()),
        ("absent", "clone3", 435, 435, ()),
        ("absent", "a call of the future", 500, 500, ()),
        ("absent", "epoll_create1", 291, 20, ()),
        ("allowed", "clone of a process", 56, 220, (17,)),
        ("refused", "clone into a user name space", 56, 220, (0x10000011,)),
        ("allowed", "own limit", 302, 261, (0, 7, 1 << 32)),
        ("allowed", "limit of another, read", 302, 261, (1, 7, 0, 4096)),
        ("refused", "limit of another", 302, 261, (1, 7, 4096)),
        ("refused", "limit of another, lower half null", 302, 261, (1, 7, 1 << 32)),
        ("allowed", "socket of Unix", 41, 198, (1, 1, 0)),
        ("allowed", "socket of TCP", 41, 198, (2, 1, 6)),
        ("allowed", "socket of UDP 6", 41, 198, (10, 2, 17)),
        ("refused", "socket of SCTP", 41, 198, (2, 1, 132)),
        ("refused", "socket of netlink", 41, 198, (16, 3, 0)),
        ("refused", "socket of virtual machines", 41, 198, (40, 1, 0)),
        ("allowed", "SO_REUSEADDR", 54, 208, (3, 1, 2)),
        ("allowed", "TCP_KEEPCNT's level", 54, 208, (3, 6, 7)),
        ("refused", "SO_SNDBUF", 54, 208, (3, 1, 7)),
        ("allowed", "private memory", 9, 222, (0, 4096, 3, 0x22)),
        ("refused", "shared memory without a name", 9, 222, (0, 4096, 3, 0x21)),
        ("allowed", "shared memory of a file", 9, 222, (0, 4096, 3, 0x01)),
    ],
)
def test_the_filter_answers_as_listed(expected, call, x86_64, aarch64, arguments):
    assert (verdict("x86_64", x86_64, *arguments), verdict("aarch64", aarch64, *arguments)) == (expected, expected)


def test_the_filter_has_one_machine_and_no_other():
    assert verdict("i386", 4) == "killed"
    assert verdict("x86_64", 0x40000000 + 39) == "refused"
    assert verdict("x86_64", 291, control_group=True) == "allowed"
    assert verdict("x86_64", 9, 0, 4096, 3, 0x21, control_group=True) == "allowed"
    assert filter.program("riscv64") == b""


def test_programs_are_started_from_where_they_were_found(monkeypatch, tmp_path):
    """What starts bubblewrap has a PATH of its own."""
    program = shutil.which("bwrap")
    if program is None:
        raise MissingDependency("a sandbox needs bubblewrap: apt-get install bubblewrap")
    (tmp_path / "bwrap").symlink_to(program)
    backends.bubblewrap_problem.cache_clear()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert backends.bubblewrap(SandboxLimits.model_validate({}), {}, [])[0] == str(tmp_path / "bwrap")
    with Sandbox(backend="bubblewrap") as box:
        assert box.run("echo $PATH").output.startswith("/opt/bin:")
    (tmp_path / "bwrap").unlink()
    (tmp_path / "bwrap").write_text("no program")
    (tmp_path / "bwrap").chmod(0o755)
    backends.bubblewrap_problem.cache_clear()
    with pytest.raises(MissingDependency, match=r"bwrap cannot be started .*apt-get install bubblewrap"):
        Sandbox(backend="bubblewrap")
    backends.bubblewrap_problem.cache_clear()
