"""Tasks of the text editor: one document is changed and saved, and nothing else is touched."""

from __future__ import annotations

from random import Random

from agentgym_environments.synthetic.gui.task import GuiTask, Operation, Tree

NAMES = ("notes", "plan", "list", "diary", "draft", "letter", "minutes", "recipe", "journal", "report", "memo", "ideas")
WHO = ("Anna", "Bruno", "Clara", "David", "Edith", "Felix", "Greta", "Hugo", "Ines", "Jonas", "Karla", "Leo", "Mira")
DOES = ("buys", "brings", "needs", "sells", "finds", "paints", "counts", "repairs", "borrows", "returns", "carries")
WHAT = ("apples", "boards", "candles", "drums", "eggs", "flutes", "gloves", "hats", "inks", "jars", "kettles", "lamps",
        "maps", "nails", "onions", "pens", "quilts", "ropes", "stamps", "tents", "urns", "vases", "wheels")  # fmt: skip
WHEN = ("on Monday", "on Tuesday", "on Friday", "at noon", "at six", "tomorrow", "in May", "next week", "every day")
SETTINGS = ("port", "width", "height", "depth", "limit", "speed", "volume", "retries", "timeout", "margin", "columns")


def sentence(random: Random) -> str:
    many = random.randint(2, 99)
    return f"{random.choice(WHO)} {random.choice(DOES)} {many} {random.choice(WHAT)} {random.choice(WHEN)}"


def sentences(random: Random, count: int) -> list[str]:
    """Different ones."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[sentence(random)] = None
    return list(found)


def document(lines: list[str]) -> str:
    return "\n".join(lines) + "\n"


def edited(random: Random, kind: str, goal: str, before: list[str], after: list[str]) -> GuiTask:
    """A task that changes one document among others; `goal` says {file} where its name belongs."""
    name, other = random.sample(NAMES, 2)
    file = f"{name}.txt"
    tree: Tree = {file: document(before), f"{other}.txt": document(sentences(random, 2))}
    return GuiTask(
        kind=kind,
        goal=f"{goal.format(file=file)} Save the file.",
        apps=("editor",),
        opened=file,
        before=tree,
        after={**tree, file: document(after)},
        plan=(Operation("edit", file, text=document(after)),),
    )


def change_word(random: Random) -> GuiTask:
    lines = sentences(random, random.randint(3, 6))
    number = random.randrange(len(lines))
    old = lines[number].split()[3]
    new = random.choice([word for word in WHAT if word != old])
    after = [line.replace(old, new) if where == number else line for where, line in enumerate(lines)]
    goal = f'In line {number + 1} of {{file}} write "{new}" where it says "{old}".'
    return edited(random, "change word", goal, lines, after)


def append_line(random: Random) -> GuiTask:
    *lines, new = sentences(random, random.randint(3, 6))
    return edited(random, "append line", f'Add a last line to {{file}}: "{new}".', lines, [*lines, new])


def insert_line(random: Random) -> GuiTask:
    *lines, new = sentences(random, random.randint(3, 6))
    return edited(random, "insert line", f'Put a new first line into {{file}}: "{new}".', lines, [new, *lines])


def remove_line(random: Random) -> GuiTask:
    lines = sentences(random, random.randint(3, 6))
    gone = random.randrange(len(lines))
    after = [line for where, line in enumerate(lines) if where != gone]
    return edited(random, "remove line", f"Remove line {gone + 1} of {{file}}.", lines, after)


def change_setting(random: Random) -> GuiTask:
    names = random.sample(SETTINGS, random.randint(3, 6))
    values = {name: random.randint(2, 9999) for name in names}
    chosen = random.choice(names)
    new = random.choice([value for value in range(2, 9999) if value != values[chosen]])
    before = [f"{name} = {value}" for name, value in values.items()]
    after = [f"{name} = {value}" for name, value in {**values, chosen: new}.items()]
    return edited(random, "change setting", f"Set {chosen} to {new} in {{file}}.", before, after)


def replace_everywhere(random: Random) -> GuiTask:
    lines = sentences(random, random.randint(24, 40))
    counts = {word: sum(word in line for line in lines) for word in WHO}
    old = max(counts, key=lambda word: counts[word])
    new = random.choice([word for word in WHO if word != old])
    after = [line.replace(old, new) for line in lines]
    return edited(random, "replace everywhere", f'In {{file}} replace every "{old}" by "{new}".', lines, after)


def sort_lines(random: Random) -> GuiTask:
    lines = sentences(random, random.randint(6, 9))
    if lines == sorted(lines):
        lines.reverse()
    return edited(random, "sort lines", "Sort the lines of {file} alphabetically.", lines, sorted(lines))


def drop_repeats(random: Random) -> GuiTask:
    lines = sentences(random, random.randint(5, 8))
    before = list(lines)
    for line in random.sample(lines, random.randint(1, 3)):
        before.insert(random.randint(before.index(line) + 1, len(before)), line)
    goal = "Some lines of {file} are there twice: keep the first of each and remove the second."
    return edited(random, "drop repeats", goal, before, lines)


def save_changed_copy(random: Random) -> GuiTask:
    task = random.choice((append_line, insert_line, change_word))(random)
    copy = f"{random.choice([name for name in NAMES if f'{name}.txt' not in task.before])}-{random.randint(2, 99)}.txt"
    text = task.after[task.opened] or ""
    goal = task.goal.removesuffix("Save the file.")
    return GuiTask(
        kind="save changed copy",
        goal=f"{goal}Save it as {copy} in the same folder, and leave the file {task.opened} as it was.",
        apps=("editor",),
        opened=task.opened,
        before=task.before,
        after={**task.before, copy: text},
        plan=(Operation("save as", copy, text=text),),
    )


EASY = (change_word, append_line, insert_line, remove_line, change_setting)
HARD = (replace_everywhere, sort_lines, drop_repeats, save_changed_copy)
