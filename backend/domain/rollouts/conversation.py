"""Conversations of other tools in our form: messages with a role and a text, tool calls as text, a step per reply."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from backend.domain.environments.tools import write_call

Message = dict[str, Any]


class NoConversation(ValueError):
    """The value is not a list of messages."""


def prompt_and_completion(messages: Sequence[Message]) -> tuple[list[Message], list[Message]]:
    """Split a conversation before the first reply."""
    first = next((i for i, message in enumerate(messages) if message.get("role") == "assistant"), len(messages))
    return [dict(message) for message in messages[:first]], [dict(message) for message in messages[first:]]


def to_foreign(message: Message) -> Message:
    """The message as other tools write it, with the reasoning in `reasoning_content`."""
    foreign = {"role": message["role"], "content": message["content"]}
    return foreign | ({"reasoning_content": message["reasoning"]} if message.get("reasoning") else {})


def read_messages(value: object, role: str) -> list[Message]:
    """Read messages, or a plain text of this role. Raises NoConversation."""
    if value is None:
        return []
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if not isinstance(value, list):
        raise NoConversation(f"expected messages, found {type(value).__name__}")
    return [read_message(message) for message in value]


def read_message(message: object) -> Message:
    """Read one message with its reasoning. Tool calls become text. Raises NoConversation."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise NoConversation("a message has no role")
    content = message.get("content")
    if isinstance(content, list):  # typed parts, of which only texts are read
        parts = [str(part.get("text") or "") if isinstance(part, Mapping) else str(part) for part in content]
        content = "\n".join(part for part in parts if part)
    elif content is not None and not isinstance(content, str):
        raise NoConversation("a message's content is neither text nor parts")
    calls = [_call_text(call) for call in message.get("tool_calls") or []]
    read: Message = {"role": message["role"], "content": "\n".join(part for part in (content, *calls) if part)}
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str) and reasoning:
        read["reasoning"] = reasoning
    return read


def steps_of(messages: Sequence[Message]) -> list[Message]:
    """Make a step per reply, for conversations without steps."""
    replies = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
    steps = []
    for number, following in pairwise([*replies, len(messages)]):
        answers = [str(message["content"]) for message in messages[number + 1 : following]]
        reply = str(messages[number]["content"])
        step = {"reply": reply, "action": {"reply": reply}, "observation": {}, "text": "\n\n".join(answers)}
        steps.append({**step, "rewards": {}, "done": following == len(messages), "note": None})
    return steps


def _call_text(call: object) -> str:
    """A tool call as text. Some tools store each call, or its arguments, as JSON in a text."""
    if isinstance(call, str):
        try:
            call = json.loads(call)
        except (ValueError, RecursionError) as error:
            raise NoConversation("a tool call is not JSON") from error
    function = call.get("function") if isinstance(call, Mapping) else None
    named = function if isinstance(function, Mapping) else call
    if not isinstance(named, Mapping) or not isinstance(named.get("name"), str):
        raise NoConversation("a tool call has no name")
    arguments = named.get("arguments")
    if not isinstance(arguments, Mapping):
        try:
            read = json.loads(arguments) if isinstance(arguments, str) and arguments else {}
        except (ValueError, RecursionError):
            read = None
        arguments = read if isinstance(read, dict) else str(arguments)
    return write_call(named["name"], arguments)
