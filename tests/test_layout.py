"""The drawing of the repository, as rules: who may import whom, what runs at import, and how long things may get."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import agentgym

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "agentgym": ROOT / "agentgym",
    "agentgym_environments": ROOT / "environments" / "agentgym_environments",
    "agentgym_servers": ROOT / "servers" / "agentgym_servers",
    "agentgym_trainers": ROOT / "trainers" / "agentgym_trainers",
}
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

LONG_FILES = {
    "agentgym/report.py": 470,  # what the page embeds, item by item
}
"""Files over 400 lines, how long they may be, and why."""

LONG_FUNCTIONS: dict[str, int] = {}
"""Functions over 60 lines (path:name), how long they may be, and why."""

READS_ENVIRONMENT = {
    "agentgym/commands/credit.py",  # a tokenizer's switch
    "agentgym/commands/policy.py",  # the key of a remote model
    "agentgym/commands/train.py",  # a tokenizer's switch
    "environments/agentgym_environments/gui/desktop.py",  # tells the X library of a session's key, and takes it back
    "trainers/agentgym_trainers/engines/vllm_server.py",  # hands its own on to the server, likewise
    "trainers/agentgym_trainers/engines/vllm_local.py",  # tells vLLM, which reads nothing else
    "agentgym/launch.py",  # hands its own environment on to the server it starts; reads nothing from it
    "trainers/agentgym_trainers/sources/harness.py",  # as launch.py does, to the agents' programs
}

OF_THE_SYSTEM = {ROOT / f"environments/agentgym_environments/gui/{name}.py" for name in ("accessibility", "desk")}
"""Run under the system's own Python, which has libraries that no virtual environment can have."""


def sources() -> list[tuple[str, Path]]:
    return [(package, path) for package, folder in PACKAGES.items() for path in sorted(folder.rglob("*.py"))]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(node: ast.AST, *, inside_functions: bool) -> Iterator[str]:
    """Modules that `node` imports. What stands under `if TYPE_CHECKING:` is not imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"line {child.lineno}: relative imports hide where a thing comes from"
            yield child.module or ""
        elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)) and not inside_functions:
            continue
        elif not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from imports(child, inside_functions=inside_functions)


@pytest.mark.parametrize(
    ("package", "path"), sources(), ids=lambda value: value.name if isinstance(value, Path) else ""
)
def test_imports_point_inward(package, path):
    command_line = name_of(path).startswith("agentgym/commands/")
    for inside_functions in (False, True):
        found = {module.partition(".")[0] for module in imports(tree_of(path), inside_functions=inside_functions)}
        assert not found & {"environments", "servers", "trainers", "tests"}, "a drawer's name is no package"
        if not (command_line and inside_functions):
            assert not found & (PACKAGES.keys() - {package, "agentgym"})
        if package in ("agentgym", "agentgym_environments") and not inside_functions:
            assert not found & HEAVY


def fresh(code: str, *arguments: str) -> str:
    """What a new interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_agentgym_brings_nothing_heavy_and_no_world():
    loaded = json.loads(fresh("import sys, json, agentgym, agentgym.cli; print(json.dumps(sorted(sys.modules)))"))
    roots = {module.partition(".")[0] for module in loaded}
    assert not roots & HEAVY
    assert not roots & (PACKAGES.keys() - {"agentgym"})


OTHERS = (
    "fastapi",
    "gymnasium.envs.toy_text",
    "tokenizers",
    "torch._dynamo",
    "torch._inductor",
    "torch.utils.tensorboard",
    "transformers.models.qwen3.modeling_qwen3",
    "uvicorn",
)
"""Other people's packages are imported first: what they do is theirs."""

EFFECTS = """
import importlib, logging, os, sys, threading
sys.dont_write_bytecode = True
at = sys.argv.index("--")
for name in sys.argv[1:at]:
    importlib.import_module(name)
done = []
DEEDS = ("os.mkdir", "os.remove", "os.rename", "subprocess.Popen", "socket.bind", "socket.connect")
def note(event, arguments):
    if event in DEEDS or event == "open" and arguments[1] and set(str(arguments[1])) & set("wxa+"):
        done.append((event, str(arguments)))
def state():
    return logging.getLogger().handlers[:], threading.active_count(), dict(os.environ)
before = state()
sys.addaudithook(note)
for name in sys.argv[at + 1:]:
    importlib.import_module(name)
assert not done, done
assert state() == before
"""


def test_importing_every_module_writes_starts_and_registers_nothing():
    """Files, folders, processes, sockets, threads, log handlers, environment variables: all as before."""
    modules = []
    for package, path in sources():
        parts = (package, *path.relative_to(PACKAGES[package]).with_suffix("").parts)
        if path.stem != "__main__" and path not in OF_THE_SYSTEM:  # that one is to run
            modules.append(".".join(parts).removesuffix(".__init__"))
    fresh(EFFECTS, *OTHERS, "--", *modules)
    assert fresh("import agentgym, agentgym.load as load; print(load._registered)").strip() == "{}"


@pytest.mark.parametrize("path", [path for _, path in sources()], ids=name_of)
def test_budgets(path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LONG_FILES.get(name_of(path), 400), f"{name_of(path)} has {lines} lines"
    for node in ast.walk(tree_of(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = (node.end_lineno or 0) - node.lineno + 1
            allowed = LONG_FUNCTIONS.get(f"{name_of(path)}:{node.name}", 60)
            assert length <= allowed, f"{node.name} in {name_of(path)} has {length} lines"


def test_exceptions_to_the_budgets_are_needed():
    for name in LONG_FILES:
        assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) > 400, f"{name} needs no exception any more"


@pytest.mark.parametrize("path", [path for _, path in sources()], ids=name_of)
def test_environment_variables_are_read_in_the_command_line_alone(path):
    used = {
        node.attr
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os"
    }
    assert name_of(path) in READS_ENVIRONMENT or not used & {"environ", "getenv", "putenv", "environb"}


def test_the_public_names_are_sorted_and_complete():
    init = tree_of(PACKAGES["agentgym"] / "__init__.py")
    imported = [
        alias.asname or alias.name for node in init.body if isinstance(node, ast.ImportFrom) for alias in node.names
    ]
    assert sorted(imported) == agentgym.__all__ == sorted(set(agentgym.__all__))
    assert all(hasattr(agentgym, name) for name in agentgym.__all__)


def test_one_version():
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
