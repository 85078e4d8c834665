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

from backend.domain.detectors.code import Source, last_name, sources_of
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
    parts = [_Part.of(source, node) for source, tree in programs if tree is not None for node in tree.body]
    if not parts or any(tree is None for _, tree in programs):
        return None
    bound = {name for part in parts for name in part.bound}
    bound |= {each.name for part in parts for each in part.nodes if isinstance(each, _Function)}
    answering = requested & bound
    problem = "" if answering or "*" in bound else f"does not define `{min(requested, key=prompt.index)}`"
    if problem:
        problem += ", which the prompt asks for"
    for name in sorted(answering):
        functions = [part for part in parts if isinstance(part.node, _Function) and part.node.name == name]
        if functions and isinstance(function := functions[-1].node, _Function) and not function.decorator_list:
            problem = problem or _problem_with(function, functions[-1].nodes, list(calls_in(prompt, name)))
    used = _used_names(parts, answering)
    count = 0
    idle: list[tuple[Source, ast.stmt]] = []
    for part in parts:
        own = [each for each in part.nodes if isinstance(each, ast.stmt) and _is_counted(each)]
        count += len(own)
        is_used = not answering or part.has_effect or used & part.bound
        idle += [(part.source, each) for each in (_unread_in(part) if is_used else own)]
    return TaskFit(problem, count, idle)


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A statement of a module."""

    source: Source
    node: ast.stmt
    nodes: Sequence[ast.AST]
    """It and all nodes in it."""
    bound: Set[str]
    """Names of the module that it gives a value; `*` if it imports all names of another one."""
    has_effect: bool
    """It does more than to bind names."""

    @classmethod
    def of(cls, source: Source, node: ast.stmt) -> "_Part":
        nodes = list(ast.walk(node))
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound = {name}
            case ast.Import() | ast.ImportFrom():
                bound = {(each.asname or each.name).partition(".")[0] for each in node.names}
            case _:
                bound = {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
                bound |= {each.name for each in nodes if isinstance(each, _Function | ast.ClassDef)}
        return cls(source, node, nodes, bound, _has_effect(node))


def _requested_in(prompt: str) -> Iterator[str]:
    """Yield the names of functions that a prompt asks for: by name, by a signature, or in tests."""
    for found in _REQUEST.finditer(prompt):
        name = found["named"] or found["quoted"] or found["defined"]
        for each in [name] if name else _CALLED.findall(found["tested"]):
            if not hasattr(builtins, each):
                yield each


def _problem_with(function: _Function, nodes: Sequence[ast.AST], examples: Sequence[Example]) -> str:
    """Explain why a function cannot answer the examples, whatever it computes; empty if it may."""
    given = function.args
    most = len(given.posonlyargs) + len(given.args)
    lengths = {len(ast.literal_eval(each.input)) for each in examples}
    is_fixed = not given.vararg and not given.kwonlyargs
    if lengths and is_fixed and all(not most - len(given.defaults) <= length <= most for length in lengths):
        return f"has {most} parameters, and the prompt passes {min(lengths)} arguments"
    called = {last_name(each.func) for each in nodes if isinstance(each, ast.Call)}
    if called & _DYNAMIC or not examples:
        return ""
    values = [each.value for each in nodes if isinstance(each, ast.Return)]
    is_empty = all(value is None or (isinstance(value, ast.Constant) and value.value is None) for value in values)
    is_empty = is_empty and not any(isinstance(each, ast.Yield | ast.YieldFrom) for each in nodes)
    if is_empty and all(each.answer != "None" for each in examples):
        return "returns nothing, and the prompt shows results"
    parameters = {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg) if each}
    read = {each.id for each in nodes if isinstance(each, ast.Name)}
    if parameters and not parameters & read and len({each.answer for each in examples}) > 1 and not given.kwarg:
        return "ignores its parameters, and the prompt shows different results"
    return ""


def _used_names(parts: Sequence[_Part], answering: Set[str]) -> set[str]:
    """Return the names that requested functions and statements with an effect use, directly or through others."""
    binding: defaultdict[str, list[_Part]] = defaultdict(list)
    for part in parts:
        for name in part.bound:
            binding[name].append(part)
    used, seen = set(answering), set[_Part]()
    waiting = [part for part in parts if part.has_effect or used & part.bound]
    while waiting:
        part = waiting.pop()
        if part not in seen:
            seen.add(part)
            new = {each.id for each in part.nodes if isinstance(each, ast.Name)} - used
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


def _unread_in(part: _Part) -> Iterator[ast.stmt]:
    """Yield the statements of a function that only give values to names that nothing in it reads."""
    read: set[str] = set()
    assigned: list[ast.Assign] = []
    for node in part.nodes if isinstance(part.node, _Function) else ():
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
