"""From an observation to the text that a policy reads, and from its reply to an action."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from backend.domain.environments.manifest import ActionSpec, AgentSpec, ContextSpec
from backend.domain.environments.tools import (
    Call,
    CallUnreadable,
    Tool,
    has_call,
    render_tools,
    split_calls,
    write_call,
)
from backend.domain.templates import TemplateInvalid, parse_template

MAX_TEXT = 200_000
"""Characters of a rendered observation; the rest is cut with a mark."""


def render_observation(template: str, observation: Mapping[str, Any]) -> str:
    """The text for the policy. Raises ValueError when the template does not render on this observation."""
    try:
        text = parse_template(template).render({**observation, "observation": observation}, cut=MAX_TEXT)
    except TemplateInvalid as error:
        raise ValueError(f"agent.observation does not render: {error}") from error
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + f"\n[… cut at {MAX_TEXT:,} characters]"


def render_unparsable(template: str, problem: str) -> str:
    """Render the message after a reply that could not be parsed. Raises ValueError like `render_observation`."""
    try:
        return parse_template(template).render({"problem": problem})
    except TemplateInvalid as error:
        raise ValueError(f"agent.unparsable_message does not render: {error}") from error


_TOOLS_HERE = re.compile(r"\{\{ *tools *\}\}")


def render_system(agent: AgentSpec, tools: Sequence[Tool], *, is_native: bool = False) -> str:
    """The system prompt with the tools where the author wants them, else after it.

    `is_native`: the endpoint is given the tools by its own means, so that the prompt only names them.
    """
    if agent.action.format != "tool":
        return agent.system
    listed = ", ".join(tool.name for tool in tools) if is_native else render_tools(tools)
    if _TOOLS_HERE.search(agent.system):
        return _TOOLS_HERE.sub(lambda _: listed, agent.system)
    return agent.system if is_native else f"{agent.system}\n\n{listed}".lstrip()


def visible_messages(context: ContextSpec, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What of a conversation, whose last message is to be answered, the policy reads."""
    if context.kind == "full":
        return messages
    first = 1 if messages and messages[0]["role"] == "system" else 0
    kept_first, kept_last = first + 2, 2 * context.turns - 1
    if len(messages) <= kept_first + kept_last:
        return messages
    return messages[:kept_first] + messages[-kept_last:]


_THOUGHT, _THOUGHT_END = "<think>", "</think>"


def split_reasoning(reply: str) -> tuple[str, str]:
    """(reasoning, answer) of a reply by a policy that thinks first; its template may have written the opening mark."""
    thought, ended, answer = reply.partition(_THOUGHT_END)
    opened = thought.lstrip()
    if not ended and not opened.startswith(_THOUGHT):
        return "", reply
    return opened.removeprefix(_THOUGHT).strip(), answer.lstrip()


@dataclass(frozen=True, slots=True)
class Parsed:
    """A parsed reply (`action`), or the reason why it could not be parsed (`problem`, shown to the policy)."""

    action: dict[str, Any] | None
    problem: str = ""
    calls: tuple["Parsed", ...] = ()
    """Where a reply makes several tool calls: each of them. `action` is then the first that can be made."""


def parse_reply(spec: ActionSpec, reply: str, tools: Sequence[Tool] = ()) -> Parsed:
    """The action in a reply. A tag must occur exactly once, so that no reply hedges between two; of calls each is made.

    `tools`: listed by the environment if the manifest does not list them.
    """
    match spec.format:
        case "tag":
            return _parse_tag(spec, reply)
        case "json":
            return _parse_json(reply)
        case "tool":
            return _parse_call(spec, reply, spec.tools if isinstance(spec.tools, list) else tools)
        case "text":
            return _parse_value(spec, reply.strip()) if reply.strip() else Parsed(None, "The reply is empty.")


def _parse_call(spec: ActionSpec, reply: str, tools: Sequence[Tool]) -> Parsed:
    if spec.text and reply.strip() and not has_call(reply):
        return Parsed({spec.text: reply.strip(), **spec.extra})
    try:
        _, calls, _ = split_calls(reply)
    except CallUnreadable as error:
        return Parsed(None, str(error))
    found = tuple(_action_of(spec, call, tools) for call in calls)
    if len(found) == 1:
        return found[0]
    action = next((each.action for each in found if each.action is not None), None)
    return Parsed(action, " ".join(each.problem for each in found if each.problem), found)


def _action_of(spec: ActionSpec, call: Call, tools: Sequence[Tool]) -> Parsed:
    if problem := call.problem(tools):
        return Parsed(None, problem)
    return Parsed({spec.field or "": call.name, spec.arguments: call.arguments, **spec.extra})


def _parse_tag(spec: ActionSpec, reply: str) -> Parsed:
    found = _tag_pattern(spec.tag or "").findall(reply)
    if len(found) != 1:
        count = "no" if not found else str(len(found))
        return Parsed(None, f"Found {count} <{spec.tag}>…</{spec.tag}>; write exactly one.")
    return _parse_value(spec, found[0].strip())


@lru_cache(maxsize=64)
def _tag_pattern(tag: str) -> re.Pattern[str]:
    return re.compile(rf"<{re.escape(tag)}>(.*?)</{re.escape(tag)}>", re.DOTALL)


def _parse_value(spec: ActionSpec, text: str) -> Parsed:
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


def write_reply(spec: ActionSpec, action: Mapping[str, Any]) -> str:
    """The reply that parses to this action: the inverse of `parse_reply`, for scripted policies and people."""
    if spec.format == "json":
        return json.dumps(dict(action), ensure_ascii=False)
    if spec.format == "tool":
        return _write_call(spec, action)
    value = str(action.get(spec.field or "", ""))
    return f"<{spec.tag}>{value}</{spec.tag}>" if spec.format == "tag" else value


def _write_call(spec: ActionSpec, action: Mapping[str, Any]) -> str:
    if spec.text and spec.text in action and spec.field not in action:
        return str(action[spec.text])
    arguments = action.get(spec.arguments)
    return write_call(str(action.get(spec.field or "", "")), arguments if isinstance(arguments, Mapping) else {})
