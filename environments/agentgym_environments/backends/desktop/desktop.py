"""A desktop from the agent's side: eyes (screenshots, the accessibility tree), hands (XTEST) and the files it left."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import secrets
import shutil
import stat
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from agentgym.errors import EnvironmentCrashed, MissingDependency
from agentgym_environments.backends.desktop.enclosure import enclosure
from agentgym_environments.backends.desktop.setup import SIZE
from agentgym_environments.backends.desktop.window_manager import find_window, request, window_numbers
from agentgym_environments.backends.json_process import JsonProcess

PACKAGES = {
    "Xvfb": "xvfb",
    "dbus-daemon": "dbus",
    "openbox": "openbox",
    "mousepad": "mousepad",
    "galculator": "galculator",
    "pcmanfm": "pcmanfm",
}
"""Program: Debian package."""
LIBRARIES = {
    "python3-gi": "/usr/lib/python3/dist-packages/gi",
    "at-spi2-core": "/usr/libexec/at-spi-bus-launcher",
    "libatk-adaptor": "/usr/share/doc/libatk-adaptor",
    "libgail-common": "/usr/share/doc/libgail-common",
    "libnss-wrapper": "/usr/share/doc/libnss-wrapper",
}
"""Debian package: what it brings."""

LARGEST_FILE = 2**20
"""Bytes; a larger file is no file that a task asks for."""
MOST_FILES = 500

MODULES = ("accessibility", "processes", "desk")
PROGRAM = """import json, sys, types
for name, source in json.loads(sys.stdin.readline()).items():
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
sys.modules["desk"].main()
"""
"""Takes its modules from stdin: the desktop's user may have no right to read this package."""

SPECIAL = {"\n": "Return", "\t": "Tab"}

NEAR, DOUBLE_CLICK_S = 8, 0.5
"""Clicks so close together, in pixels and seconds, may be taken for a double click."""

XAUTHORITY = threading.Lock()


class Desktop:
    """An X display of its own, with its own buses, home and (as root) user, network and process space.

    home: path at which programs of the desktop see their home, such as "/home/user"; "" for one in its folder. hidden:
    folders of this machine that they do not see at all. Both need bubblewrap.

    Raises MissingDependency for what is not installed, EnvironmentCrashed when it does not start or has died.
    """

    def __init__(self, programs: tuple[str, ...] = (), *, home: str = "", hidden: tuple[Path, ...] = ()) -> None:
        require(programs)
        xlib, mss = package("Xlib.display", "python-xlib"), package("mss", "mss")
        with contextlib.suppress(FileExistsError, PermissionError):
            os.mkdir("/tmp/.X11-unix", 0o777)
            os.chmod("/tmp/.X11-unix", 0o1777)
        user = 2**20 + secrets.randbelow(2**30) if os.geteuid() == 0 else None
        arguments = json.dumps({"size": SIZE, "home": home})
        command = [*separation(user), "/usr/bin/python3", "-I", "-c", PROGRAM, arguments]
        outside = Path(tempfile.mkdtemp(prefix="agentgym-home-")) if home else None
        if outside is not None:
            if user is not None:
                os.chown(outside, user, user)
            command = [*enclosure(home, outside, hidden), *command]
        self._process = JsonProcess(
            command,
            name="the desktop",
            stderr=subprocess.DEVNULL,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
            own_group=True,  # when the worker's process group is killed, the desk still tidies up
        )
        self.home = self.root = self._folder = Path("/nowhere")
        """`home` is the path that programs of the desktop know; `root` is where the same folder is on this machine."""
        self._traces: list[str] = []
        try:
            modules = {name: Path(__file__).with_name(f"{name}.py").read_text("utf-8") for name in MODULES}
            about = self._process.ask(modules)
            self._folder, self.home, self._traces = Path(about["folder"]), Path(about["home"]), about["traces"]
            self.root = outside or self.home
            with cookie(self._folder / "cookie"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._display = xlib.Display(f"unix:{about['display']}")
                self._camera = mss.MSS(display=f"unix:{about['display']}", backend="xgetimage")
        except BaseException:
            self.close()
            raise
        self._keys = keyboard(self._display)
        self._pressed: dict[str, float] = {}
        self._clicked = (0, 0, 0.0)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Raises EnvironmentCrashed for what eyes and hands say of a display that has gone."""
        closed = importlib.import_module("Xlib.error").ConnectionClosedError
        try:
            yield
        except (closed, importlib.import_module("mss").ScreenShotError) as error:
            raise EnvironmentCrashed(f"the desktop has ended: {error}") from error

    @property
    def alive(self) -> bool:
        return self._process.alive

    # What runs on it.

    def ask(self, method: str, **arguments: Any) -> Any:
        """A call of desk.Desk."""
        return self._process.ask([method, arguments])

    def close(self) -> None:
        """Ends every process of the desktop and removes its folder."""
        for connection in (getattr(self, "_camera", None), getattr(self, "_display", None)):
            if connection is not None:
                with contextlib.suppress(Exception):  # the display may be gone already
                    connection.close()
        self._process.close()
        for path in (str(self._folder), str(self.root), *self._traces):  # where it was killed
            if Path(path).is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                Path(path).unlink(missing_ok=True)

    # Eyes.

    def screenshot(self) -> np.ndarray:
        """uint8[height, width, 3]"""
        shot = self._camera.grab({"left": 0, "top": 0, "width": SIZE[0], "height": SIZE[1]})
        pixels = np.frombuffer(shot.raw, np.uint8).reshape(shot.height, shot.width, 4)
        return np.ascontiguousarray(pixels[:, :, 2::-1])

    def popups(self) -> list[tuple[int, int, int, int]]:
        """x, y, width, height of every menu and the like: mapped windows that no window manager has touched."""
        found = []
        for window in self._display.screen().root.query_tree().children:
            with contextlib.suppress(importlib.import_module("Xlib.error").XError):  # it has gone meanwhile
                about = window.get_attributes()
                if about.override_redirect and about.map_state == 2:
                    where = window.get_geometry()
                    found.append((where.x, where.y, where.width, where.height))
        return found

    def files(self, folder: str) -> dict[str, str | None]:
        """The tree below home/`folder` by path: text, None for folders, "<not a file>" for links and the like."""
        return tree_of(self.root / folder)

    def place(self, path: str) -> Path | None:
        """Return where a path of the home is on this machine, links resolved; None for one that leads out of it.

        Only for when nothing runs on the desktop any more: an agent's program could change a link meanwhile.
        """
        try:
            found = (self.root / Path(path).relative_to(self.home)).resolve(strict=True)
        except (OSError, RuntimeError, ValueError):  # no such file, a loop of links, a path outside
            return None
        return found if found.is_relative_to(self.root.resolve()) else None

    # Windows.

    def has_windows(self) -> bool:
        """Return whether a window of an application is open, by what X says."""
        return bool(window_numbers(self._display))

    def activate(self, name: str, strict: bool = False, by_class: bool = False) -> bool:
        """Bring the window of a name to the front; False where there is none. See `find_window`."""
        return self._request("_NET_ACTIVE_WINDOW", name, strict, by_class)

    def close_window(self, name: str, strict: bool = False, by_class: bool = False) -> bool:
        return self._request("_NET_CLOSE_WINDOW", name, strict, by_class)

    def _request(self, message: str, name: str, strict: bool, by_class: bool) -> bool:
        window = find_window(self._display, name, strict, by_class)
        if window is not None:
            request(self._display, window, message)
        return window is not None

    # Hands.

    def move(self, x: int, y: int) -> None:
        self._fake("MotionNotify", x=x, y=y)

    def spare(self, x: int, y: int, apart_s: float) -> None:
        """Wait until the last use of the mouse is long enough past that one at (x, y) is another click for itself."""
        last_x, last_y, last = self._clicked
        if max(abs(x - last_x), abs(y - last_y)) <= NEAR:
            apart_s = DOUBLE_CLICK_S
        left = last + apart_s - time.monotonic()
        if left > 0:
            time.sleep(left)
        self._clicked = (x, y, time.monotonic())

    def button(self, number: int, down: bool) -> None:
        """1 left, 2 middle, 3 right; 4, 5, 6, 7 turn the wheel up, down, left, right."""
        self._fake("ButtonPress" if down else "ButtonRelease", number)

    def key(self, name: str, down: bool) -> None:
        """`name`: of an X keysym."""
        self._fake("KeyPress" if down else "KeyRelease", self._keys[keysym(name)][0])

    def type(self, character: str, again_s: float = 0.0) -> None:
        """A character of the keyboard, newline and tab included; the same one not before `again_s` have passed."""
        if self._pressed.get(character, 0.0) + again_s > time.monotonic():
            self.sync()
            self.ask("rest")  # on a busy machine it is taken later than it was sent
            time.sleep(again_s)
        self._pressed[character] = time.monotonic()
        code, shifted = self._keys[keysym(SPECIAL.get(character, "")) or ord(character)]
        if shifted:
            self.key("Shift_L", True)
        self._fake("KeyPress", code)
        self._fake("KeyRelease", code)
        if shifted:
            self.key("Shift_L", False)

    def sync(self) -> None:
        """Wait until the display has taken what was sent. Raises EnvironmentCrashed."""
        from Xlib.error import ConnectionClosedError

        try:
            self._display.sync()
        except (ConnectionClosedError, ConnectionError):
            raise EnvironmentCrashed("the desktop has ended") from None

    def _fake(self, event: str, detail: int = 0, **where: int) -> None:
        from Xlib import X
        from Xlib.error import ConnectionClosedError
        from Xlib.ext import xtest

        try:
            xtest.fake_input(self._display, getattr(X, event), detail, **where)
        except (ConnectionClosedError, ConnectionError):
            raise EnvironmentCrashed("the desktop has ended") from None


# Starting one.


def require(programs: tuple[str, ...] = ()) -> None:
    """Raises MissingDependency with the one command that installs what is missing."""
    wanted = {"Xvfb", "dbus-daemon", "openbox", *programs}
    missing = [PACKAGES[name] for name in sorted(wanted) if shutil.which(name) is None]
    missing += [name for name, brings in LIBRARIES.items() if not os.path.exists(brings)]
    if missing:
        raise MissingDependency(
            f"the desktop needs {', '.join(missing)}: apt-get install --no-install-recommends {' '.join(missing)}"
        )


def package(module: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        raise MissingDependency(f"the desktop needs the package {name}: pip install 'turngym[gui]'") from None


def separation(user: int | None) -> list[str]:
    """Return what starts a desktop apart from everything else. With a user to be: as that user and, where the kernel
    lets us, in an own process space (with its first process all of it dies) and without network. Else nothing."""
    if user is None:
        return []
    drop = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs"]
    if spaces():
        drop.append("--pdeathsig=KILL")
    return [*spaces(), *drop, "--inh-caps=-all", "--bounding-set=-all", "--"]


@functools.cache
def spaces() -> tuple[str, ...]:
    own = ("unshare", "--fork", "--kill-child", "--pid", "--mount-proc", "--net")
    tried = subprocess.run([*own, "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return () if tried.returncode else own


@contextlib.contextmanager
def cookie(path: Path) -> Iterator[None]:
    """libxcb takes a cookie from no other place than this variable of the whole process."""
    with XAUTHORITY:
        before = os.environ.get("XAUTHORITY")
        os.environ["XAUTHORITY"] = str(path)
        try:
            yield
        finally:
            del os.environ["XAUTHORITY"]
            if before is not None:
                os.environ["XAUTHORITY"] = before


def keysym(name: str) -> int:
    """0 for a name that X does not know."""
    return importlib.import_module("Xlib.XK").string_to_keysym(name)


def keyboard(display: Any) -> dict[int, tuple[int, bool]]:
    """X keysym to (key code, with shift)."""
    low, high = display.display.info.min_keycode, display.display.info.max_keycode
    keys: dict[int, tuple[int, bool]] = {}
    for shifted in (False, True):
        for offset, symbols in enumerate(display.get_keyboard_mapping(low, high - low + 1)):
            keys.setdefault(symbols[shifted], (low + offset, shifted))
    return keys


# Files.


def tree_of(root: Path) -> dict[str, str | None]:
    """See Desktop.files. Follows no link and opens nothing but plain files: the agent may have made anything."""
    found: dict[str, str | None] = {}
    for folder, folders, names in os.walk(root):
        for name in [*folders, *names]:
            path = os.path.join(folder, name)
            mode = os.lstat(path).st_mode
            found[os.path.relpath(path, root)] = None if stat.S_ISDIR(mode) else text_of(path)
        if len(found) > MOST_FILES:
            return {"<too many files>": None}
    return found


def text_of(path: str) -> str:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return "<not a file>"
            return file.read(LARGEST_FILE).decode("utf-8", errors="replace")
    except OSError:
        return "<not a file>"


def pause(seconds: float) -> None:
    """Wait between a press and a drag, which differs from a click by time and distance."""
    time.sleep(seconds)
