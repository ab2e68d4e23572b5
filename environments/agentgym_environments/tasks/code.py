"""Programming tasks, out of the records that HumanEval and MBPP publish.

HumanEval: `task_id`, `prompt`, `entry_point`, `canonical_solution`, `test`. MBPP: `task_id`, `text` (`prompt` in its
sanitized form), `code`, `test_list`, perhaps `test_setup_code` or `test_imports`. `split` says where a record of your
own belongs.
"""

from __future__ import annotations

import ast
import builtins
import doctest
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from agentgym.errors import ConfigError
from agentgym.tasks import Task
from agentgym_environments.tasks.records import Record, plain

HUMANEVAL = ("task_id", "prompt", "entry_point", "canonical_solution", "test")
MBPP = ("task_id", "code", "test_list")
MBPP_SPLITS = {"prompt": range(1, 11), "test": range(11, 511), "validation": range(511, 601), "train": range(601, 975)}
"""Task numbers of each split, as published."""
ARROW = re.compile(r"(?<=\))\s*(?:==|=>|->|➞|➔|→|=|returns|should return)[ \t]*")
"""Signs between a call and its result in docstrings."""


def code_tasks(records: Sequence[Record], source: str) -> dict[str, list[Task]]:
    """Return the tasks of each split. Raises ConfigError naming the record and what it lacks."""
    splits: dict[str, list[Task]] = {}
    for number, record in enumerate(records, 1):
        place = f"{source}, record {number}"
        present = {name for name, value in record.items() if value not in (None, "", [])}
        if present >= set(HUMANEVAL):
            read, split = _humaneval, "test"
        elif present >= set(MBPP) and present & {"text", "prompt"}:
            read, split = _mbpp, _mbpp_split(record["task_id"])
        else:
            raise ConfigError(
                f"{place}: its fields ({', '.join(record)}) are neither HumanEval's ({', '.join(HUMANEVAL)}) "
                f"nor MBPP's ({', '.join(MBPP)} and text or prompt)"
            )
        try:
            task = read(record)
        except (SyntaxError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ConfigError(f"{place} is no task: {error}") from error
        splits.setdefault(str(record.get("split") or split), []).append(task)
    return splits


def _humaneval(record: Record) -> Task:
    prompt, name = _code(record["prompt"]), str(record["entry_point"])
    tree = _parse(prompt)
    stub = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name), None)
    if stub is None:
        raise ValueError(f"its prompt has no function {name}")
    test = _code(record["test"])
    if "check" not in {node.name for node in _parse(test).body if isinstance(node, ast.FunctionDef)}:
        raise ValueError("its test has no function check")
    solution = f"{prompt}{_code(record['canonical_solution'])}"
    _parse(solution)
    return Task(
        id=str(record["task_id"]),
        prompt=prompt.strip("\n"),
        setup={"prompt_code": prompt, "examples": _docstring_examples(ast.get_docstring(stub) or "", name)},
        grader=_grader(name, [name], [], setup="", tests=[test], check=True, solution=solution),
        metadata=_others(record, HUMANEVAL),
    )


def _mbpp(record: Record) -> Task:
    tests = [_code(test).strip() for test in record["test_list"]]
    imports = [_code(line) for line in record.get("test_imports") or ()]
    setup = "\n".join((*imports, _code(record.get("test_setup_code") or "")))
    code = _code(record["code"])
    tree = _parse(code)
    defined = {name: isinstance(node, ast.ClassDef) for name, node in _definitions(tree)}
    free = _free_names("\n".join((setup, *tests)))
    used = [name for name in free if name in defined]
    functions, classes = ([name for name in used if defined[name] is kind] for kind in (False, True))
    if not functions:
        raise ValueError("its tests call no function of its code")
    shown = {"tests": tests, "setup": setup.strip(), "examples": list(map(_test_example, tests))}
    setup = "\n".join((*_imports(tree, free), setup))  # tests as published run where the solution's imports are
    return Task(
        id=str(record["task_id"]),
        prompt=str(record.get("text") or record["prompt"]).strip(),
        setup={"prompt_code": "", **shown},
        grader=_grader(functions[0], functions, classes, setup=setup, tests=tests, check=False, solution=code),
        metadata=_others(record, (*MBPP, "text", "prompt", "test_setup_code", "test_imports")),
    )


def _mbpp_split(task_id: Any) -> str:
    number = int(task_id) if str(task_id).isdigit() else 0
    return next((split for split, numbers in MBPP_SPLITS.items() if number in numbers), "test")


def _grader(name: str, functions: list[str], classes: list[str], **fields: Any) -> dict[str, Any]:
    return {"kind": "code", "entry_point": name, "functions": functions, "classes": classes, **fields}


def _others(record: Record, known: Sequence[str]) -> dict[str, Any]:
    return plain({name: value for name, value in record.items() if name not in (*known, "split")})


def _code(text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError(f"code is text, not {type(text).__name__}")
    return text.replace("\r\n", "\n")


def _parse(code: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code)


def _definitions(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Names that a module binds at its top level."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.Assign):
            yield from ((target.id, node) for target in node.targets if isinstance(target, ast.Name))


def _imports(tree: ast.Module, names: Sequence[str]) -> Iterator[str]:
    """Import statements of a module that bind one of the names."""
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound = {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
            if bound & set(names) and getattr(node, "module", "") != "__future__":
                yield ast.unparse(node)


def _free_names(code: str) -> list[str]:
    """Names that a script reads and does not bind, in the order in which they stand there."""
    tree = _parse(code)
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    names.sort(key=lambda node: (node.lineno, node.col_offset))
    bound = {node.id for node in names if isinstance(node.ctx, ast.Store)} | {name for name, _ in _definitions(tree)}
    read = dict.fromkeys(node.id for node in names if isinstance(node.ctx, ast.Load))
    return [name for name in read if name not in bound]


def _docstring_examples(docstring: str, name: str) -> list[list[str]]:
    """Calls of the function in a docstring whose results are literals: of a session, or written `call ARROW result`."""
    try:
        found = [(one.source, one.want) for one in doctest.DocTestParser().get_examples(docstring) if one.want]
    except ValueError:
        found = []
    for line in docstring.split("\n"):
        call, _, expected = ARROW.sub("\0", line, count=1).partition("\0")
        found += [(call[call.find(f"{name}(") :], expected.partition("#")[0])] if f"{name}(" in call else []
    examples: list[list[str]] = []
    for call, expected in ((call.strip(), expected.strip().rstrip(".;,")) for call, expected in found):
        try:
            tree = ast.parse(call, mode="eval")
            ast.literal_eval(expected)
        except (SyntaxError, ValueError):
            continue
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        known = all(one == name or hasattr(builtins, one) for one in names)
        if name in names and known and [call, expected] not in examples:
            examples.append([call, expected])
    return examples


def _test_example(test: str) -> list[str]:
    """Return the two sides of `assert call == expected`; for any other assertion, what is asserted and ""."""
    statement = _parse(test).body[-1]
    if not isinstance(statement, ast.Assert):
        raise ValueError(f"its test {test!r} ends with no assertion")
    condition = statement.test
    if isinstance(condition, ast.Compare) and len(condition.ops) == 1 and isinstance(condition.ops[0], ast.Eq):
        return [ast.unparse(condition.left), ast.unparse(condition.comparators[0])]
    return [ast.unparse(condition), ""]
