"""Figures of runs that have ended, kept in memory: their rollouts change only if the run is resumed."""

from collections.abc import Callable, Hashable
from typing import TypeVar

from backend.runs.tables import Run
from backend.web.shared import Shared

T = TypeVar("T")


def kept_if_ended(kept: Shared[T], run: Run, key: Hashable, read: Callable[[], T]) -> T:
    """Return what `read` finds in a run's rollouts. Of a run that has ended it is read once, until it is resumed.

    The person's access to the run must have been checked. Callers do not change the value.
    """
    if not run.status.is_over:
        return read()
    state = (run.id, run.status, run.attempt, run.next_seq, run.ended_at)
    value, _ = kept.read((*state, key), 0.0, read)
    return value
