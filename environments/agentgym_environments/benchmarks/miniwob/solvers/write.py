"""Solvers of pages where fields are filled."""

from __future__ import annotations

import re

from agentgym_environments.benchmarks.miniwob.elements import Elements, PageElement
from agentgym_environments.benchmarks.miniwob.solvers.choose import click, quoted, submit


def fill(seen: Elements, *wanted: tuple[PageElement, str]) -> str:
    """Fill the first field that does not hold its text yet, else submit."""
    for field, text in wanted:
        if field.value != text:
            return f'fill {field.id} "{text}"' if text != text.strip() else f"fill {field.id} {text}"
    return submit(seen)


def fields(seen: Elements) -> Elements:
    return Elements([field for field in seen.of("textbox", "spinbutton", "date", "time") if not field.has("disabled")])


def the_text(task: str, seen: Elements) -> str:
    """One field and a quoted text."""
    text = quoted(task)[0]
    text = text.upper() if "upper case" in task else text.lower() if "lower case" in task else text
    return fill(seen, (fields(seen)[0], text))


def password_twice(task: str, seen: Elements) -> str:
    return fill(seen, *((field, quoted(task)[0]) for field in fields(seen)))


def login(task: str, seen: Elements) -> str:
    """Popups that lie over the form are sent away first."""
    if cancel := seen.named("Cancel"):
        return click(cancel)
    return fill(seen, *zip(fields(seen), quoted(task)))


def date(task: str, seen: Elements) -> str:
    month, day, year = re.findall(r"(\d+)/(\d+)/(\d+)", task)[0]
    return fill(seen, (fields(seen)[0], f"{year}-{month}-{day}"))


def time(task: str, seen: Elements) -> str:
    hour, minute, half = re.findall(r"(\d+):(\d+) (AM|PM)", task)[0]
    return fill(seen, (fields(seen)[0], f"{int(hour) % 12 + 12 * (half == 'PM'):02d}:{minute}"))


def nth_word(task: str, seen: Elements) -> str:
    number = int(re.findall(r"(\d+)(?:st|nd|rd|th)", task)[0])
    words = seen.of("text")[0].name.split()
    return fill(seen, (fields(seen)[0], words[number - 1].strip(",.")))


def last_word(task: str, seen: Elements) -> str:
    text, field = fields(seen)
    return fill(seen, (field, text.value.split()[-1].strip(",.")))


def copy(task: str, seen: Elements) -> str:
    """Copy from the text area of the number that the task gives, or the only one, to the field."""
    areas = [field for field in fields(seen) if field.box != (0, 0, 0, 0)]
    number = int((re.findall(r"(\d)(?:st|nd|rd)", task) or ["1"])[0])
    field = next(field for field in fields(seen) if field.box == (0, 0, 0, 0))
    return fill(seen, (field, areas[number - 1].value))


def table(task: str, seen: Elements) -> str:
    label = re.findall(r"value of (.*) into", task)[0]
    return fill(seen, (fields(seen)[0], _row(seen, label)))


def table_labels(task: str, seen: Elements) -> str:
    return fill(seen, *((field, _row(seen, seen.before(field)[-1].name.rstrip(":"))) for field in fields(seen)))


def _row(seen: Elements, label: str) -> str:
    cell = next(element for element in seen if element.name == label)
    return seen.after(cell)[0].name


def arithmetic(task: str, seen: Elements) -> str:
    a, sign, b = re.findall(r"(-?\d+) ([-+x]) (-?\d+)", seen.of("text")[0].name)[0]
    value = {"+": int(a) + int(b), "-": int(a) - int(b), "x": int(a) * int(b)}[sign]
    return fill(seen, (fields(seen)[0], str(value)))


def algebra(task: str, seen: Elements) -> str:
    """a + x = b, a - x = b, x + a = b or x - a = b"""
    left, sign, right, total = re.findall(r"(\S+) ([-+]) (\S+) = (-?\d+)", seen.of("text")[0].name)[0]
    whole = int(total)
    if left == "x":
        value = whole - int(right) if sign == "+" else whole + int(right)
    else:
        value = whole - int(left) if sign == "+" else int(left) - whole
    return fill(seen, (fields(seen)[0], str(value)))


def count_blocks(task: str, seen: Elements) -> str:
    blocks = [box for box in seen.of("box") if box.has(".addition-block")]
    return fill(seen, (fields(seen)[0], str(len(blocks))))


def scattered(task: str, seen: Elements) -> str:
    return fill(seen, (fields(seen)[0], "".join(element.name for element in seen.of("text"))))


def search(task: str, seen: Elements) -> str:
    """Search, turn pages of three results, click the result of the number."""
    number = int(re.findall(r"(\d+)(?:st|nd|rd|th)", task)[0])
    field = seen.of("textbox")[0]
    results = [element for element in seen.of("link") if element.depth == 0]
    pages = [element for element in seen if element.id and re.fullmatch(r"\d|[<>]", element.name)]
    if not pages:
        return fill(seen, (field, quoted(task)[0]))
    here = next((int(seen.under(item)[0].name) for item in seen.of("listitem") if item.has(".active")), 1)
    wanted = (number + 2) // 3
    if here != wanted:
        return click(next((page for page in pages if page.name == str(wanted)), pages[-1]))
    return click(results[(number - 1) % 3])


def movies(task: str, seen: Elements) -> str:
    genre, director, year = re.findall(r"for (.*) movies directed by (.*) from year (\d+)", task)[0]
    wanted = {"genre": genre, "director": director, "year": year, "released": year, "date": year}
    pairs = []
    for field in fields(seen):
        label = next(element.name for element in reversed(seen.before(field)) if element.role == "text").lower()
        pairs.append((field, next(text for word, text in wanted.items() if word in label)))
    return fill(seen, *pairs)


def spinner(task: str, seen: Elements) -> str:
    return fill(seen, (seen.of("spinbutton")[0], re.findall(r"Select (-?\d+) with", task)[0]))


def autocomplete(task: str, seen: Elements) -> str:
    """Type the beginning, then click the offer with the right end."""
    begin, end = [*quoted(task), ""][:2]
    field = fields(seen)[0]
    if field.value.startswith(begin) and field.value.endswith(end) and len(field.value) > len(begin):
        return submit(seen)
    for offer in seen.of("text"):
        if offer.id and offer.depth and offer.name.startswith(begin) and offer.name.endswith(end):
            return click(offer)
    return f"fill {field.id} {begin}"


def guess(task: str, seen: Elements) -> str:
    """Ask for one number after another."""
    if len(seen.taken) % 2 == 1:
        return click(seen.of("button")[0])
    return f"fill {seen.of('spinbutton')[0].id} {len(seen.taken) // 2}"


def agreement(task: str, seen: Elements) -> str:
    if "Scroll" not in task:
        return click(seen.named("Cancel"))
    name, button = quoted(task)
    area, field = seen.of("textbox")[:2]
    if (place := re.search(r"scrolled (\d+) of (\d+)", area.rest)) and place[1] != place[2] and field.has("disabled"):
        return f"scroll down {area.id} 5000"
    return f"fill {field.id} {name}" if field.value != name else click(seen.named(button))


def scrolled(task: str, seen: Elements) -> str:
    area = seen.of("textbox")[0]
    here, end = map(int, re.findall(r"scrolled (\d+) of (\d+)", area.rest)[0])
    if "bottom" in task:
        return submit(seen) if here >= end else f"scroll down {area.id} 5000"
    return submit(seen) if here == 0 else f"scroll up {area.id} 5000"
