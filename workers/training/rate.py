"""The learning rate between two steps: the schedule's, times a factor that the schedule never learns of."""

from typing import Any


class Rate:
    """Of one trainer. Its rates are put back after each update."""

    def __init__(self) -> None:
        self.factor = 1.0
        self._planned: list[float] = []

    def lower(self, optimizer: Any) -> None:
        """Right before an update."""
        self._planned = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] *= self.factor

    def put_back(self, optimizer: Any) -> None:
        """Right after it."""
        for group, rate in zip(optimizer.param_groups, self._planned, strict=True):
            group["lr"] = rate
