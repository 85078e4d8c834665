"""From an observation to the text that a policy reads, and from its reply to an action."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from jinja2 import StrictUndefined, Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

if TYPE_CHECKING:
    from backend.domain.manifest import ActionSpec

MAX_TEXT = 200_000
"""Characters of a rendered observation; the rest is cut with a mark."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """Templates are written by authors of environments: no attribute of Python's, no endless loop."""

    intercepted_binops = frozenset({"**", "*"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or not all(isinstance(side, int | float) for side in (left, right)):
            raise TemplateError(f"operator {operator} is not available on these values")
        return super().call_binop(context, operator, left, right)


_jinja = _Sandbox(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=False)


@lru_cache(maxsize=512)
def _template(text: str) -> Template:
    return _jinja.from_string(text)


def template_problem(text: str) -> str | None:
    """Why a template cannot be compiled, or None."""
    try:
        _template(text)
    except TemplateError as error:
        return f"template does not compile: {error}"
    return None


def render_observation(template: str, observation: Mapping[str, Any]) -> str:
    """The text for the policy. Raises ValueError when the template does not render on this observation."""
    try:
        text = _template(template).render({**observation, "observation": observation})
    except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"agent.observation does not render: {error}") from error
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + f"\n[… cut at {MAX_TEXT:,} characters]"


def render_unparsable(template: str, problem: str) -> str:
    return _template(template).render(problem=problem)


@dataclass(frozen=True, slots=True)
class Parsed:
    """A reply that was understood (`action`) or not (`problem`, in words for the policy)."""

    action: dict[str, Any] | None
    problem: str = ""


def parse_reply(spec: "ActionSpec", reply: str) -> Parsed:
    """The action in a reply. A tag must occur exactly once, so that no reply hedges between two."""
    match spec.format:
        case "tag":
            return _parse_tag(spec, reply)
        case "json":
            return _parse_json(reply)
        case "text":
            return _parse_value(spec, reply.strip()) if reply.strip() else Parsed(None, "The reply is empty.")


def _parse_tag(spec: "ActionSpec", reply: str) -> Parsed:
    found = _tag_pattern(spec.tag or "").findall(reply)
    if len(found) != 1:
        count = "no" if not found else str(len(found))
        return Parsed(None, f"Found {count} <{spec.tag}>…</{spec.tag}>; write exactly one.")
    return _parse_value(spec, found[0].strip())


@lru_cache(maxsize=64)
def _tag_pattern(tag: str) -> re.Pattern[str]:
    return re.compile(rf"<{re.escape(tag)}>(.*?)</{re.escape(tag)}>", re.DOTALL)


def _parse_value(spec: "ActionSpec", text: str) -> Parsed:
    field = spec.field or ""
    try:
        match spec.type:
            case "integer":
                if len(text) > 20:
                    raise ValueError
                return Parsed({field: int(text)})
            case "number":
                return Parsed({field: float(text)})
            case _:
                return Parsed({field: text})
    except ValueError:
        return Parsed(None, f"{text[:40]!r} is not {'an integer' if spec.type == 'integer' else 'a number'}.")


_FENCE = re.compile(r"^```(?:json)?\s*\n(.*?)\n```\s*$", re.DOTALL)


def _parse_json(reply: str) -> Parsed:
    text = reply.strip()
    if fenced := _FENCE.match(text):
        text = fenced.group(1)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Parsed(None, f"The reply is not JSON: {error}.")
    return Parsed(value) if isinstance(value, dict) else Parsed(None, "The reply is JSON, but not an object.")


def write_reply(spec: "ActionSpec", action: Mapping[str, Any]) -> str:
    """The reply that parses to this action: the inverse of `parse_reply`, for scripted policies and people."""
    if spec.format == "json":
        return json.dumps(dict(action), ensure_ascii=False)
    value = str(action.get(spec.field or "", ""))
    return f"<{spec.tag}>{value}</{spec.tag}>" if spec.format == "tag" else value
