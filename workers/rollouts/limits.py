"""Limits of episodes: their stored size and concurrency, waiting results, the circuit breaker, and stops on request."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Generic, Self, TypeVar

import orjson
import structlog

from backend.domain.errors import LimitExceeded, RolloutError
from backend.domain.rollouts.rollout import Rollout
from backend.domain.vocabulary import ErrorKind, RolloutStatus
from workers.policies.throttle import AdaptiveLimit, Gate

MAX_STORED_BYTES = 65_536
"""Per observation."""
MAX_EPISODE_BYTES = 4_000_000
"""All observations of an episode."""
MIN_BYTES = 1_024
"""Size of an observation once the episode's budget is used up."""
CUT = "_cut"
"""Key of the note in a cut observation."""
OVERLOAD_ERRORS = frozenset({ErrorKind.SANDBOX, ErrorKind.LIMIT})
"""Errors of episodes on an overloaded env server: a lost connection, a deadline."""
BATCH_SECONDS = 0.25
BATCH_SIZE = 500
MAX_WAITING = 1000
"""Results that wait to be stored. Further episodes keep their slots, so memory stays bounded if Postgres is slow."""
POLL_SECONDS = 0.2
"""Interval between checks for a requested stop."""

T = TypeVar("T")

logger = structlog.get_logger(__name__)


def bounded_text(text: str, limit: int = MAX_STORED_BYTES) -> str:
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[… {len(text) - limit:,} more characters were cut]"


@contextmanager
def first_rollout_error() -> Iterator[None]:
    """Raise the first RolloutError of a task group instead of the group of its errors. Others stay a group."""
    try:
        yield
    except ExceptionGroup as errors:
        failed, others = errors.split(RolloutError)
        if failed is None or others is not None:
            raise
        first: BaseException = failed
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None


@dataclass(slots=True)
class ObservationBudget:
    """Bytes that one episode may still store. Huge observations are cut, visibly, so that no rollout fills the disk."""

    _left: int = MAX_EPISODE_BYTES

    @property
    def limit(self) -> int:
        """Bytes of the next observation."""
        return max(min(MAX_STORED_BYTES, self._left), MIN_BYTES)

    def observation(self, fields: dict[str, object]) -> dict[str, object]:
        """Return the fields themselves if they are small, else a copy whose large values are cut."""
        size, limit = len(_dump(fields)), self.limit
        if size > limit:
            budget = limit // 2
            kept: dict[str, object] = {CUT: f"cut from {size:,} bytes to at most {limit:,}"}
            for name, value in fields.items():
                if budget <= 0:
                    break
                encoded = _dump(value)
                if len(encoded) > budget // 2:
                    text = value if isinstance(value, str) else encoded.decode()
                    value = bounded_text(text, max(budget // 2 // 4, 64))  # a character has at most four bytes
                    encoded = _dump(value)
                kept[name[:200]] = value
                budget -= len(encoded) + len(name[:200])
            fields, size = kept, limit
        self._left -= size
        return fields

    def text(self, text: str) -> str:
        text = bounded_text(text, self.limit)
        self._left -= len(text)
        return text


def _dump(value: object) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # lone surrogates, integers above 64 bits, nesting too deep: rare, so slow is fine
        return repr(value).encode("utf-8", "replace")


class ConcurrencyLimiter:
    """Limits concurrent episodes by what the policy's endpoint and the env servers can take."""

    def __init__(self, ceiling: int, policy: AdaptiveLimit | None, on_limit: Callable[[int], None]) -> None:
        self.ceiling = max(1, ceiling)
        self._servers = AdaptiveLimit(self.ceiling, first=self.ceiling)
        self._policy = policy
        self._on_limit = on_limit
        if policy is not None:
            policy.lower_ceiling(self.ceiling)
            policy.on_change = self._apply
        self._servers.on_change = self._apply
        self.gate = Gate(self.ceiling)
        self._apply()

    def record(self, rollout: Rollout) -> None:
        if rollout.error_kind in OVERLOAD_ERRORS:
            self._servers.overloaded()
        elif rollout.is_completed and rollout.steps:
            self._servers.completed(rollout.environment_seconds / len(rollout.steps))

    def _apply(self, _: int = 0) -> None:
        limit = min(self._servers.limit, self._policy.limit if self._policy else self.ceiling)
        self.gate.set_limit(limit)
        self._on_limit(limit)


class SlotPool:
    """Slots for episodes. A group takes a slot for each member, one group after the other."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = asyncio.Semaphore(count)
        self._next = asyncio.Lock()

    @asynccontextmanager
    async def take(self, count: int) -> AsyncIterator[None]:
        """Raises LimitExceeded for a group that never fits."""
        if count > self._count:
            raise LimitExceeded(
                f"the {count} episodes of a group are scored together, but only {self._count} can run at once: "
                "raise the concurrency or make the groups smaller"
            )
        held = 0
        try:
            async with self._next:  # two half groups would wait for each other forever
                while held < count:
                    await self._free.acquire()
                    held += 1
            yield
        finally:
            for _ in range(held):
                self._free.release()


class BatchWriter(Generic[T]):
    """Stores results in batches in a thread, so that the loop never waits for Postgres.

    Everything that was put is stored at the end, even after an error. Errors of `store` are raised by `put` and at the
    end.
    """

    def __init__(self, store: Callable[[list[T]], object]) -> None:
        self._store = store
        self._waiting: asyncio.Queue[tuple[T] | None] = asyncio.Queue(MAX_WAITING)
        self._error: Exception | None = None

    async def __aenter__(self) -> Self:
        self._writing = asyncio.create_task(self._write())
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._waiting.put(None)
        await self._writing
        if self._error is not None and error is None:
            raise self._error

    async def put(self, result: T) -> None:
        if self._error is not None:
            raise self._error
        await self._waiting.put((result,))

    async def _write(self) -> None:
        is_open = True
        while is_open:
            found = [await self._waiting.get()]
            with suppress(TimeoutError):
                async with asyncio.timeout(BATCH_SECONDS):
                    while found[-1] is not None and len(found) < BATCH_SIZE:
                        found.append(await self._waiting.get())
            is_open = found[-1] is not None
            batch = [each[0] for each in found if each is not None]
            if not batch or self._error is not None:
                continue  # after an error the queue is only emptied, so that no episode waits forever
            try:
                await asyncio.to_thread(self._store, batch)
            except Exception as error:
                logger.exception("results could not be stored", lost=len(batch))
                self._error = error


class TooManyFailures(Exception):
    """Most of the recent rollouts failed."""


@dataclass(slots=True)
class CircuitBreaker:
    """Trips if more than half of the last 50 rollouts failed, once there are 16 of them."""

    _recent: deque[str | None] = field(default_factory=lambda: deque(maxlen=50))

    def record(self, rollout: Rollout) -> None:
        """Raises TooManyFailures with the share and the most common error."""
        failed = rollout.status is RolloutStatus.FAILED
        self._recent.append(f"{rollout.error_kind}: {rollout.error_message}" if failed else None)
        if not failed or len(self._recent) < 16:
            return
        errors = [error for error in self._recent if error is not None]
        if len(errors) > 0.5 * len(self._recent):
            [(error, count)] = Counter(errors).most_common(1)
            raise TooManyFailures(
                f"{len(errors)} of the last {len(self._recent)} rollouts failed"
                f" ({len(errors) / len(self._recent):.0%}). Most often ({count}×) {error}"
            )


async def unless_stopped(work: Coroutine[object, object, T], should_stop: Callable[[], bool]) -> T | None:
    """Return the result of `work`; None if a stop was requested first: then it was canceled and has cleaned up.

    Calls `should_stop` in a thread, five times a second.
    """

    working = asyncio.create_task(work)
    try:
        while not working.done():
            if await asyncio.to_thread(should_stop) and not working.done():
                return None
            await asyncio.wait((working,), timeout=POLL_SECONDS)
        return working.result()
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
