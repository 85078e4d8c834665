"""Between the library's rollout, which asks a model, and a session of the wire, which is the model."""

import asyncio
import concurrent.futures
import json
import time
import uuid
from typing import Any

from verifiers.legacy.clients import Client
from verifiers.legacy.types import AssistantMessage, Response, ResponseMessage, ToolCall

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
        """The rollout is over: its result, or the exception that ended it."""
        self._asked.put_nowait((_OVER, outcome))

    def reply(self, reply: Reply) -> None:
        self._loop.call_soon_threadsafe(self._replies.put_nowait, reply)

    def hear(self, seconds: float) -> tuple[Any, Any]:
        """(messages, tools) when the model is asked; (None, result) when the rollout is over."""
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


class WirePolicy(Client):
    """The model that the library asks: whoever sits at the other end of the line."""

    def __init__(self) -> None:
        super().__init__(object())
        self.free: list[Line] = []
        """Lines that no rollout has taken up yet, in the order of their sessions."""
        self._taken: dict[str, Line] = {}

    def line_of(self, trajectory_id: str) -> Line:
        if trajectory_id not in self._taken:
            self._taken[trajectory_id] = self.free.pop(0)
        return self._taken[trajectory_id]

    async def get_response(self, prompt, model, sampling_args, tools=None, **named) -> Response:  # type: ignore[no-untyped-def]
        line = self.line_of(named["state"]["trajectory_id"])
        reply = await line.ask(list(prompt), tools)
        calls = [_call(reply)] if reply.tool else None
        message = ResponseMessage(
            content=reply.text if reply.text or not calls else None,
            tool_calls=calls,
            finish_reason="tool_calls" if calls else "stop",
            is_truncated=False,
        )
        return Response(id=uuid.uuid4().hex, created=int(time.time()), model=model, message=message)

    def setup_client(self, config: Any) -> Any:
        return None

    async def to_native_tool(self, tool: Any) -> Any:
        return tool

    async def to_native_prompt(self, messages: Any) -> tuple[Any, dict[str, Any]]:
        return messages, {}

    async def get_native_response(self, *arguments: Any, **named: Any) -> Any:
        raise NotImplementedError  # get_response does not go this way

    async def raise_from_native_response(self, response: Any) -> None:
        return None

    async def from_native_response(self, response: Any) -> Any:
        return response

    async def close(self) -> None:
        return None


def _call(reply: Reply) -> ToolCall:
    return ToolCall(
        id=f"call_{uuid.uuid4().hex[:12]}", name=reply.tool, arguments=json.dumps(reply.arguments, ensure_ascii=False)
    )


def plain(message: Any) -> dict[str, Any]:
    """A message of the library as JSON, without what is not set."""
    if isinstance(message, dict):
        return message
    return dict(message.model_dump(mode="json", exclude_none=True))


def is_assistant(message: Any) -> bool:
    return isinstance(message, AssistantMessage) or plain(message).get("role") == "assistant"


def as_text(messages: list[dict[str, Any]]) -> str:
    """New messages as one text; who speaks is said where it is not simply the user."""
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
