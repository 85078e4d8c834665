"""Live pages: one event stream per page. An event is named after the block that it replaces."""

import asyncio
import inspect
import time
import zlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from inspect import Parameter
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.core.events import Hub
from backend.errors import AppError
from backend.web.dependencies import in_transaction
from backend.web.page import page, render_block

END = "end"
"""A block of this name closes the stream: nothing will change anymore."""
AGAIN = "again"
"""A block of this name is not sent. It has the seconds after which the incomplete other blocks are rendered again."""
SHORTEST_PAUSE_SECONDS = 0.25
"""At most four updates per second."""
BURST_SECONDS = 0.03
"""A batch is announced more than once, for its rollouts and for the progress. One rendering shows all of it."""
LONGEST_PAUSE_SECONDS = 15.0
"""Blocks are rendered again after this long even without news, because they show times."""
LIFETIME_SECONDS = 600.0
"""The browser reconnects with `Last-Event-ID`, so that no stream outlives a sign-in for long."""

Render = Callable[[Session], dict[str, str]]
Read = TypeVar("Read", bound=Callable[..., object])


async def live(request: Request, topics: tuple[str, ...], render: Render) -> AsyncIterator[ServerSentEvent]:
    """Send the blocks that `render` returns whenever they change. No session is held in between.

    A name without an element of that id reaches scripts as a DOM event (a chart's `points`). The event id holds a
    checksum of every block sent, so that a resumed stream sends exactly what the browser lacks.
    """
    hub: Hub = request.app.state.hub
    pairs = (part.partition("=") for part in request.headers.get("last-event-id", "").split(",") if "=" in part)
    sent = {name: checksum for name, _, checksum in pairs}

    ends_at = time.monotonic() + LIFETIME_SECONDS
    while True:
        mark, began_at = hub.mark(*topics), time.monotonic()
        try:
            blocks = await run_in_threadpool(in_transaction, request, render)
        except AppError:  # the page's subject is gone; the response has started, so it can only end
            blocks = {END: ""}
        again = float(blocks.pop(AGAIN, LONGEST_PAUSE_SECONDS))
        checksums = {name: f"{zlib.crc32(html.encode()):08x}" for name, html in blocks.items()}
        changed = [name for name, checksum in checksums.items() if sent.get(name) != checksum]
        sent |= checksums
        event_id = ",".join(f"{name}={checksum}" for name, checksum in sent.items())
        for name in changed:  # a stream that breaks before the last one sends these blocks again
            yield ServerSentEvent(raw_data=blocks[name], event=name, id=event_id if name == changed[-1] else None)
        remaining = ends_at - time.monotonic()
        if END in blocks or remaining <= 0:
            return
        # From start to start, so that a stream keeps up with news that come as often. At most half the time is spent.
        took = min(time.monotonic() - began_at, SHORTEST_PAUSE_SECONDS)
        pause = max(SHORTEST_PAUSE_SECONDS - took, took)
        await asyncio.sleep(pause)
        await hub.wait(mark, *topics, timeout=max(min(LONGEST_PAUSE_SECONDS, again, remaining) - pause, 0.0))
        await asyncio.sleep(hub.heard_at(*topics) + BURST_SECONDS - time.monotonic())


async def live_blocks(
    request: Request,
    topics: tuple[str, ...],
    template: str,
    blocks: Sequence[str],
    read: Callable[[Session], object],
) -> AsyncIterator[ServerSentEvent]:
    """Send blocks of a page, rendered with the context that `read` returns, until its subject ends (`is_over`).

    A block of another template is written `runs/run.html#run_head`. `events` of the context are sent to scripts.
    """

    def render(session: Session) -> dict[str, str]:
        context = read(session)
        rendered = {}
        for block in blocks:
            place, _, name = block.rpartition("#")
            rendered[name] = render_block(request, place or template, name, context)
        names = ("is_over", "events")
        found = {name: getattr(context, name) for name in names if hasattr(context, name)}
        values: Mapping[str, Any] = context if isinstance(context, Mapping) else found
        rendered |= values.get("events", {})
        return rendered | ({END: ""} if values.get("is_over") else {})

    async for event in live(request, topics, render):
        yield event


def live_page(
    router: APIRouter,
    path: str,
    template: str,
    *blocks: str,
    topics: Sequence[str] | Callable[..., Sequence[str]],
    swapped: str | None = None,
) -> Callable[[Read], Read]:
    """Declare a page at `path`, and at `path/events` the stream of its `blocks`, by the function that reads for both.

    The function takes what a route may take: `session`, an actor with the required role, segments, queries. A topic may
    name its parameters (`run:{run_id}`). Topics that depend on rows are found by a dependency before the stream
    begins, because a stream holds no transaction. `swapped`: the block for htmx when it requests a part of the page.
    """

    def declare(read: Read) -> Read:
        def show(http: Request, **given: Any) -> HTMLResponse:
            return page(http, template, read(**given), block=swapped)

        async def follow(http: Request, **given: Any) -> AsyncIterator[ServerSentEvent]:
            found = tuple(each.format_map(given) for each in given.pop("topics", topics))
            async for event in live_blocks(http, found, template, blocks, partial(read, **given)):
                yield event

        http = Parameter("http", Parameter.KEYWORD_ONLY, annotation=Request)
        given = [
            each.replace(kind=Parameter.KEYWORD_ONLY)
            for each in inspect.signature(read, eval_str=True).parameters.values()
        ]
        awaited = [each for each in given if each.name != "session"]
        if callable(topics):
            found = Annotated[tuple[str, ...], Depends(topics)]
            awaited.append(Parameter("topics", Parameter.KEYWORD_ONLY, annotation=found))
        show.__signature__ = inspect.Signature([http, *given])  # type: ignore[attr-defined]
        follow.__signature__ = inspect.Signature([http, *awaited])  # type: ignore[attr-defined]
        router.add_api_route(path, show, name=read.__name__, response_class=HTMLResponse)
        events, name = f"{path.rstrip('/')}/events", f"follow_{read.__name__}"
        router.add_api_route(events, follow, name=name, response_class=EventSourceResponse)
        return read

    return declare
