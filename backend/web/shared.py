"""Costly reads that many open pages show: done once for all of them, and the more rarely the longer they take."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

REST = 2
"""A read that took a second is not done again for so many more."""
SOON_SECONDS = 0.25
"""Until one asks again for what somebody else is just reading."""
MOST_KEPT = 64
"""Reads whose results are kept; the one that was wanted last stays longest."""


@dataclass(slots=True)
class _Kept(Generic[T]):
    lock: threading.Lock = field(default_factory=threading.Lock)
    value: T | None = None
    began_at: float = float("-inf")
    """When the read of `value` began: it knows all that was committed until then."""
    next_at: float = float("-inf")

    def read(self, read: Callable[[], T]) -> None:
        began = time.monotonic()
        self.value = read()
        ended = time.monotonic()
        self.began_at, self.next_at = began, ended + REST * (ended - began)


class Shared(Generic[T]):
    """Results by key. Times are monotonic. Values never hold None and are not changed by who gets them."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, _Kept[T]] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, key: Hashable, since: float, read: Callable[[], T], *, is_urgent: bool = False) -> tuple[T, float]:
        """What is known, and in how many seconds to ask again: 0 when it was read after `since`.

        Only who must (there is nothing yet, or it is urgent) waits for somebody else's read to end.
        """
        kept = self._place(key)
        must = is_urgent or kept.value is None
        if kept.began_at < since and kept.lock.acquire(blocking=must):
            try:
                if kept.began_at < since and (must or time.monotonic() >= kept.next_at):
                    kept.read(read)
            finally:
                kept.lock.release()
        assert kept.value is not None
        if kept.began_at >= since:
            return kept.value, 0.0
        return kept.value, max(kept.next_at - time.monotonic(), SOON_SECONDS)

    def _place(self, key: Hashable) -> _Kept[T]:
        with self._lock:
            kept = self._kept.setdefault(key, _Kept())
            self._kept.move_to_end(key)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
            return kept
