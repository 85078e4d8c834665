"""The content of a run's overview: its figures, charts, newest rollouts and checkpoints."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from urllib.parse import urlencode

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.domain.detectors.spec import Action
from backend.domain.results.pass_at_k import REWARD
from backend.domain.rollouts.fields import column_field_name
from backend.domain.vocabulary import RunKind
from backend.results.ended import kept_if_ended
from backend.results.groups import TaskEnd, task_ends
from backend.results.matches import match_result
from backend.results.run_figures import FiguresRequest, RunFigures, figures_and_rewards
from backend.review.judged_curves import curve_of
from backend.rollouts import queries as rollout_queries
from backend.runs import queries
from backend.runs.charts import Chart, charts_of
from backend.runs.header import run_header
from backend.runs.metric_points import latest_steps
from backend.runs.tables import Run
from backend.studies.patterns import known_onsets, pattern_name
from backend.training.league import league_of
from backend.training.tables import Intervention
from backend.web.shared import Shared


@dataclass(frozen=True, slots=True)
class RolloutLinks:
    """Links from a figure to its rollouts."""

    run_id: uuid.UUID
    scope: str = ""
    """The filter of the figures; empty: the whole run."""

    def to(self, expression: str = "", *, is_scoped: bool = True, **equal: object) -> str:
        equals = (f"{name} = {value}" for name, value in equal.items())
        where = " and ".join(filter(None, (self.scope if is_scoped else "", *equals, expression)))
        return f"/runs/{self.run_id}/rollouts" + (f"?{urlencode({'where': where})}" if where else "")

    def between(self, column: str, low: float, high: float) -> str:
        name = column if column == REWARD else column_field_name(column)
        if low == high:
            return self.to(f"{name} = {low:.9g}")
        return self.to(f"{name} >= {low:.9g} and {name} <= {high:.9g}")


FiguresAndEnds = tuple[RunFigures, list[TaskEnd], list[TaskEnd]]
"""A run's figures, its hardest and its easiest tasks."""
_figures: Shared[FiguresAndEnds] = Shared()
"""Of runs that have ended."""


def _figures_of(session: Session, run: Run, choice: FiguresRequest) -> FiguresAndEnds:
    figures, rewards = figures_and_rewards(session, run, choice)
    return figures, *task_ends(session, rewards, 5)


def run_overview(
    session: Session, run_id: uuid.UUID, choice: FiguresRequest, *, with_charts: bool
) -> dict[str, object]:
    run = queries.get_run(session, run_id)
    is_training = run.kind is RunKind.TRAINING
    has_seats = run.version.manifest.get("proctor", {}).get("seats") is not None
    read = partial(_figures_of, session, run, choice)
    # of a training run, they include rows of environments, which change
    figures, hardest, easiest = read() if is_training else kept_if_ended(_figures, run, choice, read)
    head = run_header(session, run)
    screened = 0
    if is_training:
        kept_out = (Intervention.run_id == run.id, Intervention.action == Action.SCREEN)
        screened = session.scalar(select(func.sum(Intervention.rollouts)).where(*kept_out)) or 0
    charts: list[Chart] = []
    more_charts: list[Chart] = []
    if is_training and with_charts:
        metrics = latest_steps(session, run.id)
        charts, more_charts = charts_of(run, metrics, is_screened=screened > 0)
    scope = [f"phase = {figures.scope.phase}"] if figures.scope.phase else []
    scope += [f"step = {figures.scope.step}"] if figures.scope.step is not None else []
    return {
        "head": head,
        "run": run,
        "match": match_result(session, run) if run.kind is RunKind.EVALUATION and has_seats else None,
        "choice": urlencode(choice.model_dump(mode="json", exclude_none=True)),  # for the live stream
        "figures": figures,
        "links": RolloutLinks(run.id, " and ".join(scope)),
        "hardest": hardest,
        "easiest": easiest,
        "newest": rollout_queries.newest(session, run, 6),
        "checkpoints": queries.checkpoints(session, run_id=run.id) if is_training else (),
        "league": league_of(session, run.id) if is_training else None,
        "charts": charts,
        "more_charts": more_charts,
        "rules": [REWARD, *(name for name in run.columns if name != REWARD)],  # columns that can define success
        "screened": screened,  # rollouts that detectors kept out of the gradient
        "judged": next(iter(curve_of(session, run)), None) if head.has_verdicts and not is_training else None,
        "onsets": [
            {
                "from": onset.low,
                "to": onset.high,
                "label": f"onset: {pattern_name(onset.settings.detector, onset.settings.cluster)}",
            }
            for onset in (known_onsets(session, run.id) if is_training and with_charts else ())
        ],
    }


def configuration_rows(run: Run) -> list[tuple[str, object]]:
    """Return the resolved settings of a run by dotted name."""
    return sorted(_flat(run.configuration), key=itemgetter(0))


def _flat(values: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for name, value in values.items():
        if isinstance(value, dict) and value:
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append((f"{prefix}{name}", value))
    return rows
