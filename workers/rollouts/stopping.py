"""Work that ends early when a stop is requested."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

POLL_SECONDS = 0.2

T = TypeVar("T")


async def unless_stopped(work: Coroutine[object, object, T], should_stop: Callable[[], bool]) -> T | None:
    """Return the result of `work`; None if a stop was requested first: then it was canceled and has cleaned up.

    Calls `should_stop` in a thread, five times a second.
    """

    async def wait_for_stop() -> None:
        while not await asyncio.to_thread(should_stop):
            await asyncio.sleep(POLL_SECONDS)

    working = asyncio.create_task(work)
    stop = asyncio.create_task(wait_for_stop())
    try:
        await asyncio.wait((working, stop), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        stop.result()
        return None
    finally:
        working.cancel()
        stop.cancel()
        await asyncio.gather(working, stop, return_exceptions=True)
