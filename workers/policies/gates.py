"""A gate that lets so many through at a time, first come first served; how many may change while others wait."""

import asyncio
from collections import deque
from types import TracebackType


class Gate:
    """`async with gate: …`. A lower limit sends nobody back: it only lets nobody in until enough have left."""

    __slots__ = ("_limit", "_waiting", "inside")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.inside = 0

    @property
    def limit(self) -> int:
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = max(1, limit)
        self._let_in()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def __aenter__(self) -> "Gate":
        await self.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    async def enter(self) -> None:
        if self.inside < self._limit and not self._waiting:
            self.inside += 1
            return
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():  # let in and cancelled at the same moment
                self.leave()
            raise

    def leave(self) -> None:
        self.inside -= 1
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and self.inside < self._limit:
            place = self._waiting.popleft()
            if not place.done():
                self.inside += 1
                place.set_result(None)
