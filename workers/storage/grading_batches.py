"""Asking a policy about many things, several at a time: what was said is stored as it comes, a stop is heeded, and it
pauses when most of it fails. Judges and questions go their rounds this way.
"""

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
WINDOW, AT_LEAST, SHARE = 40, 8, 0.5
"""More than this share of the last answers failed: it pauses."""

logger = structlog.get_logger(__name__)


class TooManyFailures(Exception):
    """Most of the recent answers failed."""


class Outcome(Protocol):
    """What came of asking about one thing."""

    error: str
    """Why there is nothing; empty where there is."""


C = TypeVar("C")
A = TypeVar("A", bound=Outcome)


class Round(ABC, Generic[C, A]):
    """One attempt at it. What was stored by an earlier one is not asked for again."""

    what: ClassVar[str] = "answers"

    def __init__(self, wanted: int, concurrency: int) -> None:
        self.wanted = wanted
        """How many things are to be asked about."""
        self._lanes = min(concurrency, wanted)
        self._unstored: list[tuple[C, A]] = []
        self._recent: deque[str] = deque(maxlen=WINDOW)
        self._done = 0

    @abstractmethod
    def open(self) -> None:
        """Make what asks: its connections belong to the loop that runs."""

    @abstractmethod
    async def prepare(self) -> None:
        """Before the first one. Raises TooManyFailures where there is no use in going on."""

    @abstractmethod
    def cases(self) -> AsyncIterator[C]:
        """What to ask about, one after the other."""

    @abstractmethod
    async def consider(self, case: C) -> A:
        """Ask. Never raises for what the policy does."""

    @abstractmethod
    def store(self, batch: list[tuple[C, A]]) -> None: ...

    @abstractmethod
    def should_stop(self) -> bool: ...

    @abstractmethod
    def end(self, status: RunStatus, reason: str | None) -> None: ...

    @abstractmethod
    async def aclose(self) -> None:
        """Give connections back."""

    async def go(self) -> None:
        began = time.monotonic()
        self.open()
        try:
            status, reason = await self._outcome()
        finally:
            await self.aclose()
            await asyncio.to_thread(self._store)
        seconds = round(time.monotonic() - began, 1)
        logger.info(f"{self.what} given", status=str(status), count=self._done, seconds=seconds)
        await asyncio.to_thread(self.end, status, reason)

    async def _outcome(self) -> tuple[RunStatus, str | None]:
        try:
            finished = await unless_stopped(self._work(), self.should_stop)
        except TooManyFailures as error:
            return RunStatus.PAUSED, f"Paused because too much failed. {error}"
        return (RunStatus.COMPLETED, None) if finished else (RunStatus.STOPPED, "Stopped on request.")

    async def _work(self) -> bool:
        if not self.wanted:
            return True
        await self.prepare()
        cases = _Shared(self.cases())
        storing = asyncio.create_task(self._keep_storing())
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._lanes):
                    group.create_task(self._lane(cases))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            storing.cancel()
            await asyncio.gather(storing, return_exceptions=True)
        return True

    async def _lane(self, cases: "_Shared[C]") -> None:
        while (case := await cases.next()) is not None:
            answer = await self.consider(case)
            self._unstored.append((case, answer))
            self._done += 1
            self._watch(answer)

    def _watch(self, answer: A) -> None:
        """The circuit breaker."""
        self._recent.append(answer.error)
        failed = [error for error in self._recent if error]
        if answer.error and len(self._recent) >= AT_LEAST and len(failed) > SHARE * len(self._recent):
            told = f"{len(failed)} of the last {len(self._recent)} {self.what} failed"
            raise TooManyFailures(f"{told}. The last one: {answer.error}")

    async def _keep_storing(self) -> None:
        while True:
            await asyncio.sleep(STORE_SECONDS)
            await asyncio.to_thread(self._store)

    def _store(self) -> None:
        batch, self._unstored[:] = list(self._unstored), []
        if batch:
            self.store(batch)


class _Shared(Generic[C]):
    """One iterator for several lanes."""

    def __init__(self, source: AsyncIterator[C]) -> None:
        self._source = source
        self._lock = asyncio.Lock()

    async def next(self) -> C | None:
        async with self._lock:
            return await anext(self._source, None)
