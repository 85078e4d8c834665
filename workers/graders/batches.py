"""Grade many cases in parallel. Results are stored as they come; many failures pause the work."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import structlog

from workers.graders.model import GraderResult

STORE_SECONDS = 0.5
WINDOW, MINIMUM, MAX_FAILED_SHARE = 40, 8, 0.5
"""The work pauses if more than this share of the last results failed."""

logger = structlog.get_logger(__name__)

C = TypeVar("C")
R = TypeVar("R", bound=GraderResult)


class GradingPaused(Exception):
    """Most of the recent results failed."""


async def grade_cases(
    cases: AsyncIterator[C],
    grade: Callable[[C], Awaitable[R]],
    store: Callable[[list[tuple[C, R]]], None],
    *,
    concurrency: int,
) -> None:
    """Grade all cases and store their results, in a thread. `grade` never raises for what the model does.

    Raises GradingPaused. If it is canceled, it stores what it has.
    """
    unstored: list[tuple[C, R]] = []
    recent: deque[str] = deque(maxlen=WINDOW)
    reading = asyncio.Lock()

    def store_results() -> None:
        batch, unstored[:] = list(unstored), []
        if batch:
            store(batch)

    async def store_periodically() -> None:
        while True:
            await asyncio.sleep(STORE_SECONDS)
            await asyncio.to_thread(store_results)

    async def work() -> None:
        while True:
            async with reading:
                case = await anext(cases, None)
            if case is None:
                return
            result = await grade(case)
            unstored.append((case, result))
            recent.append(result.error)
            failed = [error for error in recent if error]
            if result.error and len(recent) >= MINIMUM and len(failed) > MAX_FAILED_SHARE * len(recent):
                counts = f"{len(failed)} of the last {len(recent)} grades failed"
                raise GradingPaused(f"{counts}. Last error: {result.error}")

    storing = asyncio.create_task(store_periodically())
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    finally:
        storing.cancel()
        await asyncio.gather(storing, return_exceptions=True)
        await asyncio.to_thread(store_results)
