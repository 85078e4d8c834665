"""A shelf of numbers inside the test process: tools add to it and take it as the answer. Tools appear as it fills."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from backend.domain.environments.manifest import Manifest
from backend.domain.environments.tools import write_call
from workers.environments.client import Observation

ADD = {
    "name": "add",
    "description": "Put a number on the shelf",
    "parameters": {
        "type": "object",
        "properties": {"number": {"type": "integer", "minimum": 1, "maximum": 3}, "note": {"type": "string"}},
        "required": ["number"],
        "additionalProperties": False,
    },
}
FINISH = {"name": "finish", "parameters": {"type": "object", "properties": {}}}
SCHEMA = {"type": "object", "properties": {"tool": {"type": "string"}, "arguments": {"type": "object"}}}


class ToolWorld:
    """Reaching five and finishing wins. `lists`: the observation lists the tools, `finish` only from three on."""

    action_schema = SCHEMA
    sessions = 8

    def __init__(self, *, lists: bool = False, listing: Any = None) -> None:
        self.lists, self.listing = lists, listing
        self.actions: list[dict[str, Any]] = []

    @asynccontextmanager
    async def session(self) -> AsyncIterator["_ToolSession"]:
        yield _ToolSession(self)


class _ToolSession:
    def __init__(self, world: ToolWorld) -> None:
        self.world, self.total = world, 0

    async def reset(self, arguments: Mapping[str, Any], *, timeout: float) -> Observation:
        self.total = 0
        return self._observe(done=False)

    async def step(self, action: Mapping[str, Any], *, timeout: float) -> Observation:
        self.world.actions.append(dict(action))
        if action.get("type") == "list_tools":
            return Observation({"tools": self.world.listing}, None, False, {}, {})
        if "message" in action or action["tool"] == "finish":
            return self._observe(done=True)
        self.total += action["arguments"]["number"]
        return self._observe(done=False)

    async def state(self, *, timeout: float) -> dict[str, Any]:
        left = 5 - self.total
        gold = write_call("add", {"number": min(left, 3)}) if left > 0 else write_call("finish", {})
        return {"scripts": {"gold": gold}}

    def _observe(self, *, done: bool) -> Observation:
        fields: dict[str, Any] = {"total": self.total}
        if self.world.lists:
            fields["tools"] = [ADD, FINISH] if self.total >= 3 else [ADD]
        return Observation(fields, None, done, {}, {"win": float(done and self.total == 5)})


def tool_manifest(**action: Any) -> Manifest:
    action = {"format": "tool", "field": "tool", "tools": [ADD, FINISH], **action}
    agent = {"system": "Reach five.", "observation": "{{ total }} on the shelf", "action": action}
    block = {"agent": agent, "rewards": {"win": 1.0, "format": 0.2}, "episode": {"max_turns": 6}}
    return Manifest.model_validate({"name": "shelf", "proctor": block})
