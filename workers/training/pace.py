"""How long a stage still takes, from how long its last steps took, what happens between them included."""

import time
from collections import deque
from collections.abc import Callable

WINDOW = 60
"""Steps that are looked back at: enough to hold an examination at the usual cadence."""


class EtaEstimator:
    """Told of each step as it ends."""

    def __init__(self, step: int, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen = deque([(step, now())], maxlen=WINDOW + 1)

    def seconds_left(self, step: int, last: int) -> float:
        """After this step, until the last one."""
        self._seen.append((step, self._now()))
        first, began = self._seen[0]
        steps = max(1, step - first)
        return (last - step) * (self._seen[-1][1] - began) / steps
