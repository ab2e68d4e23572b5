"""The desktop: real applications on a display of its own, through what an agent may say and see."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from agentgym import registry
from agentgym.conformance.run import check_env
from agentgym.errors import BadRequest, ConfigError, EnvironmentCrashed, MissingDependency
from agentgym_environments.backends.desktop import desktop
from agentgym_environments.backends.desktop.actions import Act, parse
from agentgym_environments.backends.desktop.desktop import Desktop, require, tree_of
from agentgym_environments.backends.desktop.setup import COMMANDS
from agentgym_environments.backends.desktop.tree import Numbers
from agentgym_environments.base.text_env import split_of
from agentgym_environments.synthetic.gui import calculations, tasks
from agentgym_environments.synthetic.gui.env import Gui
from agentgym_environments.synthetic.gui.folders import apply, is_done

ENVS = [name for name in registry.list_envs() if name == "gui" or name.startswith("gui-")]


def missing() -> str:
    try:
        require(tuple(COMMANDS.values()))
        desktop.package("Xlib", "python-xlib")
        desktop.package("mss", "mss")
    except MissingDependency as error:
        return str(error)
    return ""


real = pytest.mark.skipif(bool(missing()), reason=missing())


@pytest.fixture(scope="module")
def environment():
    """One session for many tests: a reset makes the desktop anew."""
    env = registry.make("gui-long")  # for its turns
    yield env
    env.close()


def begin(env: Gui, app: str, level: str, task: int, split: str = "train"):
    """A task of another kind on the same desktop."""
    env.app, env.level = app, level
    return env.reset(seed=0, options={"split": split, "task": task})


def play(env: Gui):
    """The solver to the end; (its actions, the last step)."""
    actions = []
    while not env.over:
        actions.append(env.solver())
        step = env.step(actions[-1])
    return actions, step


# Without a display.


@pytest.mark.parametrize("name", ENVS)
def test_tasks_are_many_and_each_is_in_one_split(name):
    spec = registry.get_spec(name)
    app, level = spec.kwargs["app"], spec.kwargs["level"]
    samples = {
        split: [tasks.make_task(app, level, split, index) for index in range(min(size, 40))]
        for split, size in spec.splits.items()
    }
    for split, some in samples.items():
        assert {split_of(task.content) for task in some} == {split}
        assert len({task.content for task in some}) == len(some)
        assert len({task.kind for task in some}) == len(tasks.makers(app, level))
        assert all(task.before != task.after or task.shows for task in some)


@pytest.mark.parametrize("name", ENVS)
def test_the_spec_says_what_the_class_does(name):
    spec = registry.get_spec(name)
    env = registry.make(name)
    assert env.env_spec == spec
    assert (spec.family, list(spec.splits)) == ("gui", ["train", "validation", "test"])
    assert Gui().env_spec == registry.get_spec("gui")


def test_arguments_change_what_the_spec_says():
    spec = registry.get_spec("gui-files:observation=both")
    assert spec.observations == ("text", "image")
    assert "image" in spec.capabilities
    assert not spec.deterministic
    with pytest.raises(ConfigError, match='observation is "text", "image" or "both"'):
        registry.make("gui:observation=smell")
    with pytest.raises(ConfigError, match="there are no easy tasks of long; there are editor easy"):
        registry.make("gui:app=long,level=easy")


@pytest.mark.parametrize(
    ("action", "meant"),
    [
        ("click 7", Act("click", ((70, 70),))),
        ("  CLICK [7] ", Act("click", ((70, 70),))),
        ("double 10 20", Act("double", ((10, 20),))),
        ("right 10, 20", Act("right", ((10, 20),))),
        ("drag 7 to 8", Act("drag", ((70, 70), (80, 80)))),
        ("drag 1 2 to 3 4", Act("drag", ((1, 2), (3, 4)))),
        ("scroll 7 down", Act("scroll", ((70, 70),), way="down", times=3)),
        ("scroll 10 20 up 9", Act("scroll", ((10, 20),), way="up", times=9)),
        ("type  Two words\\n", Act("type", text=" Two words\n")),
        ("type a\\tb\\\\n", Act("type", text="a\tb\\n")),
        ("type one\ntwo\n", Act("type", text="one\ntwo")),
        ("press ctrl+S", Act("press", keys=("Control_L", "s"))),
        ("press Ctrl+Shift+s", Act("press", keys=("Control_L", "Shift_L", "s"))),
        ("press F2", Act("press", keys=("F2",))),
        ("press A", Act("press", keys=("A",))),
        ("press ctrl++", Act("press", keys=("Control_L", "+"))),
        ("wait", Act("wait")),
        ("Action: `click 7`.", Act("click", ((70, 70),))),
    ],
)
def test_what_is_understood(action, meant):
    assert parse(action, lambda number: {7: (70, 70), 8: (80, 80)}.get(number)) == meant


@pytest.mark.parametrize(
    ("action", "why"),
    [
        ("", "not an action; say click N"),
        ("dance", "not an action; say click N"),
        ("click", "say the number of an element"),
        ("click 9", "no element [9]"),
        ("click 800 10", "the screen is 800 by 600"),
        ("click save", "say the number of an element"),
        ("drag 7", "say drag N to M"),
        ("drag 7 to 9", "no element [9]"),
        ("scroll 7", "say scroll N up"),
        ("scroll 7 down 99", "scroll 1 to 30 times"),
        ("type", "say what to type"),
        ("type ä", "this keyboard has no 'ä'"),
        ("press", "there is no key ''"),
        ("press hyper+x", "there is no key 'hyper'"),
        ("press a+b", "press one key, with ctrl, alt or shift"),
        ("wait 5", "not an action"),
        ("Thought: it is below.\nAction: click 9", "no element [9]"),
        ("type ä, an action: click 7", "this keyboard has no 'ä'"),
    ],
)
def test_what_is_not_understood_has_a_reason(action, why):
    error = parse(action, lambda number: (70, 70) if number == 7 else None)
    assert isinstance(error, str)
    assert why in error


def node(role, name="", text=None, states=("sensitive",), box=(0, 0, 10, 10), kids=(), **more):
    attributes = {
        "role": role,
        "name": name,
        "states": list(states),
        "box": list(box),
        "kids": list(kids),
        "silent": False,
    }
    return {**attributes, **({} if text is None else {"text": text}), **more}


def test_numbers_stay_with_an_element_whatever_comes_and_goes():
    numbers = Numbers()

    def numbers_of(*icons, title="Documents"):
        icons = [node("icon", text=name) for name in icons]
        return {
            one.label: one.number
            for one in numbers.elements([node("frame", title, kids=icons)], "/home/x")
            if one.depth
        }

    assert numbers_of("a", "b", "c") == {"a": 2, "b": 3, "c": 4}
    assert numbers_of("b", "c", title="*Documents") == {"b": 3, "c": 4}
    assert numbers_of("d", "b", "a") == {"d": 5, "b": 3, "a": 2}


def test_a_line_has_role_name_state_text_and_no_home_path():
    kids = [
        node("push button", "Save", states=()),
        node("text", text="one\ntwo", states=("focused", "sensitive"), caret=5, marked=[0, 3]),
        node("text", text="/tmp/h1/Documents"),
        node("scroll pane", box=(0, 0, 5, 5), kids=[node("icon", text="hidden", box=(0, 50, 5, 5))]),
        node("filler", kids=[node("label", "inside")]),
        node("table cell", "1 Jan 2026"),
        node("table cell", "12\u200e\u223607"),
        node("table cell", "a.txt"),
    ]
    shown = Numbers().elements([node("frame", "/tmp/h1/x", kids=kids, states=("active",))], "/tmp/h1")
    assert "\n".join(one.line() for one in shown) == (
        '[1] window "~/x" (active)\n  [2] button "Save" (disabled)\n'
        "  [3] text (focused, caret 2:2, marked 1:1 to 1:4):\n    | one\n    | two\n"
        '  [4] text: "~/Documents"\n  [5] label "inside"\n  [6] cell "a.txt"'
    )


def test_gtk_2_menus_show_where_the_display_has_one():
    item = node("menu item", "Cut", box=(10, 30, 40, 10), silent=True)
    window = node("frame", "Files", kids=[node("menu", "Edit", kids=[item])])
    assert [one.label for one in Numbers().elements([window], "/home/x")] == ["Files", "Edit"]
    shown = Numbers().elements([window], "/home/x", [(10, 20, 100, 100)])
    assert [one.label for one in shown] == ["Files", "Edit", "Cut"]


def test_what_a_plan_does_to_the_tree():
    for app, level in (("files", "easy"), ("files", "hard"), ("long", "hard")):
        for index in range(40):
            task = tasks.make_task(app, level, "train", index)
            assert not all(is_done(change, task.before) for change in task.plan)
            assert apply(task.before, task.plan) == task.after
            assert None in task.before.values()


def test_sums_are_right():
    for maker in (*calculations.EASY, *calculations.HARD):
        task = maker(tasks.task_random("test", maker.__name__))
        keys, _, then = task.keys.partition("\\")
        value = eval(keys.rstrip("="))
        wanted = {"": f"{value:.0f}", "sqrt": f"{value**0.5:.0f}", "hex": f"{int(value):X}"}[then]
        assert wanted == task.shows, task


def test_files_are_read_without_following_or_waiting(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "away").symlink_to("/etc")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "binary").write_bytes(b"\xff")
    odd = "<not a file>"
    wanted = {"a.txt": "a", "folder": None, "link": odd, "away": odd, "pipe": odd, "binary": "\ufffd"}
    assert tree_of(tmp_path) == wanted


def test_a_missing_program_is_an_error_with_the_command(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingDependency, match="apt-get install --no-install-recommends xvfb dbus openbox"):
        Desktop()
    monkeypatch.setitem(sys.modules, "Xlib.display", None)
    with pytest.raises(MissingDependency, match=r"pip install 'turngym\[gui\]'"):
        desktop.package("Xlib.display", "python-xlib")


# On a display.


@real
@pytest.mark.parametrize(("app", "level"), [("editor", "easy"), ("calculator", "easy"), ("files", "easy")])
def test_the_solver_does_an_easy_task_of_every_application(environment, app, level):
    _, info = begin(environment, app, level, 1)
    assert (info["success"], info["valid_action"], info["progress"]) == (False, True, 0.0)
    actions, (_, reward, terminated, truncated, info) = play(environment)
    assert (reward, terminated, truncated, info["success"], info["progress"]) == (1.0, True, False, True, 1.0), actions
    with pytest.raises(BadRequest, match="is over: call reset"):
        environment.step("wait")


@real
def test_the_solver_does_a_long_task_in_two_applications(environment):
    begin(environment, "long", "hard", 0)
    actions, (*_, info) = play(environment)
    assert info["success"], actions
    assert {"press ctrl+shift+n", "press ctrl+s", "press delete"} <= set(actions)
    assert len(actions) > 10


@real
def test_the_same_actions_show_the_same(environment):
    """Dialogs, menus and the clipboard too; the display and the home are others."""
    actions = [
        "press ctrl+a",
        "press ctrl+c",
        "click 2",
        "press escape",
        "type xyz",
        "press ctrl+shift+s",
        "press escape",
    ]
    other = registry.make("gui-editor")
    try:
        episodes = []
        for env in (environment, other, environment):
            env.app, env.level = "editor", "easy"
            episode = [env.reset(seed=0, options={"split": "test", "task": 5})]
            episodes.append([*episode, *(env.step(action) for action in actions)])
        assert environment.desktop.home != other.desktop.home
    finally:
        other.close()
    assert episodes[0] == episodes[1] == episodes[2]
    assert 'dialog "Save As" (active)' in episodes[0][6][0]
    assert str(environment.desktop.home) not in str(episodes)


@real
def test_only_the_files_count_and_all_of_them(environment):
    begin(environment, "editor", "easy", 1)
    (change,) = environment.task.plan
    environment.step("press ctrl+a")
    *_, info = environment.step("type " + change.text.replace("\n", "\\n"))
    assert not info["success"]  # it is not saved
    assert info["state_key"] == environment._info(valid=True)["state_key"]
    (environment.desktop.home / "Documents" / "more.txt").write_text("")
    _, reward, *_, info = environment.step("press ctrl+s")
    assert (reward, info["success"], info["progress"]) == (0.0, False, 0.0)
    (environment.desktop.home / "Documents" / "more.txt").unlink()
    _, reward, terminated, *_ = environment.step("wait")
    assert (reward, terminated) == (1.0, True)


@real
def test_nonsense_costs_a_turn_and_changes_nothing(environment):
    first, before = begin(environment, "calculator", "easy", 0)
    observation, reward, terminated, _, info = environment.step("buy milk")
    assert observation.startswith("not an action; say click N")
    assert observation.endswith(first)
    assert (reward, terminated, info["valid_action"], environment.turn) == (0.0, False, False, 1)
    assert info["state_key"] == before["state_key"]
    assert environment.step({"name": "click", "arguments": {}})[4]["valid_action"] is False


@real
def test_a_desktop_with_nothing_open_any_more_is_the_end(environment):
    begin(environment, "editor", "easy", 2)
    observation, reward, terminated, truncated, info = environment.step("press ctrl+q")
    assert observation.endswith("nothing is open any more")
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)


@real
def test_the_mouse_drags_scrolls_and_opens_menus(environment):
    begin(environment, "files", "hard", 1)
    names = {one.label: one.number for one in environment.elements if one.role == "icon"}
    task = environment.task
    observation = environment.step(f"right {names[task.plan[0].path]}")[0]
    assert re.search(r'\[\d+\] popup.*\n +\[\d+\] item "Open With', observation) or 'item "Cut"' in observation
    environment.step("press escape")
    observation = environment.step("click 3")[0]
    assert 'item "Select All"' in observation
    assert 'item "Select All"' not in environment.step("press escape")[0]
    move = task.plan[0]
    *_, info = environment.step(f"drag {names[move.path]} to {names[move.to]}")
    assert f"{move.to}/{move.path}" in environment.files
    assert 0 < info["progress"] <= 1
    assert environment.step("scroll 400 300 down 2")[4]["valid_action"] or environment.over


@real
def test_a_screenshot_shows_what_is_typed():
    env = registry.make("gui-editor:observation=both")
    try:
        observation, _ = env.reset(seed=0, options={"task": 0})
        image = observation["image"]
        assert (image.shape, image.dtype) == ((600, 800, 3), np.uint8)
        assert 0.2 < (image > 128).mean() < 0.9
        assert "text (focused" in observation["text"]
        after = env.step("type XXXXXXXXXX")[0]["image"]
        changed = np.argwhere((after != image).any(axis=2))
        assert len(changed) > 100
        left, top, width, _ = next(one.box for one in env.elements if one.role == "text")
        below = changed[changed[:, 0] >= top]
        assert ((below[:, 1] >= left) & (below[:, 1] < left + width)).all()
    finally:
        env.close()


@real
def test_two_desktops_share_nothing(environment):
    begin(environment, "editor", "easy", 0)
    one, other = environment.desktop, Desktop()
    try:
        assert one.home != other.home
        assert one._display.get_display_name() != other._display.get_display_name()
        for mine in (one, other):
            assert (mine.home.parent.stat().st_mode & 0o777) == 0o700
        if os.geteuid() == 0:
            assert len({one.home.stat().st_uid, other.home.stat().st_uid, 0}) == 3
        look = f"from Xlib.display import Display; Display({one._display.get_display_name()!r})"
        environ = {**os.environ, "XAUTHORITY": str(other.home.parent / "cookie")}
        looked = subprocess.run([sys.executable, "-c", look], env=environ, capture_output=True, text=True)
        assert "Authorization required" in looked.stderr
    finally:
        other.close()


def processes_of(folder: Path) -> dict[int, str]:
    """Processes that have to do with a desktop's folder, by number."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and str(folder).encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "comm").read_text().strip()
    return found


def of_desktop(folder: Path) -> list[str]:
    return sorted(processes_of(folder).values())


def process_of(env: Gui, name: str) -> int:
    return next(pid for pid, found in processes_of(env.desktop.home.parent).items() if found == name)


def gone(folder: Path) -> bool:
    for _ in range(100):
        if not of_desktop(folder) and not folder.exists():
            return True
        time.sleep(0.1)
    return False


@real
def test_closing_leaves_nothing_and_reset_starts_again():
    env = registry.make("gui-calculator")
    env.reset(seed=0)
    folder, number = env.desktop.home.parent, env.desktop._display.get_display_name().rpartition(":")[2]
    assert Path(f"/tmp/.X11-unix/X{number}").exists()
    assert {"Xvfb", "dbus-daemon", "galculator", "openbox"} <= set(of_desktop(folder))
    env.close()
    assert gone(folder), of_desktop(folder)
    assert not Path(f"/tmp/.X11-unix/X{number}").exists()
    assert not Path(f"/tmp/.X{number}-lock").exists()
    with pytest.raises(BadRequest, match="call reset before"):
        env.step("wait")
    env.close()


@real
def test_a_dead_desktop_fails_the_step_and_reset_replaces_it():
    env = registry.make("gui-calculator")
    try:
        env.reset(seed=0)
        folder = env.desktop.home.parent
        os.kill(env.desktop._process.pid, signal.SIGKILL)
        while env.desktop.alive:
            time.sleep(0.01)
        with pytest.raises(EnvironmentCrashed, match="the desktop has ended"):
            env.step("press escape")
        observation, _ = env.reset(seed=0)
        assert "galculator" in observation
        assert of_desktop(folder) == []
    finally:
        env.close()


@real
def test_a_crashed_application_fails_the_step_a_closed_one_not():
    env = registry.make("gui-files")
    try:
        env.reset(seed=0)
        assert env.step("press alt+f4")[2:4] == (True, False)
        env.reset(seed=0)
        os.kill(process_of(env, "pcmanfm"), signal.SIGSEGV)
        with pytest.raises(EnvironmentCrashed, match=r"has crashed: pcmanfm \(SIGSEGV\)"):
            env.step("wait")
        observation, _ = env.reset(seed=0)
        assert "Documents" in observation
        assert env.step("wait")[2:4] == (False, False)
    finally:
        env.close()


@real
def test_an_application_that_answers_late_is_waited_for():
    env = registry.make("gui-files")
    try:
        before, _ = env.reset(seed=0)
        manager = process_of(env, "pcmanfm")
        os.kill(manager, signal.SIGSTOP)
        threading.Timer(6.0, os.kill, (manager, signal.SIGCONT)).start()
        observation, _, terminated, truncated, _ = env.step("wait")
        assert (terminated, truncated) == (False, False)
        assert observation == before
    finally:
        env.close()


@real
def test_a_worker_that_is_killed_takes_its_desktop_along(tmp_path):
    program = (
        "import sys; from agentgym import registry; env = registry.make('gui-editor'); env.reset(seed=0); "
        "print(env.desktop.home.parent, flush=True); sys.stdin.read()"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    folder = Path(worker.stdout.readline().strip())
    try:
        assert "mousepad" in of_desktop(folder)
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        worker.stdin.close()
        worker.stdout.close()
    assert gone(folder), of_desktop(folder)


# At length.


@real
@pytest.mark.every
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["gui", "gui-long"])
def test_the_conformance_suite_passes(name):
    findings = check_env(registry.env_factory(name), tasks=2)
    assert [str(finding) for finding in findings if not finding.ok] == []


@real
@pytest.mark.parametrize(
    "stride", [pytest.param(3, marks=pytest.mark.envs), pytest.param(1, marks=pytest.mark.every)], ids=["some", "all"]
)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ENVS)
def test_the_solver_does_every_kind_of_task(name, stride):
    """Each kind in one split of `stride`, the next kind in the next split."""
    env = registry.make(name)
    try:
        kinds = len(tasks.makers(env.app, env.level))
        lost = []
        for number, split in enumerate(env.env_spec.splits):
            for task in range(-number % stride, kinds, stride):
                env.reset(seed=0, options={"split": split, "task": task})
                actions, last = play(env)
                if not last[4]["success"]:
                    lost.append((split, task, env.task.kind, actions, last[0], env.files))
        assert lost == []
    finally:
        env.close()
