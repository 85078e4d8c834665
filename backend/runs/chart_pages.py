"""/runs/chart: curves of any runs in one chart. Its address holds the whole choice, so that it can be shared."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query
from pydantic import ConfigDict, field_validator
from sqlalchemy.orm import Session, defer

from backend.core.events import topic_of
from backend.domain.results.curves import Band
from backend.domain.vocabulary import RunKind
from backend.results.differences import SettingDifference, differing_settings
from backend.runs import queries
from backend.runs.curves import (
    MAX_CURVES,
    MAX_SEARCHED,
    CurvesRequest,
    RunGroup,
    XAxis,
    group_seeds,
)
from backend.runs.metric_points import count_metrics
from backend.runs.schemas import RunFilter
from backend.runs.tables import Run
from backend.web.dependencies import SessionDep, Viewer
from backend.web.streams import live_page

router = APIRouter()
MAX_CANDIDATES = 100
MAX_DESCRIBED = MAX_SEARCHED
"""Runs whose differing settings have a column each."""


class ChartChoice(CurvesRequest):
    """The chart's form: the request, and how the browser draws it."""

    model_config = ConfigDict(extra="ignore")

    log: bool = False
    """Logarithmic y."""

    @field_validator("low", "high", mode="before")
    @classmethod
    def _drop_empty(cls, value: object) -> object:
        return None if value == "" else value

    def query(self, **changes: object) -> str:
        """The choice as an address has it, without defaults."""
        values = self.model_dump(mode="json", exclude_defaults=True) | changes
        values = {name: str(value).lower() if isinstance(value, bool) else value for name, value in values.items()}
        return urlencode({name: value for name, value in values.items() if value not in (None, "")}, doseq=True)

    def without(self, run_id: uuid.UUID) -> str:
        return self.query(run=[each for each in self.run if each != str(run_id)])


@dataclass(slots=True)
class RunChart:
    choice: ChartChoice
    runs: Sequence[Run]
    """All selected runs."""
    drawn: Sequence[Run]
    """The first of them, up to the limit of one chart."""
    groups: Sequence[RunGroup]
    metrics: dict[str, int]
    """Metrics that can be chosen, and the number of runs that have each."""
    candidates: Sequence[Run]
    differences: Sequence[SettingDifference]
    problems: list[str]
    curves_query: str
    """The request for the points of the drawn runs."""
    events: dict[str, str] = field(default_factory=dict)
    """For scripts: `points` changes when there is more to fetch."""
    is_over: bool = False
    xs: tuple[XAxis, ...] = tuple(XAxis)
    bands: tuple[Band, ...] = tuple(Band)
    most_searched: int = MAX_SEARCHED


def _topics(choice: Annotated[ChartChoice, Query()]) -> tuple[str, ...]:
    return tuple(topic_of("run", run_id) for run_id in choice.run_ids[:MAX_CURVES])


@live_page(router, "/runs/chart", "runs/chart.html", "chart_runs", topics=_topics)
def show_chart(session: SessionDep, _: Viewer, choice: Annotated[ChartChoice, Query()]) -> RunChart:
    run_ids = choice.run_ids
    runs = queries.find_runs(session, run_ids, defer(Run.summary))
    drawn = runs[: MAX_CURVES // len(choice.metrics)]
    problems = []
    if gone := len(run_ids) - len(runs):
        problems.append(f"{gone:,} of the selected runs do not exist anymore.")
    if len(drawn) < len(runs):
        each = "one metric" if len(choice.metrics) == 1 else f"{len(choice.metrics)} metrics"
        problems.append(
            f"{len(runs):,} runs are selected, and one chart draws at most {MAX_CURVES} curves. With {each}, the first "
            f"{len(drawn)} are drawn. The others stay selected: remove runs or metrics to draw them."
        )
    return RunChart(
        choice,
        runs,
        drawn,
        group_seeds(drawn) if choice.group else (),
        count_metrics(session, [run.id for run in drawn[:MAX_SEARCHED]]),
        _candidates(session, {run.id for run in runs}),
        differing_settings(drawn[:MAX_DESCRIBED]) if len(drawn) > 1 else (),
        problems,
        choice.query(run=[str(run.id) for run in drawn], log=None),
        events={"points": escape(" ".join(f"{run.status}{run.attempt}/{run.progress.get('done')}" for run in drawn))},
        is_over=bool(runs) and all(run.status.is_over for run in drawn),
    )


def _candidates(session: Session, chosen: set[uuid.UUID]) -> list[Run]:
    newest = queries.runs(session, RunFilter(kind=RunKind.TRAINING, limit=MAX_CANDIDATES)).items
    return [run for run in newest if run.id not in chosen]
