"""The hidden tests as a template: from it each grading draws which variants run, their names, keys and order."""

from __future__ import annotations

import ast
import copy
import random
import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agentgym_environments.synthetic.swe.grading.checks import OBSERVER, POINT, CheckRewriter
from agentgym_environments.synthetic.swe.grading.vary import variant

OBSERVER_SOURCE = Path(__file__).with_name("observer.py")
VARIANTS, ATTEMPTS = 3, 9
"""Variants of a test at most, and how many are made to find so many that are not the same."""
ABOVE = "\n" * 999
"""Stands above each file: numbers of lines have four digits in every order, so that texts with tracebacks are as
long."""
NAME = "test_drawn_name_{}_"
"""Placeholder of a test's name."""


@dataclass(frozen=True)
class Segment:
    """A part of a file. test: its name, "" for what is always there. variant: 0 for the test as the package has it."""

    text: str
    test: str = ""
    variant: int = 0


@dataclass(frozen=True)
class Template:
    """Rewritten tests. files: path -> segments. others: path -> content of files that are not Python."""

    files: dict[str, list[Segment]]
    others: dict[str, bytes]
    names: tuple[str, ...]
    """Every test's name."""

    def variants(self) -> set[tuple[str, int]]:
        return {(one.test, one.variant) for parts in self.files.values() for one in parts if one.test}


@dataclass(frozen=True)
class Script:
    """The tests of one run. names: drawn name -> (test, variant). keys: drawn key -> point."""

    files: dict[str, bytes]
    plugin: str
    """Module of the observer."""
    names: dict[str, tuple[str, int]]
    keys: dict[str, int]

    def identity(self, node: str) -> tuple[str, int]:
        """("tests/test_a.py::TestB::test_c", variant) of a test's name in the log."""
        where, _, name = node.rpartition("::")
        test, number = self.names.get(name, (name, 0))
        return f"{where}::{test}", number


def make_template(hidden: Mapping[str, bytes], seed: str, kept: Collection[int] = ()) -> Template:
    """The template of a package's hidden files, the same for the same arguments; `kept` as for `CheckRewriter`."""
    with warnings.catch_warnings(action="ignore"):  # of escapes in a package's own strings
        trees = {path: ast.parse(content) for path, content in sorted(hidden.items()) if path.endswith(".py")}
    names = sorted({test.name for tree in trees.values() for test in tests_of(tree)})
    numbers = {
        (name, number): i * (VARIANTS + 1) + number for i, name in enumerate(names) for number in range(VARIANTS + 1)
    }
    files: dict[str, list[Segment]] = {}
    first = 0
    for path, tree in trees.items():
        maker = FileMaker(path, tree, numbers, seed, CheckRewriter(kept, first, pytest_names(tree)))
        files[path] = list(maker.segments())
        first = maker.rewriter.next
    others = {path: content for path, content in hidden.items() if not path.endswith(".py")}
    return Template(files, others, tuple(names))


def tests_of(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """Test functions of the module and of its classes."""
    for node in tree.body:
        for inner in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(inner, ast.FunctionDef) and inner.name.startswith("test"):
                yield inner


def pytest_names(tree: ast.Module) -> set[str]:
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "pytest"]
    return {name.name for node in imports for name in node.names}


class FileMaker:
    """The segments of one file."""

    def __init__(
        self, path: str, tree: ast.Module, numbers: Mapping[tuple[str, int], int], seed: str, rewriter: CheckRewriter
    ) -> None:
        self.path, self.tree, self.numbers, self.seed, self.rewriter = path, tree, numbers, seed, rewriter

    def segments(self) -> Iterator[Segment]:
        for node in ast.walk(self.tree):  # tests that are imported from another file
            for alias in node.names if isinstance(node, ast.ImportFrom) else []:
                if (alias.name, 0) in self.numbers:
                    alias.name = NAME.format(self.numbers[alias.name, 0])
        body = list(self.tree.body)
        head = 0
        while head < len(body) and (is_text(body[head]) or is_future(body[head])):
            yield Segment(ast.unparse(body[head]))
            head += 1
        yield Segment(f"import {OBSERVER}")
        for node in body[head:]:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
                yield from self.test(node, "")
            elif isinstance(node, ast.ClassDef) and list(tests_of(ast.Module([node], []))):
                yield from self.of_class(node)
            else:
                yield Segment(ast.unparse(self.rewriter.visit(node)))

    def of_class(self, node: ast.ClassDef) -> Iterator[Segment]:
        empty = ast.ClassDef(node.name, node.bases, node.keywords, [ast.Pass()], node.decorator_list)
        yield Segment(ast.unparse(empty))
        for inner in node.body:
            if isinstance(inner, ast.FunctionDef) and inner.name.startswith("test"):
                yield from self.test(inner, f"{node.name}.")
            else:
                yield Segment(indented(self.rewriter.visit(inner)))
        yield Segment("")  # a class's tests stay among themselves

    def test(self, node: ast.FunctionDef, owner: str) -> Iterator[Segment]:
        """The test and its variants, all but those that are the same as another."""
        texts: set[str] = set()
        number = 0
        for attempt in range(ATTEMPTS):
            chance = random.Random(f"{self.seed}/{self.path}/{owner}{node.name}/{attempt}")
            made = variant(node, chance) if attempt else copy.deepcopy(node)
            if made is None or number > VARIANTS:
                return
            text = self.rewritten(made, node.name, number, owner)
            same = re.sub(f"{POINT}\\d+|{NAME.format('[0-9]+')}", "", text)
            if same not in texts:
                texts.add(same)
                yield Segment(text, node.name, number)
                number += 1

    def rewritten(self, test: ast.FunctionDef, name: str, number: int, owner: str) -> str:
        test.name = NAME.format(self.numbers[name, number])
        if len(test.body) > 1 and is_text(test.body[0]):
            del test.body[0]
        for inner in ast.walk(test):
            self.rename_call(inner, number)
        test = self.rewriter.visit(test)
        return indented(test) if owner else ast.unparse(test)

    def rename_call(self, node: ast.AST, number: int) -> None:
        """`self.test_x` and `super().test_x` have their new names too."""
        if not isinstance(node, ast.Attribute) or (node.attr, 0) not in self.numbers:
            return
        if ast.unparse(node.value) in ("self", "super()"):
            node.attr = NAME.format(self.numbers[node.attr, number])


def is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def indented(node: ast.stmt) -> str:
    """The code as it stands in a class."""
    return ast.unparse(ast.ClassDef("X", [], [], [node], [])).partition("\n")[2]


def draw(
    template: Template, chosen: Collection[tuple[str, int]], channel: str, chance: random.Random, alarm_s: int = 0
) -> Script:
    """A script of the tests and of the variants `chosen`, with names, keys and an order of its own."""
    names = drawn_names(template.names, chance)
    numbers = {name: {number: next(names) for number in range(VARIANTS + 1)} for name in template.names}
    by_number = [numbers[name][number] for name in template.names for number in range(VARIANTS + 1)]
    keys: dict[str, int] = {}
    plugin = f"m{chance.getrandbits(64):x}"

    def fill(found: re.Match[str]) -> str:
        if found[1]:
            key = f"{chance.getrandbits(64):016x}"
            keys[key] = int(found[1])
            return key
        return by_number[int(found[2])] if found[2] else plugin

    pattern = re.compile(f"{POINT}(\\d+)|{NAME.format('([0-9]+)')}|{OBSERVER}")
    files = {
        path: (ABOVE + pattern.sub(fill, "\n".join(one.text for one in ordered(parts, chosen, chance)))).encode()
        for path, parts in template.files.items()
    }
    observer = OBSERVER_SOURCE.read_text(encoding="utf-8").replace('CHANNEL = ""', f"CHANNEL = {channel!r}")
    observer = observer.replace("ALARM_S = 0", f"ALARM_S = {alarm_s}")
    meaning = {drawn: (name, number) for name, row in numbers.items() for number, drawn in row.items()}
    return Script({**files, **template.others, f"{plugin}.py": observer.encode()}, plugin, meaning, keys)


def ordered(parts: list[Segment], chosen: Collection[tuple[str, int]], chance: random.Random) -> Iterator[Segment]:
    """The segments of a file, each run of neighbouring tests shuffled."""
    run: list[Segment] = []
    for part in [*parts, Segment("")]:
        if part.test:
            if not part.variant or (part.test, part.variant) in chosen:
                run.append(part)
            continue
        chance.shuffle(run)
        yield from run
        run = []
        yield part


def drawn_names(names: Collection[str], chance: random.Random) -> Iterator[str]:
    """Names of tests made of the words of the package's own ones."""
    words = sorted({word for name in names for word in name.removeprefix("test").split("_") if word.isidentifier()})
    used: set[str] = set()
    more = 0  # words, where all names of so many are taken
    while True:
        count = 2 + chance.randrange(2) + more
        name = "test_" + "_".join(chance.choice(words or ["value"]) for _ in range(count))
        more = more + 1 if name in used else 0
        if not more:
            used.add(name)
            yield name
