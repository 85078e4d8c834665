"""The league of a self-play run, read from its curves."""

import uuid

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from backend.domain.training.self_play import CURVES, League
from backend.runs.tables import MetricPoint

_AT_STEP = text("""
SELECT DISTINCT ON (name) name, value FROM metric_points
WHERE run_id = :run AND step = :step AND name LIKE :prefix ORDER BY name, attempt DESC
""")


def league_of(session: Session, run_id: uuid.UUID, step: int | None = None, most: int = 8) -> League | None:
    """The league after a step, by default the latest; None if the run has none."""
    if step is None:
        own = (MetricPoint.run_id == run_id, MetricPoint.name == f"{CURVES}rating")
        step = session.scalar(select(MetricPoint.step).where(*own).order_by(MetricPoint.step.desc()).limit(1))
    rows = session.execute(_AT_STEP, {"run": run_id, "step": step, "prefix": f"{CURVES}%"})
    return League.of({row.name: row.value for row in rows if row.value is not None}, most)
