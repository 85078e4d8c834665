"""OpenEnv's WebSocket wire, served without `openenv`: it needs another version of `mcp` than the library does.

The same names as `openenv.core.env_server`, as far as the adapter uses them.
"""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

ActionT = TypeVar("ActionT")
ObservationT = TypeVar("ObservationT")
StateT = TypeVar("StateT")


class Action(BaseModel):
    model_config = ConfigDict(extra="forbid")

    metadata: dict[str, Any] = Field(default_factory=dict)


class Observation(BaseModel):
    model_config = ConfigDict(extra="forbid")

    done: bool = False
    reward: float | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class State(BaseModel):
    model_config = ConfigDict(extra="allow")

    episode_id: str | None = None
    step_count: int = 0


class Environment(Generic[ActionT, ObservationT, StateT]):
    def __init__(self) -> None:
        pass

    def close(self) -> None:
        pass


def create_app(
    factory: Callable[[], Any],
    action: type[Action],
    observation: type[Observation],
    env_name: str = "",
    max_concurrent_envs: int = 1,
) -> Starlette:
    wire = _Wire(factory, action, max_concurrent_envs)
    schemas = {
        "action": action.model_json_schema(),
        "observation": observation.model_json_schema(),
        "state": State.model_json_schema(),
    }

    async def health(request: Request) -> JSONResponse:
        return JSONResponse({"status": "healthy"})

    async def metadata(request: Request) -> JSONResponse:
        return JSONResponse({"name": env_name, "description": f"{env_name} environment", "version": "1.0.0"})

    async def schema(request: Request) -> JSONResponse:
        return JSONResponse(schemas)

    routes = [Route("/health", health), Route("/metadata", metadata), Route("/schema", schema)]
    return Starlette(routes=[*routes, WebSocketRoute("/ws", wire.serve)])


class _Wire:
    """One WebSocket is one session: its frames are answered in order, each in a separate thread."""

    def __init__(self, factory: Callable[[], Any], action: type[Action], limit: int) -> None:
        self._factory, self._action, self._limit = factory, action, limit
        self._active = 0

    async def serve(self, socket: WebSocket) -> None:
        await socket.accept()
        if self._active >= self._limit:
            told = f"Server at capacity: {self._active}/{self._limit} sessions active. Cannot accept new connections."
            await _send(socket, "error", {"message": told, "code": "CAPACITY_REACHED"})
            await socket.close()
            return
        self._active += 1
        environment, thread = self._factory(), ThreadPoolExecutor(1)
        try:
            while True:
                kind, data = await self._answer(environment, thread, await socket.receive_text())
                if kind == "close":
                    return
                await _send(socket, kind, data)
        except WebSocketDisconnect:
            return
        finally:
            self._active -= 1
            environment.close()
            thread.shutdown(wait=False, cancel_futures=True)

    async def _answer(self, environment: Any, thread: ThreadPoolExecutor, text: str) -> tuple[str, dict[str, Any]]:
        try:
            frame = json.loads(text)
            kind, data = frame.get("type"), frame.get("data") or {}
        except (ValueError, AttributeError) as error:
            return "error", {"message": f"Invalid JSON: {error}", "code": "INVALID_JSON"}
        loop = asyncio.get_running_loop()
        try:
            match kind:
                case "reset":
                    return "observation", _shown(await loop.run_in_executor(thread, lambda: environment.reset(**data)))
                case "step":
                    action = self._action.model_validate(data)
                    return "observation", _shown(await loop.run_in_executor(thread, environment.step, action))
                case "state":
                    return "state", environment.state.model_dump(mode="json")
                case "close":
                    return "close", {}
        except ValidationError as error:
            told = json.loads(error.json(include_url=False, include_context=False))
            return "error", {"message": "Invalid message", "code": "VALIDATION_ERROR", "errors": told}
        except Exception as error:
            return "error", {"message": str(error), "code": "EXECUTION_ERROR"}
        return "error", {"message": f"Unknown message type: {kind}", "code": "UNKNOWN_TYPE"}


async def _send(socket: WebSocket, kind: str, data: dict[str, Any]) -> None:
    await socket.send_text(json.dumps({"type": kind, "data": data}, ensure_ascii=False))


def _shown(observation: Observation) -> dict[str, Any]:
    """Reward and `done` are next to the observation; the metadata is in both places."""
    fields = observation.model_dump(mode="json")
    reward, done = fields.pop("reward"), fields.pop("done")
    shown = {"observation": fields, "reward": reward, "done": done}
    return {**shown, "metadata": fields["metadata"]} if fields["metadata"] else shown
