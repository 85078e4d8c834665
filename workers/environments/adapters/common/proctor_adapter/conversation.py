"""Between the library's rollout, which calls a model, and a session of the wire, which is that model."""

import asyncio
import concurrent.futures
import re
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from .serving import WireAction, WireObservation

Message = dict[str, Any]
_OVER = object()


class PolicyReply(WireAction):
    """One reply of the policy: a tool call, or text."""

    text: str = ""
    tool: str = ""
    arguments: Message = Field(default_factory=dict)


class PolicyTurn(WireObservation):
    """The library's messages to the policy before its next reply."""

    text: str = ""
    """The new messages as one text."""
    messages: list[Message] = Field(default_factory=list)
    """The same in the library's format."""
    tools: list[Message] = Field(default_factory=list)
    """Tools that may be called now."""


@dataclass(eq=False)
class PolicyConversation:
    """One rollout's conversation. The library's side is asyncio; the session's side waits in a thread."""

    _loop: asyncio.AbstractEventLoop
    _requests: asyncio.Queue[tuple[object, object]] = field(default_factory=asyncio.Queue)
    replies: asyncio.Queue[PolicyReply] = field(default_factory=asyncio.Queue)
    """Belongs to the loop."""

    async def ask(self, messages: list[object], tools: list[object] | None) -> PolicyReply:
        """The library calls the model."""
        await self._requests.put((messages, tools or []))
        return await self.replies.get()

    def end(self, outcome: Message | BaseException) -> None:
        """The result of the finished rollout, or the exception that ended it."""
        self._requests.put_nowait((_OVER, outcome))

    def wait(self, seconds: float) -> tuple[Any, Any]:
        """(messages, tools) for each call of the model; (None, result) after the end of the rollout."""
        waiting = asyncio.run_coroutine_threadsafe(self._requests.get(), self._loop)
        try:
            first, second = waiting.result(seconds)
        except concurrent.futures.TimeoutError:
            waiting.cancel()
            raise TimeoutError(f"the library did nothing for {seconds:g} s") from None
        if first is not _OVER:
            return first, second
        if isinstance(second, BaseException):
            raise second
        return None, second


def plain(message: Any) -> Message:
    """A message of the library as JSON, without unset fields."""
    return message if isinstance(message, dict) else dict(message.model_dump(mode="json", exclude_none=True))


def as_text(messages: list[Message]) -> str:
    """New messages as one text, with the roles if they are not all the user's."""
    texts = []
    for message in messages:
        content = message.get("content") or ""
        if not isinstance(content, str):
            parts = [part if isinstance(part, dict) else {"text": str(part)} for part in content]
            content = "\n".join(str(part.get("text") or f"[{part.get('type', 'part')}]") for part in parts)
        texts.append((message.get("role", "user"), content))
    if all(role in {"user", "tool", "text"} for role, _ in texts):
        return "\n\n".join(text for _, text in texts)
    return "\n\n".join(f"[{role}]\n{text}" for role, text in texts)


def column_name(function: str) -> str:
    """A valid name of a reward column."""
    name = re.sub(r"[^a-z0-9_]+", "_", function.lower()).strip("_") or "score"
    name = name if name[0].isalpha() else f"f_{name}"
    return name[:40] if name not in {"reward", "format", "length"} else f"{name}_score"
