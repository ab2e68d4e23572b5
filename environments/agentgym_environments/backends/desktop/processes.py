"""Processes of a desktop, and commands on its home in a sandbox. Part of the program of `desk.py`."""

import contextlib
import os
import resource
import signal
import subprocess
import tempfile

LARGEST_FILE, LONGEST_OUTPUT = 64 << 20, 1 << 20
"""Bytes of a file that a command in the sandbox may write, and of its output that is kept."""


def sandboxed(home):
    """Command of bubblewrap for a command on a home: Debian's programs, and no setting of the home's that they would
    read by themselves (Python's packages of a user, a module in the working folder, a shell's start files)."""
    command = [
        "bwrap",
        "--unshare-all",
        "--die-with-parent",
        "--new-session",
        "--clearenv",
        "--ro-bind",
        "/usr",
        "/usr",
    ]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        if os.path.islink(f"/{name}"):
            command += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif os.path.isdir(f"/{name}"):
            command += ["--ro-bind", f"/{name}", f"/{name}"]
    for path in ("/etc/alternatives", "/etc/ld.so.cache"):
        command += ["--ro-bind-try", path, path]
    command += ["--symlink", "/usr/bin/python3", "/opt/bin/python", "--proc", "/proc", "--dev", "/dev"]
    command += ["--tmpfs", "/tmp", "--bind", home, home, "--chdir", home]
    variables = {"PATH": "/opt/bin:/usr/bin:/bin", "HOME": home, "LANG": "C.UTF-8", "TZ": "UTC", "USER": "user"}
    for name, value in {**variables, "PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1"}.items():
        command += ["--setenv", name, value]
    return [*command, "--"]


def descendants():
    """Every process that this one has started, however indirectly."""
    children = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
                children.setdefault(int(file.read().rpartition(b")")[2].split()[1]), []).append(int(entry))
    found, edge = [], [os.getpid()]
    while edge:
        edge = [child for parent in edge for child in children.get(parent, ())]
        found += edge
    return found


def activity():
    """Return (how often every thread has run, whether one runs now) of all processes of this desktop."""
    counts, busy = [], False
    for pid in descendants():
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                with open(f"/proc/{pid}/task/{thread}/status") as file:
                    lines = dict(line.split(":\t", 1) for line in file if ":\t" in line)
                busy = busy or lines["State"][0] in "RD"
                counts.append((thread, lines["voluntary_ctxt_switches"], lines["nonvoluntary_ctxt_switches"]))
    return counts, busy


def name_of(pid):
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as file:
        return file.read().strip()
    return ""


def kill(pid):
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def reap(ended):
    """Collect the children that have ended, {process number: wait status} into `ended`, and say whether there are
    others."""
    try:
        while (one := os.waitpid(-1, os.WNOHANG))[0]:
            ended[one[0]] = one[1]
    except ChildProcessError:
        return False
    return True


def run_sandboxed(command, home, seconds):
    """Run a command on a home in a sandbox: no network, no display, none of the desktop's processes.

    Return {"code", "output", "error"}, the texts cut at LONGEST_OUTPUT; "code" is None when it took too long.
    """
    texts = {}
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as error:
        sandbox = subprocess.Popen(
            [*sandboxed(home), *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=error,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE)),
        )
        try:
            code = sandbox.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
            sandbox.kill()
            sandbox.wait()
        for name, file in (("output", output), ("error", error)):
            file.seek(0)
            texts[name] = file.read(LONGEST_OUTPUT).decode(errors="replace")
    return {"code": code, **texts}
