"""Read metric points in SQL: the names of metrics, and curves thinned to the minimum and maximum of ranges of steps."""

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

# A hop along the primary key from name to name: a curve may have very many points.
_METRICS = text("""
WITH RECURSIVE hop AS (
    SELECT r AS run_id, (SELECT min(name) FROM metric_points m WHERE m.run_id = r) AS name
    FROM unnest(CAST(:runs AS uuid[])) r
    UNION ALL
    SELECT run_id, (SELECT min(m.name) FROM metric_points m WHERE m.run_id = hop.run_id AND m.name > hop.name)
    FROM hop WHERE hop.name IS NOT NULL
)
SELECT name, (SELECT max(step) FROM metric_points m WHERE m.run_id = hop.run_id AND m.name = hop.name) AS latest
FROM hop WHERE name IS NOT NULL ORDER BY name
""")

# A resumed run writes steps again: the newest attempt counts. Each of `buckets` ranges of steps keeps its minimum and
# maximum, so that no spike is lost. A curve without more points than that stays whole: each step is a range.
_THINNED = """
WITH latest AS (
    SELECT DISTINCT ON (run_id, name, step) run_id, name, step, value, at
    FROM metric_points
    WHERE run_id = ANY(CAST(:runs AS uuid[])) AND name = ANY(CAST(:names AS text[]))
      AND (CAST(:first AS int) IS NULL OR step >= :first) AND (CAST(:last AS int) IS NULL OR step <= :last)
    ORDER BY run_id, name, step, attempt DESC
), sized AS (
    SELECT run_id, name, count(*) AS amount, min(step) AS low, max(step) AS high FROM latest GROUP BY run_id, name
), placed AS (
    SELECT l.*, CASE WHEN s.amount <= 2 * :buckets THEN l.step
                     ELSE (l.step - s.low)::bigint * :buckets / (s.high - s.low + 1) END AS bucket
    FROM latest l JOIN sized s USING (run_id, name)
), kept AS (
    (SELECT DISTINCT ON (run_id, name, bucket) * FROM placed ORDER BY run_id, name, bucket, value)
    UNION
    (SELECT DISTINCT ON (run_id, name, bucket) * FROM placed ORDER BY run_id, name, bucket, value DESC NULLS LAST)
)
"""
_POINTS = text(f"{_THINNED} SELECT step, name, value FROM kept ORDER BY step")

# One row per curve, with its points as big-endian doubles: 200,000 rows would take longer than the rest of the answer.
_PACKED = """
SELECT run_id, name, string_agg(float8send(step::float8), '' ORDER BY step, {order}) AS steps,
       string_agg(float8send(coalesce(value, 'NaN')), '' ORDER BY step, {order}) AS points,
       CASE WHEN :with_time
            THEN string_agg(float8send(extract(epoch FROM at)::float8), '' ORDER BY step, {order}) END AS times
FROM {source}
GROUP BY run_id, name
"""
_THINNED_CURVES = text(_THINNED + _PACKED.format(source="kept", order="value"))
# In the order of the primary key, without a sort: a resumed run's steps are there once for each attempt.
_WHOLE = "metric_points WHERE run_id = ANY(CAST(:runs AS uuid[])) AND name = ANY(CAST(:names AS text[]))"
_WHOLE_CURVES = text(_PACKED.format(source=_WHOLE, order="attempt"))

# Last steps by an index descent per curve; points are at most one per step and attempt.
_LAST_STEPS = text("""
SELECT coalesce(sum(latest), 0) FROM (
    SELECT (SELECT max(step) FROM metric_points m WHERE m.run_id = r AND m.name = n) AS latest
    FROM unnest(CAST(:runs AS uuid[])) r CROSS JOIN unnest(CAST(:names AS text[])) n
) AS ends
""")


def latest_steps(session: Session, run_id: uuid.UUID) -> dict[str, int]:
    """The last step of each metric of a run."""
    return {row.name: row.latest for row in session.execute(_METRICS, {"runs": [run_id]})}


def count_metrics(session: Session, run_ids: Sequence[uuid.UUID]) -> dict[str, int]:
    """How many of these runs have each metric."""
    return dict(Counter(row.name for row in session.execute(_METRICS, {"runs": list(run_ids)})))


def read_points(
    session: Session, run_id: uuid.UUID, names: Sequence[str], first: int | None, last: int | None, most: int
) -> Iterator[Row[int, str, float | None]]:
    """Step, metric and value in the order of steps, at most about `most` of each metric."""
    limits = {"first": first, "last": last, "buckets": most // 2}
    yield from session.execute(_POINTS, {"runs": [run_id], "names": list(names), **limits})


def sum_of_last_steps(session: Session, run_ids: Sequence[uuid.UUID], names: Sequence[str]) -> int:
    """An estimate of the number of points of these curves."""
    total: int = session.execute(_LAST_STEPS, {"runs": list(run_ids), "names": list(names)}).scalar_one()
    return total


def read_packed_curves(
    session: Session, run_ids: Sequence[uuid.UUID], names: Sequence[str], buckets: int | None, *, with_time: bool
) -> Iterator[Row[uuid.UUID, str, bytes, bytes, bytes | None]]:
    """Run, metric, steps, values and times of each curve, the arrays as big-endian doubles. A missing value is NaN.

    Without `buckets`, all points of all attempts are there, the newest attempt at a step last.
    """
    curves = {"runs": list(run_ids), "names": list(names), "with_time": with_time}
    if buckets is None:
        yield from session.execute(_WHOLE_CURVES, curves)
    else:
        yield from session.execute(_THINNED_CURVES, {**curves, "first": None, "last": None, "buckets": buckets})
