"""Where time goes: each moment is counted once, by the innermost thing that is being done."""

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
        self._inside: list[list[float]] = []
        """For each thing that is being counted: when it began, and seconds that others inside it took."""

    @contextmanager
    def counts(self, name: str) -> Iterator[None]:
        self.begin()
        try:
            yield
        finally:
            self.end(name)

    def begin(self) -> None:
        """Of something whose name is told when it ends."""
        self._wait()
        self._inside.append([perf_counter(), 0.0])

    def end(self, name: str) -> None:
        self._wait()
        began, others = self._inside.pop()
        took = perf_counter() - began
        self._seconds[name] += took - others
        if self._inside:
            self._inside[-1][1] += took

    def take(self) -> dict[str, float]:
        """What was counted, by name; the clock begins anew."""
        taken, self._seconds = self._seconds, defaultdict(float)
        return taken
