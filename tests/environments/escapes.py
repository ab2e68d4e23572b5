"""Attempts to get out of a sandbox, for bubblewrap here and for Docker in tests/containers/test_swe.py."""

from __future__ import annotations

import os
import time
from pathlib import Path

from agentgym_environments.backends.sandbox import Sandbox, SandboxLimits

SMALL = SandboxLimits(memory_mb=128, processes=24, disk_mb=4, files=1000)

SOCKETS = """
import socket
outside, machine, engine = ("192.0.2.1", 53), ("127.0.0.1", {port}), "/var/run/docker.sock"
stream, datagram = socket.SOCK_STREAM, socket.SOCK_DGRAM
for kind, address in ((stream, outside), (datagram, outside), (stream, machine), (stream, engine)):
    try:
        one = socket.socket(socket.AF_UNIX if address == engine else socket.AF_INET, kind)
        one.settimeout(1)
        one.connect(address)
        one.send(b"x")
        print("OUT", address)
    except OSError:
        pass
try:
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    socket.getaddrinfo("example.invalid", 443)
    print("OUT")
except OSError:
    print("no way")
"""

NAMESPACES = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for flags in (0x10000000, 0x00020000, 0x40000000, 0x7e020080):  # user, mount, network, all
    print(libc.unshare(flags), end=" ")
print(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None), libc.syscall(319, b"x", 0), libc.shmget(0, 1 << 30, 0o1777))
"""

PROCESSES = """
import os
for number in set(range(1, 50)) - {os.getpid()}:
    for deed in (os.kill, lambda *_: open(f"/proc/{number}/mem", "r+b"), lambda *_: os.listdir(f"/proc/{number}/fd")):
        try:
            deed(number, 9)
            if number == 1 and deed is not os.kill:
                print("OUT")
        except OSError:
            pass
print("no way")
"""


def writing_outside(box: Sandbox) -> None:
    for path in (
        "/x",
        "/usr/x",
        "/usr/bin/python3",
        "/etc/x",
        "/proc/sys/kernel/hostname",
        "/sys/x",
        "/opt/shown/x",
        "/root/x",
    ):
        assert box.run(f"echo x >> {path}").code != 0, path
        assert box.write(path, b"x") != "", path
    assert box.run("ln -s /opt/shown link && echo x > link/x").code != 0
    assert box.run("chmod 777 /opt/shown; rm -rf /opt/shown").code != 0
    assert box.run("cat /opt/shown/kept").output == "kept"


def reading_outside(box: Sandbox, secret: Path) -> None:
    assert (
        box.run(f"cat {secret} /etc/shadow /root/.bashrc /proc/1/environ /proc/1/root{secret}").output.count("treasure")
        == 0
    )
    assert box.read(str(secret)) is None
    assert box.read(f"../../../../../..{secret}") is None
    found = box.run("find / -xdev -name 'secret-of-*' 2>/dev/null; ls -d /home/* /srv/* /mnt/* /media/* 2>/dev/null")
    assert found.output == ""


def becoming_more(box: Sandbox) -> None:
    assert box.run("id -u").output.strip() not in ("0", "")
    assert box.run("grep -E 'CapEff|CapPrm' /proc/self/status | grep -v 0000000000000000").output == ""
    assert box.run("grep -E 'NoNewPrivs:.1|Seccomp:.2' /proc/self/status | wc -l").output == "2\n"
    box.write("n.py", NAMESPACES.encode())
    assert box.run("python3 n.py").output.split() == ["-1"] * 7
    assert box.run("su -c id; sudo id; passwd -d root; mknod d b 8 0; chroot / id").output.count("uid=0") == 0


def fork_bomb(box: Sandbox) -> None:
    before = len(os.listdir("/proc"))
    ran = box.run(":(){ :|:& };: ; sleep 30", timeout_s=2)
    assert (ran.code, ran.stopped) == (124, "time")
    assert "Resource temporarily unavailable" in ran.output or "Cannot fork" in ran.output
    assert len(os.listdir("/proc")) < before + 200
    assert box.run("unset -f :; echo alive").output == "alive\n"


def filling_memory(box: Sandbox) -> None:
    assert "MemoryError" in box.run("python3 -c 'x = bytearray(10**9)'").output
    hold = "import time; m = bytearray(60 << 20); m[::4096] = bytes(len(m[::4096])); time.sleep(20)"
    ran = box.run(f'for i in 1 2 3 4 5 6; do python3 -c "{hold}" & done; wait', timeout_s=25)
    assert ran.code == 137 or "Killed" in ran.output, ran
    assert box.run("echo alive").output == "alive\n"


def filling_the_disk(box: Sandbox) -> None:
    for folder in ("/work", "/tmp", "/dev/shm"):
        ran = box.run(f"head -c 1000000000 /dev/zero > {folder}/big; stat -c %s {folder}/big; rm {folder}/big")
        assert int(ran.output.split()[-1]) <= 16 << 20, ran
    ran = box.run("cd /tmp; i=0; while :; do : > $i || break; i=$((i + 1)); done", timeout_s=5)
    assert ran.code != 0 or "No space" in ran.output
    assert int(box.run("ls /tmp | wc -l; cd /").output or 10**6) < 100_000


def flooding(box: Sandbox) -> None:
    assert len(box.run("yes", timeout_s=1).output) < 70_000
    assert len(box.run("x=$(head -c 3000000 /dev/zero | tr '\\0' x)", timeout_s=10).output) < 70_000
    assert box.run("cd /work; echo alive").output == "alive\n"


def opening_sockets(box: Sandbox, port: int) -> None:
    box.write("s.py", SOCKETS.format(port=port).encode())
    assert box.run("python3 s.py").output == "no way\n"


def touching_others(box: Sandbox) -> None:
    box.write("p.py", PROCESSES.encode())
    assert "OUT" not in box.run("python3 p.py").output
    box.run("kill -9 1; kill -STOP 1; kill -TERM -1; kill -KILL -1")
    assert box.run("echo alive").output == "alive\n"


def outliving(box: Sandbox, mark: str) -> None:
    """Processes that left their session, ignore signals and hold pipes; none is there after the command."""
    box.run(f"(trap '' HUP TERM INT; setsid nohup sleep {mark} >/dev/null 2>&1 &) ; setsid sleep {mark} & disown -a")
    assert not running(mark)


def running(mark: str) -> list[int]:
    """Processes of the machine with `mark` on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            pass
    return found


def attempt_all(make, tmp_path: Path, port: int) -> None:
    """Every attempt in one sandbox after the other; a second sandbox beside it notices nothing."""
    shown, secret = tmp_path / "shown", tmp_path / "secret-of-the-machine"
    shown.mkdir()
    shown.chmod(0o777)
    (shown / "kept").write_text("kept")
    secret.write_text("treasure")
    with make() as neighbour:
        neighbour.run("echo mine > /work/mine; echo mine > /tmp/mine")
        for attempt in (
            writing_outside,
            becoming_more,
            fork_bomb,
            filling_memory,
            filling_the_disk,
            flooding,
            touching_others,
        ):
            with make(limits=SMALL, readonly={str(shown): "/opt/shown"}) as box:
                attempt(box)
                start = time.monotonic()
                assert neighbour.run("cat /work/mine /tmp/mine") == ("mine\nmine\n", 0, "")
                assert time.monotonic() - start < 10
        with make() as box:
            reading_outside(box, secret)
            opening_sockets(box, port)
            outliving(box, "31415.9")
        assert sorted(path.name for path in shown.iterdir()) == ["kept"]
