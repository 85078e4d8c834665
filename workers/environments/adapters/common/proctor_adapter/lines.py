"""Between the library's rollout, which asks a model, and a session of the wire, which is the model."""

import asyncio
import concurrent.futures
from typing import Any

from .models import Reply

_OVER = object()


class Line:
    """One conversation. The library's side is asyncio; the session's side waits in a thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asked: asyncio.Queue[Any] = asyncio.Queue()
        self._replies: asyncio.Queue[Reply] = asyncio.Queue()

    async def ask(self, messages: list[Any], tools: list[Any] | None) -> Reply:
        """The library asks the model."""
        await self._asked.put((messages, tools or []))
        return await self._replies.get()

    def end(self, outcome: Any) -> None:
        """The result of the finished rollout, or the exception that ended it."""
        self._asked.put_nowait((_OVER, outcome))

    def reply(self, reply: Reply) -> None:
        self._loop.call_soon_threadsafe(self._replies.put_nowait, reply)

    def hear(self, seconds: float) -> tuple[Any, Any]:
        """(messages, tools) when the model is called; (None, result) when the rollout has ended."""
        waiting = asyncio.run_coroutine_threadsafe(self._asked.get(), self._loop)
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


def plain(message: Any) -> dict[str, Any]:
    """A message of the library as JSON, without what is not set."""
    if isinstance(message, dict):
        return message
    return dict(message.model_dump(mode="json", exclude_none=True))


def is_assistant(message: Any) -> bool:
    return plain(message).get("role") == "assistant"


def as_text(messages: list[dict[str, Any]]) -> str:
    """New messages as one text, with the role where it is not the user's."""
    spoken = [(message.get("role", "user"), _content(message)) for message in messages]
    if all(role in {"user", "tool", "text"} for role, _ in spoken):
        return "\n\n".join(text for _, text in spoken)
    return "\n\n".join(f"[{role}]\n{text}" for role, text in spoken)


def _content(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    parts = [part if isinstance(part, dict) else {"text": str(part)} for part in content]
    return "\n".join(str(part.get("text") or f"[{part.get('type', 'part')}]") for part in parts)
