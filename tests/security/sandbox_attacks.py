"""Attacks on a sandbox from inside, as data: what an agent runs, and what must come of it."""

from __future__ import annotations

from typing import NamedTuple


class Attack(NamedTuple):
    name: str
    code: str
    """A shell command; a Python program when it spans lines."""
    output: str = ""
    """Regular expression of the output."""
    refused: str = ""
    """Regular expression of the sentence with which `changes` refuses; "" where it does not."""
    timeout_s: float = 20.0
    counted: bool = False
    """True where a control group counts what is taken, so that Docker's sandboxes allow it."""


CALL = """
import ctypes, os, mmap, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    wide = [ctypes.c_long(one) if isinstance(one, int) else one for one in (number, *arguments)]
    done = libc.syscall(*wide)
    return 0 if done >= 0 else ctypes.get_errno()
"""
"""`call(number, ...)` is 0 or the error's number: 1 is EPERM, 38 ENOSYS."""
MANY = """
import os, socket, time
def in_all(work, count=14, seconds=30):
    for _ in range(count):
        if os.fork() == 0:
            held = []
            try:
                work(held)
            except OSError:
                pass
            time.sleep(seconds)
            os._exit(0)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            break
"""


def numbers(*those: int) -> str:
    return f"{CALL}\nprint([call(one, 0, 0, 0, 0, 0, 0) for one in {list(those)}])"


PRLIMIT = """
import resource
try:
    resource.prlimit(1, resource.{}, ({}, {}))
except PermissionError as error:
    print("no", error.errno)
"""

PROCESS_ONE = [
    *(
        Attack(f"limit {name} of process 1", PRLIMIT.format(name, most, most), "no 1")
        for name, most in (
            ("RLIMIT_NOFILE", 3),
            ("RLIMIT_NPROC", 1),
            ("RLIMIT_AS", 50 << 20),
            ("RLIMIT_DATA", 1 << 20),
            ("RLIMIT_FSIZE", 0),
            ("RLIMIT_CPU", 1),
        )
    ),
    Attack(
        "limit with a pointer whose lower half is null",
        f"{CALL}\nwhere = libc.mmap\nwhere.restype = ctypes.c_void_p\n"
        "at = where(ctypes.c_void_p(1 << 32), 4096, 3, 0x32, -1, 0)\nprint(at == 1 << 32, call(302, 1, 7, at, 0))",
        "True 1",
    ),
    Attack("signals to process 1", "for s in $(seq 1 64); do kill -$s 1 2>/dev/null; done; echo all sent", "all sent"),
    Attack("kill everything", "kill -9 -1; kill -KILL 1", ""),
    Attack("priority of process 1", "renice 19 -p 1; renice 19 -u $(id -u)", "not permitted(.|\n)*not permitted"),
    Attack(
        "cores and class of process 1",
        f"{CALL}\nmask = ctypes.create_string_buffer(b'\\1' + b'\\0' * 127)\n"
        "idle = ctypes.create_string_buffer(64)\n"
        "print(call(203, 1, 128, mask), call(203, 0, 128, mask), call(144, 1, 5, idle), call(314, 1, idle, 0))",
        "1 1 1 1",
    ),
    Attack(
        "look into process 1",
        "for f in mem environ maps fd/0 fd/1 root/etc cwd exe map_files; do cat /proc/1/$f && echo OUT; done; "
        "echo 0 > /proc/1/oom_score_adj || echo no",
        r"\A(?!(.|\n)*OUT)(.|\n)*no",
    ),
    Attack(
        "trace and copy from process 1", numbers(101, 310, 311, 312, 438, 440, 279, 256), r"\[1, 1, 1, 1, 1, 1, 1, 1\]"
    ),
    Attack("tracing by a debugger", "gdb -p 1 -batch 2>&1; strace true 2>&1; echo tried", "tried"),
]

NAMESPACES = [
    Attack("mounts", numbers(165, 166, 155, 161, 428, 429, 430, 431, 432, 433, 442), r"\[(1, ){10}1\]"),
    Attack("handles of files", numbers(303, 304), r"\[1, 1\]"),
    Attack(
        "new name spaces",
        f"{CALL}\nkinds = (0x10000000, 0x20000, 0x40000000, 0x20000000, 0x2000000, 0x4000000, 0x8000000, 0x80)\n"
        "print({call(272, one) for one in kinds}, {call(56, one | 17, 0, 0, 0, 0) for one in kinds[:-1]}, "
        "call(435, 0, 0), "
        "call(308, 0, 0))",
        r"\{1\} \{1\} 38 1",
    ),
    Attack("x32's numbers", f"{CALL}\nprint(call(0x40000000 + 39), call(0x40000000 + 272, 0x10000000))", "1 1"),
    Attack("calls that are newer than the list", numbers(453, 457, 467, 469, 500), r"\[(38, ){4}38\]"),
    Attack(
        "modules, swap, clocks",
        numbers(175, 313, 176, 246, 320, 169, 163, 167, 168, 179, 227, 164, 159, 103),
        r"\[(1, ){13}1\]",
    ),
    Attack("BPF, io_uring and the like", numbers(321, 323, 298, 425, 426, 427, 317, 444, 300), r"\[(1, ){8}1\]"),
    Attack("keys", numbers(248, 249, 250), r"\[1, 1, 1\]"),
]

SOCKETS = [
    Attack(
        "families of sockets",
        "import socket\nopen_ones = []\nfor family in range(64):\n for kind in (1, 2, 3, 5):\n  try:\n"
        "   socket.socket(family, kind); open_ones.append(family)\n  except OSError: pass\n"
        "print(sorted(set(open_ones)))",
        r"\[1, 2, 10\]",
    ),
    Attack(
        "protocols",
        "import socket\nfor kind, protocol in ((1, 132), (1, 262), (2, 1), (2, 136), (3, 255)):\n try:\n"
        "  socket.socket(2, kind, protocol); print('OUT')\n except OSError as error: print(error.errno)",
        r"\A(1\n){5}\Z",
    ),
    Attack(
        "larger buffers",
        "import socket\na, b = socket.socketpair()\nfor option in (7, 8, 32, 33):\n"
        " try: a.setsockopt(1, option, 1 << 22)\n"
        " except OSError as error: print(error.errno)",
        r"\A(1\n){4}\Z",
    ),
    Attack(
        "full pairs of sockets",
        f"{MANY}\ndef work(held):\n while True:\n  for one in socket.socketpair():\n   held.append(one)\n"
        "   one.setblocking(False)\n   try:\n    while True: one.send(bytes(4096))\n   except BlockingIOError: pass\n"
        "in_all(work)",
    ),
    Attack(
        "full sockets that were closed before they were accepted",
        "import socket\nheard = socket.socket(1); heard.bind('\\0x'); heard.listen(4096)\nfor _ in range(4000):\n"
        " one = socket.socket(1); one.connect('\\0x'); one.setblocking(False)\n"
        " try:\n  while True: one.send(bytes(65536))\n except BlockingIOError: one.close()",
    ),
    Attack(
        "full sockets inside messages",
        "import socket, array\nouter = socket.socketpair()\nfor _ in range(400):\n pair = socket.socketpair()\n"
        " for one in pair:\n  one.setblocking(False)\n  try:\n   while True: one.send(bytes(65536))\n"
        "  except BlockingIOError: pass\n"
        " try: outer[0].sendmsg([b'x'], [(1, 1, array.array('i', [pair[0].fileno(), pair[1].fileno()]))])\n"
        " except OSError: break\n for one in pair: one.close()",
    ),
    Attack(
        "full TCP connections",
        f"{MANY}\ndef work(held):\n heard = socket.create_server(('127.0.0.1', 0))\n while True:\n"
        "  one = socket.create_connection(heard.getsockname()); held += [one, heard.accept()[0]]\n"
        "  one.setblocking(False)\n"
        "  try:\n   while True: one.send(bytes(65536))\n  except BlockingIOError: pass\nin_all(work)",
    ),
]

MEMORY = [
    Attack(
        "many processes", f"{MANY}\ndef work(held):\n held.append(b'x' * (30 << 20))\nin_all(work)", "memory: more than"
    ),
    Attack("one large process", "x=$(head -c 250000000 /dev/zero | tr '\\0' x); echo $?", ""),
    Attack(
        "shared memory without a name",
        "import mmap\ntry: mmap.mmap(-1, 4096)\nexcept PermissionError: print('no')",
        "no",
        counted=True,
    ),
    Attack(
        "shared memory of /dev/zero",
        "import mmap\nf = open('/dev/zero', 'r+b')\ntry: mmap.mmap(f.fileno(), 4096)\nexcept OSError: print('no')",
        "no",
        counted=True,
    ),
    Attack("memory files, System V, queues", numbers(319, 447, 29, 68, 64, 240, 206), r"\[(1, ){6}1\]"),
    Attack("pages in pipes", numbers(275, 276, 278, 40), r"\[(38, ){3}38\]", counted=True),
    Attack(
        "large pipes",
        "import fcntl, os\ntry: fcntl.fcntl(os.pipe()[1], 1031, 1 << 20)\nexcept OSError as e: print(e.errno)",
        "1",
    ),
    Attack(
        "full pipes",
        f"{MANY}\ndef work(held):\n while True:\n  a, b = os.pipe(); os.set_blocking(b, False)\n  try:\n"
        "   while True: os.write(b, bytes(4096))\n  except BlockingIOError: pass\nin_all(work)",
    ),
    Attack("epoll and inotify", numbers(213, 291, 253, 294), r"\[(38, ){3}38\]", counted=True),
    Attack("large pages", f"{CALL}\nprint(call(157, 41, 0, 0, 0, 0), call(9, 0, 1 << 21, 3, 0x40022, -1, 0))", "1 1"),
    Attack(
        "page tables",
        f"{MANY}\nimport mmap\ndef work(held):\n m = mmap.mmap(-1, 150 << 20, flags=mmap.MAP_PRIVATE | 0x20)\n"
        " held.append(m)\n"
        " sum(m[i] for i in range(0, len(m), 2 << 20))\nin_all(work, seconds=1)",
    ),
    Attack(
        "many mappings",
        f"{MANY}\n{CALL}\ndef work(held):\n libc.mmap.restype = ctypes.c_void_p\n"
        " at = libc.mmap(None, 120 << 20, 1, 0x22, -1, 0)\n"
        " for i in range(0, 120 << 20, 8192): libc.mprotect(ctypes.c_void_p(at + i), 4096, 0)\n"
        "in_all(work, count=8, seconds=1)",
    ),
    Attack(
        "many file locks",
        "import fcntl\nfor n in range(200):\n f = open(f'/tmp/{n}', 'w'); globals()[f'f{n}'] = f\n"
        " for i in range(2000): fcntl.lockf(f, fcntl.LOCK_EX, 1, 2 * i)",
        timeout_s=4,
    ),
    Attack(
        "extended attributes",
        "import os\nfor n in range(1500):\n open(f'/tmp/{n}', 'w').close()\n try:\n"
        "  for i in range(8): os.setxattr(f'/tmp/{n}', f'user.{i}', bytes(60000))\n except OSError: pass",
    ),
    Attack("terminals", f"{MANY}\ndef work(held):\n while True: held.append(os.openpty())\nin_all(work, seconds=2)"),
    Attack("fork bomb", ":(){ :|:& };: ; sleep 20", "time|Resource|fork|memory", timeout_s=1.5),
    Attack("own limits raised", "ulimit -v unlimited; ulimit -n 100000; ulimit -u 5000; echo tried", "tried"),
    Attack(
        "memory of deleted files",
        'for i in 1 2 3 4 5 6 7 8; do eval "exec 1$i>/tmp/$i"; rm /tmp/$i; head -c 16000000 /dev/zero >&1$i; done',
        "No space",
    ),
]

FILES = [
    Attack(
        "folders deeper than a path may be long",
        "for i in $(seq 22); do d=$(printf 'n%.0s' $(seq 200)); mkdir $d && cd -P $d; done; touch f; cd /work",
    ),
    Attack(
        "folders deeper than is looked at",
        "import os\nfor _ in range(1500): os.mkdir('q'); os.chdir('q')",
        refused="nested deeper",
    ),
    Attack("links to a sparse file", "truncate -s 16M /tmp/big; for i in $(seq 100); do ln -s /tmp/big $i; done"),
    Attack(
        "names of one sparse file",
        "truncate -s 16M big; for i in $(seq 100); do ln big $i; done",
        refused="more than 16 MB",
    ),
    Attack(
        "many sparse files", "for i in $(seq 1000); do echo $i; done | xargs truncate -s 16M", refused="more than 16 MB"
    ),
    Attack(
        "links to files of the kernel",
        "ln -sf /proc/self/attr/exec a.py; ln -s /proc/kmsg k; ln -s /dev/zero z; ln -s . loop",
    ),
    Attack(
        "a link in the middle of a path",
        "ln -s / root; ln -s /proc/self/fd fd; ls root/usr >/dev/null; echo made",
        "made",
    ),
    Attack(
        "pipes and sockets", "mkfifo p; rm a.py; mkfifo a.py; python3 -c \"import socket; socket.socket(1).bind('s')\""
    ),
    Attack("names that are no text", "touch $'\\xff\\xfe'; touch $'new\\nline'; touch -- '-rf'"),
    Attack("locked files and folders", "mkdir -p x/y; echo 1 > x/y/z; chmod 0 x/y/z x/y x; chmod 0 a.py"),
    Attack(
        "more files than are allowed",
        "import os\nfor i in range(10**6): open(f'/tmp/{i}', 'w').close()",
        "files in /tmp|No space left on device",
    ),
    Attack("long names", "import os\nfor i in range(1500): open('n' * 250 + str(i), 'w').close()"),
]

SHELL = [
    Attack("a NUL in the shell's folder", "printf '/tmp/a\\0b\\n' >&9; exec true"),
    Attack("a NUL in the shell's functions", "printf '/work\\n\\0f() { :; }\\0g\\n' >&9; exec true"),
    Attack("a folder that is none", "mkdir gone; cd gone; rmdir ../gone"),
    Attack("garbage for the shell's state", "head -c 90000 /dev/urandom >&9; exec true"),
    Attack("state without end", "timeout 1 cat /dev/zero >&9; true"),
    Attack(
        "own output taken away",
        "cat /proc/self/fd/1 >/dev/null & for i in 1 2 3 4 5 6 7 8 9; do echo $i; done; sleep 0.3",
    ),
    Attack("output without end", "yes", "time", timeout_s=1),
    Attack("a long variable", "export LONG=$(head -c 90000 /dev/zero | tr '\\0' x)"),
    Attack(
        "processes that stay",
        "(trap '' HUP TERM INT; setsid nohup sleep 77 >/dev/null 2>&1 &); setsid sleep 77 & disown -a",
    ),
    Attack("closed outputs", "exec 1>&- 2>&- 9>&-; sleep 0.1"),
]

ALL = [*PROCESS_ONE, *NAMESPACES, *SOCKETS, *MEMORY, *FILES, *SHELL]
