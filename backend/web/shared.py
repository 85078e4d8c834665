"""Expensive reads that many open pages show: done once for all of them, and less often the longer they take."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

REST = 2
"""A read is not repeated for this many times its duration."""
SHORT_SECONDS = 0.1
"""A read that took less is worth waiting for if another page is doing it."""
SOON_SECONDS = 0.25
"""Pause before asking again for the result of a longer one."""
MOST_KEPT = 64
"""Number of results that are kept; the least recently used are dropped."""


@dataclass(slots=True)
class _Kept(Generic[T]):
    lock: threading.Lock = field(default_factory=threading.Lock)
    value: T | None = None
    began_at: float = float("-inf")
    """When the read of `value` began: it includes everything that was committed before."""
    next_at: float = float("-inf")
    took: float = 0.0


@dataclass
class Shared(Generic[T]):
    """Results by key. Times are monotonic. Values are never None, and callers do not change them."""

    _kept: OrderedDict[Hashable, _Kept[T]] = field(default_factory=OrderedDict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def read(self, key: Hashable, since: float, read: Callable[[], T], *, is_urgent: bool = False) -> tuple[T, float]:
        """Return the known result, and the seconds until to ask again: 0 if it was read after `since`.

        Waits for the read of another page if that is short, or as long as it takes if it is urgent or there is no
        result yet.
        """
        with self._lock:
            kept = self._kept.setdefault(key, _Kept())
            self._kept.move_to_end(key)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        must = is_urgent or kept.value is None
        patience = -1.0 if must else SHORT_SECONDS if kept.took < SHORT_SECONDS else 0.0
        if kept.began_at < since and kept.lock.acquire(timeout=patience):
            try:
                if kept.began_at < since and (must or time.monotonic() >= kept.next_at):
                    began = time.monotonic()
                    kept.value = read()
                    ended = time.monotonic()
                    kept.began_at, kept.took = began, ended - began
                    kept.next_at = ended + REST * kept.took
            finally:
                kept.lock.release()
        assert kept.value is not None
        if kept.began_at >= since:
            return kept.value, 0.0
        return kept.value, max(kept.next_at - time.monotonic(), SOON_SECONDS)
