"""Tasks of the file manager: a tree of documents becomes another one. The long ones change documents as well."""

from __future__ import annotations

from random import Random

from agentgym_environments.synthetic.gui.documents import WHAT, document, sentences
from agentgym_environments.synthetic.gui.task import GuiTask, Operation, Tree

FILES = ("budget", "invoice", "photo", "sketch", "contract", "poem", "survey", "menu", "speech", "receipt", "timetable",
         "address", "song", "manual", "essay", "lecture")  # fmt: skip
ENDINGS = ("txt", "md", "log", "csv")
FOLDERS = (
    "archive",
    "work",
    "family",
    "travel",
    "school",
    "garden",
    "music",
    "taxes",
    "ideas",
    "old",
    "shared",
    "home",
)


def apply(tree: Tree, plan: tuple[Operation, ...]) -> Tree:
    """The tree after all of it."""
    tree = dict(tree)
    for change in plan:
        if change.verb == "mkdir":
            tree[change.path] = None
        elif change.verb in ("touch", "edit"):
            tree[change.path] = change.text
        elif change.verb == "copy":
            tree[target(change)] = tree[change.path]
        else:
            moved = {path: text for path, text in tree.items() if f"{path}/".startswith(f"{change.path}/")}
            tree = {path: text for path, text in tree.items() if path not in moved}
            if change.verb != "delete":
                to = target(change)
                tree.update({to + path[len(change.path) :]: text for path, text in moved.items()})
    return tree


def target(change: Operation) -> str:
    """Return where a rename, move or copy puts it: into a folder `to`, or beside it under the name `to`."""
    folder, _, name = change.path.rpartition("/")
    if change.verb == "rename":
        return f"{folder}/{change.to}" if folder else change.to
    return f"{change.to}/{name}" if change.to else name


def is_done(change: Operation, tree: Tree) -> bool:
    if change.verb in ("mkdir", "touch"):
        return change.path in tree
    if change.verb == "edit":
        return tree.get(change.path) == change.text
    if change.verb == "copy":
        return target(change) in tree
    return change.path not in tree


def some_tree(random: Random, files: int, folders: int) -> tuple[Tree, list[str], list[str]]:
    """(tree, files, folders), all at its top."""
    inside: list[str] = random.sample(FOLDERS, folders)
    names = [f"{name}.{random.choice(ENDINGS)}" for name in random.sample(FILES, files)]
    tree: Tree = {**dict.fromkeys(inside), **{name: document(sentences(random, 1)) for name in names}}
    return tree, names, inside


def arranged(kind: str, goal: str, before: Tree, *plan: Operation, apps: tuple[str, ...] = ("files",)) -> GuiTask:
    return GuiTask(kind=kind, goal=goal, apps=apps, before=before, after=apply(before, plan), plan=plan)


def rename_file(random: Random) -> GuiTask:
    tree, names, _ = some_tree(random, random.randint(3, 5), random.randint(1, 2))
    old = random.choice(names)
    new = f"{random.choice([name for name in FILES if name not in ' '.join(names)])}-{random.randint(1, 99)}.txt"
    return arranged("rename", f"Rename the file {old} to {new}.", tree, Operation("rename", old, new))


def delete_file(random: Random) -> GuiTask:
    tree, names, _ = some_tree(random, random.randint(3, 5), random.randint(1, 2))
    gone = random.choice(names)
    return arranged("delete", f"Delete the file {gone}.", tree, Operation("delete", gone))


def make_folder(random: Random) -> GuiTask:
    tree, _, folders = some_tree(random, random.randint(2, 4), random.randint(1, 2))
    new = f"{random.choice([name for name in FOLDERS if name not in folders])}-{random.randint(2000, 2030)}"
    return arranged("make folder", f"Make a folder {new}.", tree, Operation("mkdir", new))


def move_file(random: Random) -> GuiTask:
    tree, names, folders = some_tree(random, random.randint(3, 5), 2)
    name, folder = random.choice(names), random.choice(folders)
    return arranged("move", f"Move the file {name} into the folder {folder}.", tree, Operation("move", name, folder))


def make_file(random: Random) -> GuiTask:
    tree, names, _ = some_tree(random, random.randint(2, 4), 1)
    new = f"{random.choice([name for name in FILES if name not in ' '.join(names)])}-{random.randint(1, 99)}.txt"
    return arranged("make file", f"Make an empty file {new}.", tree, Operation("touch", new))


def copy_file(random: Random) -> GuiTask:
    tree, names, folders = some_tree(random, random.randint(3, 5), 2)
    name, folder = random.choice(names), random.choice(folders)
    goal = f"Put a copy of {name} into the folder {folder}; the file itself stays where it is."
    return arranged("copy", goal, tree, Operation("copy", name, folder))


def sort_endings(random: Random) -> GuiTask:
    tree, names, folders = some_tree(random, random.randint(5, 7), 2)
    ending = random.choice([name.rpartition(".")[2] for name in names])
    chosen = [name for name in names if name.endswith(ending)][:4]
    tree = {path: text for path, text in tree.items() if not path.endswith(ending) or path in chosen}
    goal = f"Move every file that ends in .{ending} into the folder {folders[0]}."
    return arranged("sort endings", goal, tree, *(Operation("move", name, folders[0]) for name in chosen))


def dig_out(random: Random) -> GuiTask:
    tree, names, folders = some_tree(random, 3, 2)
    outer, inner = folders
    deep = f"{outer}/{random.choice([name for name in FOLDERS if name not in folders])}"
    tree = {**tree, deep: None, f"{deep}/{names[0]}": tree[names[0]], f"{outer}/{names[1]}": tree[names[1]]}
    for name in names[:2]:
        del tree[name]
    new = f"{random.choice([name for name in FILES if name not in ' '.join(names)])}.txt"
    goal = f"In the folder {deep} rename {names[0]} to {new}, and delete {names[1]} in {outer}."
    changes = (Operation("rename", f"{deep}/{names[0]}", new), Operation("delete", f"{outer}/{names[1]}"))
    return arranged("dig out", f"{goal} {inner} stays as it is.", tree, *changes)


def put_in_order(random: Random) -> GuiTask:
    tree, names, folders = some_tree(random, random.randint(4, 6), 1)
    new = f"{random.choice([name for name in FOLDERS if name not in folders])}-{random.randint(2000, 2030)}"
    first, second, third = names[:3]
    goal = f"Make a folder {new}, move {first} and {second} into it, and delete {third}."
    changes = (Operation("mkdir", new), Operation("move", first, new), Operation("move", second, new),
               Operation("delete", third))  # fmt: skip
    return arranged("put in order", goal, tree, *changes)


def empty_folder(random: Random) -> GuiTask:
    tree, _, folders = some_tree(random, 2, 2)
    folder = folders[0]
    inside = random.sample([name for name in FILES if not any(name in path for path in tree)], 3)
    tree = {**tree, **{f"{folder}/{name}.txt": document(sentences(random, 1)) for name in inside}}
    kept = inside[0]
    goal = f"Delete all files in the folder {folder} but {kept}.txt."
    return arranged("empty folder", goal, tree, *(Operation("delete", f"{folder}/{name}.txt") for name in inside[1:]))


def file_and_correct(random: Random) -> GuiTask:
    """Make a folder, move a document there, and change what it says."""
    tree, names, folders = some_tree(random, 4, 1)
    new = f"{random.choice([name for name in FOLDERS if name not in folders])}-{random.randint(2000, 2030)}"
    chosen, gone = names[0].replace(names[0].rpartition(".")[2], "txt"), names[1]
    lines = sentences(random, random.randint(2, 4))
    old = lines[0].split()[3]
    word = random.choice([one for one in WHAT if one != old])
    text = document([lines[0].replace(old, word), *lines[1:]])
    tree = {chosen if path == names[0] else path: text for path, text in tree.items()} | {chosen: document(lines)}
    goal = (f'Make a folder {new} and move {chosen} into it. There, in its first line, write "{word}" where it says '
            f'"{old}", and save it. Then delete {gone}.')  # fmt: skip
    changes = (Operation("mkdir", new), Operation("move", chosen, new), Operation("edit", f"{new}/{chosen}", text=text),
               Operation("delete", gone))  # fmt: skip
    return arranged("file and correct", goal, tree, *changes)


def two_documents(random: Random) -> GuiTask:
    """Add a line to two documents, rename one of them."""
    tree, names, _ = some_tree(random, 2, 2)
    first, second = (f"{name.partition('.')[0]}.txt" for name in names)
    for name in names:
        del tree[name]
    lines, others = sentences(random, 3), sentences(random, 3)
    tree = {**tree, first: document(lines[:2]), second: document(others[:2])}
    new = f"{random.choice([name for name in FILES if name not in ' '.join(names)])}-{random.randint(1, 99)}.txt"
    goal = (f'Add a last line to {first}: "{lines[2]}". Add a last line to {second}: "{others[2]}". Save both, and '
            f"rename {second} to {new}.")  # fmt: skip
    changes = (Operation("edit", first, text=document(lines)), Operation("edit", second, text=document(others)),
               Operation("rename", second, new))  # fmt: skip
    return arranged("two documents", goal, tree, *changes)


EASY = (rename_file, delete_file, make_folder, move_file, make_file)
HARD = (copy_file, sort_endings, dig_out, put_in_order, empty_folder)
LONG = (file_and_correct, two_documents)
