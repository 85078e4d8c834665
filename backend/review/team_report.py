"""How the team keeps up with review: what is open, since when, who judges how much, and do they agree?"""

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

from pydantic import BaseModel
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.detectors.tables import Flag
from backend.environments.tables import Environment
from backend.review.queries import agreement_of_people
from backend.review.tables import AuditSample, ReviewItem, VerdictRecord
from backend.team.tables import Person

DAYS = 14


class OpenTold(BaseModel):
    environment: str
    open: int
    oldest: datetime
    """Waits since then: when it was first flagged, or drawn."""


class ReviewerTold(BaseModel):
    """Items that a person reviewed, without cluster verdicts."""

    name: str
    judged: int
    by_day: list[int]
    """The last fourteen days, oldest first; today is the last."""


class TeamReview(BaseModel):
    open: int
    oldest: datetime | None
    by_environment: list[OpenTold]
    judged: int
    """In these days."""
    days: int
    reviewers: list[ReviewerTold]
    judged_twice: int
    agreeing: int
    kappa: float | None
    """Cohen's; null where too little was judged twice."""


def team_review(session: Session) -> TeamReview:
    waiting = _waiting(session)
    reviewers = _reviewers(session)
    agreed = agreement_of_people(session)
    return TeamReview(
        open=sum(each.open for each in waiting),
        oldest=min((each.oldest for each in waiting), default=None),
        by_environment=waiting,
        judged=sum(each.judged for each in reviewers),
        days=DAYS,
        reviewers=reviewers,
        judged_twice=agreed.items,
        agreeing=agreed.agreeing,
        kappa=agreed.kappa,
    )


def _waiting(session: Session) -> list[OpenTold]:
    item_id = func.coalesce(Flag.rollout_id, Flag.id).label("item_id")
    flagged = select(item_id, func.min(Flag.created_at).label("at")).group_by(item_id).subquery()
    since = func.least(flagged.c.at, AuditSample.created_at)
    statement = (
        select(Environment.name, func.count(), func.min(func.coalesce(since, ReviewItem.created_at)))
        .join(Environment, Environment.id == ReviewItem.environment_id)
        .outerjoin(flagged, flagged.c.item_id == ReviewItem.id)
        .outerjoin(AuditSample, AuditSample.rollout_id == ReviewItem.rollout_id)
        .where(ReviewItem.verdict.is_(None))
        .group_by(Environment.name)
        .order_by(func.count().desc(), Environment.name)
    )
    return [OpenTold(environment=name, open=count, oldest=oldest) for name, count, oldest in session.execute(statement)]


def _reviewers(session: Session) -> Sequence[ReviewerTold]:
    """Several flags on one rollout are one look."""
    today = datetime.now(UTC).date()
    first = today - timedelta(days=DAYS - 1)
    day = func.date(func.timezone("UTC", VerdictRecord.created_at))
    subject = func.coalesce(VerdictRecord.rollout_id, VerdictRecord.flag_id)
    statement = (
        select(Person.name, day, func.count(subject.distinct()))
        .join(Person, Person.id == VerdictRecord.person_id)
        .where(~VerdictRecord.is_bulk, VerdictRecord.taken_back_at.is_(None), day >= first)
        .group_by(Person.id, day)
    )
    found: dict[str, dict[date, int]] = {}
    for name, on, count in session.execute(statement):
        found.setdefault(name, {})[on] = found.get(name, {}).get(on, 0) + count
    days = [first + timedelta(days=number) for number in range(DAYS)]
    told = [
        ReviewerTold(name=name, judged=sum(counts.values()), by_day=[counts.get(each, 0) for each in days])
        for name, counts in found.items()
    ]
    return sorted(told, key=lambda each: (-each.judged, each.name))
