"""Work that ends early when somebody asks for it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

POLL_SECONDS = 0.2

T = TypeVar("T")


async def unless_stopped(work: Coroutine[Any, Any, T], should_stop: Callable[[], bool]) -> T | None:
    """The result of `work`; None when a stop was asked for first: then it was cancelled and has cleaned up.

    `should_stop` is asked in a thread, five times a second.
    """
    working = asyncio.create_task(work)
    stop = asyncio.create_task(_wait_for(should_stop))
    both: set[asyncio.Task[Any]] = {working, stop}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        stop.result()
        return None
    finally:
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)


async def _wait_for(should_stop: Callable[[], bool]) -> None:
    while not await asyncio.to_thread(should_stop):
        await asyncio.sleep(POLL_SECONDS)
