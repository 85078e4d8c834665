"""When the next call to an endpoint may leave: as many at a time as it bears, as many a minute as were allowed."""

import asyncio
import re
import time
from collections.abc import Mapping

from backend.domain.policies.prices import Limits
from workers.policies.adaptive_limit import Effort
from workers.policies.gates import Gate

LONGEST_PAUSE_SECONDS = 60.0
MOST_CALLS = 1024


class Pace:
    """The calls to one endpoint: `enter` before each, `leave` after it, and in between what came of it."""

    def __init__(self, limits: Limits | None = None) -> None:
        limits = limits or Limits()
        self.effort = Effort(min(limits.concurrency or MOST_CALLS, MOST_CALLS))
        self._gate = Gate(self.effort.limit)
        self._requests = _Budget(limits.requests_per_minute)
        self._tokens = _Budget(limits.tokens_per_minute)
        self._not_before = 0.0
        """Monotonic time until which nobody asks."""

    async def enter(self) -> float:
        """Returns once the call may leave; how many seconds that took."""
        began = time.perf_counter()
        self._gate.limit = self.effort.limit
        await self._gate.enter()
        try:
            await self._be_patient()
        except BaseException:
            self._gate.leave()
            raise
        return time.perf_counter() - began

    def leave(self) -> None:
        self._gate.limit = self.effort.limit
        self._gate.leave()

    async def _be_patient(self) -> None:
        if pause := self._requests.reserve(1):
            await asyncio.sleep(pause)
        while (pause := max(self._not_before - time.monotonic(), self._tokens.reserve(0))) > 0:
            await asyncio.sleep(pause)

    def answered(self, seconds: float, tokens: int) -> None:
        self._tokens.reserve(min(tokens, self._tokens.within(LONGEST_PAUSE_SECONDS)))
        self.effort.ended(seconds)

    def refused(self, after_seconds: float = 0.0) -> None:
        """The endpoint said that it is too much: nobody asks for so long, and then fewer."""
        self._hold(after_seconds)
        self.effort.strained()

    def read_headers(self, headers: Mapping[str, str]) -> None:
        """`x-ratelimit-…`: when no more are left than are under way, the next ones wait for the reset."""
        for what, least in (("requests", self._gate.inside), ("tokens", 1)):
            left = headers.get(f"x-ratelimit-remaining-{what}")
            if left is not None and left.isascii() and left.isdigit() and len(left) < 19 and int(left) < least:
                self._hold(duration_of(headers.get(f"x-ratelimit-reset-{what}")))

    def _hold(self, seconds: float) -> None:
        until = time.monotonic() + min(seconds, LONGEST_PAUSE_SECONDS)
        self._not_before = max(self._not_before, until)


class _Budget:
    """So many a minute: it fills evenly, and may be overdrawn by what is known only afterwards."""

    __slots__ = ("_at", "_left", "_most", "_per_second")

    def __init__(self, per_minute: int | None) -> None:
        self._per_second = (per_minute or 0) / 60
        self._most = self._left = max(1.0, self._per_second)
        self._at = time.monotonic()

    def within(self, seconds: float) -> int:
        """What comes in so long; a single answer never books more, however many tokens it claims."""
        return int(self._per_second * seconds)

    def reserve(self, amount: int) -> float:
        """Take it; the seconds after which it may be used."""
        if not self._per_second:
            return 0.0
        now = time.monotonic()
        self._left = min(self._most, self._left + (now - self._at) * self._per_second) - amount
        self._at = now
        return max(0.0, -self._left / self._per_second)


_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


def duration_of(text: str | None) -> float:
    """Seconds of `1s`, `6m0s`, `20ms` or a plain number; 0 when it is none."""
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall((text or "")[:40]))
