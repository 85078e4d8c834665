"""Write the results of a run: rollouts, metric points, progress and log lines. Workers write them nowhere else.

Each call is a small transaction and can be repeated: rows that are stored are found by their id.
"""

import logging
import math
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import psycopg
import structlog
from sqlalchemy import cast, delete, select, text, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from tenacity import Retrying, before_sleep_log, retry_if_exception, stop_after_delay, wait_exponential

from backend.core.events import RUNS, announce, topic_of
from backend.core.session import transaction
from backend.domain.ids import stable_text
from backend.domain.rollouts.rollout import Rollout
from backend.domain.text import json_text, plain_text
from backend.domain.vocabulary import UNDER_WAY, RolloutStatus
from backend.rollouts.tables import Rollout as RolloutRow
from backend.runs.tables import Run, RunLogLine
from workers.rollouts.limits import BatchWriter
from workers.storage.rollouts import COLUMNS, SEQ, copy_line, group_id, row_of, unstorable

logger = structlog.get_logger(__name__)

PROGRESS_SECONDS = 0.25
STOP_CACHE_SECONDS = 0.5
OUTAGE_SECONDS = 60.0
"""Time to wait for a lost database."""
MAX_LOG_CHARACTERS = 20_000
_GIVES_PLACE = frozenset({RolloutStatus.FAILED, RolloutStatus.CANCELLED})
# Runs share tasks. They are inserted in one order, so that two writers never deadlock.
_ADD_PLACES = text("""
WITH given AS MATERIALIZED (
    SELECT * FROM json_to_recordset(CAST(:rows AS json))
        AS g(id uuid, task uuid, version uuid, split text, index int, level int, seed bigint,
             arguments jsonb, phase text, training_step int, ordinal int)
), added AS (
    INSERT INTO tasks (id, version_id, split, index, level, seed, arguments)
    SELECT DISTINCT ON (task) task, version, split, index, level, seed, arguments FROM given ORDER BY task
    ON CONFLICT DO NOTHING
)
INSERT INTO groups (id, run_id, task_id, phase, training_step, ordinal)
SELECT id, :run, task, phase, training_step, ordinal FROM given
ON CONFLICT DO NOTHING
""")
_ADD_POINTS = text("""
INSERT INTO metric_points (run_id, name, step, attempt, value)
SELECT :run, p.key, :step, :attempt, CAST(p.value AS double precision)
FROM json_each_text(CAST(:points AS json)) AS p
ORDER BY p.key
ON CONFLICT (run_id, name, step, attempt) DO UPDATE SET value = excluded.value
""")
_KNOWN = text("SELECT CAST(id AS text), status FROM rollouts WHERE id = ANY(CAST(:ids AS uuid[]))")
_LINES = 20
"""Rows per write: few, because one may hold megabytes."""
_COPY = f"COPY rollouts ({', '.join(COLUMNS)}) FROM STDIN"


class RunRecorder:
    """Writes the results of one run. Its methods can be called from any thread."""

    def __init__(self, run_id: uuid.UUID) -> None:
        self.run_id = run_id
        with transaction() as session:
            run = session.get_one(Run, run_id)
            self.version_id = run.version_id
            self.columns = list(run.columns)
            self.attempt = run.attempt
            self._was_over = run.status.is_over
        self._topic = topic_of("run", run_id)
        self._progress_at = 0.0
        self._phase_start = ("", 0, 0.0)
        """The current phase, and the units done and the time at its beginning."""
        self._stop = (0.0, False)

    def store(self, rollouts: Sequence[Rollout]) -> int:
        """Store rollouts that are not stored yet. They replace failed and canceled ones. Returns the number of rows.

        A rollout that the database refuses is stored as failed. Raises if that is refused too.
        """
        try:
            return self._store(rollouts)
        except (DBAPIError, psycopg.Error) as error:
            if not is_refusal(error):
                raise
        logger.warning("a batch was refused, storing one by one", run_id=str(self.run_id), exc_info=True)
        stored = 0
        for rollout in rollouts:
            try:
                stored += self._store([rollout])
            except (DBAPIError, psycopg.Error) as error:
                if not is_refusal(error):
                    raise
                cause = error.orig if isinstance(error, DBAPIError) else error
                stored += self._store([unstorable(rollout, str(cause).partition("\n")[0][:300])])
        return stored

    def _line(self, run_id: str, group: str, rollout: Rollout, seq: int) -> str:
        """The rollout as a line of COPY; as a failed one if it cannot be written as a row."""
        try:
            row = row_of(run_id, rollout, self.columns, group)
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            logger.warning("a rollout cannot be written as a row", run_id=run_id, exc_info=True)
            row = row_of(run_id, unstorable(rollout, type(error).__name__), self.columns, group)
        row[SEQ] = seq
        return copy_line(row)

    def _store(self, rollouts: Iterable[Rollout]) -> int:
        run_id = str(self.run_id)
        new: dict[str, tuple[str, Rollout]] = {}
        for rollout in rollouts:
            group = group_id(run_id, rollout)
            new[stable_text("rollout", group, rollout.member)] = group, rollout
        if not new:
            return 0
        with transaction() as session:
            # The run's row stays locked until the commit, so numbers become visible in their order.
            locked = select(Run.next_seq).where(Run.id == self.run_id).with_for_update(key_share=True)
            seq = session.scalars(locked).one()
            known = session.execute(_KNOWN, {"ids": f"{{{','.join(map(str, new))}}}"}).all()
            replaced = [row.id for row in known if row.status in _GIVES_PLACE]
            if replaced:
                session.execute(delete(RolloutRow).where(RolloutRow.id.in_(replaced)))
            for stored in known:
                if stored.status not in _GIVES_PLACE:
                    del new[stored.id]
            if not new:
                return 0
            places = []
            own_version = str(self.version_id)
            for group, rollout in dict(new.values()).items():
                task, version = rollout.task, own_version
                if task.version_id is not None:
                    version = str(task.version_id)
                place = {
                    "id": group,
                    "task": stable_text("task", version, task.split, task.index, task.seed),
                    "version": version,
                    "split": task.split,
                    "index": task.index,
                    "level": task.level,
                    "seed": task.seed,
                    "arguments": task.arguments,
                    "phase": rollout.counted_phase,
                    "training_step": rollout.training_step,
                    "ordinal": rollout.group,
                }
                places.append(place)
            session.execute(_ADD_PLACES, {"run": self.run_id, "rows": json_text(places)})
            connection = session.connection().connection.driver_connection
            assert isinstance(connection, psycopg.Connection)
            with connection.cursor() as cursor, cursor.copy(_COPY) as copy:  # it stores rows while we write the next
                lines = []
                for number, (group, rollout) in enumerate(new.values(), start=seq):
                    lines.append(self._line(run_id, group, rollout, number))
                    if len(lines) == _LINES:
                        copy.write("".join(lines))
                        lines.clear()
                copy.write("".join(lines))
            session.execute(update(Run).where(Run.id == self.run_id).values(next_seq=seq + len(new)))
            announce(session, self._topic)
        return len(new)

    def mark_rollouts(self, marks: Mapping[str, Sequence[uuid.UUID]]) -> None:
        """Set metrics of stored rollouts of the run to 1. `marks`: rollouts by the name of the metric."""
        with transaction() as session:
            for name, ids in marks.items():
                changed = RolloutRow.metrics.op("||")(cast({name: 1.0}, JSONB))
                own = (RolloutRow.run_id == self.run_id, RolloutRow.id.in_(ids))
                session.execute(update(RolloutRow).where(*own).values(metrics=changed))
            announce(session, self._topic)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Write one point per curve. A repeated point replaces the first; NaN and infinity become null."""
        points = {
            plain_text(name)[:120]: float(value) if math.isfinite(value) else None for name, value in values.items()
        }
        if not points:
            return
        when = {"run": self.run_id, "step": step, "attempt": self.attempt}
        with transaction() as session:
            session.execute(_ADD_POINTS, {**when, "points": json_text(points)})
            announce(session, self._topic)

    def progress(
        self,
        *,
        phase: str,
        done: int,
        total: int,
        message: str = "",
        concurrency: int = 0,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """Write the progress, at most four times a second. The end of a phase and calls with `more` are always written.

        A run that another job ended keeps its last progress.
        """
        now = time.monotonic()
        if phase != self._phase_start[0]:
            self._phase_start = phase, done, now
        _, done_before, since = self._phase_start
        if now - self._progress_at < PROGRESS_SECONDS and done < total and more is None:
            return
        self._progress_at = now
        rate = round((done - done_before) / (now - since), 3) if now > since else None
        news = {"phase": phase, "done": done, "total": total, "rate": rate, "message": plain_text(message)[:500]}
        news |= {"concurrency": concurrency} if concurrency else {}
        news |= more or {}
        row = update(Run).where(Run.id == self.run_id)
        if not self._was_over:
            row = row.where(Run.status.in_(UNDER_WAY))
        with transaction() as session:
            session.execute(row.values(progress=news))
            announce(session, self._topic, RUNS)

    def log(self, message: str, level: str = "info") -> None:
        with transaction() as session:
            session.add(RunLogLine(run_id=self.run_id, level=level, message=plain_text(message)[:MAX_LOG_CHARACTERS]))
            announce(session, self._topic)

    def should_stop(self) -> bool:
        """Whether a person stopped the run, or another job ended it. Reads the database at most twice a second."""
        looked_at, answer = self._stop
        now = time.monotonic()
        if not answer and now - looked_at >= STOP_CACHE_SECONDS:
            with transaction() as session:
                query = select(Run.stop_requested_at, Run.status).where(Run.id == self.run_id)
                asked_at, status = session.execute(query).one()
            answer = asked_at is not None or (status.is_over and not self._was_over)
            self._stop = (now, answer)
        return answer


class RolloutWriter(BatchWriter[Rollout]):
    """Connects the engine with a recorder: `put` is the engine's `on_rollout`. Waits for a lost database."""

    def __init__(
        self, recorder: RunRecorder, *, after_batch: Callable[[Sequence[Rollout]], None] = lambda batch: None
    ) -> None:
        lost = (OperationalError, InterfaceError, psycopg.OperationalError, psycopg.InterfaceError)
        retrying = Retrying(  # storing twice is harmless, because rows are found by their ids
            # Exceeded limits of Postgres have the class of a lost connection, and waiting does not help.
            retry=retry_if_exception(lambda error: isinstance(error, lost) and not is_refusal(error)),
            wait=wait_exponential(multiplier=0.2, max=5),
            stop=stop_after_delay(OUTAGE_SECONDS),
            before_sleep=before_sleep_log(logger, logging.WARNING),
            reraise=True,
        )

        def store(batch: list[Rollout]) -> None:
            retrying(recorder.store, batch)
            after_batch(batch)

        super().__init__(store)


def is_refusal(error: BaseException) -> bool:
    """Whether Postgres refused the data itself, so that the same statement would be refused again.

    Classes 22 (data), 23 (constraints) and 54 (limits); the driver refuses NUL and surrogates without a code.
    """
    cause = error.orig if isinstance(error, DBAPIError) else error
    state = getattr(cause, "sqlstate", None)
    return state[:2] in {"22", "23", "54"} if state else isinstance(cause, psycopg.DataError)
