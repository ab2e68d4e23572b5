"""Requests to the window manager of a display (EWMH): bring a window to the front, close one."""

from __future__ import annotations

import contextlib
from typing import Any


def window_numbers(display: Any) -> list[int]:
    """Return the windows of all applications, as X counts them."""
    from Xlib import X

    listed = display.screen().root.get_full_property(display.intern_atom("_NET_CLIENT_LIST"), X.AnyPropertyType)
    return list(listed.value) if listed else []


def find_window(display: Any, name: str, strict: bool, by_class: bool) -> Any:
    """Return the window of a name, or None: one whose title has it in any case, or with `strict` is it.

    by_class: the name is of its class (WM_CLASS).
    """
    from Xlib.error import XError

    for number in window_numbers(display):
        window = display.create_resource_object("window", number)
        with contextlib.suppress(XError):  # it has gone meanwhile
            title = ".".join(window.get_wm_class() or ()) if by_class else _title(display, window)
            if title == name or (not strict and name.lower() in title.lower()):
                return window
    return None


def _title(display: Any, window: Any) -> str:
    from Xlib import X

    found = window.get_full_property(display.intern_atom("_NET_WM_NAME"), X.AnyPropertyType)
    return found.value.decode(errors="replace") if found else str(window.get_wm_name() or "")


def request(display: Any, window: Any, message: str) -> None:
    """Send the window manager a message about a window: "_NET_ACTIVE_WINDOW" or "_NET_CLOSE_WINDOW"."""
    from Xlib import X
    from Xlib.protocol.event import ClientMessage

    root = display.screen().root
    pager = 2
    times = (0, pager) if message == "_NET_CLOSE_WINDOW" else (pager, 0)
    event = ClientMessage(window=window, client_type=display.intern_atom(message), data=(32, [*times, 0, 0, 0]))
    root.send_event(event, event_mask=X.SubstructureRedirectMask | X.SubstructureNotifyMask)
    display.sync()
