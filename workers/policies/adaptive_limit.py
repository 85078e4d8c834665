"""How much at a time something bears: found out by asking more until it shows strain, never above a ceiling.

Additive increase, multiplicative decrease, as TCP has it. Strain is told from outside (a refusal), or seen: each piece
of work takes much longer than it did, and no more of them are done in a second.
"""

import time
from collections.abc import Callable

FIRST = 32
"""Where a wide limit begins; it doubles while nothing strains, so that nobody is met by a wall of calls."""
LESS = 0.7
"""Of the limit, after strain."""
REST_SECONDS = 1.0
"""One strain is felt by many: the limit falls once in so long."""
QUICK_SECONDS = 1.0
"""What takes no longer than this is no sign of strain."""
SLOWER = 2.0
"""So many times the quickest round is slow."""
LEAST_ROUND = 8


class Effort:
    """The limit in force, and what is learned of each piece of work that ended."""

    def __init__(self, ceiling: int, first: int = FIRST) -> None:
        self.ceiling = max(1, ceiling)
        self.limit = min(self.ceiling, first)
        self.on_change: Callable[[int], None] = lambda _: None
        self._round = _Round()
        self._fell_at = -REST_SECONDS
        self._has_strained = False

    def bound(self, ceiling: int) -> None:
        """Never more than this, whatever is borne."""
        self.ceiling = max(1, min(self.ceiling, ceiling))
        self._set(min(self.ceiling, self.limit))

    def ended(self, seconds: float) -> None:
        """One piece of work ended well. After as many as may be under way: more of them, or fewer?"""
        self._round.count += 1
        self._round.seconds += seconds
        if self._round.count < max(self.limit, LEAST_ROUND):
            return
        if self._round.is_strained():
            self.strained()
            return
        self._round = self._round.next()
        if self.limit < self.ceiling:
            more = max(1, self.limit // 10) if self._has_strained else self.limit
            self._set(min(self.ceiling, self.limit + more))

    def strained(self) -> None:
        now = time.monotonic()
        self._has_strained = True
        self._round = self._round.next()
        if now - self._fell_at >= REST_SECONDS:
            self._fell_at = now
            self._set(max(1, int(self.limit * LESS)))

    def _set(self, limit: int) -> None:
        if limit != self.limit:
            self.limit = limit
            self.on_change(limit)


class _Round:
    """The work since the limit was looked at last, and what the best rounds were like."""

    __slots__ = ("_best_rate", "_best_seconds", "began", "count", "seconds")

    def __init__(self, best_seconds: float = 0.0, best_rate: float = 0.0) -> None:
        self._best_seconds, self._best_rate = best_seconds, best_rate
        self.began = time.monotonic()
        self.count = 0
        self.seconds = 0.0

    def is_strained(self) -> bool:
        mean = self.seconds / self.count
        is_slower = mean > max(QUICK_SECONDS, SLOWER * (self._best_seconds or mean))
        return is_slower and self._rate() < 1.1 * self._best_rate

    def next(self) -> "_Round":
        """The best is forgotten slowly: what is asked may have become another."""
        if not self.count:
            return _Round(self._best_seconds, self._best_rate)
        mean = self.seconds / self.count
        best = min(mean, self._best_seconds * 1.05) if self._best_seconds else mean
        return _Round(best, max(self._rate(), self._best_rate * 0.95))

    def _rate(self) -> float:
        return self.count / max(time.monotonic() - self.began, 1e-6)
