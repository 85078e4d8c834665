"""What the queue can be narrowed to, and how many items each choice shows."""

import uuid
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from backend.environments.tables import Environment
from backend.review.queries import part_of
from backend.review.schemas import ReviewFilter
from backend.review.tables import ReviewItem
from backend.runs.tables import Run
from backend.web.formats import short

MOST_RUNS = 200
"""The newest, and the chosen one."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One value of a filter."""

    value: str
    name: str
    count: int
    """Items of the part that is shown, whatever else narrows it: beside a run's own count, those of the detectors would
    say how much of the run was flagged."""


@dataclass(frozen=True, slots=True)
class Choices:
    """Those that the part that is shown has items of, and what is chosen already."""

    detectors: list[Choice]
    environments: list[Choice]
    runs: list[Choice]
    """The newest first; of the environment, where one is chosen."""


def choices(session: Session, chosen: ReviewFilter, person_id: uuid.UUID) -> Choices:
    part = part_of(chosen, person_id)
    detector = func.unnest(ReviewItem.detectors).label("detector")
    flagged = session.execute(select(detector, func.count().label("items")).where(*part).group_by(detector))
    detectors = {row.detector: row.items for row in flagged}
    place = (ReviewItem.environment_id, ReviewItem.run_id)
    places = session.execute(select(*place, func.count()).where(*part).group_by(*place)).all()
    of_environment: Counter[uuid.UUID] = Counter()
    of_run: Counter[uuid.UUID] = Counter()
    for environment_id, run_id, count in places:
        of_environment[environment_id] += count
        of_run[run_id] += count
    environments = _environments(session, of_environment, chosen)
    wanted = {id for id, name in environments.items() if name == chosen.environment}
    offered = {row.run_id for row in places if not wanted or row.environment_id in wanted}
    if chosen.detector:
        detectors.setdefault(chosen.detector, 0)
    return Choices(
        detectors=[Choice(name, name, count) for name, count in sorted(detectors.items())],
        environments=[Choice(name, name, of_environment[id]) for id, name in environments.items()],
        runs=_runs(session, offered, of_run, chosen.run),
    )


def _environments(session: Session, ids: Collection[uuid.UUID], chosen: ReviewFilter) -> dict[uuid.UUID, str]:
    is_meant = or_(Environment.id.in_(ids), Environment.name == chosen.environment)
    statement = select(Environment.id, Environment.name).where(is_meant).order_by(Environment.name)
    return {row.id: row.name for row in session.execute(statement)}


def _runs(
    session: Session, offered: Collection[uuid.UUID], counts: Counter[uuid.UUID], chosen: uuid.UUID | None
) -> list[Choice]:
    """Runs of one name are told apart by the ends of their ids."""
    statement = select(Run.id, Run.name).where(Run.id.in_(offered)).order_by(Run.created_at.desc(), Run.id.desc())
    found = {row.id: row.name for row in session.execute(statement.limit(MOST_RUNS))}
    if chosen and chosen not in found:
        found[chosen] = session.scalar(select(Run.name).where(Run.id == chosen)) or "a run that is gone"
    times = Counter(found.values())
    names = {id: f"{name} · {short(id)}" if times[name] > 1 else name for id, name in found.items()}
    return [Choice(str(id), name, counts[id]) for id, name in names.items()]
