"""The commands in the documents: each is parsed by the command line, what it names exists, and cheap ones are run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from agentgym import registry
from agentgym.cli.main import main, verbs
from agentgym.evaluation.suite import load_suite

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCUMENTS.remove(ROOT / "docs" / "LOG.md")  # experiments as they were made
DOCUMENTS += sorted((ROOT / "environments").rglob("README.md"))
DOCUMENTS += [ROOT / "agentgym" / "cli" / "templates" / "common" / "README.md.tmpl"]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = ("", "sh", "shell", "bash", "console")
OF_THE_READER = {"my-env", "${name}"}
"""Environments that a document has the reader write."""
CHECKPOINT = re.compile(r"runs/([\w-]+)/checkpoints/step-(\d{6})")
CHEAP = ("envs list", "envs show keydoor", "recipes list", "recipes show archer", "train gigpo --dry-run")


class Line(NamedTuple):
    path: Path
    words: tuple[str, ...]
    """After `agentgym`."""

    def __str__(self) -> str:
        return f"{self.path.name}: agentgym {' '.join(self.words)}"


def lines() -> Iterator[Line]:
    """Every call of `agentgym` in a shell block, behind `docker exec` and the like, too."""
    for path in DOCUMENTS:
        for block in FENCE.finditer(path.read_text(encoding="utf-8")):
            if block[1] not in SHELL:
                continue
            for text in block[2].replace("\\\n", " ").splitlines():
                for part in re.split(r"&&|\|\||[|>;]", text.partition(" # ")[0]) if "agentgym " in text else ():
                    words = shlex.split(part)
                    if "agentgym" in words:
                        yield Line(path, tuple(words[words.index("agentgym") + 1 :]))


LINES = list(dict.fromkeys(lines()))


def parsed(words: tuple[str, ...]) -> click.Context:
    """The context of the verb that `words` call. Raises click's UsageError as the command line does."""
    command: click.Command = verbs
    context, name, rest = None, "agentgym", list(words)
    while True:
        context = command.make_context(name, rest, parent=context)
        rest = [*getattr(context, "_protected_args", []), *context.args]
        if not isinstance(command, click.Group) or not rest:
            return context
        found, subcommand, rest = command.resolve_command(context, rest)
        assert subcommand is not None
        name, command = found or "", subcommand


def named_environments(context: click.Context) -> list[str]:
    parameters, verb = context.params, context.command_path.split(" ", 1)[1]
    if verb in ("serve", "envs baselines"):
        return list(parameters.get("envs") or parameters.get("names") or ())
    if verb in ("play", "envs show", "envs check"):
        return [parameters.get("env") or parameters["name"]]
    if verb == "register":
        return [parameters["entry_point"]] if parameters.get("entry_point") else []
    if verb == "credit bench":
        return [word for word in parameters["env_and_overrides"] if "=" not in word]
    return list(parameters.get("envs") or ()) if verb == "eval" else []


def test_there_are_commands_in_the_documents():
    assert len(LINES) > 40
    assert {line.path.name for line in LINES} >= {"README.md", "evaluation.md", "training.md", "gateway.md"}


@pytest.mark.parametrize("line", LINES, ids=str)
def test_command_is_understood_and_what_it_names_exists(line):
    from agentgym_trainers.recipe import resolve

    context = parsed(line.words)
    for name in named_environments(context):
        assert "://" in name or ":" in name or name in OF_THE_READER or registry.get_spec(name), name
    if context.command_path == "agentgym eval":
        for suite in context.params["suites"]:
            load_suite(suite)
    for recipe, step in CHECKPOINT.findall(" ".join(line.words)):
        if recipe != "mine":
            run = resolve(recipe).run
            assert int(step) <= run.steps, f"{recipe} has {run.steps} steps"
            assert int(step) == run.steps or not int(step) % run.checkpoint_every, "no checkpoint is kept there"


@pytest.mark.parametrize("line", [line for line in LINES if line.words[:1] in (("train",), ("sft",))], ids=str)
def test_command_trains_by_a_recipe_and_options_that_exist(line):
    from agentgym_trainers.recipe import resolve

    parameters = parsed(line.words).params
    recipe, overrides = parameters["recipe"], list(parameters["overrides"])
    if "--resume" in line.words or recipe.endswith(".toml"):
        return
    if parameters.get("scale"):
        overrides.append(f"scale.kind={parameters['scale']}")
    if parameters["env"]:
        overrides.append(f"env.name={parameters['env']}")
    setup = None if "lab.toml" in line.words else parameters["setup"]  # which the reader writes
    config = resolve(recipe, [word for word in overrides if word not in OF_THE_READER], setup=setup)
    name = config.env.name
    assert "://" in name or ":" in name or name in OF_THE_READER or registry.get_spec(name)


@pytest.mark.parametrize("command", CHEAP)
def test_cheap_command_runs(command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert any(" ".join(line.words).startswith(command) for line in LINES) or command.split()[1] == "show"
    try:
        main(command.split())
    except SystemExit as end:
        pytest.fail(f"{end.code}: {capsys.readouterr().err}")
    assert capsys.readouterr().out


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_verbs_and_options_in_prose_exist(path):
    for mention in re.findall(r"`agentgym ([^`]+)`", FENCE.sub("", path.read_text(encoding="utf-8"))):
        try:
            parsed(tuple(shlex.split(mention)))
        except (click.exceptions.Exit, click.BadParameter, click.BadOptionUsage):
            pass  # --help, and a verb or an option that is only mentioned
        except click.UsageError as error:
            pytest.fail(f"`agentgym {mention}`: {error.format_message()}")
