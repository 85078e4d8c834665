"""The model that the library calls: the policy at the other end of a line."""

import json
import time
import uuid
from typing import Any

from verifiers.legacy.clients import Client
from verifiers.legacy.types import Response, ResponseMessage, ToolCall

from .lines import Line
from .models import Reply


class WirePolicy(Client):
    """The model that the library calls: the policy at the other end of the line."""

    def __init__(self) -> None:
        super().__init__(object())
        self.free: list[Line] = []
        """Lines that no rollout has claimed yet, in the order of their sessions."""
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
