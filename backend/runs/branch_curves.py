"""Both branches on one chart: a run's curves, and in a second tone those of the run that it goes on from."""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy.orm import Session

from backend.runs.metric_points import Series, Window, columnar_points
from backend.runs.tables import Run

Rows = dict[int, list[float | None]]
"""Step → a value for each series."""


def points_beside_source(session: Session, run: Run, series: Sequence[Series], window: Window) -> dict[str, Any]:
    """As `columnar_points`; further series have `of`: the number of the own series that they belong to."""
    own = columnar_points(session, run.id, series, window)
    others = _rows_of_line(session, run, series, window)
    if not others:
        return own
    mine = _rows(own)
    steps = sorted(mine.keys() | others.keys())
    nothing: list[float | None] = [None] * len(series)
    drawn: list[dict[str, Any]] = [
        {"label": each.label, "unit": each.unit, "values": [mine.get(step, nothing)[number] for step in steps]}
        for number, each in enumerate(series)
    ]
    drawn += [
        {
            "label": f"{each.label}, before",
            "unit": each.unit,
            "values": [others.get(step, nothing)[number] for step in steps],
            "of": number,
        }
        for number, each in enumerate(series)
    ]
    return {"x": steps, "series": drawn, "cursor": own["cursor"]}


def _rows_of_line(session: Session, run: Run, series: Sequence[Series], window: Window) -> Rows:
    """The source's curves, before its own branching those of its source, and so on."""
    rows: Rows = {}
    for run_id, last in _line(session, run):
        high = last if window.high is None else min(window.high, last if last is not None else window.high)
        found = _rows(columnar_points(session, run_id, series, replace(window, high=high)))
        rows = found | rows
    return rows


def _line(session: Session, run: Run) -> Iterator[tuple[uuid.UUID, int | None]]:
    """(run, its last step that counts), from the source backwards."""
    last: int | None = None
    while run.branch_step is not None and run.source_run_id is not None:
        source = session.get(Run, run.source_run_id)
        if source is None:
            return
        yield source.id, last
        last, run = source.branch_step, source


def _rows(points: dict[str, Any]) -> Rows:
    return {step: [each["values"][place] for each in points["series"]] for place, step in enumerate(points["x"])}
