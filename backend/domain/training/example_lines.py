"""One line of an uploaded JSONL as a conversation: messages as TRL and OpenAI write them, or a prompt and a completion.

Whatever is not known is refused, so that nothing is dropped in silence: a misspelt field would otherwise teach nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import orjson

from backend.domain.environments.tools import ToolsUnusable, read_tools, render_tools
from backend.domain.rollouts.conversation import NoConversation, read_message
from backend.domain.training.examples import Conversation, Messages

MAX_LINE_BYTES = 2 * 1024**2
MAX_MESSAGES = 1000
"""Of one conversation."""

_ORIGIN = ("environment", "task", "level", "reward", "run", "rollout")
"""What Proctor's own export writes beside the messages."""
FIELDS = ("messages", "prompt", "completion", "tools", "parallel_tool_calls", *_ORIGIN)
_MESSAGE_FIELDS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id", "weight"})
_MESSAGE_FIELDS |= {"reasoning_content", "reasoning"}
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


class BadLine(ValueError):
    """What is wrong with a line, in words for whoever wrote the file."""


def read_line(line: bytes) -> Conversation:
    """Raises BadLine."""
    if len(line) > MAX_LINE_BYTES:
        raise BadLine(f"is longer than {MAX_LINE_BYTES // 1024**2} MiB")
    row = _object(line)
    _refuse_unknown(row, FIELDS, "the line")
    said = _said(row)
    if len(said) > MAX_MESSAGES:
        raise BadLine(f"has {len(said):,} messages; at most {MAX_MESSAGES:,} are read")
    read = [_message(message, number) for number, message in enumerate(said, 1)]
    messages = _with_tools(_in_turns(read), row.get("tools"))
    _check_order(messages)
    return Conversation(
        [{"role": each["role"], "content": each["content"]} for each in messages],
        _learned(messages),
        reward=_number(row, "reward"),
        level=_level(row),
        task=_task(row),
        reasoning=sum("reasoning" in message for message in messages),
    )


def write_line(conversation: Conversation) -> bytes:
    """As `read_line` reads it again."""
    replies = iter(conversation.learned)
    messages = [
        {**message, "weight": 0} if message["role"] == "assistant" and not next(replies, True) else message
        for message in conversation.messages
    ]
    row: dict[str, Any] = {"messages": messages}
    for name in ("reward", "level", "task"):
        if getattr(conversation, name) not in {None, ""}:
            row[name] = getattr(conversation, name)
    return orjson.dumps(row) + b"\n"


def _object(line: bytes) -> Mapping[str, Any]:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadLine(f"is no JSON: {error.msg} at character {error.pos + 1}") from error
    if not isinstance(row, dict):
        raise BadLine("is no JSON object")
    return row


def _refuse_unknown(row: Mapping[str, Any], known: Sequence[str] | frozenset[str], where: str) -> None:
    if unknown := sorted(row.keys() - set(known)):
        raise BadLine(f"{where} has the unknown field {unknown[0][:60]!r}; known are {', '.join(sorted(known))}")


def _said(row: Mapping[str, Any]) -> list[Any]:
    """The messages, with those of a completion after those of its prompt."""
    if "messages" in row:
        if "prompt" in row or "completion" in row:
            raise BadLine("has both messages and a prompt with its completion; give one of them")
        if not isinstance(row["messages"], list) or not row["messages"]:
            raise BadLine("its messages are no list, or an empty one")
        return list(row["messages"])
    if "prompt" not in row or "completion" not in row:
        raise BadLine("has neither messages nor a prompt with its completion")
    return [*_part(row, "prompt", "user"), *_part(row, "completion", "assistant")]


def _part(row: Mapping[str, Any], name: str, role: str) -> list[Any]:
    """Messages, or a text of this role."""
    part = row[name]
    if isinstance(part, str):
        return [{"role": role, "content": part}]
    if not isinstance(part, list):
        raise BadLine(f"its {name} is neither a text nor a list of messages")
    return part


def _message(message: Any, number: int) -> dict[str, Any]:
    where = f"message {number}"
    if not isinstance(message, dict):
        raise BadLine(f"{where} is no object")
    _refuse_unknown(message, _MESSAGE_FIELDS, where)
    role = _ROLES.get(str(message.get("role")))
    if role is None:
        raise BadLine(f"{where} has the role {str(message.get('role'))[:40]!r}; known are {', '.join(_ROLES)}")
    _check_content(message, where)
    weight = message.get("weight", 1)
    if weight not in (0, 1) or (role != "assistant" and "weight" in message):
        raise BadLine(f"{where}: a weight is 0 or 1, and stands at an assistant's message")
    try:
        read = read_message(message)
    except NoConversation as error:
        raise BadLine(f"{where}: {error}") from error
    if "\x00" in read["content"]:
        raise BadLine(f"{where} holds a NUL character")
    if role == "assistant" and weight and not read["content"].strip():
        raise BadLine(f"{where} is an empty reply")
    return {**read, "role": role, "weight": weight, "name": str(message.get("name") or "")}


def _check_content(message: Mapping[str, Any], where: str) -> None:
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    if any(not isinstance(part, dict) or part.get("type") != "text" for part in parts):
        raise BadLine(f"{where} holds something else than text")
    if content is None and not message.get("tool_calls"):
        raise BadLine(f"{where} has no content")


def _in_turns(messages: Messages) -> Messages:
    """Tool results become what the environment says: one message, as the policy would read them."""
    turned: Messages = []
    for is_tool, group in groupby(messages, key=lambda message: message["role"] == "tool"):
        together = list(group)
        turned += [_results(together)] if is_tool else together
    return turned


def _results(results: Messages) -> dict[str, Any]:
    if len(results) == 1:
        return {"role": "user", "content": results[0]["content"]}
    told = [
        f"Call {number}{f' (`{name}`)' if (name := result['name']) else ''}: {result['content']}"
        for number, result in enumerate(results, 1)
    ]
    return {"role": "user", "content": "\n\n".join(told)}


def _with_tools(messages: Messages, listed: Any) -> Messages:
    """The tools stand in the system prompt, where a policy that writes plain text reads them."""
    if not listed:
        return messages
    try:
        told = render_tools(read_tools(listed))
    except ToolsUnusable as error:
        raise BadLine(f"its tools cannot be used: {error}") from error
    has_system = bool(messages) and messages[0]["role"] == "system"
    system = messages[0]["content"] if has_system else ""
    return [{"role": "system", "content": f"{system}\n\n{told}".lstrip()}, *messages[1 if has_system else 0 :]]


def _check_order(messages: Messages) -> None:
    spoken = messages[1:] if messages and messages[0]["role"] == "system" else messages
    wanted = _alternating()
    for number, message in enumerate(spoken, 1 + len(messages) - len(spoken)):
        role = next(wanted)
        if message["role"] != role:
            raise BadLine(f"message {number} is the {message['role']}'s where the {role} is to speak: they take turns")
    if not spoken or spoken[-1]["role"] != "assistant":
        raise BadLine("does not end with the assistant's reply, so that its end would teach nothing")


def _alternating() -> Iterator[str]:
    while True:
        yield "user"
        yield "assistant"


def _learned(messages: Messages) -> tuple[bool, ...]:
    learned = tuple(bool(message["weight"]) for message in messages if message["role"] == "assistant")
    if not any(learned):
        raise BadLine("has no reply to learn: each has the weight 0")
    return learned


def _number(row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadLine(f"its {name} is no number")
    return float(value)


def _level(row: Mapping[str, Any]) -> int | None:
    value = row.get("level")
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise BadLine("its level is no whole number from 0")
    return value


def _task(row: Mapping[str, Any]) -> str:
    task = str(row.get("task") or "")
    if task.startswith("heldout/"):
        raise BadLine("is of a held-out task, of which nothing may be learned")
    return task.replace("\x00", "")[:100]
