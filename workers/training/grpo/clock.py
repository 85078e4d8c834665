"""Where a step's time goes: each moment is counted once, by the innermost thing that is being done."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter


class Clock:
    """Seconds by name, since they were last taken."""

    def __init__(self, wait: Callable[[], None] = lambda: None) -> None:
        self._wait = wait
        """Until an accelerator has done what it was given; without it, work is counted where it is waited for."""
        self._seconds: dict[str, float] = defaultdict(float)
        self._inside: list[float] = []
        """For each name that is being counted: seconds that others inside it took."""

    @contextmanager
    def counts(self, name: str) -> Iterator[None]:
        self._wait()
        began = perf_counter()
        self._inside.append(0.0)
        try:
            yield
        finally:
            self._wait()
            took = perf_counter() - began
            self._seconds[name] += took - self._inside.pop()
            if self._inside:
                self._inside[-1] += took

    def take(self) -> dict[str, float]:
        """What was counted, by name; the clock begins anew."""
        taken, self._seconds = self._seconds, defaultdict(float)
        return taken
