"""Solvers of pages where things are clicked, checked or chosen. Each reads task and tree, and keeps no memory."""

from __future__ import annotations

import re

from agentgym_environments.benchmarks.miniwob.elements import Elements, PageElement


def quoted(task: str) -> list[str]:
    return re.findall(r'"([^"]*)"', task)


def click(element: PageElement | None) -> str:
    """Click it; wait when it is not there."""
    return "wait" if element is None else f"click {element.id}"


def submit(view: Elements) -> str:
    """Click the button that ends the task."""
    for name in ("Submit", "Search", "Login", "Go!", "Order!"):
        if found := view.named(name):
            return click(found)
    return click((view.of("button") or [None])[-1])


def the_button(task: str, view: Elements) -> str:
    """Click the one button, or the one that the task names."""
    word = (quoted(task) or re.findall(r"button (\w+)\.", task) or [""])[0]
    return click(view.named(word, "button") or (view.of("button") or [None])[0])


def one_then_two(task: str, view: Elements) -> str:
    focused = view.focused()
    return click(view.named("TWO" if focused and focused.name == "ONE" else "ONE"))


def focus(task: str, view: Elements) -> str:
    number = int((re.findall(r"(\d)(?:st|nd|rd|th)", task) or ["1"])[0])
    return click(view.of("textbox")[number - 1])


def link(task: str, view: Elements) -> str:
    """Open one section or tab after another until the word is there."""
    word = quoted(task)[0]
    panels = [element for element in view if element.role in ("tab",)]
    shown = [element for element in view if element.id and element.name == word and element.role != "tab"]
    if shown:
        return click(shown[0])
    here = next((number for number, tab in enumerate(panels) if tab.has("expanded")), -1)
    return click(panels[(here + 1) % len(panels)]) if panels else "wait"


def tab(task: str, view: Elements) -> str:
    return click(view.named(re.findall(r"Click on (.*)\.$", task)[0], "tab"))


def collapsible(task: str, view: Elements) -> str:
    """Open the section, then click submit."""
    section = view.of("tab")[0]
    return click(view.named("Submit")) if section.has("expanded") else click(section)


def dialog(task: str, view: Elements) -> str:
    word = quoted(task)[0]
    return click(view.named("Close" if word == "x" else word, "button"))


def check(task: str, view: Elements) -> str:
    """Check every box that the task names, then submit."""
    wanted = set(re.findall(r"Select (.*) and click", task)[0].split(", "))
    for box in view.of("checkbox"):
        if (box.name in wanted) != box.has("checked"):
            return click(box)
    return submit(view)


def option(task: str, view: Elements) -> str:
    wanted = view.named(re.findall(r"Select (.*) and click", task)[0], "radio")
    return submit(view) if wanted is None or wanted.has("checked") else click(wanted)


def choose(task: str, view: Elements) -> str:
    """Select what the task names in the list, then submit."""
    wanted = re.findall(r"Select (.*) from", task)[0]
    field = view.of("combobox", "listbox")[0]
    several = [wanted] if wanted in field.options else wanted.split(", ")
    if set(field.selected) == set(several):
        return submit(view)
    return f"select {field.id} " + " ".join(f'"{one}"' for one in several)


def widget(task: str, view: Elements) -> str:
    kind = quoted(task)[0]
    for element in view:
        area = element.role == "textbox" and element.box != (0, 0, 0, 0)
        if {"text": element.role == "textbox" and not area, "textarea": area}.get(kind, element.role == kind):
            return click(element)
    return "wait"


COLOURS = {
    "red": (255, 0, 0), "green": (0, 128, 0), "blue": (0, 0, 255), "aqua": (0, 255, 255), "black": (0, 0, 0),
    "magenta": (255, 0, 255), "yellow": (255, 255, 0), "white": (255, 255, 255), "lime": (0, 255, 0),
    "purple": (128, 0, 128), "cyan": (0, 255, 255), "grey": (128, 128, 128), "gray": (128, 128, 128),
    "orange": (255, 165, 0), "pink": (255, 192, 203), "olive": (128, 128, 0), "gold": (255, 215, 0),
    "maroon": (128, 0, 0), "navy": (0, 0, 128), "silver": (192, 192, 192), "teal": (0, 128, 128),
}  # fmt: skip


def coloured_box(task: str, view: Elements) -> str:
    wanted = COLOURS[re.findall(r"on the (\w+) colored", task)[0]]
    return click(next((box for box in view.of("box") if box.colour == wanted), None))


def shades(task: str, view: Elements) -> str:
    """Click every box in which the colour prevails; chosen ones are told by their border, so boxes have classes."""
    part = ("red", "green", "blue").index(re.findall(r"shades of (\w+)", task)[0])
    for box in view.of("box"):
        colour = box.colour
        if colour and max(colour) == colour[part] and not box.has(".selected"):
            return click(box)
    return submit(view)


def menu(task: str, view: Elements) -> str:
    """Point at one level after another, then click."""
    way = re.findall(r"Select (.*)$", task)[0].split(">")
    shown = [item for name in way if (item := view.named(name, "menuitem"))]
    return click(shown[-1]) if len(shown) == len(way) else f"hover {shown[-1].id}"


def menu_button(task: str, view: Elements) -> str:
    items = view.of("menuitem")
    if not items:
        return click(view.named("Menu"))
    wanted = quoted(task)[1:]
    for parent, name in (("Playback", "Prev"), ("Playback", "Play"), ("Playback", "Stop"), ("Playback", "Next")):
        if wanted == [name] and view.named(name, "menuitem") is None and (found := view.named(parent, "menuitem")):
            return f"hover {found.id}"
    if wanted:
        return click(view.named(wanted[0], "menuitem"))
    return click(next((item for item in items if any("ui-icon" in word for word in item.words)), None))


def find_in_tree(task: str, view: Elements) -> str:
    """Click what has the name; while it is nowhere, open the first closed folder."""
    if found := view.named(quoted(task)[0], "text"):
        return click(found)
    return click(next((box for box in view.of("box") if box.has(".expandable-hitarea")), None))


def shape_words(element: PageElement) -> set[str]:
    """Everything a task may call a shape: its kind, size, colour and letter."""
    corners = re.search(r"corners=(\d+)", element.rest)
    kinds = {"rect": "rectangle", "circle": "circle", "polygon": "triangle" if corners else "polygon"}
    words = {"item", kinds.get(element.role, ""), "small" if _small(element) else "large"}
    if element.role == "text":
        words |= {element.name, "digit" if element.name.isdigit() else "letter"}
    else:
        words.add("shape")
    return words | {name for name, colour in COLOURS.items() if colour == element.colour}


def _small(element: PageElement) -> bool:
    height = element.box[3]
    return height < 15 if element.role == "text" else height <= 12


def shapes(view: Elements) -> list[PageElement]:
    return [element for element in view if element.role in ("rect", "circle", "polygon", "text") and element.colour]


def one_shape(task: str, view: Elements) -> str:
    wanted = set(re.findall(r"Click on an? (.*)$", task)[0].split())
    return click(next((shape for shape in shapes(view) if wanted <= shape_words(shape)), None))


def count_shapes(task: str, view: Elements) -> str:
    words = re.findall(r"How many (.*) are there", task)[0].split()
    wanted = {word if len(word) == 1 else re.sub(r"s$", "", word) for word in words}
    count = sum(wanted <= shape_words(shape) for shape in shapes(view))
    return click(view.named(str(count), "button"))


def name_shape(task: str, view: Elements) -> str:
    shape = shapes(view)[0]
    kinds = {"rect": "Rectangle", "circle": "Circle", "polygon": "Triangle"}
    return click(view.named(kinds.get(shape.role) or ("Number" if shape.name.isdigit() else "Letter"), "button"))


def grid_point(task: str, view: Elements) -> str:
    """Circles lie 30 pixels apart around the origin; up is more."""
    x, y = map(int, re.findall(r"\((-?\d),(-?\d)\)", task)[0])
    circles = view.of("circle")
    xs, ys = sorted({circle.box[0] for circle in circles}), sorted({circle.box[1] for circle in circles}, reverse=True)
    return click(next(circle for circle in circles if circle.box[:2] == (xs[x + 2], ys[y + 2])))


def ascending(task: str, view: Elements) -> str:
    """Solve the page on which, after the first click, squares hide the numbers, in the order of their numbers."""
    numbers = [element for element in view.of("text") if element.id and element.name.isdigit()]
    return click(min(numbers, key=lambda element: int(element.name)) if numbers else view.of("rect")[0])


def ticket(task: str, view: Elements) -> str:
    buttons = view.of("button")
    costs = {int(re.findall(r"\d+", button.name)[0]): button for button in buttons}
    texts = [element.name for element in view.of("text") if re.fullmatch(r"\d+h \d+m", element.name)]
    lengths = {int(text.split("h")[0]) * 60 + int(text.split()[1][:-1]): button for text, button in zip(texts, buttons)}
    by, best = (costs, max) if "expensive" in task else (lengths, max) if "longest" in task else (costs, min)
    if "shortest" in task:
        by, best = lengths, min
    return click(by[best(by)])


def odd_or_even(task: str, view: Elements) -> str:
    """Each number lies between its two buttons."""
    for number in view.of("text"):
        if re.fullmatch(r"-?\d+", number.name):
            even = int(number.name) % 2 == 0
            odd_button, even_button = view.before(number)[-1], view.after(number)[0]
            wanted = even_button if even else odd_button
            if not wanted.has(".selected") and not wanted.has("selected"):
                return click(wanted)
    return submit(view)


def radio_and_text(task: str, view: Elements) -> str:
    radio, field = (int(number) - 1 for number in re.findall(r"(\d)(?:st|nd|rd)", task))
    number = quoted(task)[0]
    if not view.of("radio")[radio].has("checked"):
        return click(view.of("radio")[radio])
    box = view.of("textbox")[field]
    return submit(view) if box.value == number else f"fill {box.id} {number}"


def greatest(task: str, view: Elements) -> str:
    """A card that is not chosen can be clicked, and so is a group of its own."""
    cards = [element for element in view.of("text") if element.name.isdigit()]
    best = max(cards, key=lambda card: int(card.name))
    return submit(view) if best.depth == 0 else click(best)


def generate(task: str, view: Elements) -> str:
    text = view.of("text")[0].name
    if text != "-":
        value = int(text)
        bound = int((re.findall(r"than (\d+)", task) or ["0"])[0])
        tests = {"even": value % 2 == 0, "odd": value % 2 == 1, "greater": value > bound, "less": value < bound}
        if next(fits for word, fits in tests.items() if word in task):
            return submit(view)
    return click(view.named("Generate"))
