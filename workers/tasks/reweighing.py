"""Other weights over stored columns: nothing is played, and Postgres computes the rewards from what it holds."""

import uuid
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Double, Text, Uuid, and_, case, cast, column, func, insert, literal, null, select
from sqlalchemy.dialects.postgresql import ARRAY, REAL, array
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement

from backend.domain.vocabulary import ErrorKind, Phase, RolloutStatus, RunStatus
from backend.rollouts.regrading.columns import Candidate, candidates, readings, weighed
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run
from workers.storage.recorder import RunRecorder
from workers.storage.regrading import Ending, Work
from workers.storage.rescored_rollouts import Original, store_missing

GROUNDS = "The stored columns were weighed anew; nothing was played."
_LARGEST_REAL, _SMALLEST_REAL = 3.4e38, 1.2e-38


def reweigh(work: Work, recorder: RunRecorder, total: int) -> Ending:
    """Page by page; a stop is obeyed between two pages."""
    done = 0
    for read, originals in work.originals.places():
        if recorder.should_stop():
            return Ending(RunStatus.STOPPED, "Stopped on request.", GROUNDS)
        _Weighing(work, originals).store()
        done += read
        recorder.progress(phase="weighing", done=done, total=total)
    return Ending(RunStatus.COMPLETED, grounds=GROUNDS)


class _Weighing:
    """One page of it."""

    def __init__(self, work: Work, originals: Sequence[Original]) -> None:
        self.work = work
        self.originals = {original.copy_id: original for original in originals}

    def store(self) -> int:
        return store_missing(self.work.run_id, self.work.target.version_id, list(self.originals.values()), self._insert)

    def _insert(self, session: Session, seq: int, missing: Sequence[uuid.UUID]) -> None:
        source = session.get_one(Run, self.work.originals.source_id)
        chosen = weighed(candidates(session, source), self.work.weights)
        values = _values(self._numbered(seq, missing), chosen, self.work.run_id)
        session.execute(insert(Rollout).from_select(list(values), select(*values.values())))

    def _numbered(self, seq: int, missing: Sequence[uuid.UUID]) -> Any:
        """The new ids beside the old ones, as a table."""
        arrays = [
            list(missing),
            [self.originals[copy].id for copy in missing],
            [self.originals[copy].group.copy_id for copy in missing],
        ]
        ids = func.unnest(*(cast(literal(each, ARRAY(Uuid)), ARRAY(Uuid)) for each in arrays))
        names = [column(name, Uuid) for name in ("id", "source_id", "group_id")]
        table = ids.table_valued(*names, with_ordinality="place", name="n").render_derived()
        return select(table.c.id, table.c.source_id, table.c.group_id, (table.c.place + (seq - 1)).label("seq")).cte(
            "n"
        )


def _values(n: Any, chosen: Sequence[Candidate], run_id: uuid.UUID) -> dict[str, ColumnElement[Any]]:
    """What each column of the new rows gets; the conversation and all that is not named here as it was."""
    old = Rollout.__table__.alias("s")
    readable, joins = readings(old.c, chosen)
    numbers = [value.element for value in readable]
    is_scored = and_(old.c.status == RolloutStatus.COMPLETED, *(number.is_not(None) for number in numbers))
    kept = {c.name: c for c in old.columns if c.name != "created_at"}
    joined: dict[str, ColumnElement[Any]] = {
        **kept,
        "id": n.c.id,
        "run_id": literal(run_id, Uuid),
        "group_id": n.c.group_id,
        "seq": n.c.seq,
        "source_id": n.c.source_id,
        "phase": literal(str(Phase.EVALUATION), Text),
        "status": case((is_scored, str(RolloutStatus.COMPLETED)), else_=str(RolloutStatus.FAILED)),
        "attempts": literal(1),
        "reward": case((is_scored, cast(_bounded(_sum(numbers, chosen)), REAL))),
        "columns": case((is_scored, cast(array(numbers), ARRAY(REAL)))),
        "advantage": cast(null(), REAL),
        "is_demonstration": literal(False),
        **_failure(old, numbers, chosen, is_scored),
    }
    # Every join meets an index: without statistics of a young run Postgres may join by nested loops, and that is well.
    together = n.join(old, old.c.id == n.c.source_id)
    for judgement, theirs in joins:
        together = together.outerjoin(judgement, theirs)
    rows = select(*(value.label(name) for name, value in joined.items())).select_from(together).subquery()
    return {name: rows.c[name] for name in joined}


def _sum(numbers: Sequence[ColumnElement[float]], chosen: Sequence[Candidate]) -> ColumnElement[float]:
    total: ColumnElement[float] = cast(literal(0.0), Double)
    for number, candidate in zip(numbers, chosen, strict=True):
        total = total + cast(literal(candidate.weight), Double) * number
    return total


def _bounded(value: ColumnElement[float]) -> ColumnElement[float]:
    """Postgres refuses what four bytes cannot hold instead of rounding it."""
    largest = cast(literal(_LARGEST_REAL), Double)
    inside = func.greatest(func.least(value, largest), -largest)
    return case((func.abs(value) < _SMALLEST_REAL, cast(literal(0.0), Double)), else_=inside)


def _failure(
    old: Any, numbers: Sequence[ColumnElement[float]], chosen: Sequence[Candidate], is_scored: ColumnElement[bool]
) -> dict[str, ColumnElement[Any]]:
    """A rollout that had failed is a failed one again; one that a judge gave no score fails, it is no zero."""
    had_failed = old.c.status == RolloutStatus.FAILED
    missing = func.concat_ws(
        ", ", *(case((number.is_(None), each.name)) for number, each in zip(numbers, chosen, strict=True))
    )
    again = func.concat("The original failed: ", func.coalesce(old.c.error_message, "without a message"))
    without = func.concat("There is no score of ", missing, " for it.")
    return {
        "error_kind": case((is_scored, null()), (had_failed, old.c.error_kind), else_=str(ErrorKind.JUDGE)),
        "error_message": case((is_scored, null()), (had_failed, again), else_=without),
    }
