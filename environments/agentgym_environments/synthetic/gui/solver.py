"""The scripted solver: from what shows and what is on the disk, the next action. It says what an agent may say.

It is a policy, not a script: whatever was done before, it goes on from what it sees. What nothing shows (that all is
marked in another window, what was copied) it takes from the actions so far.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from agentgym_environments.backends.desktop.setup import FOLDER
from agentgym_environments.backends.desktop.tree import Element
from agentgym_environments.synthetic.gui.folders import is_done
from agentgym_environments.synthetic.gui.task import GuiTask, Operation, Tree

DIALOGS = {"rename": "Rename File", "mkdir": "Creating New Folder", "touch": "Creating ...", "delete": "Question",
           "save as": "Save As"}  # fmt: skip
"""Operation: title of the dialog that it is done in."""


@dataclass
class SolverInput:
    """Input of the solver."""

    task: GuiTask
    elements: list[Element]
    files: Tree
    history: list[str] = field(default_factory=list)
    """Actions of the episode so far."""

    def find(self, role: str, label: str = "", window: str = "") -> Element | None:
        """The last one: what opened last is last."""
        for one in reversed(self.elements):
            if one.role == role and label in ("", one.label) and window in one.window:
                return one
        return None

    def all(self, role: str, window: str) -> list[Element]:
        return [one for one in self.elements if one.role == role and window == one.window]

    @property
    def dialog(self) -> Element | None:
        return self.find("dialog")

    @property
    def last(self) -> str:
        return self.history[-1] if self.history else ""


def next_action(view: SolverInput) -> str:
    if view.task.shows:
        return calculate(view)
    for change in view.task.plan:
        if change.verb == "save as" or not is_done(change, view.files):
            return operate(view, change)
    return "press escape" if view.dialog else "press ctrl+s"


def click(element: Element | None, verb: str = "click") -> str:
    return f"{verb} {element.number}" if element else "press escape"


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")


def fill(field: Element, text: str, confirm: str) -> str:
    """Make a field say `text`, then `confirm`."""
    if field.text == text:
        return confirm
    if "focused" not in field.states:
        return click(field)
    if not field.text or (field.marked and field.marked[0] == 0 and field.marked[1] >= len(field.text)):
        return f"type {escaped(text)}"
    return "press ctrl+a"


# The calculator.


def calculate(view: SolverInput) -> str:
    keys, _, then = view.task.keys.partition("\\")
    display = view.find("text")
    if display is None or view.dialog:
        return "press escape"
    shown = (display.text or "").split("\n")[0].strip()
    if then == "hex":
        return _in_base(view, keys, shown)
    if view.last.startswith("type") and then == "sqrt":
        return click(view.find("button", "sqrt"))
    if shown != "0" and view.last != "press escape":
        return "press escape"
    return f"type {keys}"


def _in_base(view: SolverInput, number: str, shown: str) -> str:
    if view.find("button", "AND") is None:
        return click(view.find("item", "Scientific Mode") or view.find("menu", "View"))
    if shown == number:
        bases = view.find("item", "Hexadecimal") or view.find("menu", "Number bases")
        return click(bases or view.find("menu", "Calculator"))
    decimal = view.find("item", "Decimal")
    if decimal is not None:
        return click(decimal)
    return "press escape" if shown != "0" and view.last != "press escape" else f"type {number}"


# The editor.


def edit(view: SolverInput, name: str, text: str) -> str:
    """Make the open document say `text`, and save it."""
    shown = view.find("text", window=f"{name} - Mousepad")
    if shown is None or shown.text is None:
        return "press escape"
    dialog = view.dialog
    swap = replacement(view.task, text)
    if dialog is not None and dialog.label == "Find and Replace" and swap and shown.text != text:
        return replace(view, *swap)
    if dialog is not None:
        return "press escape"
    if shown.text == text:
        return "press ctrl+s"
    if swap:
        return "press ctrl+r"
    return fill(shown, text, "press ctrl+s")


def replacement(task: GuiTask, text: str) -> tuple[str, str] | None:
    """The words of a task that is done by replacing one by the other."""
    if task.kind != "replace everywhere":
        return None
    _, old, _, new, _ = task.goal.split('"')
    return old, new


def replace(view: SolverInput, old: str, new: str) -> str:
    fields = view.all("text", "Find and Replace")
    everywhere = view.find("checkbox", "Replace all in:")
    if len(fields) < 2 or everywhere is None:
        return "press escape"
    for one, word in zip(fields, (old, new)):
        if one.text != word:
            return fill(one, word, "")
    return click(everywhere if "checked" not in everywhere.states else view.find("button", "Replace All"))


def save_as(view: SolverInput, change: Operation) -> str:
    dialog = view.dialog
    if dialog is not None and dialog.label == DIALOGS["save as"]:
        field = view.all("text", dialog.label)
        return fill(field[0], change.path, click(view.find("button", "Save"))) if field else "press escape"
    shown = view.find("text", window=" - Mousepad")
    if dialog is not None or shown is None:
        return "press escape"
    return fill(shown, change.text, "press ctrl+shift+s")


# The file manager.


def operate(view: SolverInput, change: Operation) -> str:
    if change.verb == "save as":
        return save_as(view, change)
    folder, _, name = change.path.rpartition("/")
    editor = next((one for one in view.elements if one.role == "window" and one.label.endswith(" - Mousepad")), None)
    if editor is not None:
        if change.verb == "edit" and editor.label.lstrip("*") == f"{name} - Mousepad":
            return edit(view, name, change.text)
        if view.dialog is not None:
            return "press escape"
        return "wait" if view.last == "press ctrl+q" else "press ctrl+q"  # the next window would be closed too
    dialog = view.dialog
    if dialog is not None:
        return answer(view, change, dialog)
    if any(one.role == "popup" for one in view.elements):
        return "press escape"
    if change.verb == "copy" and "press ctrl+c" in view.history[-3:]:
        return go_to(view, change.to) or "press ctrl+v"
    return go_to(view, folder) or begin(view, change, name)


def go_to(view: SolverInput, folder: str) -> str:
    """The next step on the way to a folder; nothing when it is open."""
    location = view.find("text")
    here = (location.text or "").rstrip("/") if location else ""
    wanted = f"~/{FOLDER}/{folder}".rstrip("/")
    if here == wanted:
        return ""
    if wanted.startswith(f"{here}/"):
        icon = view.find("icon", wanted[len(here) + 1 :].partition("/")[0])
        return click(icon, "double")
    if here.startswith(f"~/{FOLDER}/"):
        return "press alt+up"
    return fill(location, wanted, "press return") if location else "press escape"


def begin(view: SolverInput, change: Operation, name: str) -> str:
    """Return what opens the dialog of a change, or does it."""
    if change.verb == "mkdir":
        return "press ctrl+shift+n"
    if change.verb == "touch":
        step = view.find("item", "Empty File") or view.find("menu", "Create New...")
        return click(step or view.find("menu", "File"))
    icon = view.find("icon", name)
    if icon is None:
        return "press escape"
    if change.verb == "edit":
        return click(icon, "double")
    if change.verb == "move":
        goal = view.find("icon", change.to)
        return f"drag {icon.number} to {goal.number}" if goal else "press escape"
    chosen = [one.label for one in view.elements if one.role == "icon" and "selected" in one.states]
    if chosen != [name]:
        return click(icon)
    return {"rename": "press f2", "delete": "press delete", "copy": "press ctrl+c"}[change.verb]


def answer(view: SolverInput, change: Operation, dialog: Element) -> str:
    if dialog.label != DIALOGS.get(change.verb):
        return "press escape"
    if change.verb == "delete":
        named = any(change.path.rpartition("/")[2] in one.label for one in view.all("label", dialog.label))
        return click(view.find("button", "Yes")) if named else "press escape"
    fields = view.all("text", dialog.label)
    wanted = change.to if change.verb == "rename" else change.path.rpartition("/")[2]
    return fill(fields[0], wanted, "press return") if fields else "press escape"
