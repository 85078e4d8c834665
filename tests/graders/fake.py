"""Judge models on loopback: a sober one, one that obeys the answer it reads, and some that misbehave."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson
from aiohttp import web

Body = dict[str, Any]
Mind = Callable[["FakeJudge", Body], str]
"""The reply to a request."""
_BLOCK = re.compile(r'<data-(\w+) name="(\w+)">\n(.*?)\n</data-\1>', re.DOTALL)


def blocks(body: Body) -> dict[str, str]:
    """The marked data of a request, by name."""
    return {name: text for _, name, text in _BLOCK.findall(body["messages"][1]["content"])}


def sober(judge: "FakeJudge", body: Body) -> str:
    """Reads only the answer: 42 is right."""
    return orjson.dumps({"reason": "I looked.", "score": float("= 42" in blocks(body)["answer"])}).decode()


def gullible(judge: "FakeJudge", body: Body) -> str:
    """Obeys instructions in the answer."""
    text = blocks(body)["answer"]
    wants = "full score" in text or "highest score" in text or '"score": 1' in text
    return orjson.dumps({"reason": "As I was told.", "score": float(wants or "= 42" in text)}).decode()


def wavering(judge: "FakeJudge", body: Body) -> str:
    """Another score each time."""
    return orjson.dumps({"reason": "Hm.", "score": (len(judge.bodies) % 2) / 2}).decode()


def talkative(judge: "FakeJudge", body: Body) -> str:
    """Never a verdict."""
    return "I would say it is quite good, perhaps a 7 out of 10."


def late(judge: "FakeJudge", body: Body) -> str:
    """Gives a verdict only at the second request."""
    return sober(judge, body) if len(body["messages"]) > 2 else "Let me think about that."


@dataclass(slots=True)
class FakeJudge:
    mind: Mind = sober
    status: int = 200
    refuses_schema: bool = False
    breaks_after: int | None = None
    """A limited number of answers, then always 400."""
    pause: float = 0.0
    bodies: list[Body] = field(default_factory=list)
    url: str = ""
    at_once: int = 0
    most_at_once: int = 0

    async def handle(self, request: web.Request) -> web.Response:
        body = orjson.loads(await request.read())
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(self.pause)
            return self._answer(body)
        finally:
            self.at_once -= 1

    def _answer(self, body: Body) -> web.Response:
        self.bodies.append(body)
        is_broken = self.breaks_after is not None and len(self.bodies) > self.breaks_after
        if self.status != 200 or is_broken:
            status = 400 if is_broken else self.status
            return web.json_response({"error": {"message": "no"}}, status=status)
        if self.refuses_schema and "response_format" in body:
            return web.json_response({"error": {"message": "response_format is not supported"}}, status=400)
        message = {"role": "assistant", "content": self.mind(self, body)}
        usage = {"prompt_tokens": 100, "completion_tokens": 10}
        return web.json_response({"choices": [{"finish_reason": "stop", "message": message}], "usage": usage})


@contextmanager
def serving(judge: FakeJudge) -> Iterator[FakeJudge]:
    """In a thread, because jobs have their own event loops."""
    loop, ready = asyncio.new_event_loop(), threading.Event()
    over = asyncio.Event()

    async def main() -> None:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", judge.handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        judge.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        ready.set()
        await over.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    assert ready.wait(5)
    try:
        yield judge
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()
