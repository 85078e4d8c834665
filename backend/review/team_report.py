"""The review work of the team: open items and their age, items per reviewer, and agreement."""

from collections import Counter, defaultdict
from datetime import UTC, date, datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from backend.detectors.tables import Flag
from backend.environments.tables import Environment
from backend.operations.schemas import Response
from backend.review.queries import agreement_of_people
from backend.review.tables import AuditSample, ReviewItem, VerdictRecord
from backend.team.tables import Person

DAYS = 14


class OpenItems(Response):
    """Unreviewed items of one environment."""

    environment: str
    open: int
    oldest: datetime
    """When the oldest one was flagged or sampled."""


class ReviewerActivity(Response):
    """Items that a team member reviewed, without cluster verdicts."""

    name: str
    judged: int
    by_day: list[int]
    """The last 14 days, oldest first."""


class TeamReview(Response):
    """The review work of the team in the last 14 days."""

    open: int
    oldest: datetime | None
    by_environment: list[OpenItems]
    judged: int
    days: int
    reviewers: list[ReviewerActivity]
    judged_twice: int
    agreeing: int
    kappa: float | None
    """Cohen's kappa; null if too few items were reviewed twice."""


def team_review(session: Session) -> TeamReview:
    """Count open items by environment and reviewed items by team member."""
    item_id = func.coalesce(Flag.rollout_id, Flag.id).label("item_id")
    flagged = select(item_id, func.min(Flag.created_at).label("at")).group_by(item_id).subquery()
    since = func.least(flagged.c.at, AuditSample.created_at)
    open_items = (
        select(
            Environment.name.label("environment"),
            func.count().label("open"),
            func.min(func.coalesce(since, ReviewItem.created_at)).label("oldest"),
        )
        .join(Environment, Environment.id == ReviewItem.environment_id)
        .outerjoin(flagged, flagged.c.item_id == ReviewItem.id)
        .outerjoin(AuditSample, AuditSample.rollout_id == ReviewItem.rollout_id)
        .where(ReviewItem.verdict.is_(None))
        .group_by(Environment.name)
        .order_by(func.count().desc(), Environment.name)
    )
    by_environment = [OpenItems.of(row) for row in session.execute(open_items)]
    today = datetime.now(UTC).date()
    first = today - timedelta(days=DAYS - 1)
    day = func.date(func.timezone("UTC", VerdictRecord.created_at))
    subject = func.coalesce(VerdictRecord.rollout_id, VerdictRecord.flag_id)  # several flags on a rollout count once
    reviewed = (
        select(Person.name, day, func.count(subject.distinct()))
        .join(Person, Person.id == VerdictRecord.person_id)
        .where(~VerdictRecord.is_bulk, VerdictRecord.taken_back_at.is_(None), day >= first)
        .group_by(Person.id, day)
    )
    counts: defaultdict[str, Counter[date]] = defaultdict(Counter)
    for name, on, count in session.execute(reviewed):
        counts[name][on] += count
    days = [first + timedelta(days=number) for number in range(DAYS)]
    reviewers = [
        ReviewerActivity(name=name, judged=by_day.total(), by_day=[by_day[each] for each in days])
        for name, by_day in counts.items()
    ]
    reviewers.sort(key=lambda each: (-each.judged, each.name))
    return TeamReview(
        open=sum(each.open for each in by_environment),
        oldest=min((each.oldest for each in by_environment), default=None),
        by_environment=by_environment,
        judged=sum(each.judged for each in reviewers),
        days=DAYS,
        reviewers=reviewers,
        **agreement_of_people(session),
    )
