"""Between our conversation, where a call is text in a reply, and the chat completions API, which has its own fields."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from backend.domain.tools import Call, CallUnreadable, split_call, write_call

NOT_MADE = "Not made: only the first call of a reply is made. Call again if you still need it."
MAX_NOT_MADE = 16
"""Further calls of one answer that are kept."""
MAX_NOT_MADE_CHARACTERS = 4000
"""Of the arguments of one of them."""


def native_messages(messages: Sequence[Mapping[str, Any]], system: str) -> list[dict[str, Any]]:
    """The conversation as the API has it: calls as `tool_calls`, what follows a call as its `tool` message."""
    converted: list[dict[str, Any]] = []
    open_calls: list[str] = []
    for message in messages:
        if message["role"] == "system":
            converted += [{"role": "system", "content": system}] if system else []
        elif message["role"] == "assistant":
            told = _assistant(message, len(converted))
            converted.append(told)
            open_calls = [call["id"] for call in told.get("tool_calls", [])]
        elif open_calls:
            results = [message["content"], *[NOT_MADE] * (len(open_calls) - 1)]
            pairs = zip(open_calls, results, strict=True)
            converted += [{"role": "tool", "tool_call_id": id_, "content": content} for id_, content in pairs]
            open_calls = []
        else:
            converted.append({"role": message["role"], "content": message["content"]})
    return converted


def _assistant(message: Mapping[str, Any], position: int) -> dict[str, Any]:
    """What cannot be read as a call stays text."""
    text = str(message["content"])
    try:
        before, call, after = split_call(text)
    except CallUnreadable:
        return {"role": "assistant", "content": text}
    said = "\n".join(part.strip() for part in (before, after) if part.strip())
    asked = [call, *(Call(str(other["name"]), other["arguments"]) for other in message.get("not_made", ()))]
    calls = [
        {"id": _id(position, number), "type": "function", "function": {"name": c.name, "arguments": _json(c.arguments)}}
        for number, c in enumerate(asked)
    ]
    return {"role": "assistant", "content": said or None, "tool_calls": calls}


def _id(position: int, number: int) -> str:
    """Nine letters and digits, the same each time: some endpoints take no other length."""
    return f"c{position % 100_000:05d}{number % 1000:03d}"


def _json(arguments: Any) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def text_of_answer(content: str, tool_calls: Any) -> tuple[str, list[Call]]:
    """The answer as canonical text with its first call, and the calls that are not made.

    Raises TypeError, KeyError or ValueError when `tool_calls` has not the API's form.
    """
    if not tool_calls:
        return content, []
    first, *others = [call["function"] for call in tool_calls]
    text = write_call(_name(first), _arguments(first))
    not_made = [_not_made(other) for other in others[:MAX_NOT_MADE]]
    return f"{content.rstrip()}\n{text}" if content.strip() else text, not_made


def _name(function: Mapping[str, Any]) -> str:
    name = function["name"]
    if not isinstance(name, str):
        raise TypeError("a call's name is no text")
    return name


def _arguments(function: Mapping[str, Any]) -> Mapping[str, Any] | str:
    """The API sends them as JSON in a text; what is no JSON object stays as it is, to be told to the policy."""
    sent = function.get("arguments")
    if sent is None or sent == "":
        return {}
    if isinstance(sent, Mapping):
        return sent
    return str(sent)


def _not_made(function: Mapping[str, Any]) -> Call:
    arguments = _arguments(function)
    text = arguments if isinstance(arguments, str) else _json(arguments)
    try:
        parsed = json.loads(text) if len(text) <= MAX_NOT_MADE_CHARACTERS else None
    except (ValueError, RecursionError):
        parsed = None
    return Call(_name(function), parsed if isinstance(parsed, dict) else {"unreadable": text[:1000]})
