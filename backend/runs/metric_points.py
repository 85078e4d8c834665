"""Metric points as columns for a chart. Postgres thins them to the minimum and maximum of each bucket of steps."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import text
from sqlalchemy.orm import Session

from backend.runs.tables import Run

MAX_POINTS = 4000
"""Per series and answer."""


@dataclass(frozen=True, slots=True)
class Series:
    """One curve of a chart."""

    name: str
    """Name of its metric."""
    label: str
    unit: str = ""


@dataclass(frozen=True, slots=True)
class Window:
    """A range of steps."""

    after: int | None = None
    """For a chart that has the earlier steps: this step and later ones."""
    low: int | None = None
    high: int | None = None


# A hop along the primary key from name to name: a curve may have very many points.
_NAMES = text("""
WITH RECURSIVE hop AS (
    (SELECT name FROM metric_points WHERE run_id = :run ORDER BY name LIMIT 1)
    UNION ALL
    SELECT (SELECT m.name FROM metric_points m WHERE m.run_id = :run AND m.name > hop.name ORDER BY m.name LIMIT 1)
    FROM hop WHERE hop.name IS NOT NULL
)
SELECT name, (SELECT max(step) FROM metric_points m WHERE m.run_id = :run AND m.name = hop.name) AS latest
FROM hop WHERE name IS NOT NULL ORDER BY name
""")

# A resumed run writes steps again: the newest attempt counts. Each bucket of steps keeps its minimum and maximum, so
# that no spike is lost.
_POINTS = text("""
WITH latest AS (
    SELECT DISTINCT ON (name, step) name, step, value
    FROM metric_points
    WHERE run_id = :run AND name = ANY(CAST(:names AS text[]))
      AND (CAST(:first AS int) IS NULL OR step >= :first) AND (CAST(:last AS int) IS NULL OR step <= :last)
    ORDER BY name, step, attempt DESC
), sized AS (
    SELECT name, count(*) AS amount, min(step) AS low, max(step) AS high FROM latest GROUP BY name
), ranked AS (
    SELECT name, step, value, amount,
           row_number() OVER (PARTITION BY name, bucket ORDER BY value) AS from_lowest,
           row_number() OVER (PARTITION BY name, bucket ORDER BY value DESC) AS from_highest
    FROM (SELECT l.*, s.amount, (l.step - s.low)::bigint * (:most / 2) / (s.high - s.low + 1) AS bucket
          FROM latest l JOIN sized s USING (name)) AS placed
)
SELECT step, name, value FROM ranked
WHERE amount <= :most OR from_lowest = 1 OR from_highest = 1
ORDER BY step
""")


def latest_steps(session: Session, run_id: uuid.UUID) -> dict[str, int]:
    """The latest step of each metric, by name."""
    return {row.name: row.latest for row in session.execute(_NAMES, {"run": run_id})}


Points = dict[int, dict[str, float | None]]
"""Values by step and metric."""


def _read_points(session: Session, run_id: uuid.UUID, series: Sequence[Series], window: Window, most: int) -> Points:
    steps = [step for step in (window.after, window.low) if step is not None]
    names = [each.name for each in series]
    parameters = {"run": run_id, "names": names, "first": max(steps, default=None), "last": window.high, "most": most}
    points: Points = {}
    for step, name, value in session.execute(_POINTS, parameters):
        points.setdefault(step, {})[name] = value
    return points


def columnar_points(
    session: Session,
    run: Run,
    series: Sequence[Series],
    window: Window,
    most: int = MAX_POINTS,
    *,
    with_source: bool = False,
) -> dict[str, object]:
    """{"x": [steps], "series": [{"label", "unit", "values": [number or null, …]}], "cursor": the last step}.

    Request the cursor as `after` and replace that step, too: held-out figures of a step come later than its training
    figures. `with_source` adds the curves of the run that it branches from; before its own branching those of its
    source, and so on. These series have `of`: the number of the own series that they continue.
    """
    own = _read_points(session, run.id, series, window, most)
    earlier: Points = {}
    high, branch = window.high, run
    while with_source and branch.branch_step is not None and branch.source_run_id is not None:
        source = session.get(Run, branch.source_run_id)
        if source is None:
            break
        earlier = _read_points(session, source.id, series, replace(window, high=high), most) | earlier
        if source.branch_step is not None:
            high = source.branch_step if window.high is None else min(window.high, source.branch_step)
        branch = source
    steps = sorted(own.keys() | earlier.keys())
    curves: list[tuple[str, Series, Points, dict[str, int]]] = [(each.label, each, own, {}) for each in series]
    if earlier:
        curves += [(f"{each.label}, before", each, earlier, {"of": number}) for number, each in enumerate(series)]
    drawn = [
        {"label": label, "unit": each.unit, "values": [points.get(step, {}).get(each.name) for step in steps]} | more
        for label, each, points, more in curves
    ]
    last = max(own, default=window.after)
    return {"x": steps, "series": drawn, "cursor": "" if last is None else str(last)}
