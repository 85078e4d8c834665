"""Lists of a finished run from memory: pages are cut out of an index instead of searched for.

Postgres takes a tenth of a second or more for a page of 100,000 rollouts, because most filters and orders have to read
the whole run. Which rollouts pass a filter and how an order sorts them is therefore read once each, as their `seq` four
bytes each; filters and orders are then combined here. Flags, verdicts and scores that are added later are part of
the key of a cached list.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Integer, LargeBinary, ScalarSelect, Select, Text, cast, func, select
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import Session

from backend.detectors.tables import Flag
from backend.domain.rollouts.fields import FIELDS, Family, Field
from backend.domain.vocabulary import RunKind
from backend.graders.tables import Grade
from backend.review.tables import VerdictRecord
from backend.rollouts.filters import Selection, grade_of
from backend.rollouts.tables import Rollout

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

T = TypeVar("T")

MAX_BYTES = 64 << 20
"""Arrays that are cached in this process."""


class LruCache(Generic[T]):
    """Values by their key, up to a total size; the least recently used go first. Values of no key are not kept."""

    def __init__(self, max_size: int, size_of: Callable[[T], int]) -> None:
        self._max, self._size_of = max_size, size_of
        self._lock = threading.Lock()
        self.values: OrderedDict[Hashable, T] = OrderedDict()

    def get(self, key: Hashable, read: Callable[[], T]) -> T:
        with self._lock:
            if key in self.values:
                self.values.move_to_end(key)
                return self.values[key]
        found = read()
        if key is not None:
            with self._lock:
                self.values.setdefault(key, found)
                while len(self.values) > 1 and sum(map(self._size_of, self.values.values())) > self._max:
                    self.values.popitem(last=False)
        return found


_cache = LruCache["NDArray[Any]"](MAX_BYTES, attrgetter("nbytes"))


def index_of(session: Session, selection: Selection) -> FinishedRunIndex | None:
    """The index of a selection; None where searching is better.

    That is: in a run that still grows or is played by hand, by marks that are set in the rollouts themselves, and for
    text in the order of `seq`, where a page is full before the run is read.
    """
    run, fields = selection.scope.run, selection.fields
    if run.ended_at is None or run.kind is RunKind.PLAY or FIELDS["demonstration"] in {*fields, selection.sort_field}:
        return None
    if selection.sort_field.name == "seq" and (selection.tree is None or FIELDS["text"] in fields):
        return None
    return FinishedRunIndex(session, selection)


class FinishedRunIndex:
    """The rollouts of one selection as their `seq`, in order."""

    def __init__(self, session: Session, selection: Selection) -> None:
        self._session, self._selection = session, selection
        run = selection.scope.run
        last = session.scalar(select(func.max(Rollout.seq)).where(Rollout.run_id == run.id)) or 0
        self._run = (run.id, run.ended_at, last)
        self._length = last + 1

    def page(self, limit: int) -> list[int] | None:
        """At most `limit` numbers from the selection's start on. None where the start is not in the list."""
        import numpy as np

        numbers = self._sorted()
        if self._selection.tree:
            numbers = numbers[self.passing()[numbers]]
        place = None
        if self._selection.start is not None:
            places = np.flatnonzero(numbers == self._selection.start[1])
            if not len(places):
                return None
            place = int(places[0])
        if not self._selection.backwards:
            first = 0 if place is None else place + 1
            return list(map(int, numbers[first : first + limit]))
        end = len(numbers) if place is None else place
        return list(map(int, numbers[max(0, end - limit) : end][::-1]))

    def neighbors(self, seq: int) -> tuple[int | None, int | None]:
        """The numbers before and after this one; of one that does not pass the filter, those around its place."""
        import numpy as np

        numbers = self._sorted()
        places = np.flatnonzero(numbers == seq)
        if not len(places):
            return None, None
        passing = np.flatnonzero(self.passing()[numbers])
        before, after = (np.searchsorted(passing, places[0], side=side) for side in ("left", "right"))
        return (
            int(numbers[passing[before - 1]]) if before > 0 else None,
            int(numbers[passing[after]]) if after < len(passing) else None,
        )

    def passing(self) -> NDArray[np.bool_]:
        """By `seq`: whether the rollout passes the filter."""
        import numpy as np

        selection = self._selection

        def read() -> NDArray[np.bool_]:
            passing = np.zeros(self._length, dtype=np.bool_)
            own = select(Rollout.seq).where(Rollout.run_id == selection.scope.run.id, *selection.conditions)
            passing[self._read_numbers(own)] = True
            return passing

        return _cache.get((*self._run, "filter", selection.expression, self._revision(selection.fields)), read)

    def _sorted(self) -> NDArray[np.int32]:
        """All rollouts of the run in the selection's order."""
        selection = self._selection
        forwards = replace(selection, backwards=False)
        key = (*self._run, "order", selection.sort, self._revision([selection.sort_field]))
        return _cache.get(key, lambda: self._read_numbers(forwards.rows, *forwards.by()))

    def _read_numbers(self, statement: Select[Any], *order: Any) -> NDArray[np.int32]:
        """All `seq` of a statement as one value: an array of the driver costs more than finding the rollouts."""
        import numpy as np

        separator: Any = cast(b"", LargeBinary)
        number = func.int4send(cast(Rollout.seq, Integer), type_=LargeBinary)
        packed = func.string_agg(number, aggregate_order_by(separator, *order) if order else separator)
        value = self._session.scalar(statement.with_only_columns(packed, maintain_column_froms=True))
        return np.frombuffer(value or b"", dtype=">i4").astype(np.int32)

    def _revision(self, fields: Iterable[Field]) -> tuple[Any, ...]:
        """Values that change whenever a flag, verdict or score that these fields read is added, changed or removed."""
        scope, marks = self._selection.scope, list[ScalarSelect[str]]()
        for field in sorted((field for field in fields if field.changes_later), key=lambda field: field.name):
            own: tuple[ColumnElement[bool], ...]
            match field.name if field.family is Family.ROLLOUT else field.family:
                case "flag":
                    values = [func.count(), func.max(cast(Flag.id, Text)), func.sum(Flag.score)]
                    own = (Flag.run_id == scope.run.id,)
                case "verdict":
                    latest = func.max(cast(VerdictRecord.id, Text))
                    values = [func.count(), latest, func.count(VerdictRecord.taken_back_at)]
                    own = (VerdictRecord.run_id == scope.run.id,)
                case Family.JUDGE | Family.QUESTION:
                    values = [
                        func.count(),
                        func.count(Grade.answer),
                        func.max(cast(Grade.id, Text)),
                        func.sum(Grade.score),
                    ]
                    own = grade_of(scope, field)[:2]
                case _:
                    raise ValueError(f"nothing marks a change of {field.name}")
            marks.append(select(func.concat_ws("/", *values)).where(*own).scalar_subquery())
        return tuple(self._session.execute(select(*marks)).one()) if marks else ()
