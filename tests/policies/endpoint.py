"""A chat completions endpoint on loopback that answers well or misbehaves, as configured."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
from aiohttp import web

from backend.domain.rollouts.rollout import task_of
from backend.domain.runs.plans import Sampling
from backend.domain.vocabulary import Split
from tests.rollouts.world import make_manifest
from workers.policies.base import EpisodeStart, Reply, Turn
from workers.policies.openai_api import Endpoint, OpenAiPolicy

KEY = "sk-very-secret-0123456789"
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FakeEndpoint:
    """Gives its answers in order, then the last one repeatedly, and records its requests."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = answers
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""
        self.runner: web.AppRunner | None = None
        self.site: web.TCPSite | None = None
        self.loop: asyncio.AbstractEventLoop | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(orjson.loads(await request.read()))
        self.headers.append(dict(request.headers))
        return await self.answers[min(len(self.bodies), len(self.answers)) - 1](request)

    async def listen(self) -> None:
        """Take connections, after a while of being down at the same address."""
        assert self.runner is not None
        port = int(self.url.rsplit(":", 1)[1].split("/")[0]) if self.url else 0
        self.loop = asyncio.get_running_loop()
        self.site = web.TCPSite(self.runner, "127.0.0.1", port)
        await self.site.start()
        self.url = f"http://127.0.0.1:{self.runner.addresses[0][1]}/v1"


FAKE = web.AppKey("fake", FakeEndpoint)


@asynccontextmanager
async def serving(*answers: Answer) -> AsyncIterator[FakeEndpoint]:
    endpoint = FakeEndpoint(*answers)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", endpoint.handle)
    app.router.add_post("/v1/completions", endpoint.handle)
    app[FAKE] = endpoint
    endpoint.runner = web.AppRunner(app, shutdown_timeout=0.1)
    await endpoint.runner.setup()
    await endpoint.listen()
    try:
        yield endpoint
    finally:
        await endpoint.runner.cleanup()


def completion(content: Any = "<move>1</move>", *, finish: str = "stop", **message: Any) -> Answer:
    return json(
        {
            "id": "c",
            "choices": [{"index": 0, "finish_reason": finish, "message": {"content": content, **message}}],
            "usage": {"prompt_tokens": 20, "completion_tokens": 5},
        }
    )


def json(body: Any) -> Answer:
    return raw(orjson.dumps(body))


def raw(body: bytes, status: int = 200, content_type: str = "application/json", **headers: str) -> Answer:
    async def answer(request: web.Request) -> web.StreamResponse:
        headers_ = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(body=body, status=status, content_type=content_type, headers=headers_)

    return answer


def error(status: int, message: str = "not now", **headers: str) -> Answer:
    return raw(orjson.dumps({"error": {"message": message}}), status, **headers)


async def hang(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(30)
    raise AssertionError


async def go_down(request: web.Request) -> web.StreamResponse:
    """Stop answering: open connections are cut, new ones refused."""
    endpoint = request.app[FAKE]
    site, endpoint.site = endpoint.site, None
    assert request.transport is not None
    request.transport.abort()
    if site is not None:
        await site.stop()
    return web.Response()


async def break_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"choices": [')
    assert request.transport is not None
    request.transport.abort()
    return response


async def ask(url: str, *, sampling: Sampling | None = None, text: str = "0 of 3", **options: Any) -> Reply:
    """One reply from a policy of its own at this endpoint."""
    settings = {"attempts": 3, "first_wait_seconds": 0.001, "timeout_seconds": 0.3, **options}
    policy = OpenAiPolicy(Endpoint(url, "small", KEY, **settings), sampling or Sampling())
    manifest = make_manifest()
    try:
        player = await policy.begin(EpisodeStart(task_of(manifest, Split.TRAIN, 0), manifest, 0, seed=2**40 + 5))
        messages = [{"role": "system", "content": "Count."}, {"role": "user", "content": text}]
        return await player.act(Turn(0, messages, text, {}, {}, {}, max_tokens=64))
    finally:
        await policy.aclose()
