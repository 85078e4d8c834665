"""Branches of a package's code: found in its source, recorded while it runs, and the ones that belong to its grader.

Both sides read the same source and number its branches alike: Proctor, which lists them, and the sandbox, where a copy
runs in which every decision records its outcome. Only the standard library, because the sandbox imports this file.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

HIT, PASS = "__proctor_hit__", "__proctor_pass__"
"""Built-in functions of the sandbox: `HIT(number, 1)` records a branch and returns None; `PASS(number, value)` records
`number` if the value is true, else `number + 1`, and returns the value."""
MAX_BRANCHES = 20_000
"""Limit of a package. Further files are not read."""
MAX_SOURCE = 400_000
"""Characters of a file."""
_ADAPTERS = ("proctor_adapter/", "proctor_sandbox/")
"""Folders of a package that are Proctor's."""
_STEPS = ("step", "step_async")
_NOT_GRADING = {"reset", "reset_async", "state", "close"}


@dataclass(frozen=True, slots=True)
class Branch:
    """One outcome of a decision in the source."""

    path: str
    line: int
    outcome: str
    """`true`, `false`, `is entered`, `ends`, `is caught` or `matches`."""
    function: str
    """The outermost function, with its class; empty for code outside of functions."""
    columns: tuple[int, int] = (0, 0)
    """UTF-8 offsets of the condition in its line; equal if it continues in the next one."""


@dataclass(slots=True)
class SourceFile:
    """A Python file of a package with its branches, the first of which has the number `first` in the package."""

    path: str
    first: int
    tree: ast.Module
    """Records its branches when it runs."""
    branches: list[Branch]
    names: dict[str, set[str]]
    """Names that each function uses, with imports under their original names."""


def read_sources(files: Mapping[str, str]) -> list[SourceFile]:
    """Read the Python files of a package in the order of their paths. Files that cannot be parsed are omitted."""
    sources: list[SourceFile] = []
    first = 0
    for path in sorted(path for path in files if path.endswith(".py")):
        if len(files[path]) > MAX_SOURCE:
            continue
        reader = _Reader(path, first)
        try:
            tree = reader.visit(ast.parse(files[path]))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        if first + len(reader.branches) > MAX_BRANCHES:
            continue
        names = {
            function: {reader.aliases.get(name, name.removeprefix(".")) for name in used}
            for function, used in reader.names.items()
        }
        sources.append(SourceFile(path, first, tree, reader.branches, names))
        first += len(reader.branches)
    return sources


def grader_branches(
    sources: Sequence[SourceFile], columns: Collection[str], *, has_one_turn: bool
) -> dict[int, Branch]:
    """Return the branches of the grader by number: of the reward functions and of all that they call in the package.

    Reward functions are named like a reward column. Where an episode has one turn, `step` grades, too; where no
    function is named like a column, it is the only one. Calls are followed by name, so a name that two functions share
    leads to both.
    """
    by_name: dict[str, list[tuple[SourceFile, str]]] = defaultdict(list)
    for source in sources:
        if source.path.startswith("tests/") or any(f"/{folder}" in f"/{source.path}" for folder in _ADAPTERS):
            continue
        for function in source.names:
            *owner, name = function.split(".")
            by_name[name].append((source, function))
            if owner and name.startswith("__") and name.endswith("__"):
                by_name[owner[-1]].append((source, function))  # who makes an object runs its special methods
    spelled = {name: re.sub(r"[^a-z0-9_]+", "_", name.lower()).strip("_")[:40] for name in by_name}
    queue = [name for name, column in spelled.items() if {column, f"{column}_score", f"f_{column}"} & set(columns)]
    if has_one_turn or not queue:
        queue += _STEPS
    seen: set[str] = set()
    functions: set[tuple[str, str]] = set()
    while queue:
        name = queue.pop()
        if name in seen or name in _NOT_GRADING:
            continue
        seen.add(name)
        for source, function in by_name.get(name, ()):
            functions.add((source.path, function))
            queue += source.names[function]
    return {
        source.first + number: branch
        for source in sources
        for number, branch in enumerate(source.branches)
        if (branch.path, branch.function) in functions
    }


def described(branch: Branch, files: Mapping[str, str]) -> dict[str, object]:
    """Describe a branch for people: where it is, its source line, its condition and the outcome."""
    lines = files[branch.path].split("\n")
    text = lines[branch.line - 1] if branch.line <= len(lines) else ""
    start, end = branch.columns
    condition = text.encode()[start:end].decode(errors="replace") if start < end else ""
    return {
        "path": branch.path,
        "line": branch.line,
        "function": branch.function,
        "source": text.strip()[:160],
        "condition": condition[:120],
        "outcome": branch.outcome,
    }


@dataclass(slots=True)
class _Reader(ast.NodeTransformer):
    """Lists the branches of a file and rewrites its decisions so that each records its outcome."""

    path: str
    first: int
    branches: list[Branch] = field(default_factory=list)
    names: dict[str, set[str]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    _function: str = ""
    _class: str = ""
    _locals: set[str] = field(default_factory=set)

    # what a function is called, and what it calls

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        if self._function:  # belongs to the outermost one
            self._locals.add(node.name)
            return self.generic_visit(node)
        self._function = f"{self._class}.{node.name}" if self._class else node.name
        arguments = node.args
        given = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg)
        self._locals = {each.arg for each in given if each is not None}
        self.names.setdefault(self._function, set())
        self.generic_visit(node)
        self.names[self._function] -= self._locals
        self._function = ""
        return node

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        outer, self._class = self._class, self._class if self._function else node.name
        self.generic_visit(node)
        self._class = outer
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if self._function:
            used = self._locals if isinstance(node.ctx, ast.Store) else self.names[self._function]
            used.add(node.id)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if self._function and isinstance(node.ctx, ast.Load):
            self.names[self._function].add(f".{node.attr}")  # unlike a plain name, no local variable hides it
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node:
            case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), *_]) if self._function:
                self.names[self._function].add(f".{name}")
        return self.generic_visit(node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        self.aliases |= {each.asname: each.name for each in node.names if each.asname}
        return node

    # branches

    def visit_If(self, node: ast.If | ast.While | ast.IfExp) -> ast.AST:
        test = self._decision(node.test)
        node.test = ast.Constant(True)
        self.generic_visit(node)
        node.test = test
        return node

    visit_While = visit_IfExp = visit_If

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        ifs, node.ifs = [self._decision(each) for each in node.ifs], []
        self.generic_visit(node)
        node.ifs = ifs
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        *before, last = node.values
        values: list[ast.expr] = []
        for operand in before:
            inner = self.visit(operand)
            if not isinstance(operand, ast.Constant):
                number = self._branch(operand, "true")
                self._branch(operand, "false")
                inner = _call(PASS, number, inner)
            values.append(inner)
        node.values = [*values, self.visit(last)]
        return node

    def visit_For(self, node: ast.For | ast.AsyncFor) -> ast.AST:
        entered, ended = self._branch(node.iter, "is entered"), self._branch(node.iter, "ends")
        self.generic_visit(node)
        node.body.insert(0, ast.Expr(_call(HIT, entered, ast.Constant(1))))
        node.orelse.insert(0, ast.Expr(_call(HIT, ended, ast.Constant(1))))
        return node

    visit_AsyncFor = visit_For

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        number = self._branch(node.type or node, "is caught")
        self.generic_visit(node)
        node.body.insert(0, ast.Expr(_call(HIT, number, ast.Constant(1))))
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        number = self._branch(node.pattern, "matches")
        guard, node.guard = node.guard and self._decision(node.guard), None
        self.generic_visit(node)
        node.guard = guard
        node.body.insert(0, ast.Expr(_call(HIT, number, ast.Constant(1))))
        return node

    def _decision(self, test: ast.expr) -> ast.expr:
        """Return a test with the same outcome that records it; each operand of `and` and `or` counts separately."""
        if isinstance(test, ast.BoolOp):
            test.values = [self._decision(value) for value in test.values]
            return test
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            test.operand = self._decision(test.operand)
            return test
        inner: ast.expr = self.visit(test)
        is_fixed = isinstance(test, ast.Constant) or (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING")
        if is_fixed:
            return inner
        yes, no = (_call(HIT, self._branch(test, outcome), ast.Constant(1)) for outcome in ("true", "false"))
        return ast.copy_location(ast.IfExp(inner, ast.UnaryOp(ast.Not(), yes), no), test)

    def _branch(self, node: ast.expr | ast.pattern | ast.ExceptHandler, outcome: str) -> int:
        """List a branch and return its number in the package."""
        ends_here = node.end_lineno == node.lineno and not isinstance(node, ast.ExceptHandler)
        columns = (node.col_offset, node.end_col_offset or 0) if ends_here else (0, 0)
        self.branches.append(Branch(self.path, node.lineno, outcome, self._function, columns))
        return self.first + len(self.branches) - 1


def _call(function: str, number: int, argument: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(function, ast.Load()), [ast.Constant(number), argument], [])
