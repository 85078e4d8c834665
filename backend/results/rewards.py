"""A run's rewards as arrays: read from its rollouts in one pass, and kept when the run ends.

Figures, comparisons and the hardest tasks are computed from these arrays and nothing else, so kept rewards give the
same figures as the rollouts. numpy is imported where it is used, because the web must start quickly.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import psycopg
from sqlalchemy import RowMapping, select, text
from sqlalchemy.orm import Session

from backend.domain.vocabulary import UNDER_WAY, Phase, RunKind
from backend.results.tables import KeptRewards
from backend.runs.tables import Run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_GROUP = [
    *(("id", "V16"), ("task", "V16"), ("version", "V16"), ("members", ">i4"), ("level", ">i4"), ("task_level", ">i4")),
    *(("phase", "S12"), ("step", ">i4"), ("split", "S12"), ("index", ">i8"), ("seed", ">i8")),
]
"""A record of `KeptRewards.groups`, as Postgres sends its values: text is padded with blanks, and the step is -1
outside of training."""


@dataclass(frozen=True, slots=True)
class FigureScope:
    """Selected rollouts of a run: all, one phase, or one training step of a phase."""

    run_id: uuid.UUID
    phase: Phase | None = None
    step: int | None = None

    def parameters(self) -> dict[str, object]:
        return {"run": self.run_id, "phase": self.phase and str(self.phase), "step": self.step}

    @property
    def condition(self) -> str:
        """In SQL, on rollouts `r`. A step is found by its groups, which have an index, and read without the rest."""
        of_phase = "(CAST(:phase AS text) IS NULL OR {}.phase = :phase)"
        if self.step is None:
            return f"r.run_id = :run AND {of_phase.format('r')}"
        groups = (
            f"SELECT g.id FROM groups g WHERE g.run_id = :run AND g.training_step = :step AND {of_phase.format('g')}"
        )
        return f"r.group_id IN ({groups})"


@dataclass(frozen=True)
class RunRewards:
    """The rollouts of a scope, ordered by group and member."""

    groups: NDArray[np.void]
    """Fields of `_GROUP`, ordered by id."""
    is_completed: NDArray[np.bool_]
    """By rollout."""
    values: NDArray[np.float64]
    """The reward and every column, by rollout. NaN where there is none."""

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Position of the first rollout of each group."""
        import numpy as np

        return np.concatenate(([0], np.cumsum(self.groups["members"], dtype=np.int64)[:-1]))

    @cached_property
    def completed(self) -> NDArray[np.int64]:
        """Completed rollouts of each group."""
        return self.total(self.is_completed)

    @cached_property
    def means(self) -> NDArray[np.float64]:
        """Mean of every value over the completed rollouts of each group; NaN without any."""
        import numpy as np

        is_known = self.is_completed[:, None] & ~np.isnan(self.values)
        with np.errstate(invalid="ignore"):
            means: NDArray[np.float64] = self.total(np.where(is_known, self.values, 0.0)) / self.total(is_known)
        return means

    def total(self, values: NDArray[Any]) -> NDArray[Any]:
        """Sum of values by rollout over the members of each group."""
        import numpy as np

        if not len(self.groups):
            return np.zeros((0, *values.shape[1:]))
        return np.add.reduceat(values, self.starts, axis=0, dtype=np.int64 if values.dtype == bool else None)

    def where(self, is_kept: NDArray[np.bool_]) -> RunRewards:
        """Keep these groups."""
        import numpy as np

        if is_kept.all():
            return self
        rollouts = np.repeat(is_kept, self.groups["members"])
        return RunRewards(self.groups[is_kept], self.is_completed[rollouts], self.values[rollouts])

    def of_phase(self, phase: Phase | None) -> RunRewards:
        return self if phase is None else self.where(self.groups["phase"] == str(phase).ljust(12).encode())

    def of_versions(self, ids: Collection[uuid.UUID]) -> RunRewards:
        """Keep the tasks of these versions, for a run on several environments."""
        import numpy as np

        return self.where(np.isin(self.groups["version"].view("S16"), [each.bytes.rstrip(b"\0") for each in ids]))


def read_rewards(session: Session, run: Run, scope: FigureScope) -> RunRewards:
    """Read the rewards of a scope: kept ones if the whole run is needed and no rollout was added since."""
    import numpy as np

    of_phase = scope.phase
    found = _bytes(session, f"SELECT k.rollouts, k.groups {_KEPT}", scope) if scope.step is None else None
    if found is None:
        found = _bytes(session, _READ.format(scope=scope.condition, values=_values(run)), scope)
        of_phase = None
    assert found is not None
    record = np.dtype([("is_completed", "?"), ("values", ">f4", (1 + len(run.columns),))])
    rollouts, groups = np.frombuffer(found[0], record), np.frombuffer(found[1], _GROUP)
    return RunRewards(groups, rollouts["is_completed"], rollouts["values"].astype(np.float64)).of_phase(of_phase)


def _bytes(session: Session, statement: str, scope: FigureScope) -> tuple[bytes, bytes] | None:
    """The row of a statement in the driver's binary format: as text, each byte would be sent as two."""
    driver = session.connection().connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    compiled = text(statement).compile(dialect=session.connection().dialect)
    with driver.cursor(binary=True) as cursor:
        row: tuple[bytes, bytes] | None = cursor.execute(str(compiled).encode(), scope.parameters()).fetchone()
    return row


def count_outcomes(session: Session, scope: FigureScope) -> list[RowMapping | dict[str, Any]]:
    """How the rollouts of a scope ended and what they cost: a row per phase, status and reason, most rollouts first."""
    if (
        scope.step is None
        and (kept := session.scalar(text(f"SELECT k.counts {_KEPT}"), {"run": scope.run_id})) is not None
    ):
        rows = [row for row in kept if scope.phase in {None, row["phase"]}]
    else:
        rows = [*session.execute(text(_COUNT.format(scope=scope.condition)), scope.parameters()).mappings()]
    return sorted(rows, key=lambda row: -row["amount"])


def count_completed(
    session: Session, run_ids: Collection[uuid.UUID], phases: Collection[Phase] = tuple(Phase)
) -> dict[uuid.UUID, int]:
    """Completed rollouts of each run, in some phases. Runs without any may be missing."""
    rows = session.execute(_COMPLETED, {"runs": list(run_ids), "phases": list(map(str, phases))})
    return {row.run_id: row.amount for row in rows}


def keep_rewards(session: Session, run: Run) -> None:
    """Keep the rewards of a run that has ended or whose row is locked, unless the kept ones are current."""
    scope = FigureScope(run.id)
    session.flush()
    if session.scalar(text(f"SELECT k.next_seq {_KEPT}"), scope.parameters()) is not None:
        return
    read, count = (part.format(scope=scope.condition, values=_values(run)) for part in (_READ, _COUNT))
    session.execute(
        text(f"""
            INSERT INTO run_rewards (run_id, next_seq, rollouts, groups, counts)
            SELECT r.id, r.next_seq, kept.rollouts, kept.groups,
                   (SELECT coalesce(jsonb_agg(to_jsonb(c)), '[]') FROM ({count}) c)
            FROM runs r CROSS JOIN ({read}) kept WHERE r.id = :run
            ON CONFLICT (run_id) DO UPDATE SET next_seq = excluded.next_seq, rollouts = excluded.rollouts,
                groups = excluded.groups, counts = excluded.counts
        """),
        scope.parameters(),
    )


def keep_next_rewards(session: Session) -> bool:
    """Keep the rewards of the newest run that has ended without, or with outdated ones. Returns whether there was one.

    It was ended by an older release, or rollouts were added to it since.
    """
    is_kept = select(KeptRewards.run_id).where(KeptRewards.run_id == Run.id, KeptRewards.next_seq == Run.next_seq)
    ended = Run.status.not_in(UNDER_WAY), Run.kind != RunKind.PLAY, Run.next_seq > 1, ~is_kept.exists()
    newest = select(Run).where(*ended).order_by(Run.created_at.desc()).limit(1)
    run = session.scalar(newest.with_for_update(key_share=True, skip_locked=True))
    if run is not None:
        keep_rewards(session, run)
    return run is not None


def _values(run: Run) -> str:
    """The reward and the columns of a rollout `r` as bytes."""
    values = ["r.reward", *(f"r.columns[{place}]" for place in range(1, 1 + len(run.columns)))]
    return " || ".join(f"float4send(coalesce({value}, 'NaN'))" for value in values)


_KEPT = """
FROM run_rewards k JOIN runs r ON r.id = k.run_id AND r.next_seq = k.next_seq WHERE k.run_id = :run
"""

# Folded to groups before the tasks are joined, because groups are few and rollouts many. One row with big-endian
# records: a row per rollout would take several times as long to read.
_READ = """
SELECT coalesce(string_agg(p.records, '' ORDER BY p.group_id), '') AS rollouts, coalesce(string_agg(
    uuid_send(g.id) || uuid_send(t.id) || uuid_send(t.version_id) || int4send(p.members::int) || int4send(p.level)
    || int4send(t.level) || textsend(rpad(g.phase, 12)) || int4send(coalesce(g.training_step, -1))
    || textsend(rpad(t.split, 12)) || int8send(t.index) || int8send(t.seed), '' ORDER BY p.group_id), '') AS groups
FROM (
    SELECT r.group_id, count(*) AS members, min(r.level) AS level,
           string_agg(boolsend(r.status = 'completed') || {values}, '' ORDER BY r.member) AS records
    FROM rollouts r WHERE {scope} GROUP BY r.group_id
) p JOIN groups g ON g.id = p.group_id JOIN tasks t ON t.id = g.task_id
"""

_COMPLETED = text("""
WITH kept AS MATERIALIZED (
    SELECT k.run_id, k.counts FROM run_rewards k JOIN runs r ON r.id = k.run_id AND r.next_seq = k.next_seq
    WHERE k.run_id = ANY(CAST(:runs AS uuid[]))
)
SELECT k.run_id, sum(CAST(c ->> 'amount' AS bigint))::bigint AS amount
FROM kept k CROSS JOIN jsonb_array_elements(k.counts) c
WHERE c ->> 'status' = 'completed' AND c ->> 'phase' = ANY(CAST(:phases AS text[])) GROUP BY k.run_id
UNION ALL
SELECT r.run_id, count(*) FROM unnest(CAST(:runs AS uuid[])) AS wanted JOIN rollouts r ON r.run_id = wanted
WHERE NOT EXISTS (SELECT FROM kept WHERE kept.run_id = wanted)
  AND r.status = 'completed' AND r.phase = ANY(CAST(:phases AS text[])) GROUP BY r.run_id
""")

_COUNT = """
SELECT r.phase, r.status, r.stop_reason, r.error_kind, count(*) AS amount, max(r.training_step) AS latest,
       count(*) FILTER (WHERE r.is_truncated) AS truncated, sum(r.turns) AS turns,
       sum(r.tokens_in) AS tokens_in, sum(r.tokens_out) AS tokens_out,
       sum(r.cost) AS cost, count(r.cost) AS priced, sum(r.queue_seconds::float8) AS queue_seconds,
       sum(r.policy_seconds::float8) AS policy_seconds, sum(r.environment_seconds::float8) AS environment_seconds
FROM rollouts r WHERE {scope} GROUP BY 1, 2, 3, 4
"""
