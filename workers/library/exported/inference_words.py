"""Prompts and parsed replies, as openenv.yaml defines them. `inference.py` uses this."""

import json
import re
from pathlib import Path
from typing import Any

import yaml
from jinja2 import StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jsonschema import Draft202012Validator

MANIFEST = yaml.safe_load((Path(__file__).resolve().parent / "openenv.yaml").read_text(encoding="utf-8"))
PROCTOR = MANIFEST["proctor"]
AGENT, ACTION = PROCTOR["agent"], PROCTOR["agent"]["action"]
BEGIN, END = "<tool_call>", "</tool_call>"
MAX_CALLS, MAX_DEPTH = 16, 32
JINJA = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False)


class Unreadable(ValueError):
    """A reply or call is not a valid action. The message is written for the model."""


# what the model reads


def render(template: str, **names: Any) -> str:
    return JINJA.from_string(template).render(**names)


def words_of(observation: dict[str, Any]) -> str:
    return render(AGENT.get("observation", "{{ observation }}"), **{**observation, "observation": observation})


def system_of(tools: list[dict[str, Any]]) -> str:
    named = ", ".join(tool["name"] for tool in tools)
    system = AGENT.get("system", "")
    return re.sub(r"\{\{ *tools *\}\}", lambda _: named, system) if ACTION.get("format") == "tool" else system


def visible(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What of the conversation is sent: all of it, or its beginning and its last turns."""
    context = AGENT.get("context") or {}
    if context.get("kind", "full") == "full":
        return messages
    first = (1 if messages and messages[0]["role"] == "system" else 0) + 2
    last = 2 * context.get("turns", 4) - 1
    return messages if len(messages) <= first + last else messages[:first] + messages[-last:]


def native(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages in the API's form: calls in separate fields, and the result of a call as a `tool` message."""
    if ACTION.get("format") != "tool":
        return [{"role": message["role"], "content": message["content"]} for message in messages]
    converted: list[dict[str, Any]] = []
    calls: list[str] = []
    for message in messages:
        if message["role"] == "assistant":
            converted.append(_assistant(message["content"], len(converted)))
            calls = [call["id"] for call in converted[-1].get("tool_calls", [])]
        elif message["role"] == "user" and calls:
            results = message.get("results") or [message["content"]]
            told = [*results, *[message["content"]] * (len(calls) - len(results))]
            pairs = zip(calls, told, strict=True)
            converted += [{"role": "tool", "tool_call_id": id_, "content": text} for id_, text in pairs]
            calls = []
        else:
            converted.append({"role": message["role"], "content": message["content"]})
    return converted


def _assistant(text: str, position: int) -> dict[str, Any]:
    try:
        before, calls, after = split_calls(text)
    except Unreadable:
        return {"role": "assistant", "content": text}
    said = "\n".join(part.strip() for part in (before, after) if part.strip())
    asked = [
        {
            "id": f"c{position % 100_000:05d}{number % 1000:03d}",
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["arguments"], ensure_ascii=False)},
        }
        for number, call in enumerate(calls)
    ]
    return {"role": "assistant", "content": said or None, "tool_calls": asked}


def answers_in_words(told: list[tuple[str, str]]) -> str:
    """What several calls, (name, answer) each, came to."""
    named = enumerate(told, start=1)
    return "\n\n".join(f"Call {n}{f' (`{name}`)' if name else ''}: {text}".rstrip() for n, (name, text) in named)


# what its reply means


def split_reasoning(reply: str) -> tuple[str, str]:
    """(reasoning, answer) where `agent.reasoning: think` keeps them apart."""
    thought, ended, answer = reply.partition("</think>")
    opened = thought.lstrip()
    if AGENT.get("reasoning") != "think" or (not ended and not opened.startswith("<think>")):
        return "", reply
    return opened.removeprefix("<think>").strip(), answer.lstrip()


def asked_for(reply: str, tools: list[dict[str, Any]]) -> list[dict[str, Any] | Unreadable]:
    """The actions in a reply, in their order, and why a call among them is none. Raises Unreadable for the whole."""
    kind = ACTION.get("format", "text")
    if kind == "json":
        return [json_action(reply)]
    if kind == "tool":
        return call_actions(reply, tools)
    text = reply.strip()
    if kind == "tag":
        tag = ACTION["tag"]
        found = re.findall(rf"<{re.escape(tag)}>(.*?)</{re.escape(tag)}>", reply, re.DOTALL)
        if len(found) != 1:
            raise Unreadable(f"Found {len(found) or 'no'} <{tag}>…</{tag}>; write exactly one.")
        text = found[0].strip()
    elif not text:
        raise Unreadable("The reply is empty.")
    return [{ACTION["field"]: value_of(text)}]


def value_of(text: str) -> Any:
    kind = ACTION.get("type", "string")
    try:
        if kind == "integer" and len(text) <= 20:
            return int(text)
        return float(text) if kind == "number" else text if kind == "string" else int("no integer")
    except ValueError:
        expected = "an integer" if kind == "integer" else "a number"
        raise Unreadable(f"{text[:40]!r} is not {expected}.") from None


def json_action(reply: str) -> dict[str, Any]:
    fenced = re.match(r"^```(?:json)?\s*\n(.*?)\n```\s*$", reply.strip(), re.DOTALL)
    try:
        value = json.loads(fenced.group(1) if fenced else reply)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"The reply is not JSON: {error}.") from None
    if not isinstance(value, dict):
        raise Unreadable("The reply is JSON, but not an object.")
    return value


def call_actions(reply: str, tools: list[dict[str, Any]]) -> list[dict[str, Any] | Unreadable]:
    extra = ACTION.get("extra") or {}
    if ACTION.get("text") and reply.strip() and BEGIN not in reply:
        return [{ACTION["text"]: reply.strip(), **extra}]
    _, calls, _ = split_calls(reply)
    return [_action(call, tools, extra) for call in calls]


def _action(call: dict[str, Any], tools: list[dict[str, Any]], extra: dict[str, Any]) -> dict[str, Any] | Unreadable:
    name = call["name"]
    tool = next((tool for tool in tools if tool["name"] == name), None)
    if tool is None:
        offered = ", ".join(tool["name"] for tool in tools)
        return Unreadable(f"There is no tool {name[:80]!r}; there are: {offered}.")
    wrong = [error.message[:200] for error in Draft202012Validator(tool["parameters"]).iter_errors(call["arguments"])]
    if wrong:
        return Unreadable(f"`{name}` was not called: {'; '.join(wrong[:3])}.")
    return {ACTION["field"]: name, ACTION.get("arguments", "arguments"): call["arguments"], **extra}


def split_calls(reply: str) -> tuple[str, list[dict[str, Any]], str]:
    """The text before the first call, the calls, and the text after each. When one cannot be read, none is made."""
    before, *parts = reply.split(BEGIN)
    if not parts or reply.count(END) != len(parts) or any(END not in part for part in parts):
        raise Unreadable("No tool was called. Call one of the tools you were given.")
    if len(parts) > MAX_CALLS:
        raise Unreadable(f"Found {len(parts)} calls; at most {MAX_CALLS} are made of one reply.")
    bodies = [part.partition(END) for part in parts]
    return before, [_call(body) for body, _, _ in bodies], "".join(after for _, _, after in bodies)


def _call(body: str) -> dict[str, Any]:
    try:
        call = json.loads(body, object_pairs_hook=_unique, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"What was sent as arguments is not JSON: {error}.") from None
    call = {"arguments": {}, **call} if isinstance(call, dict) else {}
    named = isinstance(call.get("name"), str) and call["name"]
    if call.keys() != {"name", "arguments"} or not named or not isinstance(call["arguments"], dict):
        raise Unreadable('A call is {"name": "…", "arguments": {…}}.')
    if _is_deeper(call["arguments"], MAX_DEPTH):
        raise Unreadable(f"`arguments` are nested deeper than {MAX_DEPTH}.")
    return call


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key appears twice")
    return dict(pairs)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON value")


def _is_deeper(value: Any, limit: int) -> bool:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return limit < 0 or any(_is_deeper(child, limit - 1) for child in children)


def write_call(name: str, arguments: str) -> str:
    """A call as text, with `arguments` exactly as the endpoint sent them."""
    text = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": {arguments or "{}"}}}'
    for mark in (BEGIN, END):  # inside a value it would end the call
        text = text.replace(mark, "\\u003c" + mark[1:])
    return BEGIN + text + END


def plain_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """As OpenAI's endpoints want it; environments also use MCP's spelling."""
    tool = tool.get("function", tool)
    schema = tool.get("parameters") or tool.get("input_schema") or tool.get("inputSchema")
    empty = {"type": "object", "properties": {}}
    return {"name": tool["name"], "description": tool.get("description") or "", "parameters": schema or empty}
