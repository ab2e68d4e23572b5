"""The drawing of the repository, as rules: who may import whom, what runs at import, and how long things may get."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import json
import logging
import multiprocessing
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path

import agentgym

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "agentgym": ROOT / "agentgym",
    "agentgym_environments": ROOT / "environments" / "agentgym_environments",
    "agentgym_servers": ROOT / "servers" / "agentgym_servers",
    "agentgym_credit": ROOT / "trainers" / "agentgym_credit",
    "agentgym_trainers": ROOT / "trainers" / "agentgym_trainers",
}
MAY_IMPORT = {
    "agentgym": {"agentgym"},
    "agentgym_environments": {"agentgym", "agentgym_environments"},
    "agentgym_servers": {"agentgym", "agentgym_servers"},
    "agentgym_credit": {"agentgym_credit"},
    "agentgym_trainers": {"agentgym", "agentgym_credit", "agentgym_trainers"},
}
"""Of our packages."""
HEAVY = {
    "torch",
    "transformers",
    "tokenizers",
    "fastapi",
    "starlette",
    "uvicorn",
    "tensorboard",
    "matplotlib",
    "pygame",
}

LONG_FILES: dict[str, int] = {}
"""Files over 400 lines, how long they may be, and why."""

LONG_FUNCTIONS: dict[str, int] = {}
"""Functions over 60 lines (path:name), how long they may be, and why."""

READS_ENVIRONMENT = {
    "agentgym/cli/credit.py",  # a tokenizer's switch
    "agentgym/cli/policy.py",  # the key of a remote model
    "agentgym/cli/train.py",  # a tokenizer's switch
    "environments/agentgym_environments/backends/desktop/desktop.py",  # tells the X library of a session's key
    "environments/agentgym_environments/benchmarks/browsergym/child.py",  # which of BrowserGym's are not set
    "trainers/agentgym_trainers/engines/vllm/server.py",  # hands its own on to the server, likewise
    "agentgym/clients/server_process.py",  # hands its own environment on to the server it starts; reads nothing from it
    "agentgym/rollouts/program.py",  # likewise, to an agent's program
    "agentgym/cli/agents.py",  # the key of a remote model
}

DESKTOP = PACKAGES["agentgym_environments"] / "backends" / "desktop"
OF_THE_SYSTEM = {DESKTOP / f"{name}.py" for name in ("accessibility", "desk")}
"""Run under the system's own Python, which has libraries that no virtual environment can have."""


PLAIN_WORDS = tuple(PACKAGES)
"""Packages whose docstrings begin with their subject or a verb, and whose public classes have unlike names."""

PREPOSITIONS = {
    "about",
    "above",
    "across",
    "after",
    "against",
    "along",
    "among",
    "around",
    "as",
    "at",
    "before",
    "behind",
    "below",
    "beside",
    "between",
    "beyond",
    "by",
    "during",
    "for",
    "from",
    "how",
    "if",
    "in",
    "inside",
    "into",
    "like",
    "near",
    "of",
    "off",
    "on",
    "onto",
    "out",
    "outside",
    "over",
    "past",
    "per",
    "since",
    "than",
    "that",
    "through",
    "throughout",
    "till",
    "to",
    "toward",
    "under",
    "until",
    "up",
    "upon",
    "what",
    "whatever",
    "when",
    "where",
    "whether",
    "which",
    "while",
    "who",
    "whoever",
    "whom",
    "whose",
    "why",
    "with",
    "within",
    "without",
}
"""Prepositions and relative words: no docstring begins with one."""

SERVER_FOLDERS = {
    "web": set(),
    "env_server": {"web"},
    "gateway": {"web", "env_server"},  # the gateway serves the environment server's routes over another backend
    "inference": {"web"},
    "agents": {"web", "env_server", "inference"},  # each program gets an environment and a model
}
"""Folders of the servers, and the folders that each may import."""


@cache
def sources() -> list[tuple[str, Path]]:
    return [(package, path) for package, folder in PACKAGES.items() for path in sorted(folder.rglob("*.py"))]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def report(offenders: list[str]) -> None:
    """Fail with every offender on a line of its own."""
    assert not offenders, "\n".join(["", *offenders])


def imports(node: ast.AST, *, inside_functions: bool) -> Iterator[str]:
    """Modules that `node` imports, except under `if TYPE_CHECKING:`. A relative import starts with a dot."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield "." * child.level + (child.module or "")
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) and not inside_functions:
            continue
        elif not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from imports(child, inside_functions=inside_functions)


def test_imports_point_inward():
    offenders = []
    for package, path in sources():
        command_line = name_of(path).startswith("agentgym/cli/")
        for inside_functions in (False, True):
            names = set(imports(tree_of(path), inside_functions=inside_functions))
            found = {module.partition(".")[0] for module in names if not module.startswith(".")}
            rules = {
                "relative import": {module for module in names if module.startswith(".")},
                "the name of a folder, not of a package": found & {"environments", "servers", "trainers", "tests"},
            }
            if not (command_line and inside_functions):
                rules["another package"] = found & (PACKAGES.keys() - MAY_IMPORT[package])
            if package == "agentgym_credit" and not inside_functions:
                rules["more than numpy"] = found - sys.stdlib_module_names - {"numpy", package}
            if package in ("agentgym", "agentgym_environments") and not inside_functions:
                rules["heavy, at import"] = found & HEAVY
            offenders += [
                f"{name_of(path)} imports {', '.join(sorted(wrong))}: {rule}" for rule, wrong in rules.items() if wrong
            ]
    report(offenders)


@cache
def import_graph(package: str) -> dict[str, set[str]]:
    """Modules of a package, and the modules of the package that each names in any import: lazy, type-only or not."""
    folder = PACKAGES[package]
    modules = {}
    for path in folder.rglob("*.py"):
        parts = (package, *path.relative_to(folder).with_suffix("").parts)
        modules[".".join(parts).removesuffix(".__init__")] = path
    graph = {}
    for module, path in modules.items():
        names = set()
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                members = {f"{node.module}.{alias.name}" for alias in node.names}
                names |= {member if member in modules else str(node.module) for member in members}
        graph[module] = (names & modules.keys()) - {module}
    return graph


def test_no_circle_of_imports_of_any_kind():
    offenders = []
    for package in PACKAGES:
        graph = dict(import_graph(package))
        while free := [module for module, names in graph.items() if not names & graph.keys()]:
            for module in free:
                del graph[module]
        offenders += [f"{module} is in a circle or imports one" for module in graph]
    report(offenders)


def test_roots_of_packages_have_at_most_ten_modules():
    roots = {name: [m for m in folder.glob("*.py") if not m.stem.startswith("__")] for name, folder in PACKAGES.items()}
    report([f"{name} has {len(modules)} modules at its root" for name, modules in roots.items() if len(modules) > 10])


def test_folders_of_the_servers_import_one_way():
    offenders = []
    for module, names in import_graph("agentgym_servers").items():
        folder = f"{module}.".split(".")[1]
        reached = {name.split(".")[1] for name in names if "." in name} - {folder}
        wrong = reached - SERVER_FOLDERS.get(folder, set())
        offenders += [f"{module} imports {name}/" for name in sorted(wrong)]
    report(offenders)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring: of modules, classes, functions and attributes."""
    for node in ast.walk(tree):
        for before, after in itertools.pairwise([node, *getattr(node, "body", [])] if has_body(node) else []):
            documented = before is node or isinstance(before, (ast.Assign, ast.AnnAssign))
            match after:
                case ast.Expr(value=ast.Constant(value=str() as text)) if documented:
                    yield after.lineno, text


def has_body(node: ast.AST) -> bool:
    return isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))


def test_no_docstring_begins_with_a_preposition():
    offenders = []
    for package, path in sources():
        for line, text in docstrings(tree_of(path)) if package in PLAIN_WORDS else ():
            first = re.match(r"\W*(\w*)", text)
            if first and first[1].lower() in PREPOSITIONS:
                offenders.append(f"{name_of(path)}:{line} begins with {first[1]!r}: begin with the subject or a verb")
    report(offenders)


def test_no_public_class_name_twice():
    places: dict[str, list[str]] = {}
    for package, path in sources():
        for node in ast.walk(tree_of(path)) if package in PLAIN_WORDS else ():
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(f"{name_of(path)}:{node.lineno}")
    report([f"{name} is defined in {' and '.join(lines)}" for name, lines in places.items() if len(lines) > 1])


def test_the_public_api_has_docstrings():
    offenders = []
    for name in agentgym.__all__:
        thing = getattr(agentgym, name)
        if inspect.isclass(thing):
            offenders += [] if thing.__doc__ and "__doc__" in vars(thing) else [name]
            members = {key: getattr(thing, key) for key in vars(thing) if not key.startswith("_")}
            offenders += [
                f"{name}.{key}"
                for key, member in members.items()
                if (inspect.isroutine(member) or isinstance(member, property)) and not inspect.getdoc(member)
            ]
        elif inspect.isroutine(thing) and not inspect.getdoc(thing):
            offenders.append(name)
    report([f"agentgym.{name} has no docstring" for name in offenders])


def test_agentgym_imports_and_registers_nothing_heavy():
    code = "import sys, json, agentgym, agentgym.cli.main, agentgym.registry as load; "
    code += "print(json.dumps([load._registered, sorted(sys.modules)]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    registered, loaded = json.loads(done.stdout)
    assert registered == {}
    roots = {module.partition(".")[0] for module in loaded}
    assert not roots & HEAVY
    assert not roots & (PACKAGES.keys() - {"agentgym"})


OTHERS = (
    "fastapi",
    "gymnasium.envs.toy_text",
    "tokenizers",
    "torch._dynamo",
    "torch._inductor",
    "tensorboard.summary.writer.record_writer",
    "transformers.models.qwen3.modeling_qwen3",
    "uvicorn",
)
"""Other people's packages are imported first: what they do is theirs."""

DEEDS = ("os.mkdir", "os.remove", "os.rename", "subprocess.Popen", "socket.bind", "socket.connect")


def effects(modules: list[str], answer: Connection) -> None:
    """Import `modules` anew in this process, a copy of the tests' own, and send what that did."""
    done = []

    def note(event, arguments):
        if event in DEEDS or (event == "open" and arguments[1] and set(str(arguments[1])) & set("wxa+")):
            done.append(f"{event} {arguments}")

    def state():
        return logging.getLogger().handlers[:], threading.active_count(), dict(os.environ)

    sys.dont_write_bytecode = True
    for name in [name for name in sys.modules if name.partition(".")[0] in PACKAGES]:
        del sys.modules[name]
    before = state()
    sys.addaudithook(note)
    for name in modules:
        importlib.import_module(name)
    after = state()
    if after != before:
        done.append("log handlers, threads or environment variables are not as before")
    answer.send(list(done))


def test_importing_any_module_has_no_side_effect():
    """Files, folders, processes, sockets, threads, log handlers, environment variables: all as before.

    A fork of this process has the libraries loaded that take a new interpreter many seconds.
    """
    modules = []
    for package, path in sources():
        parts = (package, *path.relative_to(PACKAGES[package]).with_suffix("").parts)
        if path.stem != "__main__" and path not in OF_THE_SYSTEM:  # that one is to run
            modules.append(".".join(parts).removesuffix(".__init__"))
    for name in OTHERS:
        importlib.import_module(name)
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=effects, args=(modules, sender))
    with receiver, sender:
        process.start()
        sender.close()
        try:
            assert receiver.poll(240), "the imports took more than 240 seconds"
            report(receiver.recv())
        finally:
            process.kill()
            process.join()
            process.close()


def test_files_and_functions_are_short():
    offenders = []
    lengths = {}
    functions_lengths = {}
    for _, path in sources():
        lengths[name_of(path)] = len(path.read_text(encoding="utf-8").splitlines())
        for node in functions(tree_of(path)):
            functions_lengths[f"{name_of(path)}:{node.name}"] = (node.end_lineno or 0) - node.lineno + 1
    for found, limit, exceptions in ((lengths, 400, LONG_FILES), (functions_lengths, 60, LONG_FUNCTIONS)):
        offenders += [
            f"{name} has {lines} lines, over {exceptions.get(name, limit)}"
            for name, lines in found.items()
            if lines > exceptions.get(name, limit)
        ]
        offenders += [f"{name} needs no exception any more" for name in exceptions if found.get(name, 0) <= limit]
    report(offenders)


def test_only_the_command_line_reads_environment_variables():
    readers = {
        name_of(path)
        for _, path in sources()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        and node.attr in {"environ", "getenv", "putenv", "environb"}
    }
    report(
        [f"{name} reads the environment" for name in sorted(readers - READS_ENVIRONMENT)]
        + [f"{name} needs no exception any more" for name in sorted(READS_ENVIRONMENT - readers)]
    )


def test_names_of_tests_have_at_most_60_characters():
    long = {
        name: name_of(path)
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for name in re.findall(r"^\s*(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        if len(name) > 60
    }
    report([f"{path}: {name} has {len(name)} characters" for name, path in long.items()])


def test_the_project_and_the_changelog_have_one_version():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f'version = "{agentgym.__version__}"' in project
    assert f"## [{agentgym.__version__}]" in changelog


def test_no_public_name_hides_a_module():
    """`import agentgym.spec as s` gives the attribute `spec` of the package: the module, not a function."""
    modules = {path.stem for path in PACKAGES["agentgym"].glob("*.py")}
    modules |= {path.parent.name for path in PACKAGES["agentgym"].glob("*/__init__.py")}
    assert not modules & set(agentgym.__all__)


def test_every_error_is_public():
    from agentgym import errors

    tree = {
        name for name, thing in vars(errors).items() if inspect.isclass(thing) and thing.__module__ == errors.__name__
    }
    assert tree <= set(agentgym.__all__)


def test_no_module_hides_the_standard_library():
    """A script that runs in a package's root would import it in place of the standard library's."""
    for package, path in sources():
        if path.parent == PACKAGES[package]:
            assert path.stem not in sys.stdlib_module_names, f"{name_of(path)} hides a module of the standard library"
