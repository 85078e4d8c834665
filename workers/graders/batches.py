"""Grading many cases in parallel: results are stored as they come, a stop is obeyed, many failures pause the work."""

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator
from typing import ClassVar, Generic, Protocol, TypeVar

import structlog

from backend.domain.vocabulary import RunStatus
from workers.rollouts.stopping import unless_stopped

STORE_SECONDS = 0.5
WINDOW, MINIMUM, MAX_FAILED_SHARE = 40, 8, 0.5
"""The work pauses if more than this share of the last results failed."""

logger = structlog.get_logger(__name__)


class TooManyFailures(Exception):
    """Most of the recent results failed."""


class CaseResult(Protocol):
    error: str
    """Empty for a success."""


C = TypeVar("C")
A = TypeVar("A", bound=CaseResult)


class GradingBatch(ABC, Generic[C, A]):
    """One attempt. Cases that an earlier attempt stored are not graded again."""

    what: ClassVar[str] = "grades"

    def __init__(self, total: int, concurrency: int) -> None:
        self.total = total
        self._concurrency = min(concurrency, total)
        self._unstored: list[tuple[C, A]] = []
        self._recent: deque[str] = deque(maxlen=WINDOW)
        self._done = 0

    @abstractmethod
    def open(self) -> None:
        """Connect to the model. Connections belong to the event loop that runs."""

    @abstractmethod
    async def prepare(self) -> None:
        """Called before the first case. Raises TooManyFailures if the work cannot succeed."""

    @abstractmethod
    def cases(self) -> AsyncIterator[C]: ...

    @abstractmethod
    async def grade(self, case: C) -> A:
        """Never raises for what the model does."""

    @abstractmethod
    def store(self, batch: list[tuple[C, A]]) -> None: ...

    @abstractmethod
    def should_stop(self) -> bool: ...

    @abstractmethod
    def end(self, status: RunStatus, reason: str | None) -> None: ...

    @abstractmethod
    async def aclose(self) -> None:
        """Close the connections."""

    async def go(self) -> None:
        start = time.monotonic()
        self.open()
        try:
            status, reason = await self._outcome()
        finally:
            await self.aclose()
            await asyncio.to_thread(self._store)
        seconds = round(time.monotonic() - start, 1)
        logger.info(f"{self.what} stored", status=str(status), count=self._done, seconds=seconds)
        await asyncio.to_thread(self.end, status, reason)

    async def _outcome(self) -> tuple[RunStatus, str | None]:
        try:
            finished = await unless_stopped(self._grade_all(), self.should_stop)
        except TooManyFailures as error:
            return RunStatus.PAUSED, f"Paused after too many failures. {error}"
        return (RunStatus.COMPLETED, None) if finished else (RunStatus.STOPPED, "Stopped on request.")

    async def _grade_all(self) -> bool:
        if not self.total:
            return True
        await self.prepare()
        cases = _SharedIterator(self.cases())
        storing = asyncio.create_task(self._keep_storing())
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._concurrency):
                    group.create_task(self._grade_from(cases))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            storing.cancel()
            await asyncio.gather(storing, return_exceptions=True)
        return True

    async def _grade_from(self, cases: "_SharedIterator[C]") -> None:
        while (case := await cases.next()) is not None:
            result = await self.grade(case)
            self._unstored.append((case, result))
            self._done += 1
            self._recent.append(result.error)
            failed = [error for error in self._recent if error]
            is_many = len(self._recent) >= MINIMUM and len(failed) > MAX_FAILED_SHARE * len(self._recent)
            if result.error and is_many:
                counts = f"{len(failed)} of the last {len(self._recent)} {self.what} failed"
                raise TooManyFailures(f"{counts}. Last error: {result.error}")

    async def _keep_storing(self) -> None:
        while True:
            await asyncio.sleep(STORE_SECONDS)
            await asyncio.to_thread(self._store)

    def _store(self) -> None:
        batch, self._unstored[:] = list(self._unstored), []
        if batch:
            self.store(batch)


class _SharedIterator(Generic[C]):
    """One iterator for several tasks."""

    def __init__(self, source: AsyncIterator[C]) -> None:
        self._source = source
        self._lock = asyncio.Lock()

    async def next(self) -> C | None:
        async with self._lock:
            return await anext(self._source, None)
