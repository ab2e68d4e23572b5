"""`agentgym recipes list | show`."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.markup import escape
from rich.table import Table

from agentgym.cli.terminal import console
from agentgym.errors import ConfigError

ABBREVIATED = ("Dr", "al", "e.g", "i.e", "vs", "eq", "cf")
"""A full stop behind one of these ends no sentence."""
LEGEND = """\
measured: REGIME: points gained over the warm-up [95 % interval]; episodes that GRPO, or the method that is named, \
tuned as hard, needs to the same target over the recipe's own; its own part: points more, on average over the run, \
than the same recipe without what the method adds. docs/ledger.md has all of it."""


class Recipe(NamedTuple):
    """A recipe, as its file has it."""

    name: str
    path: Path
    tree: dict[str, Any]

    @property
    def description(self) -> str:
        return self.tree.get("description", "")

    @property
    def summary(self) -> str:
        """The description's first sentence."""
        for end in re.finditer(r"\.(?=\s+[A-Z])", self.description):
            if not self.description[: end.start()].endswith(ABBREVIATED):
                return self.description[: end.end()]
        return self.description


def shipped() -> list[Recipe]:
    """The recipes that come with the package, read without the extra "train"."""
    folder = Path(str(resources.files("agentgym_trainers") / "recipes"))
    return [_read(path) for path in sorted(folder.glob("*.toml"))]


@click.group()
def recipes() -> None:
    """The recipes that come with AgentGym: each a method, or its form as published."""


@recipes.command("list")
def recipes_list() -> None:
    """Every shipped recipe: what it does, the paper that it follows, and what was measured of it."""
    measured = evidence()
    table = Table(caption=LEGEND, caption_justify="left")
    for column in ("recipe", "what it does", "paper", "measured"):
        table.add_column(column)
    for recipe in shipped():
        lines = [measured_text(row) for row in measured.get(recipe.name, [])] or ["not measured"]
        paper = recipe.tree.get("paper", "")
        table.add_row(recipe.name, escape(recipe.summary), escape(paper), escape("\n".join(lines)))
    console.print(table)


def evidence() -> dict[str, list[dict[str, Any]]]:
    """recipe -> its rows of the evidence ledger (docs/ledger.md): regime, gain, baseline and the ratio to it, what it
    has more than its control, seeds, date."""
    file = resources.files("agentgym_trainers") / "evidence.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def measured_text(row: dict[str, Any]) -> str:
    """One row of the ledger in a line. A ratio's interval that holds 1, or a difference's that holds 0, shows no
    effect."""
    text = "{regime}: {0:+.0f} [{1:+.0f}, {2:+.0f}]".format(*row["gain"], **row)
    if row["ratio"] is not None:
        ratio, low, high = row["ratio"]
        times, baseline = f"{ratio:.1f}x [{low:.1f}, {high:.1f}]", row["baseline"]
        if low <= 1 <= high:
            text += f"; no effect shown beside {baseline}, {times}"
        else:
            text += f"; {times}{'' if baseline == 'GRPO' else f' beside {baseline}'}"
    if row["control"] is not None:
        more, low, high = row["control"]
        shown = "no effect of its own part shown" if low <= 0 <= high else "its own part"
        text += f"; {shown}, {more:+.1f} [{low:+.1f}, {high:+.1f}]"
    return text


@recipes.command("show")
@click.argument("name")
def recipes_show(name: str) -> None:
    """Show what a recipe does, its paper and its parts. NAME is a shipped recipe or a TOML file."""
    recipe = _find(name)
    console.print(f"[bold]{escape(recipe.name)}[/bold]\n{escape(recipe.description)}", highlight=False)
    console.print(f"\nfollows: {escape(recipe.tree.get('paper') or 'no paper')}", highlight=False)
    table = Table(title="Its parts, in the order in which a step meets them", title_justify="left")
    for column in ("axis", "part", "options", "what it does"):
        table.add_column(column)
    before = ""
    for axis, part, options, description in _parts(recipe):
        table.add_row("" if axis == before else axis, escape(part), escape(options), escape(description))
        before = axis
    console.print(table)
    if "setup" in recipe.tree:
        click.echo(f"setup: {recipe.tree['setup']}")
    click.echo(f"file: {recipe.path}")


def _find(name: str) -> Recipe:
    path = Path(name)
    if path.suffix == ".toml":
        if not path.is_file():
            raise ConfigError(f"there is no file {path}")
        return _read(path)
    found = {recipe.name: recipe for recipe in shipped()}
    if name not in found:
        close = difflib.get_close_matches(name, found, n=1)
        guess = f" Did you mean {close[0]!r}?" if close else ""
        raise ConfigError(
            f"there is no recipe {name!r}.{guess} The recipes are {', '.join(found)}; a file of your own ends in .toml"
        )
    return found[name]


def _read(path: Path) -> Recipe:
    try:
        return Recipe(path.stem, path, tomllib.loads(path.read_text(encoding="utf-8")))
    except (ValueError, RecursionError) as error:  # a TOMLDecodeError or UnicodeDecodeError is a ValueError
        raise ConfigError(f"{path} is not TOML in UTF-8: {error}") from error


def _parts(recipe: Recipe) -> Iterator[tuple[str, str, str, str]]:
    """(axis, part, options, what it does); with the extra "train" missing, what the file says alone."""
    try:
        from agentgym_trainers.describe import AXES, pieces
        from agentgym_trainers.recipe import resolve
    except ModuleNotFoundError as error:
        click.echo(f"note: what each part does needs {error.name}: pip install 'turngym[train]'", err=True)
        yield from _option_rows(recipe.tree)
        return
    found = pieces(resolve(recipe.path))
    for axis in AXES:
        rows = [(axis, piece.name, piece.options_text, piece.description) for piece in found if piece.axis == axis]
        yield from rows or [(axis, "–", "", "")]


def _option_rows(tree: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    chosen = (
        ("source", "source", "kind"), ("select", "select", "kind"), ("credit", "credit", "assigner"),
        ("correct", "correct", "kind"), ("objective", "loss", "objective"), ("reducer", "loss", "reducer"),
    )  # fmt: skip
    for axis, table, key in chosen:
        if key in tree.get(table, {}):
            yield axis, str(tree[table][key]), "", ""
    for axis in ("signals", "shaping", "schedules"):
        for name in tree.get(axis, {}):
            yield axis, name, "", ""
