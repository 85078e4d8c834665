"""From an observation to the text that a policy reads, and from its reply to an action."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from backend.domain.environments.manifest import ActionSpec, AgentSpec, ContextSpec
from backend.domain.environments.tools import BEGIN, CallUnreadable, Tool, render_tools, split_calls, write_call
from backend.domain.templates import TemplateInvalid, parse_template
from backend.domain.text import JsonObject

MAX_TEXT = 200_000
"""Characters of a rendered observation; longer ones are cut and marked."""
_TOOLS_HERE = re.compile(r"\{\{ *tools *\}\}")
THOUGHT, THOUGHT_END = "<think>", "</think>"
_FENCE = re.compile(r"^```(?:json)?\s*\n(.*?)\n```\s*$", re.DOTALL)


def render_observation(template: str, observation: JsonObject) -> str:
    """Render the text for the policy. Raises ValueError if the template does not render on this observation."""
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


def render_system(agent: AgentSpec, tools: Sequence[Tool], *, is_native: bool = False) -> str:
    """Return the system prompt with the tools at `{{ tools }}`, else after it.

    `is_native`: the endpoint receives the tools separately, so the prompt only names them.
    """
    if agent.action.format != "tool":
        return agent.system
    listed = ", ".join(tool.name for tool in tools) if is_native else render_tools(tools)
    if _TOOLS_HERE.search(agent.system):
        return _TOOLS_HERE.sub(lambda _: listed, agent.system)
    return agent.system if is_native else f"{agent.system}\n\n{listed}".lstrip()


def visible_messages(context: ContextSpec, messages: list[JsonObject]) -> list[JsonObject]:
    """Return the messages that the policy reads before its next reply."""
    if context.kind == "full":
        return messages
    first = 1 if messages and messages[0]["role"] == "system" else 0
    kept_first, kept_last = first + 2, 2 * context.turns - 1
    if len(messages) <= kept_first + kept_last:
        return messages
    return messages[:kept_first] + messages[-kept_last:]


def split_reasoning(reply: str) -> tuple[str, str]:
    """Split a reply into reasoning and answer. The chat template may have written the opening mark."""
    thought, ended, answer = reply.partition(THOUGHT_END)
    opened = thought.lstrip()
    if not ended and not opened.startswith(THOUGHT):
        return "", reply
    return opened.removeprefix(THOUGHT).strip(), answer.lstrip()


@dataclass(frozen=True, slots=True)
class Parsed:
    """A parsed reply (`action`), or the reason why it could not be parsed (`problem`, shown to the policy)."""

    action: JsonObject | None
    problem: str = ""
    calls: tuple["Parsed", ...] = ()
    """Each of several tool calls in a reply. `action` is then the first valid one."""


def parse_reply(spec: ActionSpec, reply: str, tools: Sequence[Tool] = ()) -> Parsed:
    """Parse the action in a reply. A tag must occur exactly once, so that a reply cannot hedge; calls are all made.

    `tools`: listed by the environment if the manifest does not list them.
    """
    text = reply.strip()
    match spec.format:
        case "tag":
            # a manifest's tag has nothing to escape; `re` caches the compiled pattern
            found = re.findall(rf"<{spec.tag}>(.*?)</{spec.tag}>", reply, re.DOTALL)
            if len(found) != 1:
                count = "no" if not found else str(len(found))
                return Parsed(None, f"Found {count} <{spec.tag}>…</{spec.tag}>; write exactly one.")
            return _parse_value(spec, found[0].strip())
        case "json":
            fenced = _FENCE.match(text)
            try:
                value = json.loads(fenced.group(1) if fenced else text)
            except (ValueError, RecursionError) as error:
                return Parsed(None, f"The reply is not JSON: {error}.")
            return Parsed(value) if isinstance(value, dict) else Parsed(None, "The reply is JSON, but not an object.")
        case "text":
            return _parse_value(spec, text) if text else Parsed(None, "The reply is empty.")
        case "tool" if spec.text and text and BEGIN not in reply:
            return Parsed({spec.text: text, **spec.extra})
    try:
        _, calls, _ = split_calls(reply)
    except CallUnreadable as error:
        return Parsed(None, str(error))
    parsed = []
    for call in calls:
        if problem := call.problem(spec.tools if isinstance(spec.tools, list) else tools):
            parsed.append(Parsed(None, problem))
        else:
            parsed.append(Parsed({spec.field or "": call.name, spec.arguments: call.arguments, **spec.extra}))
    if len(parsed) == 1:
        return parsed[0]
    action = next((each.action for each in parsed if each.action is not None), None)
    return Parsed(action, " ".join(each.problem for each in parsed if each.problem), tuple(parsed))


def _parse_value(spec: ActionSpec, text: str) -> Parsed:
    field = spec.field or ""
    try:
        if spec.type == "integer":
            if len(text) > 20:
                raise ValueError
            return Parsed({field: int(text)})
        return Parsed({field: float(text) if spec.type == "number" else text})
    except ValueError:
        return Parsed(None, f"{text[:40]!r} is not {'an integer' if spec.type == 'integer' else 'a number'}.")


def write_reply(spec: ActionSpec, action: Mapping[str, object]) -> str:
    """Return the reply that parses to this action: the inverse of `parse_reply`, for scripted policies and people."""
    if spec.format == "json":
        return json.dumps(dict(action), ensure_ascii=False)
    if spec.format == "tool":
        if spec.text and spec.text in action and spec.field not in action:
            return str(action[spec.text])
        arguments = action.get(spec.arguments)
        return write_call(str(action.get(spec.field or "", "")), arguments if isinstance(arguments, Mapping) else {})
    value = str(action.get(spec.field or "", ""))
    return f"<{spec.tag}>{value}</{spec.tag}>" if spec.format == "tag" else value
