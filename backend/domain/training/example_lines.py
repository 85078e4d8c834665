"""Lines of an uploaded JSONL file: messages as TRL and OpenAI write them, or a prompt and a completion.

Unknown fields are refused, because a misspelled one would otherwise be ignored silently.
"""

from collections.abc import Mapping
from itertools import groupby

import orjson

from backend.domain.environments.tools import ToolsUnusable, read_tools, render_tools
from backend.domain.rollouts.conversation import NoConversation, read_message
from backend.domain.training.examples import Conversation

MAX_LINE_BYTES = 2 * 1024**2
MAX_MESSAGES = 1000
"""Messages of one conversation."""
_ORIGIN = ("environment", "task", "level", "reward", "run", "rollout")  # which Proctor's own export adds
FIELDS = ("messages", "prompt", "completion", "tools", "parallel_tool_calls", *_ORIGIN)
_MESSAGE_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id", "weight", "reasoning_content", "reasoning")
_ROLES = {each: each for each in ("system", "user", "assistant", "tool")} | {"developer": "system", "function": "tool"}


class BadLine(ValueError):
    """A line is invalid. The message completes a sentence that starts with the line."""


def read_line(line: bytes) -> Conversation:
    """Parse and check one line. Raises BadLine."""
    if len(line) > MAX_LINE_BYTES:
        raise BadLine(f"is longer than {MAX_LINE_BYTES // 1024**2} MiB")
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadLine(f"is not JSON: {error.msg} at character {error.pos + 1}") from error
    if not isinstance(row, dict):
        raise BadLine("is not a JSON object")
    _refuse_unknown(row, FIELDS, "the line")
    raw = _raw_messages(row)
    if len(raw) > MAX_MESSAGES:
        raise BadLine(f"has {len(raw):,} messages; the maximum is {MAX_MESSAGES:,}")
    read = [_message(message, f"message {number}") for number, message in enumerate(raw, 1)]
    messages: list[dict[str, object]] = []
    for role, group in groupby(read, key=lambda message: message["role"]):
        together = list(group)
        if role == "tool":  # consecutive results are one message of the environment, as the policy would read them
            named = [
                f"Call {number}{f' (`{name}`)' if (name := each['name']) else ''}: {each['content']}"
                for number, each in enumerate(together, 1)
            ]
            content = "\n\n".join(named) if len(together) > 1 else together[0]["content"]
            together = [{"role": "user", "content": content}]
        messages += together
    if row.get("tools"):  # described in the system prompt, where a policy that writes plain text reads them
        try:
            tools = render_tools(read_tools(row["tools"]))
        except ToolsUnusable as error:
            raise BadLine(f"has tools that cannot be used: {error}") from error
        first = messages.pop(0)["content"] if messages[0]["role"] == "system" else ""
        messages.insert(0, {"role": "system", "content": f"{first}\n\n{tools}".lstrip()})
    # User and assistant must alternate after the system prompt, and the assistant must have the last word.
    start = 1 if messages and messages[0]["role"] == "system" else 0
    for place, message in enumerate(messages[start:]):
        role, expected = message["role"], "assistant" if place % 2 else "user"
        if role != expected:
            number = start + place + 1
            raise BadLine(f"message {number} has the role {role} instead of {expected}: they must alternate")
    if len(messages) == start or messages[-1]["role"] != "assistant":
        raise BadLine("does not end with a reply of the assistant")
    learned = tuple(bool(message["weight"]) for message in messages if message["role"] == "assistant")
    if not any(learned):
        raise BadLine("has no reply to learn from: each has the weight 0")
    reward, level, task = row.get("reward"), row.get("level"), str(row.get("task") or "")
    if reward is not None and (isinstance(reward, bool) or not isinstance(reward, int | float)):
        raise BadLine("has a reward that is not a number")
    if level is not None and (isinstance(level, bool) or not isinstance(level, int) or level < 0):
        raise BadLine("has a level that is not a whole number from 0")
    if task.startswith("heldout/"):
        raise BadLine("is from a held-out task, which must not be learned")
    return Conversation(
        [{"role": str(each["role"]), "content": str(each["content"])} for each in messages],
        learned,
        reward=None if reward is None else float(reward),
        level=level,
        task=task.replace("\x00", "")[:100],
        reasoning=sum("reasoning" in message for message in messages),
    )


def write_line(conversation: Conversation) -> bytes:
    replies = iter(conversation.learned)
    messages = [
        {**message, "weight": 0} if message["role"] == "assistant" and not next(replies, True) else message
        for message in conversation.messages
    ]
    row: dict[str, object] = {"messages": messages}
    for name in ("reward", "level", "task"):
        if getattr(conversation, name) not in {None, ""}:
            row[name] = getattr(conversation, name)
    return orjson.dumps(row) + b"\n"


def _refuse_unknown(row: Mapping[str, object], known: tuple[str, ...], where: str) -> None:
    if unknown := sorted(row.keys() - set(known)):
        raise BadLine(f"{where} has the unknown field {unknown[0][:60]!r}; known are {', '.join(sorted(known))}")


def _raw_messages(row: Mapping[str, object]) -> list[object]:
    if "messages" in row:
        if "prompt" in row or "completion" in row:
            raise BadLine("has both messages and a prompt with its completion; use one of them")
        if not isinstance(row["messages"], list) or not row["messages"]:
            raise BadLine("has messages that are not a list, or an empty one")
        return list(row["messages"])
    if "prompt" not in row or "completion" not in row:
        raise BadLine("has neither messages nor a prompt with its completion")
    found: list[object] = []
    for name, role in (("prompt", "user"), ("completion", "assistant")):
        part = row[name]
        if isinstance(part, str):
            part = [{"role": role, "content": part}]
        if not isinstance(part, list):
            raise BadLine(f"has a {name} that is neither text nor a list of messages")
        found += part
    return found


def _message(message: object, where: str) -> dict[str, object]:
    if not isinstance(message, dict):
        raise BadLine(f"{where} is not an object")
    _refuse_unknown(message, _MESSAGE_FIELDS, where)
    role, content = _ROLES.get(str(message.get("role"))), message.get("content")
    if role is None:
        raise BadLine(f"{where} has the role {str(message.get('role'))[:40]!r}; known are {', '.join(_ROLES)}")
    parts = content if isinstance(content, list) else []
    if any(not isinstance(part, dict) or part.get("type") != "text" for part in parts):
        raise BadLine(f"{where} has content that is not text")
    if content is None and not message.get("tool_calls"):
        raise BadLine(f"{where} has no content")
    weight = message.get("weight", 1)
    if weight not in (0, 1) or (role != "assistant" and "weight" in message):
        raise BadLine(f"{where}: a weight is 0 or 1, and belongs to a message of the assistant")
    try:
        read = read_message(message)
    except NoConversation as error:
        raise BadLine(f"{where}: {error}") from error
    if "\x00" in read["content"]:
        raise BadLine(f"{where} contains a NUL character")
    if role == "assistant" and weight and not read["content"].strip():
        raise BadLine(f"{where} is an empty reply")
    return {**read, "role": role, "weight": weight, "name": str(message.get("name") or "")}
