"""Lists of a run that has ended, whole and in memory: their pages are cut, not searched for.

Postgres finds any page of 100,000 rollouts in a tenth of a second or more, because most orders and filters have to read
the whole run. Which rollouts pass a filter and how they stand in an order is therefore read once each, as their numbers
(`seq`), four bytes a rollout; filters and orders are then combined here. What people, detectors, judges
and those who answer questions add later is part of the key under which a list is kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Integer, LargeBinary, Select, Text, cast, func, select
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import Session

from backend.detectors.tables import Flag
from backend.domain.graders.settings import QUESTION_PREFIX
from backend.domain.rollouts.filter_tree import Node, leaves_of
from backend.domain.vocabulary import RunKind
from backend.graders.tables import Grade
from backend.review.tables import VerdictRecord
from backend.rollouts.filter_fields import FilterScope, is_said_later
from backend.rollouts.filter_sql import condition_of
from backend.rollouts.ordering import Order
from backend.rollouts.tables import Rollout

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_BYTES = 64 << 20
"""Kept in this process; what was not used for longest goes first."""


class KeptArrays:
    """Arrays by what they depend on, as many as fit."""

    def __init__(self, most_bytes: int) -> None:
        self._most, self._bytes = most_bytes, 0
        self._arrays: OrderedDict[Hashable, NDArray[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, read: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        with self._lock:
            if key in self._arrays:
                self._arrays.move_to_end(key)
                return self._arrays[key]
        found = read()
        with self._lock:
            if key not in self._arrays:
                self._arrays[key] = found
                self._bytes += found.nbytes
            while self._bytes > self._most and len(self._arrays) > 1:
                self._bytes -= self._arrays.popitem(last=False)[1].nbytes
        return found


_kept = KeptArrays(MOST_BYTES)


class Standing:
    """The lists of one run as it is now."""

    def __init__(self, session: Session, scope: FilterScope, tree: Node | None, expression: str) -> None:
        self._session, self._scope = session, scope
        self._tree, self._expression = tree, expression.strip()
        newest = session.scalar(select(func.max(Rollout.seq)).where(Rollout.run_id == scope.run.id)) or 0
        self._run = (scope.run.id, scope.run.ended_at, newest)
        self._length = newest + 1

    def passing(self) -> NDArray[np.bool_]:
        """By number: does the rollout of this number pass the filter?"""
        names = frozenset(leaf.field.name for leaf in leaves_of(self._tree))
        key = (*self._run, "passing", self._expression, self._said(names))
        return _kept.get(key, self._read_passing)

    def count(self) -> int:
        """How many rollouts pass the filter."""
        return int(self.passing().sum())

    def in_order(self, order: Order, sort: str) -> NDArray[np.int32]:
        """Numbers of the rollouts that pass the filter, as they stand in the order."""
        whole = self._whole(order, sort)
        return whole[self.passing()[whole]] if self._tree else whole

    def _whole(self, order: Order, sort: str) -> NDArray[np.int32]:
        key = (*self._run, "order", sort, self._said({sort.removeprefix("-")}))
        return _kept.get(key, lambda: self._read_order(order))

    def part(self, order: Order, sort: str, length: int, cursor: int | None, *, backwards: bool) -> list[int] | None:
        """Numbers behind the rollout `cursor`, or from the list's beginning; backwards: from there or from the end
        towards the beginning. None where the cursor is not in the list."""
        numbers, place = self.in_order(order, sort), None
        if cursor is not None and (place := _place(numbers, cursor)) is None:
            return None
        if not backwards:
            first = 0 if place is None else place + 1
            return list(map(int, numbers[first : first + length]))
        end = len(numbers) if place is None else place
        return list(map(int, numbers[max(0, end - length) : end][::-1]))

    def neighbours(self, order: Order, sort: str, number: int) -> tuple[int | None, int | None]:
        """The numbers before and after this one; of one that does not pass the filter those round its place."""
        import numpy as np

        whole = self._whole(order, sort)
        place = _place(whole, number)
        if place is None:
            return None, None
        passes = np.flatnonzero(self.passing()[whole])
        before, after = np.searchsorted(passes, place), np.searchsorted(passes, place, side="right")
        return (
            int(whole[passes[before - 1]]) if before > 0 else None,
            int(whole[passes[after]]) if after < len(passes) else None,
        )

    def _read_passing(self) -> NDArray[np.bool_]:
        import numpy as np

        asked = [condition_of(self._tree, self._scope)] if self._tree else []
        passes = np.zeros(self._length, dtype=np.bool_)
        passes[self._numbers(select(_numbers()).where(*asked))] = True
        return passes

    def _read_order(self, order: Order) -> NDArray[np.int32]:
        return self._numbers(order.joined(select(_numbers(*order.by(order.key, Rollout.seq.expression)))))

    def _numbers(self, statement: Select[Any]) -> NDArray[np.int32]:
        import numpy as np

        packed = self._session.scalar(statement.where(Rollout.run_id == self._scope.run.id))
        return np.frombuffer(packed or b"", dtype=">i4").astype(np.int32)

    def _said(self, names: Iterable[str]) -> tuple[Any, ...]:
        """What changes when something is said of a rollout that these fields can see."""
        marks = [mark for name in sorted(names) if is_said_later(name) for mark in self._marks(name)]
        return tuple(self._session.execute(select(*(mark.scalar_subquery() for mark in marks))).one()) if marks else ()

    def _marks(self, name: str) -> list[Select[Any]]:
        run_id = self._scope.run.id
        if name == "flag":
            of_run = Flag.run_id == run_id
            return [select(value).where(of_run) for value in (func.count(), _newest(Flag.id), func.sum(Flag.score))]
        if name == "verdict":
            of_run = VerdictRecord.run_id == run_id
            said = (func.count(), _newest(VerdictRecord.id), func.count(VerdictRecord.taken_back_at))
            return [select(value).where(of_run) for value in said]
        if name.startswith("judge."):
            judge_id = self._scope.judges[name.removeprefix("judge.")]
            own = (Grade.run_id == run_id, Grade.grader_id == judge_id)
            return [select(value).where(*own) for value in (func.count(), func.sum(Grade.score))]
        if name.startswith(QUESTION_PREFIX):
            question_id = self._scope.questions[name.removeprefix(QUESTION_PREFIX)].id
            own = (Grade.run_id == run_id, Grade.grader_id == question_id)
            marks = (func.count(Grade.answer), _newest(Grade.id), func.sum(Grade.score))
            return [select(value).where(*own) for value in marks]
        raise ValueError(f"{name} is said later, and nothing marks that it was")


def standing_of(session: Session, scope: FilterScope, tree: Node | None, expression: str, sort: str) -> Standing | None:
    """None where searching is better: in a run that still grows or is played by hand, by marks that are set in the
    rollouts themselves, and for a text in the order of the numbers, where a page is full before the run is read."""
    run, name = scope.run, sort.removeprefix("-")
    names = {name, *(leaf.field.name for leaf in leaves_of(tree))}
    if run.ended_at is None or run.kind is RunKind.PLAY or "demonstration" in names:
        return None
    if name == "seq" and ("text" in names or tree is None):
        return None
    return Standing(session, scope, tree, expression)


def _place(numbers: NDArray[np.int32], number: int) -> int | None:
    import numpy as np

    found = np.flatnonzero(numbers == number)
    return int(found[0]) if len(found) else None


def _numbers(*order: ColumnElement[Any]) -> ColumnElement[bytes]:
    """All numbers of rollouts as one value: an array of a driver costs more than to find what is in it."""
    separator: Any = cast(b"", LargeBinary)
    number = func.int4send(cast(Rollout.seq, Integer), type_=LargeBinary)
    return func.string_agg(number, aggregate_order_by(separator, *order) if order else separator, type_=LargeBinary)


def _newest(id: Any) -> ColumnElement[str]:
    return func.max(cast(id, Text))
