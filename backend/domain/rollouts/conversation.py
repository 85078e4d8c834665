"""Conversations of other tools in our form: every message a role and a text, tool calls as text, a step a reply."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from backend.domain.environments.tools import write_call

Messages = list[dict[str, Any]]


class NoConversation(ValueError):
    """These are no messages."""


def prompt_and_completion(messages: Sequence[Mapping[str, Any]]) -> tuple[Messages, Messages]:
    """Parted before the first reply."""
    first = next((i for i, message in enumerate(messages) if message.get("role") == "assistant"), len(messages))
    return [dict(message) for message in messages[:first]], [dict(message) for message in messages[first:]]


def to_other(message: Mapping[str, Any]) -> dict[str, Any]:
    """As others write it: reasoning stands in `reasoning_content`."""
    told = {"role": message["role"], "content": message["content"]}
    if message.get("reasoning"):
        told["reasoning_content"] = message["reasoning"]
    return told


def read_messages(value: Any, role: str) -> Messages:
    """Messages, or a plain text of this role. Raises NoConversation."""
    if value is None:
        return []
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if not isinstance(value, list):
        raise NoConversation(f"expected messages, found {type(value).__name__}")
    return [read_message(message) for message in value]


def read_message(message: Any) -> dict[str, Any]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise NoConversation("a message has no role")
    calls = [_call(call) for call in message.get("tool_calls") or []]
    content = "\n".join(part for part in (_text(message.get("content")), *calls) if part)
    read: dict[str, Any] = {"role": message["role"], "content": content}
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str) and reasoning:
        read["reasoning"] = reasoning
    return read


def steps_of(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A step a reply, for conversations that came without any."""
    replies = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    steps = []
    for number, following in pairwise([*replies, len(messages)]):
        answers = [str(message["content"]) for message in messages[number + 1 : following]]
        reply = str(messages[number]["content"])
        step = {"reply": reply, "action": {"reply": reply}, "observation": {}, "text": "\n\n".join(answers)}
        steps.append({**step, "rewards": {}, "done": following == len(messages), "note": None})
    return steps


def _text(content: Any) -> str:
    """Text, or the texts among typed parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise NoConversation("a message's content is neither text nor parts")
    texts = [str(part.get("text") or "") if isinstance(part, Mapping) else str(part) for part in content]
    return "\n".join(text for text in texts if text)


def _call(call: Any) -> str:
    """A tool call as text; some tools store each call as JSON in a text."""
    if isinstance(call, str):
        try:
            call = json.loads(call)
        except (ValueError, RecursionError) as error:
            raise NoConversation("a tool call is no JSON") from error
    function = call.get("function") if isinstance(call, Mapping) else None
    named = function if isinstance(function, Mapping) else call
    if not isinstance(named, Mapping) or not isinstance(named.get("name"), str):
        raise NoConversation("a tool call has no name")
    return write_call(named["name"], _arguments(named.get("arguments")))


def _arguments(value: Any) -> Mapping[str, Any] | str:
    if isinstance(value, Mapping):
        return value
    try:
        read = json.loads(value) if isinstance(value, str) and value else {}
    except (ValueError, RecursionError):
        return str(value)
    return read if isinstance(read, dict) else str(value)
