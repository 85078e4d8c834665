"""Between our conversation, where a call is text in a reply, and the chat completions API, which has its own fields."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from backend.domain.environments.tools import CallUnreadable, in_api_words, split_calls, write_call


def native_messages(
    messages: Sequence[Mapping[str, Any]], system: str, *, sends_reasoning: bool = False
) -> list[dict[str, Any]]:
    """The conversation as the API has it: calls as `tool_calls`, what follows a call as its `tool` message."""
    converted: list[dict[str, Any]] = []
    open_calls: list[str] = []
    for message in messages:
        if message["role"] == "system":
            converted += [{"role": "system", "content": system}] if system else []
        elif message["role"] == "assistant":
            told = _assistant(message, len(converted)) | _reasoning(message, sends_reasoning)
            converted.append(told)
            open_calls = [call["id"] for call in told.get("tool_calls", [])]
        elif open_calls:
            results = message.get("results") or [message["content"]]
            pairs = zip(open_calls, [*results, *[message["content"]] * (len(open_calls) - len(results))], strict=True)
            converted += [{"role": "tool", "tool_call_id": id_, "content": content} for id_, content in pairs]
            open_calls = []
        else:
            converted.append({"role": message["role"], "content": in_api_words(message["content"])})
    return converted


def plain_messages(messages: Sequence[Mapping[str, Any]], *, sends_reasoning: bool = False) -> list[dict[str, Any]]:
    """The conversation for an endpoint that reads calls as text."""
    return [
        {"role": message["role"], "content": message["content"], **_reasoning(message, sends_reasoning)}
        for message in messages
    ]


def _reasoning(message: Mapping[str, Any], sends_reasoning: bool) -> dict[str, str]:
    return {"reasoning_content": message["reasoning"]} if sends_reasoning and message.get("reasoning") else {}


def _assistant(message: Mapping[str, Any], position: int) -> dict[str, Any]:
    """What cannot be read as a call stays text."""
    text = str(message["content"])
    try:
        before, asked, after = split_calls(text)
    except CallUnreadable:
        return {"role": "assistant", "content": text}
    said = "\n".join(part.strip() for part in (before, after) if part.strip())
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


def text_of_answer(content: str, tool_calls: Any) -> str:
    """The answer as canonical text with all its calls.

    Raises TypeError, KeyError or ValueError when `tool_calls` has not the API's form.
    """
    if not tool_calls:
        return content
    functions = [call["function"] for call in tool_calls]
    text = "\n".join(write_call(_name(function), _arguments(function)) for function in functions)
    return f"{content.rstrip()}\n{text}" if content.strip() else text


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
