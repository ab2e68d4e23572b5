"""Rewriting of checks: each reports its operands to the observer, and literal expected values are taken out."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection

OBSERVER = "observer_module_"
"""Name of the observer's module in a template; drawn anew for each run."""
POINT = "@point:"
"""Begins the placeholder of an observation's key."""

OPERATORS = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Is: "is",
    ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip
EQUALITIES = frozenset({
    "assertEqual", "assertEquals", "assertNotEqual", "assertListEqual", "assertDictEqual", "assertTupleEqual",
    "assertSetEqual", "assertSequenceEqual", "assertMultiLineEqual", "assertIs", "assertIsNot", "assertAlmostEqual",
    "assert_equal", "assert_equals",
})  # fmt: skip
"""Functions of two operands: one that is a literal is left out."""
BARE = frozenset({"assertTrue", "assertFalse", "assertIsNone", "assertIsNotNone"})
"""Functions of one operand, whose value is reported."""
RAISES = frozenset({"raises", "assertRaises", "assertRaisesRegex"})
PURE = frozenset({
    "dict", "set", "frozenset", "list", "tuple", "str", "int", "float", "bytes", "bytearray", "range", "approx",
    "pytest", "sorted", "reversed", "complex", "chr", "ord", "len", "repr",
})  # fmt: skip
"""Names that an expected value may use."""
READ_FRAMES = frozenset({"super", "locals", "globals", "vars", "dir", "eval", "exec"})


class CheckRewriter(ast.NodeTransformer):
    """Gives each check a point, in the order of the code.

    kept: points whose literal stays, since the other operand's text does not say all of its value. first: number of
    the first point. pytest_names: names that the module has from pytest.
    """

    def __init__(self, kept: Collection[int], first: int, pytest_names: Collection[str]) -> None:
        self.kept, self.next, self.pytest_names = kept, first, pytest_names
        self.expected: frozenset[str] = frozenset()
        """Local names that stand for a literal."""

    # Statements.

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return ast.copy_location(ast.Expr(self.observed(node.test)), node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        call = node.value
        if not isinstance(call, ast.Call):
            return self.generic_visit(node)
        name = name_of(call.func)
        if name in RAISES and self.is_raises(call):
            return self.generic_visit(node)
        plain = not call.keywords and not any(isinstance(one, ast.Starred) for one in call.args)
        if name in EQUALITIES and len(call.args) >= 2:
            positive = name not in ("assertNotEqual", "assertIsNot")
            operator = ast.Is() if name in ("assertIs", "assertIsNot") else ast.Eq() if positive else ast.NotEq()
            return ast.Expr(self.comparison(ast.Compare(call.args[0], [operator], [call.args[1]])))
        if name in BARE and call.args and plain:
            return ast.Expr(self.observed(call.args[0]))
        if name.startswith(("assert_", "assert")) and name != "assert":
            self.generic_visit(call)
            return ast.Expr(self.observer("check", call.func, *call.args, keywords=call.keywords))
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not self.is_raises(node):
            return self.generic_visit(node)
        about_text = name_of(node.func) == "assertRaisesRegex"
        function = node.args[2 if about_text else 1 :]
        if function:
            self.generic_visit(node)
            return self.observer("raising", *node.args[2 if about_text else 1 :], keywords=node.keywords)
        message = about_text or any(option.arg == "match" for option in node.keywords)
        return self.observer("raises", *([ast.Constant(True)] if message else []))

    def is_raises(self, node: ast.Call) -> bool:
        """Return whether a call is of pytest's or unittest's `raises`, not of another function of that name."""
        function = node.func
        if not node.args:
            return False
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            return function.value.id in ("pytest", "self") and function.attr in RAISES
        return isinstance(function, ast.Name) and function.id == "raises" and "raises" in self.pytest_names

    # Expressions.

    def observed(self, test: ast.expr, removable: bool = True) -> ast.expr:
        """The expression of an assert, with what it is made of reported."""
        while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test = test.operand
        if isinstance(test, ast.Compare):
            return self.comparison(test, removable)
        if isinstance(test, ast.BoolOp):
            removable = removable and isinstance(test.op, ast.And)
            values = [self.observed(value, removable) for value in test.values]
            return self.observer("value", ast.BoolOp(test.op, values))
        if isinstance(test, ast.Call) and name_of(test.func) not in READ_FRAMES and not self.is_raises(test):
            point = self.point()
            test = self.visited(test)
            assert isinstance(test, ast.Call)
            return self.observer("call", test.func, *test.args, keywords=test.keywords, point=point)
        point = self.point()
        return self.observer("value", self.visited(test), point=point)

    def comparison(self, test: ast.Compare, removable: bool = True) -> ast.expr:
        point = self.point()
        sides = [test.left, *test.comparators]
        left_out = removable and len(sides) == 2 and point not in self.kept
        if left_out and isinstance(test.ops[0], (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)):
            for one, other in (sides, sides[::-1]):
                if self.is_literal(other) and not self.is_literal(one):
                    return self.observer("operand", self.visited(one), point=point)
        operators = ast.Tuple([ast.Constant(OPERATORS[type(op)]) for op in test.ops], ast.Load())
        return self.observer("compare", operators, *map(self.visited, sides), point=point)

    def is_literal(self, node: ast.expr) -> bool:
        """Return whether the value is written there, so that no code of the package makes it."""
        names = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
        odd = (ast.Lambda, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom)
        bound = {i.id for i in ast.walk(node) if isinstance(i, ast.Name) and isinstance(i.ctx, ast.Store)}
        return names <= PURE | self.expected | bound and not any(isinstance(inner, odd) for inner in ast.walk(node))

    def visited(self, node: ast.expr) -> ast.expr:
        found = self.visit(node)
        assert isinstance(found, ast.expr)
        return found

    def point(self) -> int:
        self.next += 1
        return self.next - 1

    def observer(
        self, name: str, *args: ast.expr, keywords: list[ast.keyword] | None = None, point: int | None = None
    ) -> ast.Call:
        key = ast.Constant(f"{POINT}{self.point() if point is None else point}")
        function = ast.Attribute(ast.Name(OBSERVER, ast.Load()), name, ast.Load())
        return ast.Call(function, [key, *args], keywords or [])

    # Functions.

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Rewrite a function; local names and parameters that only stand for expected values go with them."""
        outer = self.expected
        locals_ = literals_of(node, self.is_literal)
        self.expected = outer | locals_.keys() | parameters_of(node)
        self.generic_visit(node)
        self.expected = outer
        loads = Counter(i.id for i in ast.walk(node) if isinstance(i, ast.Name) and isinstance(i.ctx, ast.Load))
        for name, statement in locals_.items():
            if not loads[name]:
                node.body[node.body.index(statement)] = ast.Pass()
        blank_parameters(node, {name for name in parameters_of(node) if not loads[name]})
        return node


def name_of(function: ast.expr) -> str:
    """The last part of a dotted name."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def literals_of(node: ast.FunctionDef, is_literal) -> dict[str, ast.Assign]:  # pyright: ignore
    """Local names that are assigned once, at the function's top, to a literal."""
    stores = Counter(i.id for i in ast.walk(node) if isinstance(i, ast.Name) and isinstance(i.ctx, ast.Store))
    found = {}
    for statement in node.body:
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target = statement.targets[0]
            if isinstance(target, ast.Name) and stores[target.id] == 1 and is_literal(statement.value):
                found[target.id] = statement
    return found


def parametrized(node: ast.FunctionDef) -> list[tuple[list[str], list[ast.expr]]]:
    """(names, rows) of each `parametrize` whose rows are all written there."""
    found = []
    for decorator in node.decorator_list:
        if not (isinstance(decorator, ast.Call) and name_of(decorator.func) == "parametrize"):
            continue
        match decorator.args:
            case [ast.Constant(value=str() as text), ast.List(elts=rows) | ast.Tuple(elts=rows)]:
                names = [name.strip() for name in text.split(",") if name.strip()]
            case [ast.List(elts=elements) | ast.Tuple(elts=elements), ast.List(elts=rows) | ast.Tuple(elts=rows)]:
                names = [str(one.value) for one in elements if isinstance(one, ast.Constant)]
            case _:
                continue
        cells = [cells_of(row) for row in rows]
        if len(names) > 1 and all(cell is not None and len(cell) == len(names) for cell in cells):
            found.append((names, rows))
    return found


def cells_of(row: ast.expr) -> list[ast.expr] | None:
    if isinstance(row, (ast.Tuple, ast.List)):
        return row.elts
    if isinstance(row, ast.Call) and name_of(row.func) == "param":
        return row.args
    return None


def parameters_of(node: ast.FunctionDef) -> set[str]:
    """Parameters of a test all of whose values are literals."""
    found = set()
    for names, rows in parametrized(node):
        for index, name in enumerate(names):
            cells = [cell[index] for row in rows if (cell := cells_of(row))]
            used = {inner.id for cell in cells for inner in ast.walk(cell) if isinstance(inner, ast.Name)}
            if used <= PURE:
                found.add(name)
    return found


def blank_parameters(node: ast.FunctionDef, unused: set[str]) -> None:
    """Write None for each value of the parameters."""
    for names, rows in parametrized(node):
        for index, name in enumerate(names):
            for row in rows if name in unused else []:
                cells = cells_of(row)
                assert cells is not None
                cells[index] = ast.Constant(None)
