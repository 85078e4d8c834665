"""The last seven days at a glance: results, regressions, trust in rewards, review and spending.

Figures come from the summaries that runs keep. Rollouts are read for paired differences, of which the number and the
tasks are limited, and for the detector rates of the environments that are shown.
"""

import uuid
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta

from sqlalchemy import Date, and_, cast, func, or_, select
from sqlalchemy.orm import Session, joinedload

from backend.domain.statistics import Estimate, wilson
from backend.domain.vocabulary import CheckStatus, RunKind, RunStatus
from backend.environments.tables import Environment, EnvironmentVersion
from backend.operations.schemas import Response
from backend.overview.queries import in_project
from backend.results.leaderboard import RANKED_KINDS, Leaderboard, rank_versions
from backend.results.paired import paired_differences
from backend.results.regressions import EvaluationRegression, find_regressions
from backend.review.corrected_rates import detector_rates
from backend.review.tables import ReviewItem, VerdictRecord
from backend.runs.tables import Run
from backend.runs.usage import ProjectUsage, usage_by_project

PERIOD = timedelta(days=7)
MAX_ENVIRONMENTS = 12
"""Shown environments, the latest evaluated ones."""
MAX_RUNS = 100
"""Latest evaluations of a version that are ranked."""
MAX_SCANNED = 1000
"""Latest runs of the shown environments for which detector rates are counted."""
_NOT_MODELS = ("baseline", "script")


class EnvironmentResult(Response):
    """The best policy of an environment's latest evaluated version."""

    environment: str
    version: int
    setup: str
    policy: str | None
    """Null if only scripted policies were evaluated."""
    run_id: uuid.UUID | None
    reward: Estimate | None
    ranked: int
    """Number of ranked policies."""
    baseline: str | None
    """The best scripted baseline with the same setup."""
    baseline_run_id: uuid.UUID | None
    baseline_reward: Estimate | None
    gain: Estimate | None = None
    """Difference to the baseline, paired by task; null without a baseline or a task that both completed."""


class RewardTrust(Response):
    """How far the reward of an environment can be trusted."""

    environment: str
    version: int
    certificate: CheckStatus | None
    """State of the version's latest certificate. Null: its checks were not run."""
    rollouts: int
    """Completed rollouts of the week's runs that detectors scan."""
    flagged: int
    flag_rate: float | None
    flag_low: float
    flag_high: float
    """95% interval."""
    audited: int
    """Rollouts of the random audit sample with a verdict."""
    audited_share: float | None
    hack_rate: float | None
    """Share of hacks by verdicts; null until someone reviewed an unflagged rollout of the sample."""
    hack_low: float | None
    hack_high: float | None
    """95% interval."""


class ReviewDay(Response):
    day: date
    """UTC."""
    new: int
    verdicts: int


class ReviewBacklog(Response):
    open: int
    new: int
    """Open or reviewed items of rollouts and flags that were stored this week."""
    verdicts: int
    """Given this week, those on whole clusters excluded."""
    median_age_seconds: float | None
    """Of open items."""
    days: list[ReviewDay]


class WeekResponse(Response):
    """The last seven days of the chosen project, or of all projects that you see."""

    since: datetime
    until: datetime
    environments: list[EnvironmentResult]
    environment_count: int
    """Environments with an evaluation that ended this week. The latest 12 are listed."""
    regressions: list[EvaluationRegression]
    compared: int
    """Evaluations of this week with an earlier one of the same policy, setup and weights."""
    trust: list[RewardTrust]
    review: ReviewBacklog
    spending: list[ProjectUsage]
    """By project, the largest number of tokens first."""

    @property
    def is_empty(self) -> bool:
        return not (self.environments or self.spending or self.review.open or self.review.verdicts)


def week_of(session: Session, project_id: uuid.UUID | None = None, until: datetime | None = None) -> WeekResponse:
    """Return the seven days before `until`. Default: until now, and of all projects that the session sees."""
    until = until or datetime.now(UTC)
    since = until - PERIOD
    versions, count = _evaluated_versions(session, since, project_id)
    boards = rank_versions(session, versions, MAX_RUNS) if versions else []
    regressions, compared = find_regressions(session, since, *in_project(project_id))
    return WeekResponse(
        since=since,
        until=until,
        environments=_results(session, boards),
        environment_count=count,
        regressions=regressions,
        compared=compared,
        trust=_trust(session, versions, since, project_id),
        review=_backlog(session, since, until, project_id),
        spending=usage_by_project(session, (since - PERIOD, since), until, project_id),
    )


def _evaluated_versions(
    session: Session, since: datetime, project_id: uuid.UUID | None
) -> tuple[Sequence[EnvironmentVersion], int]:
    """The latest version evaluated this week of each environment, the latest evaluations first, and their number."""
    ended = Run.kind.in_(RANKED_KINDS), Run.status == RunStatus.COMPLETED, Run.ended_at >= since
    newest = (
        select(EnvironmentVersion.environment_id, func.max(EnvironmentVersion.number).label("number"))
        .join(Run, Run.version_id == EnvironmentVersion.id)
        .add_columns(func.max(Run.ended_at).label("at"), func.count().over().label("total"))
        .where(*ended, *in_project(project_id))
        .group_by(EnvironmentVersion.environment_id)
        .subquery()
    )
    statement = (
        select(EnvironmentVersion, newest.c.total)
        .join(EnvironmentVersion.environment)
        .options(joinedload(EnvironmentVersion.environment))
        .join(
            newest,
            and_(
                newest.c.environment_id == EnvironmentVersion.environment_id,
                newest.c.number == EnvironmentVersion.number,
            ),
        )
        .where(Environment.archived_at.is_(None))
        .order_by(newest.c.at.desc())
        .limit(MAX_ENVIRONMENTS)
    )
    rows = session.execute(statement).all()
    return [row[0] for row in rows], rows[0].total if rows else 0


def _results(session: Session, boards: Sequence[Leaderboard]) -> list[EnvironmentResult]:
    results: list[EnvironmentResult] = []
    for board in boards:
        best = next((row for row in board.ranked if row.mark not in _NOT_MODELS), None)
        baseline = next((row for row in board.ranked if row.mark == "baseline"), None)
        results.append(
            EnvironmentResult(
                environment=board.environment,
                version=board.version,
                setup=board.exam.label if board.exam else "",
                policy=best and best.name,
                run_id=best and best.run_id,
                reward=best and best.reward,
                ranked=len(board.ranked),
                baseline=baseline and baseline.name,
                baseline_run_id=baseline and baseline.run_id,
                baseline_reward=baseline and baseline.reward,
            )
        )
    pairs = {
        place: (result.baseline_run_id, result.run_id)
        for place, result in enumerate(results)
        if result.baseline_run_id and result.run_id
    }
    for place, gain in zip(pairs, paired_differences(session, list(pairs.values())), strict=True):
        results[place].gain = gain
    return results


def _trust(
    session: Session, versions: Sequence[EnvironmentVersion], since: datetime, project_id: uuid.UUID | None
) -> list[RewardTrust]:
    if not versions:
        return []
    scanned = (
        select(Run.id, EnvironmentVersion.environment_id)
        .join(EnvironmentVersion, EnvironmentVersion.id == Run.version_id)
        .where(
            EnvironmentVersion.environment_id.in_([each.environment_id for each in versions]),
            Run.kind.in_((RunKind.EVALUATION, RunKind.TRAINING)),
            or_(Run.ended_at.is_(None), Run.ended_at >= since),
            Run.started_at.is_not(None),
            *in_project(project_id),
        )
        .order_by(Run.created_at.desc())
        .limit(MAX_SCANNED)
    )
    run_ids: defaultdict[uuid.UUID, list[uuid.UUID]] = defaultdict(list)
    for run_id, environment_id in session.execute(scanned):
        run_ids[environment_id].append(run_id)
    rates = detector_rates(session, [run_ids[each.environment_id] for each in versions])
    trust = []
    for version, rate in zip(versions, rates, strict=True):
        flags = wilson(rate.flagged, rate.rollouts)
        trust.append(
            RewardTrust(
                environment=version.environment.name,
                version=version.number,
                certificate=version.certificate,
                rollouts=rate.rollouts,
                flagged=rate.flagged,
                flag_rate=flags.value,
                flag_low=flags.low,
                flag_high=flags.high,
                audited=rate.audited,
                audited_share=rate.audited / rate.rollouts if rate.rollouts else None,
                hack_rate=rate.hacks and rate.hacks.value,
                hack_low=rate.hacks and rate.hacks.low,
                hack_high=rate.hacks and rate.hacks.high,
            )
        )
    return trust


def _backlog(session: Session, since: datetime, until: datetime, project_id: uuid.UUID | None) -> ReviewBacklog:
    is_in = [ReviewItem.run_id.in_(select(Run.id).where(*in_project(project_id)))] if project_id else []
    middle = func.percentile_cont(0.5).within_group(func.extract("epoch", until - ReviewItem.created_at))
    waiting = select(func.count().label("open"), middle.label("age")).where(ReviewItem.verdict.is_(None), *is_in)
    totals = session.execute(waiting).one()
    day = cast(func.timezone("UTC", ReviewItem.created_at), Date)
    new = select(day.label("day"), func.count().label("amount")).where(ReviewItem.created_at >= since, *is_in)
    news = {row.day: row.amount for row in session.execute(new.group_by(day))}
    day = cast(func.timezone("UTC", VerdictRecord.created_at), Date)
    subject = func.coalesce(VerdictRecord.rollout_id, VerdictRecord.flag_id)
    given = select(day.label("day"), func.count(subject.distinct()).label("amount")).where(
        VerdictRecord.created_at >= since, ~VerdictRecord.is_bulk, VerdictRecord.taken_back_at.is_(None)
    )
    if project_id:
        given = given.where(VerdictRecord.run_id.in_(select(Run.id).where(*in_project(project_id))))
    verdicts = {row.day: row.amount for row in session.execute(given.group_by(day))}
    days = [since.date() + timedelta(days=number) for number in range((until.date() - since.date()).days + 1)]
    return ReviewBacklog(
        open=totals.open,
        new=sum(news.values()),
        verdicts=sum(verdicts.values()),
        median_age_seconds=totals.age,
        days=[ReviewDay(day=each, new=news.get(each, 0), verdicts=verdicts.get(each, 0)) for each in days],
    )
