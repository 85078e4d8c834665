"""Whether a program can give the answers that its prompt shows, and which of its statements serve that. Nothing is
executed.
"""

import ast
import builtins
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from backend.domain.detectors.code import Source, sources_of
from backend.domain.detectors.examples import MAX_PROMPT, Example, calls_in
from backend.domain.detectors.run_view import BROKEN_OFF, RolloutRow, parse_python

_REQUEST = re.compile(
    r"\b(?:function|method) (?:named|called)\s+[`'\"*]*(?P<named>[A-Za-z_]\w*)"
    r"|\b(?:function|method) `(?P<quoted>[A-Za-z_]\w*)"
    r"|^[ \t>.`]*(?:async )?def (?P<defined>[A-Za-z_]\w*)\s*\("
    r"|^[ \t`]*(?P<tested>(?:assert|>>>) [^\n]*)",
    re.MULTILINE,
)
_REQUEST_WORDS = ("function ", "method ", "def ", "assert ", ">>>")
_CALLED = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_DYNAMIC = {"eval", "exec", "locals", "vars", "globals", "input", "print", "open", "write", "readline", "read"}
"""Calls by which a function may use its parameters or answer in a way that its syntax does not show."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_NOT_COUNTED = (ast.Import, ast.ImportFrom, ast.Pass, ast.Global, ast.Nonlocal)


@dataclass(frozen=True, slots=True)
class TaskFit:
    """How the program of a reply relates to the function that its prompt asks for."""

    problem: str
    """Why it cannot give the answers that the prompt shows; empty if nothing is in the way."""
    statements: int
    idle: Sequence[tuple[Source, ast.stmt]]
    """Statements that the requested function does not use."""

    @property
    def idle_share(self) -> float:
        return len(self.idle) / max(self.statements, 1)


def fit_to_task(row: RolloutRow, instructions: str = "") -> TaskFit | None:
    """Compare the program of a single reply with its prompt. None if the prompt names no function to write, or if the
    reply has no program that can be read as a whole, or was cut."""
    if len(row.replies) != 1 or row.stop_reason in BROKEN_OFF:
        return None
    prompt = "\n".join((instructions, *row.prompts))[:MAX_PROMPT]
    if not any(word in prompt for word in _REQUEST_WORDS):  # cheaper than the pattern
        return None
    requested = set(_requested_in(prompt))
    if not requested:
        return None
    programs = [(source, parse_python(textwrap.dedent(source.text))) for source in sources_of(row)]
    trees = [(source, tree) for source, tree in programs if tree is not None]
    if not trees or len(trees) < len(programs):
        return None
    statements = [node for _, tree in trees for node in tree.body]
    bound = {name for node in statements for name in _bound_by(node)}
    bound |= {each.name for node in statements for each in ast.walk(node) if isinstance(each, _Function)}
    is_open = any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in statements)
    answering = requested & bound
    problem = ""
    if not answering and not is_open:
        problem = f"does not define `{min(requested, key=prompt.index)}`, which the prompt asks for"
    for name in answering:
        functions = [node for node in statements if isinstance(node, _Function) and node.name == name]
        if functions and not functions[-1].decorator_list:
            problem = problem or _problem_with(functions[-1], list(calls_in(prompt, name)))
    count = 0
    idle: list[tuple[Source, ast.stmt]] = []
    used = _used_names(statements, answering)
    for source, tree in trees:
        for node in tree.body:
            own = [each for each in ast.walk(node) if isinstance(each, ast.stmt) and _is_counted(each)]
            count += len(own)
            is_used = not answering or _has_effect(node) or used.intersection(_bound_by(node))
            idle += [(source, each) for each in (_unread_in(node) if is_used else own)]
    return TaskFit(problem, count, idle)


def _requested_in(prompt: str) -> Iterator[str]:
    """Yield the names of functions that a prompt asks for: by name, by a signature, or in tests."""
    for found in _REQUEST.finditer(prompt):
        name = found["named"] or found["quoted"] or found["defined"]
        for each in [name] if name else _CALLED.findall(found["tested"]):
            if not hasattr(builtins, each):
                yield each


def _problem_with(function: _Function, examples: Sequence[Example]) -> str:
    """Explain why a function cannot answer the examples, whatever it computes; empty if it may."""
    given = function.args
    most = len(given.posonlyargs) + len(given.args)
    lengths = {len(ast.literal_eval(each.input)) for each in examples}
    is_fixed = not given.vararg and not given.kwonlyargs
    if lengths and is_fixed and all(not most - len(given.defaults) <= length <= most for length in lengths):
        return f"has {most} parameters, and the prompt passes {min(lengths)} arguments"
    inside = [each for node in function.body for each in ast.walk(node)]
    called = {
        each.func.id if isinstance(each.func, ast.Name) else getattr(each.func, "attr", "")
        for each in inside
        if isinstance(each, ast.Call)
    }
    if called & _DYNAMIC or not examples:
        return ""
    values = [each.value for each in inside if isinstance(each, ast.Return)]
    is_empty = all(value is None or (isinstance(value, ast.Constant) and value.value is None) for value in values)
    is_empty = is_empty and not any(isinstance(each, ast.Yield | ast.YieldFrom) for each in inside)
    if is_empty and all(each.answer != "None" for each in examples):
        return "returns nothing, and the prompt shows results"
    parameters = {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg) if each}
    read = {each.id for each in inside if isinstance(each, ast.Name)}
    if parameters and not parameters & read and len({each.answer for each in examples}) > 1 and not given.kwarg:
        return "ignores its parameters, and the prompt shows different results"
    return ""


def _bound_by(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a module gives a value."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import() | ast.ImportFrom():
            yield from ((each.asname or each.name).partition(".")[0] for each in node.names)
        case _:
            for each in ast.walk(node):
                match each:
                    case ast.Name(id=name, ctx=ast.Store()):
                        yield name
                    case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                        yield name


def _used_names(statements: Sequence[ast.stmt], answering: Set[str]) -> set[str]:
    """Return the names that requested functions and statements with an effect use, directly or through others."""
    binding: defaultdict[str, list[ast.stmt]] = defaultdict(list)
    for node in statements:
        for name in _bound_by(node):
            binding[name].append(node)
    used, seen = set(answering), set[ast.stmt]()
    waiting = [node for node in statements if _has_effect(node)] + [node for name in used for node in binding[name]]
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            new = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} - used
            used |= new
            waiting += [each for name in new for each in binding[name]]
    return used


def _has_effect(node: ast.AST) -> bool:
    """Whether a statement of a module does anything but bind names."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Pass():
            return False
        case ast.Import() | ast.ImportFrom() | ast.Expr(ast.Constant()):
            return False
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            return any(isinstance(each, ast.Attribute | ast.Subscript) for part in targets for each in ast.walk(part))
        case ast.If() | ast.For() | ast.While():
            return any(_has_effect(each) for each in (*node.body, *node.orelse))
    return True


def _is_counted(node: ast.stmt) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return not is_text and not isinstance(node, _NOT_COUNTED)


def _unread_in(function: ast.stmt) -> Iterator[ast.stmt]:
    """Yield the statements in a function that only give values to names that nothing in it reads."""
    read: set[str] = set()
    assigned: list[ast.Assign] = []
    for node in ast.walk(function) if isinstance(function, _Function) else ():
        match node:
            case ast.Name(id=name, ctx=ast.Load()) | ast.AugAssign(target=ast.Name(id=name)):
                read.add(name)
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                read |= {*names}
            case ast.Assign(targets=targets) if all(isinstance(each, ast.Name) for each in targets):
                assigned.append(node)
    for statement in assigned:
        if not read & {each.id for each in statement.targets if isinstance(each, ast.Name)}:
            yield statement
