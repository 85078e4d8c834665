"""The only place where workers write the results of a run: rollouts, metric points, progress and log lines.

Each call is a small transaction of its own and may be repeated: what is stored already is met again by its id.
"""

import math
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from sqlalchemy import delete, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from backend.db.models import Group, MetricPoint, Run, RunLogLine, Task
from backend.db.models import Rollout as RolloutRow
from backend.db.session import transaction
from backend.domain.ids import stable_id
from backend.domain.rollouts import Rollout
from backend.domain.text import plain_text
from backend.domain.vocabulary import RolloutStatus
from backend.events import RUNS, announce, run_topic
from workers.jobs.rollout_rows import COLUMNS, SEQ, group_id, row_of

PROGRESS_SECONDS = 0.25
STOP_CACHE_SECONDS = 0.5
MAX_LOG_CHARACTERS = 20_000
_COPY = f"COPY rollouts ({', '.join(COLUMNS)}) FROM STDIN"


class RunRecorder:
    """Writes for one run. Its methods may be called from any thread."""

    def __init__(self, run_id: uuid.UUID) -> None:
        self.run_id = run_id
        with transaction() as session:
            run = session.get_one(Run, run_id)
            self.version_id = run.version_id
            self.columns = list(run.columns)
            self.attempt = run.attempt
        self._topic = run_topic(run_id)
        self._progress_at = 0.0
        self._rate = _Rate()
        self._stop = (0.0, False)

    def store(self, rollouts: Sequence[Rollout]) -> int:
        """Store what is not stored yet, and put a new rollout in the place of a failed one. Returns the new rows."""
        rows = {row[0]: row for row in (row_of(self.run_id, rollout, self.columns) for rollout in rollouts)}
        if not rows:
            return 0
        with transaction() as session:
            # The run's row stays locked until the commit, so numbers become visible in their order.
            seq = session.scalars(
                select(Run.next_seq).where(Run.id == self.run_id).with_for_update(key_share=True)
            ).one()
            for known in self._settled(session, list(rows)):
                del rows[known]
            if not rows:
                return 0
            self._store_groups(session, rollouts)
            for number, row in enumerate(rows.values(), start=seq):
                row[SEQ] = number
            _copy(session, list(rows.values()))
            session.execute(update(Run).where(Run.id == self.run_id).values(next_seq=seq + len(rows)))
            announce(session, self._topic)
        return len(rows)

    def _settled(self, session: Session, ids: list[uuid.UUID]) -> list[uuid.UUID]:
        """Those that are stored; failed ones are taken away first and so give place."""
        found = session.execute(select(RolloutRow.id, RolloutRow.status).where(RolloutRow.id.in_(ids))).all()
        failed = [row.id for row in found if row.status is RolloutStatus.FAILED]
        if failed:
            session.execute(delete(RolloutRow).where(RolloutRow.id.in_(failed)))
        return [row.id for row in found if row.status is not RolloutStatus.FAILED]

    def _store_groups(self, session: Session, rollouts: Sequence[Rollout]) -> None:
        tasks: dict[uuid.UUID, dict[str, Any]] = {}
        groups: dict[uuid.UUID, dict[str, Any]] = {}
        for rollout in rollouts:
            task = rollout.task
            task_id = stable_id("task", self.version_id, task.split, task.index, task.seed)
            tasks[task_id] = {
                "id": task_id,
                "version_id": self.version_id,
                "split": task.split,
                "index": task.index,
                "level": task.level,
                "seed": task.seed,
                "arguments": dict(task.arguments),
            }
            group = group_id(self.run_id, rollout)
            groups[group] = {
                "id": group,
                "run_id": self.run_id,
                "task_id": task_id,
                "phase": rollout.phase,
                "training_step": rollout.training_step,
                "ordinal": rollout.group,
            }
        # Runs share tasks: in one order, two writers never wait for each other in a circle.
        session.execute(insert(Task).on_conflict_do_nothing(), [tasks[key] for key in sorted(tasks)])
        session.execute(insert(Group).on_conflict_do_nothing(), list(groups.values()))

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """One point a curve. A repeated point replaces its first; NaN and infinity become null."""
        points = [
            {
                "run_id": self.run_id,
                "name": plain_text(name)[:120],
                "step": step,
                "attempt": self.attempt,
                "value": float(value) if math.isfinite(value) else None,
            }
            for name, value in values.items()
        ]
        if not points:
            return
        statement = insert(MetricPoint)
        keys = ["run_id", "name", "step", "attempt"]
        with transaction() as session:
            session.execute(
                statement.on_conflict_do_update(index_elements=keys, set_={"value": statement.excluded.value}), points
            )
            announce(session, self._topic)

    def progress(self, *, phase: str, done: int, total: int, message: str = "") -> None:
        """At most four times a second; the last one of a phase is always written."""
        now = time.monotonic()
        rate = self._rate.at(phase, done, now)
        if now - self._progress_at < PROGRESS_SECONDS and done < total:
            return
        self._progress_at = now
        news = {"phase": phase, "done": done, "total": total, "rate": rate, "message": plain_text(message)[:500]}
        with transaction() as session:
            session.execute(update(Run).where(Run.id == self.run_id).values(progress=news))
            announce(session, self._topic, RUNS)

    def log(self, message: str, level: str = "info") -> None:
        with transaction() as session:
            session.add(RunLogLine(run_id=self.run_id, level=level, message=plain_text(message)[:MAX_LOG_CHARACTERS]))
            announce(session, self._topic)

    def should_stop(self) -> bool:
        """Has a person asked the run to stop? Looked up at most twice a second."""
        looked_at, answer = self._stop
        now = time.monotonic()
        if not answer and now - looked_at >= STOP_CACHE_SECONDS:
            with transaction() as session:
                asked = session.scalar(select(Run.stop_requested_at).where(Run.id == self.run_id))
            answer = asked is not None
            self._stop = (now, answer)
        return answer


class _Rate:
    """Units a second since the phase began."""

    def __init__(self) -> None:
        self._phase: str | None = None
        self._since = 0.0
        self._from = 0

    def at(self, phase: str, done: int, now: float) -> float | None:
        if phase != self._phase:
            self._phase, self._since, self._from = phase, now, done
        seconds = now - self._since
        return round((done - self._from) / seconds, 3) if seconds > 0 else None


def _copy(session: Session, rows: Sequence[Sequence[Any]]) -> None:
    connection = session.connection().connection.driver_connection
    assert isinstance(connection, psycopg.Connection)
    with connection.cursor() as cursor, cursor.copy(_COPY) as copy:
        for row in rows:
            copy.write_row(row)
