"""Events: NOTIFY wakes readers, who then read the rows. A lost wake-up costs time, never data."""

import asyncio
import contextlib
import logging
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Literal

import psycopg
from sqlalchemy import text
from sqlalchemy.orm import Session

from backend.settings import get_settings

logger = logging.getLogger(__name__)

_CHANNEL = "proctor"
RUNS = "runs"
"""Topic of all changes to lists of runs."""
SWEEPS = "sweeps"
"""Topic of changes to sweeps."""
REVIEW = "review"
"""Topic of new flags and verdicts."""
NOTICES = "notices"
"""Topic of new notices and the status of deliveries."""


def topic_of(
    noun: Literal["access", "draft", "export", "graders", "import", "job", "preflight", "run", "sweep", "trial"],
    *ids: uuid.UUID,
) -> str:
    """Topic of changes to one thing.

    `draft`: an environment's; `trial`: those of its draft by a person, whose id is the second; `graders`: their
    progress in a run; `access`: a person's sessions, tokens or role.
    """
    return ":".join((noun, *map(str, ids)))


def announce(session: Session, *topics: str) -> None:
    """Wake the readers of these topics when the transaction commits. Call it once per batch, not per row."""
    for topic in topics:
        session.execute(text("SELECT pg_notify(:channel, :topic)"), {"channel": _CHANNEL, "topic": topic})


class Hub:
    """One LISTEN connection per process that wakes every stream waiting for a topic."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._epoch = 0
        self._heard_at: dict[str | None, float] = {None: time.monotonic()}
        self._subscribers: defaultdict[str, set[Callable[[], None]]] = defaultdict(set)

    @contextlib.contextmanager
    def subscribed(self, topic: str, callback: Callable[[], None]) -> Iterator[None]:
        """Call `callback` in the event loop at each event of the topic."""
        self._subscribers[topic].add(callback)
        try:
            yield
        finally:
            self._subscribers[topic].discard(callback)
            if not self._subscribers[topic]:
                del self._subscribers[topic]

    async def listen(self) -> None:
        """Run for the life of the process. Each reconnection wakes all readers, so that nothing is missed."""
        dsn = get_settings().database_url.replace("postgresql+psycopg://", "postgresql://", 1)
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
                    await connection.execute(f"LISTEN {_CHANNEL}")
                    await self._wake(None)
                    async for notification in connection.notifies():
                        await self._wake(notification.payload)
            except psycopg.OperationalError as error:
                logger.warning("listening stopped, trying again: %s", error)
                await asyncio.sleep(0.5)

    async def _wake(self, topic: str | None) -> None:
        async with self._changed:
            self._heard_at[topic] = time.monotonic()
            if topic is None:
                self._epoch += 1
            else:
                self._counts[topic] += 1
            self._changed.notify_all()
        topics = list(self._subscribers) if topic is None else [topic]
        for callback in [each for name in topics for each in self._subscribers.get(name, ())]:
            callback()

    def mark(self, *topics: str) -> tuple[int, ...]:
        """Return the events heard so far. Call it before reading the rows."""
        return (self._epoch, *(self._counts[topic] for topic in topics))

    def heard_at(self, *topics: str) -> float:
        """Return the monotonic time of the last event. Rows that are read later include everything announced."""
        return max(self._heard_at.get(topic, 0.0) for topic in (None, *topics))

    async def wait(self, mark: tuple[int, ...], *topics: str, timeout: float) -> bool:
        """Wait for an event of a topic after `mark`, at most `timeout` seconds. Returns whether there was one."""
        async with self._changed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait_for(lambda: self.mark(*topics) != mark), timeout)
                return True
        return False
