"""Reading graders, their work on runs and their grades."""

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Double, cast, func, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import InstrumentedAttribute, Session, joinedload

from backend.core.queue import TRY_GRADER_JOB
from backend.core.tables import Job
from backend.domain.graders.canaries import CanaryReport
from backend.domain.graders.evidence import GroupFinding
from backend.domain.graders.settings import AnswerType, GraderKind, JudgeSettings, QuestionSettings, read_settings
from backend.domain.policies.prices import sum_of_costs
from backend.domain.statistics import Estimate, estimate_of
from backend.domain.vocabulary import GradeStatus, PolicyKind, Verdict
from backend.errors import NotFound
from backend.graders.tables import Grade, Grader, GraderRun
from backend.review.agreement import Agreement, Opinion, agreement
from backend.review.tables import VerdictRecord
from backend.runs.tables import Run

GRADING_POLICIES = (PolicyKind.OPENAI_API, PolicyKind.SCRIPTED)
"""Kinds of policies that can grade."""
MAX_OPINIONS = 20_000
"""Rollouts that measure the agreement with people."""


@dataclass(frozen=True, slots=True)
class GradeFigures:
    """Sums over a grader's grades."""

    graded: int = 0
    failed: int = 0
    score: Estimate | None = None
    """Mean score of a judge, or mean value of ordered answers."""
    spread: float | None = None
    """Mean standard deviation over the repeats of a rollout."""
    confidence: float | None = None
    uncited: int = 0
    """Grades without a quote that was found."""
    citations: int = 0
    dropped: int = 0
    """Quotes that were not found."""
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class AnswerCount:
    """One answer with its frequency and the verdicts on those rollouts."""

    answer: str
    count: int
    verdicts: Mapping[Verdict, int]


class GradedRun:
    """One grader's work on one run.

    `counts` are in the order of a question's choices. `high_is_honest`: whether high scores go with the verdict
    *honest*; for questions, whichever direction fits better.
    """

    def __init__(
        self,
        grader: Grader,
        work: GraderRun,
        figures: GradeFigures,
        counts: Sequence[AnswerCount] = (),
        agreement: Agreement | None = None,
        high_is_honest: bool = True,
    ) -> None:
        self.grader, self.work, self.figures = grader, work, figures
        self.counts, self.agreement, self.high_is_honest = counts, agreement, high_is_honest
        self.settings = read_settings(grader.settings)
        self.findings = [GroupFinding.model_validate(each) for each in work.findings]
        self.canaries = CanaryReport.model_validate(work.canaries) if work.canaries else None
        self.graded = len(work.findings) if grader.kind is GraderKind.CONTRAST else figures.graded
        self.done, self.total = self.graded + figures.failed, work.total or 0
        self.waiting = max(0, self.total - self.done)
        self.is_finished = work.status.is_over
        self.tokens_in, self.tokens_out = figures.tokens_in + work.tokens_in, figures.tokens_out + work.tokens_out
        self.cost = sum_of_costs((figures.cost, work.cost))


def list_graders(session: Session, kind: GraderKind | None = None) -> Sequence[Grader]:
    """Graders that were not deleted, by name, each with its policy."""
    statement = select(Grader).where(Grader.deleted_at.is_(None)).options(joinedload(Grader.policy))
    if kind is not None:
        statement = statement.where(Grader.kind == kind)
    return session.scalars(statement.order_by(Grader.name)).all()


def find_grader(session: Session, text: str) -> Grader:
    """A grader by name or id, also a deleted one, with its policy. Raises NotFound."""
    statement = select(Grader).options(joinedload(Grader.policy))
    try:
        statement = statement.where(Grader.id == uuid.UUID(text))
    except ValueError:
        statement = statement.where(Grader.name == text)
    grader = session.scalar(statement)
    if grader is None:
        raise NotFound(f"There is no grader {text[:100]}.")
    return grader


def get_try(session: Session, grader: Grader, job_id: uuid.UUID) -> Job:
    """The job of a try; `answer_of(job)` is its result."""
    job = session.get(Job, job_id)
    if job is None or job.name != TRY_GRADER_JOB or job.arguments.get("grader_id") != str(grader.id):
        raise NotFound("There is no such try.")
    return job


def find_work(
    session: Session, run_id: uuid.UUID, grader_id: uuid.UUID, *, for_update: bool = False
) -> GraderRun | None:
    statement = select(GraderRun).where(GraderRun.run_id == run_id, GraderRun.grader_id == grader_id)
    return session.scalar(statement.with_for_update() if for_update else statement)


def graded_runs_of(session: Session, run: Run, grader: Grader | None = None) -> list[GradedRun]:
    """Every grader's work on the run, by name; or that of one grader."""
    statement = (
        select(GraderRun)
        .join(GraderRun.grader)
        .options(joinedload(GraderRun.grader).joinedload(Grader.policy))
        .where(GraderRun.run_id == run.id)
        .order_by(Grader.name)
    )
    own = Grade.run_id == run.id
    if grader is not None:
        statement, own = statement.where(GraderRun.grader_id == grader.id), own & (Grade.grader_id == grader.id)
    works = session.scalars(statement).all()
    if not works:
        return []
    figures = count_grades(session, own)
    verdicts = (  # the latest one on each rollout
        select(VerdictRecord.rollout_id, VerdictRecord.verdict)
        .where(VerdictRecord.run_id == run.id, VerdictRecord.rollout_id.is_not(None))
        .where(VerdictRecord.taken_back_at.is_(None))
        .order_by(VerdictRecord.rollout_id, VerdictRecord.created_at.desc(), VerdictRecord.id.desc())
        .ext(distinct_on(VerdictRecord.rollout_id))
        .subquery()
    )
    answered = (
        select(Grade.grader_id, Grade.answer, verdicts.c.verdict, func.count())
        .outerjoin(verdicts, verdicts.c.rollout_id == Grade.rollout_id)
        .where(own, Grade.answer.is_not(None))
        .group_by(Grade.grader_id, Grade.answer, verdicts.c.verdict)
    )
    counts: defaultdict[uuid.UUID, dict[str, dict[Verdict | None, int]]] = defaultdict(dict)
    for grader_id, answer, verdict, count in session.execute(answered):
        counts[grader_id].setdefault(answer, {})[Verdict(verdict) if verdict else None] = count
    scored = (
        select(Grade.grader_id, Grade.rollout_id, Grade.score, verdicts.c.verdict)
        .join(verdicts, verdicts.c.rollout_id == Grade.rollout_id)
        .where(own, Grade.score.is_not(None))
        .limit(MAX_OPINIONS)
    )
    opinions: defaultdict[uuid.UUID, list[Opinion]] = defaultdict(list)
    for grader_id, rollout_id, score, verdict in session.execute(scored):
        opinions[grader_id].append(Opinion(rollout_id, score, Verdict(verdict)))
    result = []
    for work in works:
        settings = read_settings(work.grader.settings)
        agreeing, high_is_honest = _agreement(settings, opinions[work.grader_id])
        by_answer = counts[work.grader_id]
        choices = settings.choices if isinstance(settings, QuestionSettings) else ()
        result.append(
            GradedRun(
                work.grader,
                work,
                figures.get(work.grader_id, GradeFigures()),
                [
                    AnswerCount(
                        answer,
                        sum(by_answer[answer].values()),
                        {verdict: count for verdict, count in by_answer[answer].items() if verdict is not None},
                    )
                    for answer in choices
                    if answer in by_answer
                ],
                agreeing,
                high_is_honest,
            )
        )
    return result


def get_graded_run(session: Session, run: Run, grader: Grader) -> GradedRun:
    for graded in graded_runs_of(session, run, grader):
        return graded
    raise NotFound(f"{grader.name} was not started on this run.")


def graded_runs_by(session: Session, grader: Grader, limit: int = 50) -> list[GradedRun]:
    """The runs that a grader worked on, newest first; without answers and agreement."""
    statement = select(GraderRun).options(joinedload(GraderRun.run)).where(GraderRun.grader_id == grader.id)
    works = session.scalars(statement.order_by(GraderRun.created_at.desc()).limit(limit)).all()
    figures = count_grades(session, Grade.grader_id == grader.id, by=Grade.run_id)
    return [GradedRun(grader, work, figures.get(work.run_id, GradeFigures())) for work in works]


def grades_of_rollout(session: Session, rollout_id: uuid.UUID) -> Sequence[Grade]:
    """Each with its grader, by name."""
    statement = select(Grade).join(Grade.grader).options(joinedload(Grade.grader))
    return session.scalars(statement.where(Grade.rollout_id == rollout_id).order_by(Grader.name)).all()


def count_grades(
    session: Session, condition: ColumnElement[bool], by: InstrumentedAttribute[uuid.UUID] = Grade.grader_id
) -> dict[uuid.UUID, GradeFigures]:
    """Sums by grader, or by run."""
    score = cast(Grade.score, Double)
    is_done = Grade.status == GradeStatus.COMPLETED
    quotes = func.jsonb_array_length(Grade.citations)
    statement = (
        select(
            by,
            func.count().filter(is_done).label("graded"),
            func.count().filter(~is_done).label("failed"),
            func.avg(score).label("mean"),
            func.stddev_samp(score).label("deviation"),
            func.avg(cast(Grade.spread, Double)).label("spread"),
            func.avg(cast(Grade.confidence, Double)).label("confidence"),
            func.count().filter(is_done, quotes == 0).label("uncited"),
            func.sum(quotes).label("citations"),
            func.sum(Grade.dropped).label("dropped"),
            func.sum(Grade.tokens_in).label("tokens_in"),
            func.sum(Grade.tokens_out).label("tokens_out"),
            func.sum(Grade.cost).label("cost"),
        )
        .where(condition)
        .group_by(by)
    )
    return {
        row[0]: GradeFigures(
            graded=row.graded,
            failed=row.failed,
            score=estimate_of(row.mean, row.deviation or 0.0, row.graded) if row.mean is not None else None,
            spread=row.spread,
            confidence=row.confidence,
            uncited=row.uncited,
            citations=row.citations or 0,
            dropped=row.dropped or 0,
            tokens_in=row.tokens_in or 0,
            tokens_out=row.tokens_out or 0,
            cost=row.cost,
        )
        for row in session.execute(statement)
    }


def _agreement(
    settings: JudgeSettings | QuestionSettings, opinions: Sequence[Opinion]
) -> tuple[Agreement | None, bool]:
    if isinstance(settings, JudgeSettings):
        return agreement(opinions), True
    if settings.answers is AnswerType.LABELS:
        return None, True
    if settings.answers is AnswerType.FIVE:
        opinions = [Opinion(each.rollout_id, (each.score - 1) / 4, each.verdict) for each in opinions]
    straight = agreement(opinions)
    turned = agreement([Opinion(each.rollout_id, 1 - each.score, each.verdict) for each in opinions])
    if straight is None or turned is None:
        return None, True
    return (straight, True) if straight.auc >= turned.auc else (turned, False)
