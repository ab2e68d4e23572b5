"""Solvers of pages where things are dragged, drawn or pointed at."""

from __future__ import annotations

import math
import re

from agentgym_environments.benchmarks.miniwob.elements import Elements, PageElement
from agentgym_environments.benchmarks.miniwob.solvers.choose import COLOURS, click, quoted, shape_words, submit

OFFSET = 2
"""Pixels right of and below a click at which its mark appears."""


def middle(element: PageElement) -> tuple[int, int]:
    return element.box[:2]


def at(x: float, y: float) -> str:
    return f"{x:.0f},{y:.0f}"


def box_into_box(task: str, view: Elements) -> str:
    small, large = sorted(view.of("text")[:2], key=lambda box: box.box[2])
    return submit(view) if math.dist(middle(small), middle(large)) < 8 else f"drag {small.id} {large.id}"


WAYS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}


def one_way(task: str, view: Elements) -> str:
    """Go as far as the window allows, once."""
    if view.taken:
        return submit(view)
    item = view[0]
    across, down = WAYS[re.findall(r"Drag the \w+ (\w+) then", task)[0]]
    x, y = middle(item)
    return f"drag {item.id} {at(min(max(x + 45 * across, 8), 150), min(max(y + 45 * down, 58), 190))}"


def shapes_into_boxes(task: str, view: Elements) -> str:
    """Everything of the kind that the task names goes into the (left) box, the rest into the other if there is one."""
    boxes = sorted((box for box in view.of("rect") if box.box[2] > 40), key=lambda box: box.box[0])
    kind = re.findall(r"all (\w+?)s?(?: shapes)? into", task)[0]
    for shape in view:
        if shape.role not in ("circle", "rect", "polygon") or shape in boxes:
            continue
        home = boxes[0] if kind in shape_words(shape) else boxes[1] if len(boxes) > 1 else None
        if home is not None and not _inside(shape, home):
            return f"drag {shape.id} {home.id}"
    return submit(view)


def _inside(shape: PageElement, home: PageElement) -> bool:
    (x, y, _, _), (left, top, width, height) = shape.box, home.box
    return abs(x - left) < width / 2 - 8 and abs(y - top) < height / 2 - 8


def items(view: Elements) -> list[tuple[str, PageElement]]:
    """(name, element) of a sortable list, in its order."""
    return [(view.under(item).of("text")[0].name, item) for item in view.of("listitem")]


def move_item(task: str, view: Elements) -> str:
    """A vertical list: to the top, the bottom, a position, or one up or down."""
    name, where = re.findall(r"Drag (\S+) (.*)\.$", task)[0]
    found = items(view)
    here = [one for one, _ in found].index(name)
    if "position" in where and (number := re.findall(r"(\d)(?:st|nd|rd|th)", where)):
        there = int(number[0]) - 1
    else:
        there = {"to the top": 0, "to the bottom": len(found) - 1}.get(where, here + (1 if "down" in where else -1))
    return _past(found[here][1], found[there][1])


def _past(item: PageElement, target: PageElement) -> str:
    """Drop it a little beyond the middle of what is to give way."""
    (x, y), (there_x, there_y) = middle(item), middle(target)
    by = 6 if (there_y, there_x) > (y, x) else -6
    right, down = (0 if there_x == x else by), (0 if there_y == y else by)
    return f"drag {at(x, y)} {at(there_x + right, there_y + down)} {at(there_x + right / 2, there_y + down / 2)}"


def sort_numbers(task: str, view: Elements) -> str:
    found = [(int(name), item) for name, item in items(view)]
    for (number, item), wanted in zip(found, sorted(number for number, _ in found)):
        if number != wanted:
            return _past(next(other for value, other in found if value == wanted), item)
    return submit(view)


def _mark(x: float, y: float) -> str:
    return f"click {at(x - OFFSET, y - OFFSET)}"


def centre(task: str, view: Elements) -> str:
    return submit(view) if view.taken else _mark(*middle(view.of("circle")[0]))


def midpoint(task: str, view: Elements) -> str:
    (ax, ay), (bx, by) = (middle(circle) for circle in view.of("circle")[:2])
    return submit(view) if view.taken else _mark((ax + bx) / 2, (ay + by) / 2)


def right_angle(task: str, view: Elements) -> str:
    """The blue circle is the corner; of the two perpendiculars the one that stays inside."""
    if view.taken:
        return submit(view)
    black, blue = sorted(view.of("circle")[:2], key=lambda circle: circle.colour == COLOURS["blue"])
    (ax, ay), (x, y) = middle(black), middle(blue)
    away = math.dist((ax, ay), (x, y))
    across, down = -(ay - y) / away * 45, (ax - x) / away * 45
    if not (10 < x + across < 145 and 60 < y + down < 165):
        across, down = -across, -down
    return _mark(x + across, y + down)


def draw_line(task: str, view: Elements) -> str:
    if view.taken:
        return submit(view)
    x, y = (value - 0 for value in middle(view.of("circle")[0]))
    way = (at(x, 62), at(x, 165)) if "vertical" in task else (at(8, y), at(150, y))
    return f"drag {way[0]} {way[1]}"


def resize(task: str, view: Elements) -> str:
    """Drag the corner, once."""
    if view.taken:
        return submit(view)
    handle = view.of("box")[0]
    x, y = middle(handle)
    by = 25 if "larger" in task else -25
    return f"drag {handle.id} {at(x + by, y) if 'width' in task else at(x, y + by)}"


def pie(task: str, view: Elements) -> str:
    """Open the pie, then click the letter."""
    letter = next(text for text in view.of("text") if text.name == quoted(task)[0])
    return click(letter) if letter.box[3] > 10 else click(view.named("+", "text"))


def colour_field(task: str, view: Elements) -> str:
    """The field takes the colour as hexadecimal digits."""
    wanted = COLOURS[re.findall(r"Select (\w+) with", task)[0]]
    text = "".join(f"{part:02X}" for part in wanted)
    field = view.of("textbox")[0]
    if field.value.upper() != text:
        return f"fill {field.id} {text}"
    return "press Tab" if field.has("focused") else submit(view)


def dropdown(task: str, view: Elements) -> str:
    """A list made of boxes: open it, choose, then the button."""
    wanted, button = re.findall(r"Choose (.*) from the dropdown, then click the button labeled \"(.*)\"", task)[0]
    if wanted in view.of("combobox")[0].selected:
        return click(view.named(button, "button"))
    return click(view.named(wanted, "text") or next(box for box in view if box.has(".label") or box.name == "▾"))
