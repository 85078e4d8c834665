"""Curves: metric points as columns for a chart, thinned by Postgres to the lowest and highest of each bucket."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

MAX_POINTS = 4000
"""Of a series in one answer."""


@dataclass(frozen=True, slots=True)
class Window:
    """Which part of the curves."""

    after: int | None = None
    """A step: this one and later ones, for a chart that has the rest."""
    low: int | None = None
    high: int | None = None

    @property
    def first(self) -> int | None:
        steps = [step for step in (self.after, self.low) if step is not None]
        return max(steps) if steps else None


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

# A resumed run writes steps again: the newest attempt counts. Of each bucket of steps the lowest and the highest
# value stay, so that no spike is lost.
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
    """The newest step of every curve, by the curve's name."""
    return {row.name: row.latest for row in session.execute(_NAMES, {"run": run_id})}


@dataclass(frozen=True, slots=True)
class Series:
    """One curve of a chart."""

    name: str
    """Of its metric points."""
    label: str
    unit: str = ""


def columnar_points(
    session: Session, run_id: uuid.UUID, series: Sequence[Series], window: Window, most: int = MAX_POINTS
) -> dict[str, Any]:
    """{"x": [steps], "series": [{"label", "unit", "values": [number or null, …]}], "cursor": the last step}.

    Ask again with the cursor as `after` and lay the answer over what is there: its first step is the one already
    known, because held-out figures of a step come later than its training figures.
    """
    names = [each.name for each in series]
    parameters = {"run": run_id, "names": names, "first": window.first, "last": window.high, "most": most}
    by_step: dict[int, dict[str, float | None]] = {}
    for step, name, value in session.execute(_POINTS, parameters):
        by_step.setdefault(step, {})[name] = value
    drawn = [
        {"label": each.label, "unit": each.unit, "values": [row.get(each.name) for row in by_step.values()]}
        for each in series
    ]
    last = max(by_step, default=window.after)
    return {"x": list(by_step), "series": drawn, "cursor": "" if last is None else str(last)}
