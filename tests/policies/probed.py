"""A model endpoint on loopback with several models, for connection tests: accepts the configured parameters."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web


@dataclass(slots=True)
class ProbedEndpoint:
    """Known models and accepted parameters. Default: everything."""

    key: str = ""
    models: list[str] | None = field(default_factory=lambda: ["small", "large"])
    """None: it has no list."""
    refuses: frozenset[str] = frozenset()
    """Fields of a body that it answers with 400."""
    ignores: frozenset[str] = frozenset()
    """Fields that it takes without doing anything."""
    status: int = 200
    """Of completions."""
    asked: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    async def list_models(self, request: web.Request) -> web.Response:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return _error(401, f"wrong key {request.headers.get('Authorization', '')}")
        if self.models is None:
            return _error(404, "no such page")
        return web.json_response({"data": [{"id": model} for model in self.models]})

    async def complete(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        self.asked.append(body)
        if self.status != 200:
            return _error(self.status, "not today")
        if taken := self.refuses & body.keys():
            return _error(400, f"unknown field {sorted(taken)[0]}; did you mean max_completion_tokens?")
        return web.json_response(self._answer({name: body[name] for name in body.keys() - self.ignores}))

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": f"Hello {0 if 'seed' in body else len(self.asked)}"}
        choice: dict[str, Any] = {"index": 0, "finish_reason": "stop", "message": message}
        if "tools" in body:
            call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}}
            message |= {"content": None, "tool_calls": [call]}
        if "response_format" in body:
            message["content"] = '{"is_even": true}'
        if "logprobs" in body:
            choice["logprobs"] = {"content": [{"token": "Hello", "logprob": -0.1}]}
        return {"choices": [choice], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}


@asynccontextmanager
async def probed(endpoint: ProbedEndpoint) -> AsyncIterator[ProbedEndpoint]:
    app = web.Application()
    app.router.add_get("/v1/models", endpoint.list_models)
    app.router.add_post("/v1/chat/completions", endpoint.complete)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    endpoint.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield endpoint
    finally:
        await runner.cleanup()


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status)
