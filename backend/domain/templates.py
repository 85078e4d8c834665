"""The templates that authors of environments write: Jinja that reaches nothing and ends soon."""

from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment


class _Sandbox(ImmutableSandboxedEnvironment):
    """Templates are written by authors of environments: no attribute of Python's, no endless loop."""

    intercepted_binops = frozenset({"**", "*"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or not all(isinstance(side, int | float) for side in (left, right)):
            raise TemplateError(f"operator {operator} is not available on these values")
        return super().call_binop(context, operator, left, right)


_jinja = _Sandbox(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=False)


@lru_cache(maxsize=512)
def compile_template(text: str) -> Template:
    """Raises TemplateError."""
    return _jinja.from_string(text)


def template_problem(text: str) -> str | None:
    """Why a template cannot be compiled, or None."""
    try:
        compile_template(text)
    except TemplateError as error:
        return f"template does not compile: {error}"
    return None
