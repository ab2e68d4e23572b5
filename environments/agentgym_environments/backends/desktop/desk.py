"""One desktop: an X display, its buses, a window manager and applications, and what they show, read by AT-SPI.

A program of its own, with `accessibility.py` and `processes.py`, for Debian's /usr/bin/python3, which alone has `gi`;
it imports nothing of AgentGym. Started by `desktop.py` with one JSON argument; then a line of JSON on stdin is a call,
a line of JSON on stdout its answer. When stdin ends it kills all it has started and removes its folder: so a desktop
ends with the process that asked for it.
"""

import base64
import contextlib
import ctypes
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from accessibility import (  # pyright: ignore[reportMissingImports]
    ACCESSIBLE,
    REGISTRY,
    Failed,
    call,
    connect,
    read_tree,
    switch_on,
    wait_for_answers,
    windows,
)
from processes import (  # pyright: ignore[reportMissingImports]
    activity,
    descendants,
    kill,
    name_of,
    reap,
    run_sandboxed,
)

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
CALM_S, CALM_SAMPLES = 0.01, 3
"""A desktop is at rest when in so many looks in a row, so far apart, no thread of it has run."""
LONGEST_REST_S = 10.0
"""Then it is looked at as it is: something may move for ever. On a busy machine an application starts for seconds."""
FIXED_TIME = 1767268800
"""Time of the files an episode begins with: 2026-01-01, 12:00 UTC."""

libc = ctypes.CDLL(None, use_errno=True)


class XSession:
    def __init__(self, home=""):
        """`home`: an empty folder; without one it is made in the session's own."""
        self.number, self.folder = new_folder()
        self.home = home or os.path.join(self.folder, "home")
        self.env = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "HOME": self.home,
            "DISPLAY": "",
            "TMPDIR": self.folder,
            "XDG_RUNTIME_DIR": os.path.join(self.folder, "run"),
            "XAUTHORITY": os.path.join(self.folder, "cookie"),
            "GTK_MODULES": "gail:atk-bridge",
            "NO_AT_BRIDGE": "0",
            "GTK_OVERLAY_SCROLLING": "0",
            "GSETTINGS_BACKEND": "keyfile",
            "LD_PRELOAD": "libnss_wrapper.so",  # dbus-daemon refuses a user that the system has no name for
            "NSS_WRAPPER_PASSWD": os.path.join(self.folder, "passwd"),
            "NSS_WRAPPER_GROUP": os.path.join(self.folder, "group"),
        }
        with open(self.env["NSS_WRAPPER_PASSWD"], "w") as passwd, open(self.env["NSS_WRAPPER_GROUP"], "w") as group:
            passwd.write(f"agent:x:{os.getuid()}:{os.getgid()}:agent:{self.home}:/bin/sh\n")
            group.write(f"agent:x:{os.getgid()}:\n")
        os.mkdir(self.env["XDG_RUNTIME_DIR"], 0o700)
        os.makedirs(self.home, exist_ok=True)
        self.services = set()
        self.started, self.ended = {}, {}
        """Names and wait statuses of the applications, by process number."""

    def open(self, size):
        """`size`: (width, height) of the screen in pixels."""
        self._start_display(size)
        self._start_buses()

    def _start_display(self, size):
        number, cookie = self.number, secrets.token_bytes(16)
        write_cookie(self.env["XAUTHORITY"], cookie, number)
        self.env["DISPLAY"] = f":{number}"
        get, put = os.pipe()
        screen = ["-screen", "0", "{}x{}x24".format(*size)]
        listen = ["-nolisten", "tcp", "-nolisten", "local", "-listen", "unix"]
        command = [
            "Xvfb",
            f":{number}",
            "-displayfd",
            str(put),
            *screen,
            *listen,
            "-noreset",
            "-auth",
            self.env["XAUTHORITY"],
        ]
        self.start(command, pass_fds=(put,))
        os.close(put)
        with os.fdopen(get) as reader:
            if not reader.readline().strip():
                raise RuntimeError("Xvfb did not start: " + self.errors())

    def _start_buses(self):
        get, put = os.pipe()
        command = ["dbus-daemon", "--session", "--nofork", "--nosyslog", f"--print-address={put}"]
        self.start(command, pass_fds=(put,))
        os.close(put)
        with os.fdopen(get) as reader:
            address = reader.readline().strip()
        if not address:
            raise RuntimeError("dbus-daemon did not start: " + self.errors())
        self.env["DBUS_SESSION_BUS_ADDRESS"] = address
        session = connect(address)
        switch_on(session)
        (address,) = call(session, "org.a11y.Bus", "/org/a11y/bus", "org.a11y.Bus", "GetAddress", None)
        self.env["AT_SPI_BUS_ADDRESS"] = address
        self.bus = connect(address)
        call(self.bus, *REGISTRY, ACCESSIBLE, "GetChildren", None)  # wakes the registry

    def start(self, command, **options):
        log = open(os.path.join(self.folder, "log"), "ab")  # noqa: SIM115
        with log:
            return subprocess.Popen(
                command,
                env=self.env,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
                **options,
            )

    def errors(self):
        with open(os.path.join(self.folder, "log"), "rb") as log:
            return log.read()[-500:].decode(errors="replace").strip()

    # What can be asked for.

    def about(self):
        traced = traces(self.number)
        return {"folder": self.folder, "home": self.home, "display": self.number, "traces": traced}

    def launch(self, folders, files, manager, commands):
        """Make home anew, and start the window manager (once) and then the commands, each when the last one's window
        is there and at rest."""
        self._end_applications()
        self.started, self.ended = {}, {}
        empty(self.home)
        for folder in folders:
            os.makedirs(os.path.join(self.home, folder), exist_ok=True)
        for name, text in files.items():
            path = os.path.join(self.home, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text.replace("@HOME@", self.home))
            os.utime(path, (FIXED_TIME, FIXED_TIME))
        for name in folders:
            os.utime(os.path.join(self.home, name), (FIXED_TIME, FIXED_TIME))
        if not self.services:
            self.start([part.replace("@HOME@", self.home) for part in manager])
            self.rest()
            self.services = set(descendants())
        for number, command in enumerate(commands, 1):
            self._show([part.replace("@HOME@", self.home) for part in command], number)
        return None

    def _show(self, command, number):
        """Start a program, and wait until there are `number` windows and all is at rest."""
        self.started[self.start(command).pid] = os.path.basename(command[0])
        until = time.monotonic() + 30
        while len(windows(self.bus)) < number:
            if time.monotonic() > until:
                raise RuntimeError(f"{command[0]} shows no window: {self.errors()}")
            time.sleep(0.01)
        self.rest()

    def show(self, command):
        """Start one more program, and wait until its window is there and all is at rest."""
        self._show(command, len(windows(self.bus)) + 1)

    def put(self, path, content):
        """Write a file of the home; `content` is base64. False where what is there already does not let it."""
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if os.path.lexists(path):
                os.unlink(path)  # a link would lead elsewhere
            with open(path, "wb") as file:
                file.write(base64.b64decode(content))
            os.utime(path, (FIXED_TIME, FIXED_TIME))
        except OSError:
            return False
        return True

    def run(self, command, seconds):
        """See processes.run_sandboxed."""
        return run_sandboxed(command, self.home, seconds)

    def finish(self):
        """End every program, the display included. `run` still works."""
        if not self._end_all():
            raise RuntimeError("programs of the desktop cannot be ended")

    def _end_applications(self):
        for _ in range(200):
            left = [pid for pid in descendants() if pid not in self.services]
            if not self.services or not left:
                break
            for pid in left:
                kill(pid)
            reap(self.ended)
            time.sleep(0.005)
        for _ in range(200):
            if not windows(self.bus):
                return
            time.sleep(0.005)

    def rest(self, limit=LONGEST_REST_S):
        """Wait until the desktop is at rest, at most `limit` seconds."""
        until, calm, last = time.monotonic() + limit, 0, None
        while time.monotonic() < until:
            reap(self.ended)
            now, busy = activity()
            calm = calm + 1 if now == last and not busy else 0
            if calm >= CALM_SAMPLES:
                return True
            last = now
            time.sleep(CALM_S)
        return False

    def read(self, limit=LONGEST_REST_S):
        """Return what shows, once at rest: windows, each {role, name, text?, states, box, kids}."""
        self.rest(limit)
        if not wait_for_answers(self.bus, limit):
            self.rest(limit)
        return read_tree(self.bus)

    def running(self):
        """Names of the programs that run beside the display and its services."""
        reap(self.ended)
        return sorted(name_of(pid) for pid in descendants() if pid not in self.services)

    def crashed(self):
        """Applications that a signal has ended since `launch`, each with its signal: an agent closes them otherwise."""
        reap(self.ended)
        statuses = ((name, self.ended.get(pid, 0)) for pid, name in self.started.items())
        return [f"{name} ({signal.Signals(os.WTERMSIG(one)).name})" for name, one in statuses if os.WIFSIGNALED(one)]

    def close(self):
        self._end_all()
        for path in traces(self.number):  # an Xvfb that is killed leaves them
            with contextlib.suppress(OSError):
                os.unlink(path)
        empty(self.home)
        empty(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end_all(self):
        for _ in range(400):
            for pid in descendants():
                kill(pid)
            if not reap(self.ended):  # whoever loses its parent is this process's child: none is left
                return True
            time.sleep(0.005)
        return False


# Files.


def traces(number):
    """Files by which a display of that number is known."""
    return [f"/tmp/.X{number}-lock", f"/tmp/.X11-unix/X{number}"]


def new_folder():
    """(number of the display, folder). The number is by chance out of many: an Xvfb that looks for one itself takes
    the display of a process that it cannot see. All have five digits, so that paths of all desktops are as wide."""
    while True:
        number = 10000 + secrets.randbelow(50000)
        folder = os.path.join(tempfile.gettempdir(), f"agentgym-gui-{number}")
        if not any(os.path.lexists(path) for path in traces(number)):
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)
                return number, folder


def write_cookie(path, cookie, number):
    """An Xauthority file with a display's cookie, without which nobody sees the display. Libraries look for it under
    any host's name, or under this one's."""
    kind, host = b"MIT-MAGIC-COOKIE-1", socket.gethostname().encode()
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        for family, address in ((65535, b""), (256, host)):
            fields = (address, str(number).encode(), kind, cookie)
            file.write(family.to_bytes(2, "big") + b"".join(len(one).to_bytes(2, "big") + one for one in fields))


def empty(folder):
    """Remove all that is in a folder, what may not be read included."""
    for root, folders, _ in os.walk(folder):
        for path in (os.path.join(root, name) for name in folders):
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            os.unlink(entry.path)


def main():
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    libc.prctl(PR_SET_DUMPABLE, 0)  # what the agent may start under the same user cannot look into this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    arguments = json.loads(sys.argv[1])
    desk = XSession(arguments["home"])
    try:
        desk.open(arguments["size"])
        answer = {"result": desk.about()}
        while True:
            print(json.dumps(answer), flush=True)
            line = sys.stdin.readline()
            if not line:
                break
            method, arguments = json.loads(line)
            try:
                answer = {"result": getattr(desk, method)(**arguments)}
            except (RuntimeError, OSError, Failed) as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
    except (RuntimeError, OSError, Failed) as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
    finally:
        desk.close()


if __name__ == "__main__":
    main()
