"""Live blocks: only what changed, at most four times a second, resumed without repeating or losing anything."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from fastapi import FastAPI, Request
from fastapi.sse import ServerSentEvent
from sqlalchemy import text
from sqlalchemy.orm import Session

from backend.core.events import Hub
from backend.web import streams
from backend.web.streams import AGAIN, END, live

Start = Callable[..., AsyncIterator[ServerSentEvent]]


class Board:
    """The content of a page, and how often it was rendered."""

    def __init__(self) -> None:
        self.blocks = {"table": "<p>1</p>", "head": "<h1>a</h1>"}
        self.drawn: list[float] = []

    def draw(self, session: Session) -> dict[str, str]:
        self.drawn.append(time.monotonic())
        return dict(self.blocks)


@pytest.fixture
def board() -> Board:
    return Board()


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def start(board: Board, hub: Hub, session: Session) -> Start:
    @contextmanager
    def transaction() -> Iterator[Session]:
        yield session

    app = FastAPI()
    app.state.hub, app.state.transaction = hub, transaction

    def begin(last_event_id: str = "") -> AsyncIterator[ServerSentEvent]:
        headers = [(b"last-event-id", last_event_id.encode())] if last_event_id else []
        request = Request({"type": "http", "app": app, "headers": headers, "method": "GET", "path": "/"})
        return live(request, ("runs",), board.draw)

    return begin


async def _next(stream: AsyncIterator[ServerSentEvent]) -> ServerSentEvent:
    return await asyncio.wait_for(anext(stream), 3)


async def test_it_begins_with_every_block_and_then_sends_only_changes(start: Start, board: Board, hub: Hub) -> None:
    stream = start()
    first = [await _next(stream), await _next(stream)]
    assert [event.event for event in first] == ["table", "head"]
    board.blocks["head"] = "<h1>b</h1>"
    waiting = asyncio.create_task(_next(stream))
    await asyncio.sleep(0.05)
    await hub._wake("runs")
    event = await waiting
    assert (event.event, event.raw_data) == ("head", "<h1>b</h1>")


async def test_a_resumed_stream_sends_exactly_what_the_browser_lacks(start: Start, board: Board) -> None:
    stream = start()
    await _next(stream)
    last = await _next(stream)
    board.blocks["table"] = "<p>2</p>"
    resumed = start(last.id or "")
    assert (await _next(resumed)).raw_data == "<p>2</p>"


async def test_a_damaged_event_id_sends_everything(start: Start) -> None:
    stream = start("rubbish,=,===")
    assert [(await _next(stream)).event for _ in range(2)] == ["table", "head"]


async def test_other_topics_do_not_draw(start: Start, board: Board, hub: Hub) -> None:
    stream = start()
    await _next(stream)
    await _next(stream)
    waiting = asyncio.create_task(_next(stream))
    await asyncio.sleep(0.3)
    await hub._wake("run:other")
    await asyncio.sleep(0.1)
    assert len(board.drawn) == 1
    waiting.cancel()


@pytest.mark.slow
async def test_a_flood_of_news_draws_at_most_four_times_a_second(start: Start, board: Board, hub: Hub) -> None:
    async def read() -> None:
        async for _ in start():
            pass

    async def flood() -> None:
        while True:
            board.blocks["table"] = f"<p>{time.monotonic()}</p>"
            await hub._wake("runs")
            await asyncio.sleep(0.005)

    tasks = [asyncio.create_task(read()), asyncio.create_task(flood())]
    await asyncio.sleep(1.1)
    for task in tasks:
        task.cancel()
    assert 3 <= len(board.drawn) <= 5


async def test_what_was_excluded_is_drawn_soon_without_news(start: Start, board: Board) -> None:
    board.blocks[AGAIN] = "0.3"
    stream = start()
    assert [(await _next(stream)).event for _ in range(2)] == ["table", "head"]
    board.blocks = {"table": "<p>2</p>"}
    assert (await _next(stream)).raw_data == "<p>2</p>"
    first, second = board.drawn
    assert 0.3 <= second - first < 0.5, "the shortest pause is part of the wait"


async def test_the_hub_knows_when_it_last_heard_of_a_topic(hub: Hub) -> None:
    opened = hub.heard_at("runs")
    await hub._wake("runs")
    heard = hub.heard_at("run:other", "runs")
    assert hub.heard_at("run:other") == opened < heard
    await hub._wake(None)
    assert hub.heard_at("run:other") >= heard, "a reconnection may have missed events of every topic"


async def test_the_end_block_closes_the_stream(start: Start, board: Board) -> None:
    board.blocks[END] = "over"
    assert [event.event async for event in start()] == ["table", "head", END]


async def test_a_stream_ends_after_its_lifetime(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LIFETIME_SECONDS", 0.0)
    assert [event.event async for event in start()] == ["table", "head"]


async def test_an_announcement_in_postgres_reaches_the_stream(
    start: Start, board: Board, hub: Hub, session: Session, engine: object
) -> None:
    listening = asyncio.create_task(hub.listen())
    await asyncio.sleep(0.3)
    stream = start()
    await _next(stream)
    await _next(stream)
    board.blocks["table"] = "<p>3</p>"
    waiting = asyncio.create_task(_next(stream))
    await asyncio.sleep(0.3)
    await asyncio.to_thread(_announce, engine)
    began = time.monotonic()
    assert (await waiting).raw_data == "<p>3</p>"
    assert time.monotonic() - began < 1.0
    listening.cancel()


def _announce(engine: SimpleNamespace) -> None:
    with engine.begin() as connection:
        connection.execute(text("SELECT pg_notify('proctor', 'runs')"))
