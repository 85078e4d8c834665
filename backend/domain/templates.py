"""Templates that users write: a subset of Jinja with a separate evaluator, for plain data and with bounded work.

Jinja's lexer and parser build the tree. Jinja's optimizer and compiler never see it, because both evaluate expressions:
here the tree becomes closures over a `Budget`, and each expression has the same meaning as in Jinja or is refused.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat

from jinja2 import Environment, StrictUndefined, TemplateError, Undefined, nodes
from jinja2.parser import Parser
from jinja2.runtime import LoopContext

from backend.domain import template_values as values
from backend.domain.template_filters import FILTERS, METHOD_NAMES, METHODS, TESTS, named
from backend.domain.template_values import Budget, Namespace, NotAvailable, Value, attribute_of, item_of, items_of
from backend.domain.text import InvalidAtLine

MAX_LENGTH = 20_000
"""Maximum number of characters in a template."""
MAX_OUTPUT = 1_000_000
"""Maximum number of characters that a template writes."""
_MAX_TOKENS = 4000
_MAX_NESTING = 20
"""Maximum depth of parentheses, brackets, signs and conditions, and of blocks."""
_MAX_DEPTH = 120
"""Maximum depth of the tree. A sum of n terms has depth n."""
_MAX_NUMBER = 40
"""Maximum number of characters in a number."""
_MAX_RANGE = 100_000
_FAILURES = (
    *(TemplateError, TypeError, ValueError, ArithmeticError, LookupError),
    *(AttributeError, AssertionError, RecursionError),
)

_grammar = Environment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=False)
"""Used only for its lexer and parser."""


class TemplateInvalid(InvalidAtLine):
    """A template cannot be used, or not with these values."""


class _Full(Exception):
    """The output limit was reached."""


@dataclass(eq=False, slots=True)
class _Scope:
    """The variables of a block, and those around it."""

    names: dict[str, Value]
    parent: "_Scope | None" = None

    def find(self, name: str) -> Value:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return StrictUndefined(name=name)


@dataclass(eq=False, slots=True)
class _Rendering:
    scope: _Scope
    limit: int
    """Maximum number of characters to write."""
    budget: Budget = field(default_factory=Budget)
    line: int = 1
    pieces: list[str] = field(default_factory=list)
    written: int = 0

    def write(self, text: str) -> None:
        self.pieces.append(text)
        self.written += len(text)
        if self.written > self.limit:
            raise _Full


_Expression = Callable[[_Rendering], Value]
_Statement = Callable[[_Rendering], None]


@dataclass(frozen=True, slots=True)
class ParsedTemplate:
    _body: _Statement
    names: frozenset[str]
    """The variables that it reads and does not set."""

    def render(self, given: Mapping[str, Value], *, cut: int | None = None, budget: Budget | None = None) -> str:
        """Return the text. With `cut`, a longer text ends after about `cut` characters. Raises TemplateInvalid.

        `budget`: what this rendering may take, if it is less than the default.
        """
        scope, limit = _Scope(dict(given)), MAX_OUTPUT if cut is None else cut
        rendering = _Rendering(scope, limit, budget or Budget())
        try:
            self._body(rendering)
        except _Full:
            if cut is None:
                raise TemplateInvalid(f"writes more than {MAX_OUTPUT:,} characters", rendering.line) from None
        except _FAILURES as error:
            raise TemplateInvalid(_message_of(error), rendering.line) from error
        return "".join(rendering.pieces)


@lru_cache(maxsize=512)
def parse_template(text: str) -> ParsedTemplate:
    """Raises TemplateInvalid."""
    try:
        _check_tokens(text)
        tree = Parser(_grammar, text).parse()
    except TemplateInvalid:
        raise
    except (TemplateError, ValueError, RecursionError) as error:
        raise TemplateInvalid(_message_of(error), getattr(error, "lineno", 1)) from error
    level: list[nodes.Node] = [tree]
    for _ in range(_MAX_DEPTH):
        level = [child for node in level for child in node.iter_child_nodes()]
    if level:
        raise TemplateInvalid(f"an expression has more than about {_MAX_DEPTH} terms or levels", level[0].lineno)
    compiler = _Compiler()
    return ParsedTemplate(compiler.block(tree.body), frozenset(compiler.undeclared))


def template_problem(text: str) -> TemplateInvalid | None:
    """Return why a template cannot be used, or None."""
    try:
        parse_template(text)
    except TemplateInvalid as problem:
        return problem
    return None


def _message_of(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return str(getattr(error, "message", None) or error)[:500] or type(error).__name__


def _check_tokens(text: str) -> None:
    """Bound the parser's input, which bounds its time and recursion."""
    if len(text) > MAX_LENGTH:
        raise TemplateInvalid(f"has {len(text):,} characters; a template has at most {MAX_LENGTH:,}", 1)
    count = blocks = brackets = prefixes = 0
    is_first = is_set = False
    for line, kind, word in _grammar.lexer.tokeniter(text, None):
        if kind in {"data", "whitespace"}:
            continue
        count += 1
        if kind in {"block_begin", "variable_begin"}:
            is_first, is_set, brackets, prefixes = kind == "block_begin", False, 0, 0
            continue
        if is_first and kind == "name":
            blocks += 1 if word in _OPENING else -1 if word.startswith("end") else 0
            is_set = word == "set"
        elif is_set and word == "=" and not brackets:  # `{% set x = 1 %}` has no end
            blocks, is_set = blocks - 1, False
        elif kind == "operator" and word in "([{":
            brackets += 1
        elif kind == "operator" and word in ")]}":
            brackets -= 1
        elif (kind == "operator" and word in "+-") or (kind == "name" and word in {"not", "if"}):
            prefixes += 1
        elif kind in {"integer", "float"} and len(word) > _MAX_NUMBER:
            raise TemplateInvalid(f"a number has at most {_MAX_NUMBER} digits", line)
        is_first = False
        if count > _MAX_TOKENS:
            raise TemplateInvalid(f"has more than {_MAX_TOKENS:,} words and signs", line)
        if blocks > _MAX_NESTING or brackets > _MAX_NESTING:
            raise TemplateInvalid(f"is nested deeper than {_MAX_NESTING} levels", line)
        if prefixes > _MAX_DEPTH:
            raise TemplateInvalid(f"has more than {_MAX_DEPTH} signs or conditions in one expression", line)


_OPENING = frozenset({"for", "if", "set", "with", "filter", "macro", "call", "block", "autoescape"})


_BINARY: dict[type[nodes.Node], Callable[[Budget, Value, Value], Value]] = {
    nodes.Add: values.add,
    nodes.Sub: values.on_numbers("-", operator.sub),
    nodes.Mul: values.on_numbers("*", operator.mul),
    nodes.Div: values.on_numbers("/", operator.truediv),
    nodes.FloorDiv: values.on_numbers("//", operator.floordiv),
    nodes.Mod: values.on_numbers("%", operator.mod),
}
_SIGNS = {nodes.Neg: values.on_numbers("-", operator.neg), nodes.Pos: values.on_numbers("+", operator.pos)}
_NAMES = {
    nodes.Pow: "operator ** is not available",
    nodes.Macro: "`macro` is not available",
    nodes.CallBlock: "`call` is not available",
    nodes.Import: "`import` is not available",
    nodes.FromImport: "`import` is not available",
    nodes.Include: "`include` is not available",
    nodes.Extends: "`extends` is not available",
    nodes.Block: "`block` is not available",
    nodes.ScopedEvalContextModifier: "`autoescape` is not available",
}


class _Compiler:
    """Closures for the nodes of one template, and the names that it reads."""

    def __init__(self) -> None:
        self.undeclared: set[str] = set()
        self._known: list[set[str]] = [set()]
        self._cost = 0

    # statements

    def block(self, body: Sequence[nodes.Node]) -> _Statement:
        """Compile statements in order. Each run of a block is charged, without its inner blocks."""
        outer, self._cost = self._cost, 1
        statements = [self._statement(node) for node in body]
        cost, self._cost = self._cost, outer

        def run(rendering: _Rendering) -> None:
            rendering.budget.spend(cost)
            for statement in statements:
                statement(rendering)

        return run

    def _statement(self, node: nodes.Node) -> _Statement:
        match node:
            case nodes.Output():
                return self._output(node)
            case nodes.If():
                branches = [
                    (one.lineno, self.expression(one.test), self.block(one.body)) for one in [node, *node.elif_]
                ]
                otherwise = self.block(node.else_)

                def choose(rendering: _Rendering) -> None:
                    for rendering.line, test, body in branches:
                        if test(rendering):
                            return body(rendering)
                    return otherwise(rendering)

                return choose
            case nodes.For():
                return self._for(node)
            case nodes.Assign():
                expression, put, line = self.expression(node.node), self._target(node.target), node.lineno

                def assign(rendering: _Rendering) -> None:
                    rendering.line = line
                    put(rendering, expression(rendering))

                return assign
            case nodes.AssignBlock():
                captured, target = self._captured(node.body, node.filter), self._target(node.target)
                return lambda rendering: target(rendering, captured(rendering))
            case nodes.FilterBlock():
                captured = self._captured(node.body, node.filter)
                return lambda rendering: rendering.write(rendering.budget.text(captured(rendering)))
            case nodes.With():
                given = [self.expression(each) for each in node.values]
                self._known.append(set())
                targets = [self._target(each) for each in node.targets]
                inner = self.block(node.body)
                self._known.pop()

                def run(rendering: _Rendering) -> None:
                    found = [each(rendering) for each in given]  # all before any is set
                    for target, value in zip(targets, found, strict=True):
                        target(rendering, value)
                    inner(rendering)

                return self._scoped(run)
            case nodes.Scope():
                return self._scoped(self.block(node.body))
        raise _refused(node)

    def _output(self, node: nodes.Output) -> _Statement:
        parts = [
            (part.lineno, part.data if isinstance(part, nodes.TemplateData) else self.expression(part))
            for part in node.nodes
        ]

        def run(rendering: _Rendering) -> None:
            for rendering.line, part in parts:
                value = part if isinstance(part, str) else part(rendering)
                text = value if type(value) is str else rendering.budget.text(value)
                rendering.budget.charge(len(text) if rendering.written else 0)
                rendering.write(text)

        return run

    def _for(self, node: nodes.For) -> _Statement:
        if node.recursive:
            raise TemplateInvalid("`recursive` loops are not available", node.lineno)
        iterable = self.expression(node.iter)
        self._known.append(set())
        target = self._target(node.target)
        test = self.expression(node.test) if node.test else None
        self._known[-1].add("loop")
        body = self.block(node.body)
        self._known.pop()
        self._known.append(set())
        otherwise = self.block(node.else_)
        self._known.pop()
        line, reads_loop = node.lineno, any(each.name == "loop" for each in node.find_all(nodes.Name))

        def run(rendering: _Rendering) -> None:
            rendering.line = line
            budget, outer = rendering.budget, rendering.scope
            items = items_of(budget, iterable(rendering))
            budget.spend(len(items))
            try:
                if test is not None:
                    chosen = []
                    for item in items:
                        rendering.scope = _Scope({}, outer)
                        target(rendering, item)
                        if test(rendering):
                            chosen.append(item)
                    items = chosen
                for item, loop in LoopContext(items, StrictUndefined) if reads_loop else zip(items, repeat(None)):
                    rendering.scope = _Scope({}, outer)
                    target(rendering, item)
                    rendering.scope.names["loop"] = loop
                    body(rendering)
                if not items:
                    rendering.scope = _Scope({}, outer)
                    otherwise(rendering)
            finally:
                rendering.scope = outer

        return run

    def _captured(self, body: Sequence[nodes.Node], filter_: nodes.Expr | None) -> _Expression:
        """Compile a body whose output becomes a value, and its filters. The last filter is the outer node."""
        self._known.append(set())
        run = self._scoped(self.block(body))
        self._known.pop()
        line = body[0].lineno if body else 1

        def captured(rendering: _Rendering) -> Value:
            pieces, written, limit = rendering.pieces, rendering.written, rendering.limit
            rendering.pieces, rendering.written, rendering.limit = [], 0, MAX_OUTPUT
            rendering.line = line
            try:
                run(rendering)
                return "".join(rendering.pieces)
            except _Full:
                raise values.BudgetExceeded(f"a block writes more than {MAX_OUTPUT:,} characters") from None
            finally:
                rendering.pieces, rendering.written, rendering.limit = pieces, written, limit

        chain = []
        while isinstance(filter_, nodes.Filter):
            chain.append(filter_)
            filter_ = filter_.node
        expression: _Expression = captured
        for each in reversed(chain):
            expression = self._applied(each, expression)
        return expression

    def _scoped(self, body: _Statement) -> _Statement:
        def run(rendering: _Rendering) -> None:
            outer, rendering.scope = rendering.scope, _Scope({}, rendering.scope)
            try:
                body(rendering)
            finally:
                rendering.scope = outer

        return run

    def _target(self, node: nodes.Node) -> Callable[[_Rendering, Value], None]:
        """Compile an assignment to the target left of `=` or before `in`."""
        self._cost += 1
        if isinstance(node, nodes.Name):
            name = node.name
            self._known[-1].add(name)

            def put(rendering: _Rendering, value: Value) -> None:
                rendering.scope.names[name] = value

            return put
        if isinstance(node, nodes.NSRef):
            holder, attribute = node.name, node.attr
            self._read(holder)

            def put_into(rendering: _Rendering, value: Value) -> None:
                space = rendering.scope.find(holder)
                if not isinstance(space, Namespace):
                    raise NotAvailable("cannot assign attribute on non-namespace object")
                rendering.budget.charge_value(value)
                space.values[attribute] = value

            return put_into
        if isinstance(node, nodes.Tuple):
            targets = [self._target(each) for each in node.items]

            def unpack(rendering: _Rendering, value: Value) -> None:
                found = items_of(rendering.budget, value)
                if len(found) != len(targets):
                    raise ValueError(f"{len(targets)} names, but {len(found)} values")
                for target, each in zip(targets, found, strict=True):
                    target(rendering, each)

            return unpack
        raise _refused(node)

    # expressions

    def expression(self, node: nodes.Node) -> _Expression:
        self._cost += 1
        match node:
            case nodes.Const():
                constant = node.value
                if isinstance(constant, str) and any(sign == "\0" or "\ud800" <= sign <= "\udfff" for sign in constant):
                    raise TemplateInvalid("a text has a character that cannot be stored", node.lineno)
                return lambda rendering: constant
            case nodes.TemplateData():
                data = node.data
                return lambda rendering: data
            case nodes.Name():
                self._read(node.name)
                name = node.name
                return lambda rendering: rendering.scope.find(name)
            case nodes.Getattr():
                holder, attribute = self.expression(node.node), node.attr
                if attribute.startswith("__"):
                    raise TemplateInvalid(f"`{attribute[:40]}` is not available", node.lineno)
                return lambda rendering: attribute_of(holder(rendering), attribute)
            case nodes.Getitem():
                return self._item(node)
            case nodes.Filter():
                if node.node is None:
                    raise _refused(node)
                return self._applied(node, self.expression(node.node))
            case nodes.Test():
                return self._applied(node, self.expression(node.node))
            case nodes.Call():
                return self._call(node)
            case nodes.And():
                left, right = self.expression(node.left), self.expression(node.right)
                return lambda rendering: left(rendering) and right(rendering)
            case nodes.Or():
                left, right = self.expression(node.left), self.expression(node.right)
                return lambda rendering: left(rendering) or right(rendering)
            case nodes.Not():
                operand = self.expression(node.node)
                return lambda rendering: not operand(rendering)
            case nodes.Neg() | nodes.Pos():
                operand, sign = self.expression(node.node), _SIGNS[type(node)]
                return lambda rendering: sign(rendering.budget, operand(rendering))
            case nodes.Compare():
                return self._compare(node)
            case nodes.CondExpr():
                test, yes = self.expression(node.test), self.expression(node.expr1)
                if node.expr2:
                    no = self.expression(node.expr2)
                    return lambda rendering: yes(rendering) if test(rendering) else no(rendering)
                hint = f"the inline if-expression on line {node.lineno} evaluated to false and has no else section."
                return lambda rendering: yes(rendering) if test(rendering) else Undefined(hint)  # lenient, like Jinja
            case nodes.Concat():
                parts = [self.expression(each) for each in node.nodes]
                return lambda rendering: values.concatenate(rendering.budget, [part(rendering) for part in parts])
            case nodes.List() | nodes.Tuple():
                items = [self.expression(each) for each in node.items]
                kind = list if isinstance(node, nodes.List) else tuple
                return lambda rendering: rendering.budget.charge_value(kind([item(rendering) for item in items]))
            case nodes.Dict():
                pairs = [(self.expression(each.key), self.expression(each.value)) for each in node.items]
                return lambda rendering: rendering.budget.charge_value(
                    {key(rendering): value(rendering) for key, value in pairs}
                )
            case nodes.BinExpr() if type(node) in _BINARY:
                left, right, combine = self.expression(node.left), self.expression(node.right), _BINARY[type(node)]
                return lambda rendering: combine(rendering.budget, left(rendering), right(rendering))
        raise _refused(node)

    def _read(self, name: str) -> None:
        if not any(name in known for known in self._known) and name not in _GLOBALS:
            self.undeclared.add(name)

    def _item(self, node: nodes.Getitem) -> _Expression:
        holder = self.expression(node.node)
        if not isinstance(node.arg, nodes.Slice):
            key = self.expression(node.arg)
            return lambda rendering: item_of(holder(rendering), key(rendering))
        ends = [self.expression(end) if end else None for end in (node.arg.start, node.arg.stop, node.arg.step)]

        def part(rendering: _Rendering) -> Value:
            value = holder(rendering)
            if isinstance(value, str | list | tuple):
                rendering.budget.charge(len(value))
            return item_of(value, slice(*(end(rendering) if end else None for end in ends)))

        return part

    def _applied(self, node: nodes.Filter | nodes.Test, operand: _Expression) -> _Expression:
        known, kind = (TESTS, "test") if isinstance(node, nodes.Test) else (FILTERS, "filter")
        try:
            function, arguments = named(known, node.name, kind), self._arguments(node)
        except NotAvailable as error:
            raise TemplateInvalid(str(error), node.lineno) from error

        def apply(rendering: _Rendering) -> Value:
            value = operand(rendering)
            args, kwargs = arguments(rendering)
            return function(rendering.budget, value, *args, **kwargs)

        return apply

    def _arguments(
        self, node: nodes.Filter | nodes.Test | nodes.Call
    ) -> Callable[[_Rendering], tuple[list[Value], dict[str, Value]]]:
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise TemplateInvalid("`*` and `**` in arguments are not available", node.lineno)
        args = [self.expression(each) for each in node.args]
        kwargs = {each.key: self.expression(each.value) for each in node.kwargs if isinstance(each, nodes.Keyword)}
        if not args and not kwargs:
            nothing: tuple[list[Value], dict[str, Value]] = ([], {})
            return lambda rendering: nothing
        return lambda rendering: (
            [each(rendering) for each in args],
            {name: each(rendering) for name, each in kwargs.items()},
        )

    def _call(self, node: nodes.Call) -> _Expression:
        arguments, callee = self._arguments(node), node.node
        if isinstance(callee, nodes.Name) and callee.name in _GLOBALS:
            name, function = callee.name, _GLOBALS[callee.name]

            def call(rendering: _Rendering) -> Value:
                if not isinstance(rendering.scope.find(name), StrictUndefined):
                    raise NotAvailable(f"`{name}` is a value here and cannot be called")
                args, kwargs = arguments(rendering)
                return function(rendering.budget, *args, **kwargs)

            return call
        if isinstance(callee, nodes.Getattr) and callee.attr in METHOD_NAMES | {"cycle", "changed"}:
            holder, method = self.expression(callee.node), callee.attr

            def call_method(rendering: _Rendering) -> Value:
                value = holder(rendering)
                args, kwargs = arguments(rendering)
                if isinstance(value, LoopContext) and method in {"cycle", "changed"}:
                    rendering.budget.charge_value(args)
                    return getattr(value, method)(*args)
                known = METHODS.get(type(value), {})
                if method not in known:
                    attribute_of(value, method)
                    raise NotAvailable(f"`{method}` is not a method here")
                return known[method](rendering.budget, value, *args, **kwargs)

            return call_method
        name = callee.attr if isinstance(callee, nodes.Getattr) else getattr(callee, "name", "this")
        raise TemplateInvalid(f"`{name}()` is not available", node.lineno)

    def _compare(self, node: nodes.Compare) -> _Expression:
        first = self.expression(node.expr)
        others = [(each.op, self.expression(each.expr)) for each in node.ops]

        def compare(rendering: _Rendering) -> bool:
            left = first(rendering)
            for sign, other in others:
                right = other(rendering)
                if not values.compare(sign, rendering.budget, left, right):
                    return False
                left = right
            return True

        return compare


def _refused(node: nodes.Node) -> TemplateInvalid:
    return TemplateInvalid(_NAMES.get(type(node), f"`{type(node).__name__}` is not available"), node.lineno)


def _range(budget: Budget, *ends: Value) -> range:
    found = range(*ends)
    if len(found) > _MAX_RANGE:
        raise values.BudgetExceeded(f"range() has at most {_MAX_RANGE:,} numbers")
    return found


_GLOBALS: dict[str, Callable[..., Value]] = {
    "range": _range,
    "namespace": lambda budget, *given, **more: Namespace(budget.charge_value(dict(*given, **more))),
    "dict": lambda budget, *given, **more: budget.charge_value(dict(*given, **more)),
}
