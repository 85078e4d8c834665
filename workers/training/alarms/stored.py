"""The stored figures that alarms need, so that a resumed run knows what it has seen."""

import uuid
from collections.abc import Iterable, Iterator

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.session import transaction
from backend.runs.tables import MetricPoint, Run

NEEDED = (
    "reward",
    "format",
    "entropy",
    "divergence",
    "grad_norm",
    "completions/mean_length",
    "completions/truncated",
    "groups/no_variance",
    "rollouts/failed",
    "ratio/mean",
    "ratio/low_clip",
    "ratio/high_clip",
)
EXAMINED = ("heldout/reward", "heldout/reward_error")

Figures = dict[str, float]


def stored_figures(run_id: uuid.UUID, last: int, names: Iterable[str]) -> Iterator[tuple[int, Figures]]:
    """Each step's figures up to a step; of a branch also those of the run that it goes on from, unless that one played
    another version of the environment: rewards of two versions are two scales."""
    wanted = set(names)
    with transaction() as session:
        by_step: dict[int, Figures] = {}
        for point in _points(session, session.get_one(Run, run_id), last, wanted):
            if point.value is not None:
                by_step.setdefault(point.step, {})[point.name] = point.value
    yield from sorted(by_step.items())


def _points(session: Session, run: Run, last: int, names: set[str]) -> Iterator[MetricPoint]:
    """Later attempts after earlier ones, a branch after its source."""
    first = 0
    if run.branch_step is not None and run.source_run_id is not None:
        first = run.branch_step + 1
        source = session.get(Run, run.source_run_id)
        if source is not None and source.version_id == run.version_id:
            yield from _points(session, source, min(last, run.branch_step), names)
    own = (MetricPoint.run_id == run.id, MetricPoint.name.in_(names), MetricPoint.step.between(first, last))
    yield from session.scalars(select(MetricPoint).where(*own).order_by(MetricPoint.step, MetricPoint.attempt))
