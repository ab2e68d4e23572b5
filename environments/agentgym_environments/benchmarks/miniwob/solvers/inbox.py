"""Solvers of pages that imitate applications: mail, social media, a phone book, an order form, a terminal."""

from __future__ import annotations

import re

from agentgym_environments.benchmarks.miniwob.elements import Elements, PageElement
from agentgym_environments.benchmarks.miniwob.solvers.choose import click, quoted, submit
from agentgym_environments.benchmarks.miniwob.solvers.write import fields


def mail(task: str, view: Elements) -> str:
    """Star or delete in the list; open to reply or forward, write, and send by the icon in the corner."""
    by = re.findall(r"by (\S+) and", task)[0]
    if view.named("Primary"):
        row = view.named(by, "text")
        assert row is not None
        icon = ".star" if "star" in task else ".trash" if "trash" in task else ""
        return click(next((box for box in view.after(row) if box.has(icon)), None) if icon else row)
    return _write(task, view, to=(re.findall(r"email to (\S+)\.$", task) or [""])[0])


def _write(task: str, view: Elements, to: str) -> str:
    if button := view.named("Forward" if to else "Reply", "text"):
        return click(button)
    field = fields(view)[0] if to else fields(view)[-1]
    wanted = to or quoted(task)[0]
    return f"fill {field.id} {wanted}" if field.value != wanted else click(view.of("box")[1])


def posts(task: str, view: Elements) -> str:
    """A button of one user's post; what is not shown is in the menu of three points."""
    user, button = re.findall(r"user (@\S+), click on the \"(.*)\"", task)[0]
    post = view.named(user, "text")
    assert post is not None
    if offer := next((item for item in view.of("text") if item.depth > 1 and _offer(item, button, user)), None):
        return click(offer)
    classes = {"Reply": ".reply", "Retweet": ".retweet", "Like": ".like"}
    return click(next(box for box in view.after(post).of("box") if box.has(classes.get(button, ".more"))))


def _offer(item: PageElement, button: str, user: str) -> bool:
    return item.name == button or item.name == f"{button} {user}"


def many_posts(task: str, view: Elements) -> str:
    button, user = re.findall(r"the \"(\w+)\" button on .* by (@\S+) and", task)[0]
    count = int((re.findall(r"on (\d+) post", task) or ["999"])[0])
    posts = [element for element in view.of("text") if element.name == user][:count]
    for post in posts:
        box = next(box for box in view.after(post) if box.has(f".{button.lower()}"))
        if not box.has(".active"):
            return click(box)
    return submit(view)


def phone_book(task: str, view: Elements) -> str:
    name, what = re.findall(r"Find (.*) in the contact book and click on their (.*)\.", task)[0]
    if view.of("heading")[0].name != name:
        return click(view.named(">"))
    label = {"phone number": "Phone:", "email": "Email:", "address": "Address:"}[what]
    return click(view.after(view.named(label))[0])  # type: ignore[arg-type]


def order(task: str, view: Elements) -> str:
    """One of each item by name, or so many of the first item of a kind."""
    dishes = _dishes(view)
    if "one of each" in task:
        names = task.split(": ", 1)[1].split(", ")
        wanted = {name: 1 for name in names}
    else:
        count, kind = re.findall(r"Order (\d+) items? that (?:are|is) (.*?)\.?$", task)[0]
        wanted = {next(name for name, (kinds, _, _) in dishes.items() if kind in kinds): int(count)}
    for name, number in wanted.items():
        _, ordered, plus = dishes[name]
        if ordered < number:
            return click(plus)
    return submit(view)


def _dishes(view: Elements) -> dict[str, tuple[set[str], int, PageElement]]:
    """Return of every dish its kinds, how many are ordered and the button for another."""
    found: dict[str, tuple[set[str], int, PageElement]] = {}
    name, kinds, ordered = "", set(), 0
    for element in view:
        if element.role == "img":
            kinds.add(element.name)
        elif element.name == "+":
            found[name] = (kinds, ordered, element)
            kinds, ordered = set(), 0
        elif element.name.isdigit():
            ordered = int(element.name)
        elif element.role == "text" and element.name != "-":
            name = element.name
    return found


def terminal(task: str, view: Elements) -> str:
    """List the files, then delete the first that fits."""
    ending = (re.findall(r"extension (\S+)$", task) or [""])[0]
    typed = len([action for action in view.taken if action.startswith("type")])
    if len(view.taken) > typed * 2 - 1 and typed:
        listed = view.after(next(element for element in view if element.name == "ls"))[0].name.split()
        fits = [file for file in listed if (file.endswith(ending) if ending else "." not in file)]
        return f"type rm {fits[0]}"
    return "press Enter" if typed else "type ls"


def calendar_date(task: str, view: Elements) -> str:
    """Open the calendar, turn its pages to the month, click the day, submit."""
    month, day, year = map(int, re.findall(r"(\d+)/(\d+)/(\d+)", task)[0])
    field = view.of("textbox")[-1]
    if field.value == f"{month:02d}/{day:02d}/{year}":
        return submit(view)
    shown = next((MONTHS.index(element.name) + 1 for element in view.of("text") if element.name in MONTHS), None)
    if shown is None:
        return click(field)
    if shown != month:
        return click(view.named("Prev" if shown > month else "Next"))
    return click(view.named(str(day), "link"))


MONTHS = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
]  # fmt: skip


def flight(task: str, view: Elements) -> str:
    """Both airports from the lists offered, the date, then the best of the flights found."""
    wanted = re.findall(r"from: (.*) to: (.*) on", task)[0]
    if view.of("textbox"):
        for field, airport in zip(view.of("textbox"), wanted):
            full = re.search(r"\([A-Z]{3}\)$", field.value)
            if full is None:
                offers = [item for item in view.of("text") if item.depth and re.search(r"\([A-Z]{3}\)$", item.name)]
                fits = [item for item in offers if airport in item.name]
                return click(fits[0]) if fits and field.value == airport else f"fill {field.id} {airport}"
        date = calendar_date(task, view)
        return click(view.named("Search")) if date == submit(view) else date
    buttons = [button for button in view.of("button") if "$" in button.name]
    if "cheapest" in task:
        return click(min(buttons, key=lambda button: int(re.sub(r"\D", "", button.name))))
    lengths = [element.name for element in view.of("text") if re.fullmatch(r"(\d+h)? ?(\d+m)?", element.name)]
    minutes = [
        sum(int(n) * {"h": 60, "m": 1}[unit] for n, unit in re.findall(r"(\d+)([hm])", text)) for text in lengths
    ]
    return click(buttons[minutes.index(min(minutes))])


def delay(task: str, view: Elements) -> str:
    """An action takes a second."""
    seconds = int(re.findall(r"wait (\d) second", task)[0])
    if not view.taken:
        return click(view.named("ONE"))
    return click(view.named("TWO")) if len(view.taken) >= seconds else "wait"


def stock(task: str, view: Elements) -> str:
    limit = float(re.findall(r"\$([\d.]+?)\.?$", task)[0])
    price = float(next(element.name for element in view.of("text") if element.name.startswith("$"))[1:])
    return click(view.named("Buy")) if price < limit else "wait"
