"""Throttling of requests to an endpoint: adaptive concurrency, and its limits of requests and tokens per minute."""

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from backend.domain.policies.prices import Limits

MAX_PAUSE_SECONDS = 60.0
MAX_CONCURRENCY = 1024
FIRST_LIMIT = 32  # of a wide limit; it doubles until the first overload, so that an endpoint is not flooded
DECREASE = 0.7  # factor of the limit after an overload
REST_SECONDS = 1.0  # many requests notice the same overload: the limit decreases at most once in this time
QUICK_SECONDS = 1.0  # requests that take no longer than this are no sign of overload
SLOWDOWN = 2.0  # a round that takes this many times as long as the best one is slow
MIN_ROUND = 8
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


@dataclass(slots=True)
class Gate:
    """A first-come, first-served semaphore whose limit can change. A lower limit applies as slots are released."""

    limit: int
    inside: int = 0
    waiting: deque[asyncio.Future[None]] = field(default_factory=deque)

    def set_limit(self, limit: int) -> None:
        self.limit = max(1, limit)
        while self.waiting and self.inside < self.limit:
            slot = self.waiting.popleft()
            if not slot.done():
                self.inside += 1
                slot.set_result(None)

    async def enter(self) -> None:
        if self.inside < self.limit and not self.waiting:
            self.inside += 1
            return
        slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(slot)
        try:
            await slot
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled():  # admitted and canceled at the same moment
                self.leave()
            raise

    def leave(self) -> None:
        self.inside -= 1
        self.set_limit(self.limit)


class AdaptiveLimit:
    """A concurrency limit found by additive increase and multiplicative decrease, as in TCP, up to a ceiling.

    An overload is reported (a refusal) or detected: a round of requests takes much longer than the best one, without
    more of them per second.
    """

    def __init__(self, ceiling: int, first: int = FIRST_LIMIT) -> None:
        self.ceiling = max(1, ceiling)
        self.limit = min(self.ceiling, first)
        self.on_change: Callable[[int], None] = lambda _: None
        self._decreased_at = -REST_SECONDS
        self._was_overloaded = False
        # the current round: its requests, their total duration and its start
        self._count, self._seconds, self._start = 0, 0.0, time.monotonic()
        self._best_seconds = self._best_rate = 0.0  # mean duration and requests per second of the best rounds

    def lower_ceiling(self, ceiling: int) -> None:
        self.ceiling = max(1, min(self.ceiling, ceiling))
        self._set(min(self.ceiling, self.limit))

    def completed(self, seconds: float) -> None:
        """Record a request. A round has as many requests as the limit; after each round the limit changes."""
        self._count += 1
        self._seconds += seconds
        if self._count < max(self.limit, MIN_ROUND):
            return
        mean = self._seconds / self._count
        is_slower = mean > max(QUICK_SECONDS, SLOWDOWN * (self._best_seconds or mean))
        if is_slower and self._rate() < 1.1 * self._best_rate:
            self.overloaded()
            return
        self._start_round()
        if self.limit < self.ceiling:
            increase = max(1, self.limit // 10) if self._was_overloaded else self.limit
            self._set(min(self.ceiling, self.limit + increase))

    def overloaded(self) -> None:
        now = time.monotonic()
        self._was_overloaded = True
        self._start_round()
        if now - self._decreased_at >= REST_SECONDS:
            self._decreased_at = now
            self._set(max(1, int(self.limit * DECREASE)))

    def _start_round(self) -> None:
        """The best values decay slowly, because the requests may change."""
        if self._count:
            mean = self._seconds / self._count
            self._best_seconds = min(mean, self._best_seconds * 1.05) if self._best_seconds else mean
            self._best_rate = max(self._rate(), self._best_rate * 0.95)
        self._count, self._seconds, self._start = 0, 0.0, time.monotonic()

    def _rate(self) -> float:
        return self._count / max(time.monotonic() - self._start, 1e-6)

    def _set(self, limit: int) -> None:
        if limit != self.limit:
            self.limit = limit
            self.on_change(limit)


class EndpointThrottle:
    """Call `enter` before each request, `leave` after it, and report its result in between."""

    def __init__(self, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        self.concurrency = AdaptiveLimit(min(limits.concurrency or MAX_CONCURRENCY, MAX_CONCURRENCY))
        self._gate = Gate(self.concurrency.limit)
        self._requests = RateBudget(limits.requests_per_minute)
        self._tokens = RateBudget(limits.tokens_per_minute)
        self._not_before = 0.0  # monotonic time before which no request is sent

    async def enter(self) -> float:
        """Wait until the request may be sent. Returns the seconds waited."""
        start = time.perf_counter()
        self._gate.set_limit(self.concurrency.limit)
        await self._gate.enter()
        try:
            if pause := self._requests.reserve(1):
                await asyncio.sleep(pause)
            while (pause := max(self._not_before - time.monotonic(), self._tokens.reserve(0))) > 0:
                await asyncio.sleep(pause)
        except BaseException:
            self._gate.leave()
            raise
        return time.perf_counter() - start

    def leave(self) -> None:
        self._gate.set_limit(self.concurrency.limit)
        self._gate.leave()

    def completed(self, seconds: float, tokens: int) -> None:
        self._tokens.reserve(tokens)
        self.concurrency.completed(seconds)

    def refused(self, after_seconds: float = 0.0) -> None:
        """The endpoint is overloaded: send nothing for this time, and fewer requests afterwards."""
        self._not_before = max(self._not_before, time.monotonic() + min(after_seconds, MAX_PAUSE_SECONDS))
        self.concurrency.overloaded()

    def read_headers(self, headers: Mapping[str, str]) -> None:
        """Read `x-ratelimit-…`. If the requests under way use up the rest, the next ones wait for the reset."""
        for unit, needed in (("requests", self._gate.inside), ("tokens", 1)):
            left = headers.get(f"x-ratelimit-remaining-{unit}")
            if left is not None and left.isascii() and left.isdigit() and len(left) < 19 and int(left) < needed:
                pause = min(parse_duration(headers.get(f"x-ratelimit-reset-{unit}")), MAX_PAUSE_SECONDS)
                self._not_before = max(self._not_before, time.monotonic() + pause)


class RateBudget:
    """An amount per minute that refills evenly. It can be overdrawn by what is known only afterwards."""

    def __init__(self, per_minute: int | None) -> None:
        self._per_second = (per_minute or 0) / 60
        self._capacity = self._left = max(1.0, self._per_second)
        self._updated_at = time.monotonic()

    def reserve(self, amount: int) -> float:
        """Take the amount and return the seconds to wait. A single reply never takes more than `MAX_PAUSE_SECONDS` of
        the rate, however many tokens it claims."""
        if not self._per_second:
            return 0.0
        now = time.monotonic()
        refilled = min(self._capacity, self._left + (now - self._updated_at) * self._per_second)
        self._left = refilled - min(amount, max(1, int(self._per_second * MAX_PAUSE_SECONDS)))
        self._updated_at = now
        return max(0.0, -self._left / self._per_second)


def parse_duration(text: str | None) -> float:
    """Seconds of `1s`, `6m0s`, `20ms` or a plain number; 0 for anything else."""
    return sum(float(number) * _UNIT_SECONDS[unit] for number, unit in _DURATION.findall((text or "")[:40]))
