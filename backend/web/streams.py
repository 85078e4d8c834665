"""Live pages: one stream a page; an event is the name of the block that it replaces."""

import asyncio
import time
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from fastapi import Request
from fastapi.concurrency import run_in_threadpool
from fastapi.sse import ServerSentEvent
from sqlalchemy.orm import Session

from backend.core.events import Hub
from backend.errors import AppError
from backend.web.page import render_block

END = "end"
"""A block of this name closes the stream: nothing will change any more."""
AGAIN = "again"
"""A block of this name is not sent: something was left out of the others, draw them again in so many seconds."""
SHORTEST_PAUSE_SECONDS = 0.25
"""At most four updates a second."""
LONGEST_PAUSE_SECONDS = 15.0
"""Blocks are drawn anew after this long even when nothing was heard: clocks move on."""
LIFETIME_SECONDS = 600.0
"""The browser connects again with `Last-Event-ID`, so that nobody holds an outdated sign-in for ever."""

Render = Callable[[Session], dict[str, str]]


class Ending(Protocol):
    """The context of a page about something that comes to an end."""

    @property
    def is_over(self) -> bool: ...


async def live(request: Request, topics: tuple[str, ...], render: Render) -> AsyncIterator[ServerSentEvent]:
    """Send the blocks that `render` returns whenever they changed. No session is held between two drawings.

    A name without an element of that id reaches scripts as a DOM event (a chart's `points`). The event id holds a
    checksum of every block sent, so that a resumed stream sends exactly what the browser lacks.
    """
    hub: Hub = request.app.state.hub
    sent = _read_id(request.headers.get("last-event-id", ""))
    ends_at = time.monotonic() + LIFETIME_SECONDS
    while True:
        mark = hub.mark(*topics)
        try:
            blocks = await run_in_threadpool(_draw, request, render)
        except AppError:  # what the page was about is not there (any more); the answer has begun, so it can only end
            blocks = {END: ""}
        again = float(blocks.pop(AGAIN, LONGEST_PAUSE_SECONDS))
        for name, html in blocks.items():
            checksum = f"{zlib.crc32(html.encode()):08x}"
            if sent.get(name) != checksum:
                sent[name] = checksum
                yield ServerSentEvent(raw_data=html, event=name, id=_make_id(sent))
        remaining = ends_at - time.monotonic()
        if END in blocks or remaining <= 0:
            return
        await asyncio.sleep(SHORTEST_PAUSE_SECONDS)
        await hub.wait(mark, *topics, timeout=min(LONGEST_PAUSE_SECONDS, again, remaining))


async def live_blocks(
    request: Request, topics: tuple[str, ...], template: str, blocks: Sequence[str], read: Callable[[Session], Ending]
) -> AsyncIterator[ServerSentEvent]:
    """Send these blocks of a page, drawn of the context that `read` gives, until what it is about is over."""

    def render(session: Session) -> dict[str, str]:
        context = read(session)
        drawn = {name: render_block(request, template, name, context) for name in blocks}
        return drawn | ({END: ""} if context.is_over else {})

    async for event in live(request, topics, render):
        yield event


def _draw(request: Request, render: Render) -> dict[str, str]:
    with request.app.state.transaction() as session:
        return render(session)


def _make_id(sent: dict[str, str]) -> str:
    return ",".join(f"{name}={checksum}" for name, checksum in sent.items())


def _read_id(event_id: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in event_id.split(",") if "=" in part)
    return {name: checksum for name, _, checksum in pairs}
