"""Whether the web process still works: its event loop answers, and its worker threads get to run something."""

import asyncio
import time

from starlette.concurrency import run_in_threadpool

THREADS_STUCK_SECONDS = 60.0
"""Six times the limit of a page's statements: threads that take turns are merely busy."""


class Liveness:
    """Depends on no database, so that a database that is away does not look like a web process that hangs."""

    def __init__(self) -> None:
        self._turn: asyncio.Task[None] | None = None
        self._waiting_since = 0.0

    async def is_alive(self) -> bool:
        """Answers at once. False when a no-op has waited too long for a thread; no answer at all means a stuck loop."""
        now = time.monotonic()
        if self._turn is None or self._turn.done():
            self._turn, self._waiting_since = asyncio.create_task(run_in_threadpool(_do_nothing)), now
        return now - self._waiting_since < THREADS_STUCK_SECONDS


def _do_nothing() -> None:
    """Takes a thread and gives it back."""
