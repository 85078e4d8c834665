"""OpenEnv's WebSocket wire, served without `openenv`: it needs another version of `mcp` than the library does.

The same classes as in `openenv.core.env_server`, as far as the adapter uses them.
"""

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect


class WireAction(BaseModel):
    model_config = ConfigDict(extra="forbid")

    metadata: dict[str, Any] = Field(default_factory=dict)


class WireObservation(BaseModel):
    model_config = ConfigDict(extra="forbid")

    done: bool = False
    reward: float | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class WireState(BaseModel):
    model_config = ConfigDict(extra="allow")

    episode_id: str | None = None
    step_count: int = 0


class WireEnvironment:
    reset: Callable[..., WireObservation]
    step: Callable[..., WireObservation]
    close: Callable[[], None]
    state: WireState


def create_app(
    factory: Callable[[], WireEnvironment],
    action: type[WireAction],
    observation: type[WireObservation],
    env_name: str = "",
    max_concurrent_envs: int = 1,
) -> Starlette:
    """One WebSocket is one session: its frames are answered in order, each in a separate thread."""
    active = 0

    async def serve(socket: WebSocket) -> None:
        nonlocal active
        await socket.accept()
        if active >= max_concurrent_envs:
            message = (
                f"Server at capacity: {active}/{max_concurrent_envs} sessions active. Cannot accept new connections."
            )
            await socket.send_json({"type": "error", "data": {"message": message, "code": "CAPACITY_REACHED"}})
            await socket.close()
            return
        active += 1
        environment, thread = factory(), ThreadPoolExecutor(1)
        try:
            while True:
                kind, data = await _answer(environment, thread, action, await socket.receive_text())
                if kind == "close":
                    return
                await socket.send_json({"type": kind, "data": data})
        except WebSocketDisconnect:
            return
        finally:
            active -= 1
            environment.close()
            thread.shutdown(wait=False, cancel_futures=True)

    models = {"action": action, "observation": observation, "state": WireState}
    answers: dict[str, object] = {
        "/health": {"status": "healthy"},
        "/metadata": {"name": env_name, "description": f"{env_name} environment", "version": "1.0.0"},
        "/schema": {name: model.model_json_schema() for name, model in models.items()},
    }
    routes = [Route(path, JSONResponse(content)) for path, content in answers.items()]
    return Starlette(routes=[*routes, WebSocketRoute("/ws", serve)])


async def _answer(
    environment: WireEnvironment, thread: ThreadPoolExecutor, action: type[WireAction], text: str
) -> tuple[str, dict[str, Any]]:
    """Handle one frame. Returns the type and the data of the answer."""
    try:
        frame = json.loads(text)
        kind, data = frame.get("type"), frame.get("data") or {}
    except (ValueError, AttributeError) as error:
        return "error", {"message": f"Invalid JSON: {error}", "code": "INVALID_JSON"}
    try:
        match kind:
            case "reset":
                call = partial(environment.reset, **data)
            case "step":
                call = partial(environment.step, action.model_validate(data))
            case "state":
                return "state", environment.state.model_dump(mode="json")
            case "close":
                return "close", {}
            case _:
                return "error", {"message": f"Unknown message type: {kind}", "code": "UNKNOWN_TYPE"}
        fields = (await asyncio.get_running_loop().run_in_executor(thread, call)).model_dump(mode="json")
    except ValidationError as error:
        errors = json.loads(error.json(include_url=False, include_context=False))
        return "error", {"message": "Invalid message", "code": "VALIDATION_ERROR", "errors": errors}
    except Exception as error:
        return "error", {"message": str(error), "code": "EXECUTION_ERROR"}
    # reward and `done` are next to the observation; the metadata is in both places
    shown = {"reward": fields.pop("reward"), "done": fields.pop("done"), "observation": fields}
    return "observation", {**shown, "metadata": fields["metadata"]} if fields["metadata"] else shown
