"""The time that an episode may take. It stands still while the episode waits for a place at the policy."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Deadline:
    """Around `asyncio.timeout`: `async with deadline.timeout: …`."""

    def __init__(self, seconds: float) -> None:
        self.timeout = asyncio.timeout(seconds)

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """A queue is nobody's slowness: what waits in it must not run out of time."""
        ends_at = self.timeout.when()
        if ends_at is None:  # it stands still already
            yield
            return
        loop = asyncio.get_running_loop()
        left = ends_at - loop.time()
        self.timeout.reschedule(None)
        try:
            yield
        finally:
            self.timeout.reschedule(loop.time() + left)
