"""Contents of a desktop's windows, read from their applications over AT-SPI. Part of the program of `desk.py`."""

import contextlib
import time

import gi  # pyright: ignore[reportMissingImports]

gi.require_version("Gio", "2.0")
from gi.repository import Gio, GLib  # noqa: E402  # pyright: ignore[reportMissingImports]

REGISTRY = ("org.a11y.atspi.Registry", "/org/a11y/atspi/accessible/root")
ACCESSIBLE, COMPONENT, TEXT = (f"org.a11y.atspi.{name}" for name in ("Accessible", "Component", "Text"))
SHOWING, VISIBLE = 25, 30
NOWHERE = -(2**31)
STATES = {1: "active", 4: "checked", 12: "focused", 23: "selected", 7: "editable", 24: "sensitive", 9: "expanded"}
"""Bits of AtspiStateType that are told."""
READABLE = {"text", "entry", "icon", "password text", "paragraph"}
"""Roles of which the text is read too."""
LONGEST_TEXT = 20_000
AT_ONCE_S = 0.5
"""An application that took longer to answer may have gone on since the desktop was at rest."""

Failed = GLib.Error


def connect(address):
    flags = Gio.DBusConnectionFlags.AUTHENTICATION_CLIENT | Gio.DBusConnectionFlags.MESSAGE_BUS_CONNECTION
    return Gio.DBusConnection.new_for_address_sync(address, flags, None, None)


def switch_on(bus):
    """Tell applications of this session bus to speak to the accessibility bus."""
    on = GLib.Variant("(ssv)", ("org.a11y.Status", "IsEnabled", GLib.Variant("b", True)))
    call(bus, "org.a11y.Bus", "/org/a11y/bus", "org.freedesktop.DBus.Properties", "Set", on)


def call(bus, name, path, interface, method, arguments, timeout_ms=5000):
    flags = Gio.DBusCallFlags.NONE
    return bus.call_sync(name, path, interface, method, arguments, None, flags, timeout_ms, None).unpack()


def gather(bus, requests, timeout_ms=2000):
    """Answers to [((bus name, path), interface, method, arguments)], asked all at once; None where there was none."""
    answers: list = [None] * len(requests)
    left = [len(requests)]

    def answered(_, result, number):
        with contextlib.suppress(GLib.Error):  # the window has gone, or has no such thing
            answers[number] = bus.call_finish(result).unpack()
        left[0] -= 1

    flags = Gio.DBusCallFlags.NONE
    for number, ((name, path), interface, method, arguments) in enumerate(requests):
        bus.call(name, path, interface, method, arguments, None, flags, timeout_ms, None, answered, number)
    context = GLib.MainContext.default()
    while left[0]:
        context.iteration(True)
    return answers


def wait_for_answers(bus, seconds):
    """Wait until every application answers, at most so many seconds; True when all did at once. One that has no time
    for a call would look as if it had no window."""
    begin = time.monotonic()
    (roots,) = call(bus, *REGISTRY, ACCESSIBLE, "GetChildren", None)
    gather(bus, [(root, ACCESSIBLE, "GetState", None) for root in roots], timeout_ms=int(1000 * seconds))
    return time.monotonic() - begin < AT_ONCE_S


def windows(bus):
    """Those that show, as (bus name, path)."""
    (roots,) = call(bus, *REGISTRY, ACCESSIBLE, "GetChildren", None)
    children = gather(bus, [(one, ACCESSIBLE, "GetChildren", None) for one in roots])
    found = [window for answer in children if answer for window in answer[0]]
    states = gather(bus, [(window, ACCESSIBLE, "GetState", None) for window in found])
    return [window for window, state in zip(found, states) if state and shows(state)]


def shows(answer):
    return bool(answer[0][0] >> SHOWING & 1)


def is_silent(node):
    """GTK 2 does not say of an opened menu's items that they show; but only those of an opened one are somewhere."""
    return node["gtk2"] and node.get("role") == "menu"


def read_tree(bus):
    """Level by level, so that a window of a hundred elements takes some ten round trips and not five hundred."""
    (roots,) = call(bus, *REGISTRY, ACCESSIBLE, "GetChildren", None)
    version = GLib.Variant("(ss)", ("org.a11y.atspi.Application", "Version"))
    versions = gather(bus, [(root, "org.freedesktop.DBus.Properties", "Get", version) for root in roots])
    top = []
    level = [(root, {"gtk2": bool(one and one[0].startswith("2.")), "kids": top}) for root, one in zip(roots, versions)]
    while level:
        children = gather(bus, [(node, ACCESSIBLE, "GetChildren", None) for node, _ in level])
        below = [(child, above) for (_, above), answer in zip(level, children) for child in (answer or [[]])[0]]
        states = gather(bus, [(child, ACCESSIBLE, "GetState", None) for child, _ in below])
        visible = [
            (*both, state[0][0])
            for both, state in zip(below, states)
            if state and (shows(state) or (is_silent(both[1]) and state[0][0] >> VISIBLE & 1))
        ]
        level = describe(bus, visible)
    return top


def describe(bus, found):
    """Add what is known of every [(node, parent, state bits)] to its parent's kids; [(node, it)] of those added."""
    name = GLib.Variant("(ss)", (ACCESSIBLE, "Name"))
    screen = GLib.Variant("(u)", (0,))
    requests = []
    for node, _, _ in found:
        requests.append((node, ACCESSIBLE, "GetRoleName", None))
        requests.append((node, "org.freedesktop.DBus.Properties", "Get", name))
        requests.append((node, COMPONENT, "GetExtents", screen))
    answers = gather(bus, requests)
    result = []
    for number, (node, parent, bits) in enumerate(found):
        role, name_, box = answers[3 * number : 3 * number + 3]
        nowhere = is_silent(parent) and (box is None or box[0][0] == NOWHERE)
        if role is None or role[0] == "tool tip" or nowhere:
            continue
        states = [word for bit, word in STATES.items() if bits >> bit & 1]
        record = {
            "role": role[0],
            "name": name_[0] if name_ else "",
            "states": states,
            "kids": [],
            "gtk2": parent["gtk2"],
        }
        record["silent"] = is_silent(parent)
        record["box"] = list(box[0]) if box else [0, 0, 0, 0]
        parent["kids"].append(record)
        result.append((node, record))
    read_texts(bus, [(node, record) for node, record in result if record["role"] in READABLE])
    return result


def read_texts(bus, readable):
    full_range, first = GLib.Variant("(ii)", (0, LONGEST_TEXT)), GLib.Variant("(i)", (0,))
    caret = GLib.Variant("(ss)", (TEXT, "CaretOffset"))
    texts = gather(bus, [(node, TEXT, "GetText", full_range) for node, _ in readable])
    for (_, record), text in zip(readable, texts):
        if text:
            record["text"] = text[0]
    focused = [
        (node, record) for node, record in readable if "focused" in record["states"] and record["role"] != "icon"
    ]
    carets = gather(bus, [(node, "org.freedesktop.DBus.Properties", "Get", caret) for node, _ in focused])
    marked = gather(bus, [(node, TEXT, "GetSelection", first) for node, _ in focused])
    for (_, record), offset, selection in zip(focused, carets, marked):
        record["caret"] = offset[0] if offset else 0
        record["marked"] = list(selection) if selection and selection[1] > selection[0] else []
