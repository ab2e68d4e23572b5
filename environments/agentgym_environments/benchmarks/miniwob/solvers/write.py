"""Solvers of pages where fields are filled."""

from __future__ import annotations

import re

from agentgym_environments.benchmarks.miniwob.elements import Elements, PageElement
from agentgym_environments.benchmarks.miniwob.solvers.choose import click, quoted, submit


def fill(view: Elements, *wanted: tuple[PageElement, str]) -> str:
    """Fill the first field that does not hold its text yet, else submit."""
    for field, text in wanted:
        if field.value != text:
            return f'fill {field.id} "{text}"' if text != text.strip() else f"fill {field.id} {text}"
    return submit(view)


def fields(view: Elements) -> Elements:
    return Elements([field for field in view.of("textbox", "spinbutton", "date", "time") if not field.has("disabled")])


def the_text(task: str, view: Elements) -> str:
    """One field and a quoted text."""
    text = quoted(task)[0]
    text = text.upper() if "upper case" in task else text.lower() if "lower case" in task else text
    return fill(view, (fields(view)[0], text))


def password_twice(task: str, view: Elements) -> str:
    return fill(view, *((field, quoted(task)[0]) for field in fields(view)))


def login(task: str, view: Elements) -> str:
    """Popups that lie over the form are sent away first."""
    if cancel := view.named("Cancel"):
        return click(cancel)
    return fill(view, *zip(fields(view), quoted(task)))


def date(task: str, view: Elements) -> str:
    month, day, year = re.findall(r"(\d+)/(\d+)/(\d+)", task)[0]
    return fill(view, (fields(view)[0], f"{year}-{month}-{day}"))


def time(task: str, view: Elements) -> str:
    hour, minute, half = re.findall(r"(\d+):(\d+) (AM|PM)", task)[0]
    return fill(view, (fields(view)[0], f"{int(hour) % 12 + 12 * (half == 'PM'):02d}:{minute}"))


def nth_word(task: str, view: Elements) -> str:
    number = int(re.findall(r"(\d+)(?:st|nd|rd|th)", task)[0])
    words = view.of("text")[0].name.split()
    return fill(view, (fields(view)[0], words[number - 1].strip(",.")))


def last_word(task: str, view: Elements) -> str:
    text, field = fields(view)
    return fill(view, (field, text.value.split()[-1].strip(",.")))


def copy(task: str, view: Elements) -> str:
    """Copy from the text area of the number that the task gives, or the only one, to the field."""
    areas = [field for field in fields(view) if field.box != (0, 0, 0, 0)]
    number = int((re.findall(r"(\d)(?:st|nd|rd)", task) or ["1"])[0])
    field = next(field for field in fields(view) if field.box == (0, 0, 0, 0))
    return fill(view, (field, areas[number - 1].value))


def table(task: str, view: Elements) -> str:
    label = re.findall(r"value of (.*) into", task)[0]
    return fill(view, (fields(view)[0], _row(view, label)))


def table_labels(task: str, view: Elements) -> str:
    return fill(view, *((field, _row(view, view.before(field)[-1].name.rstrip(":"))) for field in fields(view)))


def _row(view: Elements, label: str) -> str:
    cell = next(element for element in view if element.name == label)
    return view.after(cell)[0].name


def arithmetic(task: str, view: Elements) -> str:
    a, sign, b = re.findall(r"(-?\d+) ([-+x]) (-?\d+)", view.of("text")[0].name)[0]
    value = {"+": int(a) + int(b), "-": int(a) - int(b), "x": int(a) * int(b)}[sign]
    return fill(view, (fields(view)[0], str(value)))


def algebra(task: str, view: Elements) -> str:
    """a + x = b, a - x = b, x + a = b or x - a = b"""
    left, sign, right, total = re.findall(r"(\S+) ([-+]) (\S+) = (-?\d+)", view.of("text")[0].name)[0]
    total_value = int(total)
    if left == "x":
        value = total_value - int(right) if sign == "+" else total_value + int(right)
    else:
        value = total_value - int(left) if sign == "+" else int(left) - total_value
    return fill(view, (fields(view)[0], str(value)))


def count_blocks(task: str, view: Elements) -> str:
    blocks = [box for box in view.of("box") if box.has(".addition-block")]
    return fill(view, (fields(view)[0], str(len(blocks))))


def scattered(task: str, view: Elements) -> str:
    return fill(view, (fields(view)[0], "".join(element.name for element in view.of("text"))))


def search(task: str, view: Elements) -> str:
    """Search, turn pages of three results, click the result of the number."""
    number = int(re.findall(r"(\d+)(?:st|nd|rd|th)", task)[0])
    field = view.of("textbox")[0]
    results = [element for element in view.of("link") if element.depth == 0]
    pages = [element for element in view if element.id and re.fullmatch(r"\d|[<>]", element.name)]
    if not pages:
        return fill(view, (field, quoted(task)[0]))
    here = next((int(view.under(item)[0].name) for item in view.of("listitem") if item.has(".active")), 1)
    wanted = (number + 2) // 3
    if here != wanted:
        return click(next((page for page in pages if page.name == str(wanted)), pages[-1]))
    return click(results[(number - 1) % 3])


def movies(task: str, view: Elements) -> str:
    genre, director, year = re.findall(r"for (.*) movies directed by (.*) from year (\d+)", task)[0]
    wanted = {"genre": genre, "director": director, "year": year, "released": year, "date": year}
    pairs = []
    for field in fields(view):
        label = next(element.name for element in reversed(view.before(field)) if element.role == "text").lower()
        pairs.append((field, next(text for word, text in wanted.items() if word in label)))
    return fill(view, *pairs)


def spinner(task: str, view: Elements) -> str:
    return fill(view, (view.of("spinbutton")[0], re.findall(r"Select (-?\d+) with", task)[0]))


def autocomplete(task: str, view: Elements) -> str:
    """Type the beginning, then click the offer with the right end."""
    begin, end = [*quoted(task), ""][:2]
    field = fields(view)[0]
    if field.value.startswith(begin) and field.value.endswith(end) and len(field.value) > len(begin):
        return submit(view)
    for offer in view.of("text"):
        if offer.id and offer.depth and offer.name.startswith(begin) and offer.name.endswith(end):
            return click(offer)
    return f"fill {field.id} {begin}"


def guess(task: str, view: Elements) -> str:
    """Ask for one number after another."""
    if len(view.taken) % 2 == 1:
        return click(view.of("button")[0])
    return f"fill {view.of('spinbutton')[0].id} {len(view.taken) // 2}"


def agreement(task: str, view: Elements) -> str:
    if "Scroll" not in task:
        return click(view.named("Cancel"))
    name, button = quoted(task)
    area, field = view.of("textbox")[:2]
    if (place := re.search(r"scrolled (\d+) of (\d+)", area.rest)) and place[1] != place[2] and field.has("disabled"):
        return f"scroll down {area.id} 5000"
    return f"fill {field.id} {name}" if field.value != name else click(view.named(button))


def scrolled(task: str, view: Elements) -> str:
    area = view.of("textbox")[0]
    here, end = map(int, re.findall(r"scrolled (\d+) of (\d+)", area.rest)[0])
    if "bottom" in task:
        return submit(view) if here >= end else f"scroll down {area.id} 5000"
    return submit(view) if here == 0 else f"scroll up {area.id} 5000"
