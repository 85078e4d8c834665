"""What is asked of judges and their judgements."""

import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from sqlalchemy import ColumnElement, Double, cast, func, select
from sqlalchemy.orm import Session, joinedload

from backend.core.queue import ASK_JOB
from backend.domain.graders.judges import JudgeConfiguration
from backend.domain.graders.judging_record import JudgingRecord
from backend.domain.policies.prices import sum_of_costs
from backend.domain.statistics import Estimate, estimate_of
from backend.domain.vocabulary import JudgementStatus, RolloutStatus, Verdict
from backend.graders.queries import MAX_OPINIONS, Try, get_inquiry, get_try, in_use, newest_verdicts
from backend.graders.tables import Judge, Judgement
from backend.review.agreement import Agreement, Opinion, agreement
from backend.rollouts.tables import Rollout
from backend.runs.tables import Run

RECORDS = "judges"
"""Key of the records in a run's summary."""


@dataclass(frozen=True, slots=True)
class JudgementFigures:
    """What a judge's judgements of a run amount to."""

    judged: int = 0
    failed: int = 0
    mean: Estimate | None = None
    spread: float | None = None
    """Mean standard deviation over the repeats of a rollout."""
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """One judge's work on one run."""

    judge: Judge
    record: JudgingRecord
    figures: JudgementFigures
    agreement: Agreement | None
    completed: int
    """Rollouts of the run that can be judged."""

    @property
    def total(self) -> int:
        return self.record.total if self.record.total is not None else self.completed

    @property
    def waiting(self) -> int:
        return max(0, self.total - self.figures.judged - self.figures.failed)

    @property
    def is_under_way(self) -> bool:
        return not self.record.status.is_over

    @property
    def cost(self) -> float | None:
        return sum_of_costs((self.figures.cost, self.record.cost))


def judges(session: Session) -> Sequence[Judge]:
    return in_use(session, Judge)


def get_judge(session: Session, judge_id: uuid.UUID) -> Judge:
    return get_inquiry(session, Judge, judge_id)


def configuration_of(judge: Judge) -> JudgeConfiguration:
    return JudgeConfiguration.model_validate(judge.configuration)


def count_judgements(session: Session, judge_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, JudgementFigures]:
    """Over all runs."""
    return {key[0]: figures for key, figures in _figures(session, Judgement.judge_id.in_(judge_ids), ()).items()}


def record_of(run: Run, judge_id: uuid.UUID) -> JudgingRecord | None:
    stored = run.summary.get(RECORDS, {}).get(str(judge_id))
    try:
        return JudgingRecord.model_validate(stored) if stored else None
    except ValidationError:
        return None


def judged_runs(session: Session, judge: Judge, limit: int = 50) -> list[tuple[Run, JudgingRecord, JudgementFigures]]:
    """Runs that a judge looked at, newest first."""
    statement = select(Run).where(Run.summary[RECORDS].has_key(str(judge.id)))
    runs = session.scalars(statement.order_by(Run.id.desc()).limit(limit)).all()
    mine = (Judgement.judge_id == judge.id) & Judgement.run_id.in_([run.id for run in runs])
    figures = _figures(session, mine, (Judgement.run_id,))
    found = []
    for run in runs:
        if record := record_of(run, judge.id):
            found.append((run, record, figures.get((judge.id, run.id), JudgementFigures())))
    return found


def judging_of_run(session: Session, run: Run) -> list[JudgedRun]:
    """Every judge that looked at the run or shall, by name."""
    ids = [uuid.UUID(key) for key in run.summary.get(RECORDS, {})]
    if not ids:
        return []
    known = session.scalars(
        select(Judge).where(Judge.id.in_(ids)).options(joinedload(Judge.policy)).order_by(Judge.name)
    ).all()
    figures = _figures(session, (Judgement.run_id == run.id) & Judgement.judge_id.in_(ids), ())
    opinions = _opinions(session, run.id)
    completed = count_completed(session, run.id)
    return [
        JudgedRun(
            judge,
            record,
            figures.get((judge.id,), JudgementFigures()),
            agreement(opinions[judge.id]),
            completed,
        )
        for judge in known
        if (record := record_of(run, judge.id))
    ]


def count_completed(session: Session, run_id: uuid.UUID) -> int:
    """Rollouts of a run that can be judged."""
    completed = Rollout.run_id == run_id, Rollout.status == RolloutStatus.COMPLETED
    return session.scalar(select(func.count()).where(*completed)) or 0


def judgements_of_rollout(session: Session, rollout_id: uuid.UUID) -> list[tuple[Judge, Judgement]]:
    """What each judge said of it."""
    statement = (
        select(Judge, Judgement)
        .join(Judgement, Judgement.judge_id == Judge.id)
        .where(Judgement.rollout_id == rollout_id)
        .order_by(Judge.name)
    )
    return [(judge, judgement) for judge, judgement in session.execute(statement)]


def _figures(session: Session, condition: ColumnElement[bool], by: Sequence[Any]) -> dict[tuple[Any, ...], Any]:
    """By judge, and by what else is wanted."""
    score = cast(Judgement.score, Double)
    is_done = Judgement.status == JudgementStatus.COMPLETED
    keys = (Judgement.judge_id, *by)
    statement = (
        select(
            *keys,
            func.count().filter(is_done),
            func.count().filter(~is_done),
            func.avg(score),
            func.stddev_samp(score),
            func.avg(cast(Judgement.spread, Double)),
            func.sum(Judgement.tokens_in),
            func.sum(Judgement.tokens_out),
            func.sum(Judgement.cost),
        )
        .where(condition)
        .group_by(*keys)
    )
    found = {}
    for row in session.execute(statement):
        judged, failed, mean, deviation, spread, tokens_in, tokens_out, cost = row[len(keys) :]
        estimate = estimate_of(mean, deviation or 0.0, judged) if judged else None
        figures = JudgementFigures(judged, failed, estimate, spread, tokens_in or 0, tokens_out or 0, cost)
        found[tuple(row[: len(keys)])] = figures
    return found


def _opinions(session: Session, run_id: uuid.UUID) -> dict[uuid.UUID, list[Opinion]]:
    """What people and judges both spoke about, by judge. Of a rollout's verdicts the newest counts."""
    newest = newest_verdicts(run_id)
    statement = (
        select(Judgement.judge_id, Judgement.rollout_id, Judgement.score, newest.c.verdict)
        .join(newest, newest.c.rollout_id == Judgement.rollout_id)
        .where(Judgement.run_id == run_id, Judgement.score.is_not(None))
        .limit(MAX_OPINIONS)
    )
    found: defaultdict[uuid.UUID, list[Opinion]] = defaultdict(list)
    for judge_id, rollout_id, score, verdict in session.execute(statement):
        found[judge_id].append(Opinion(rollout_id, score, Verdict(verdict)))
    return found


def find_rollout(session: Session, text: str) -> uuid.UUID | None:
    """A rollout by its id as somebody pasted it, with or without the address before it."""
    try:
        wanted = uuid.UUID(text.strip().rsplit("/", 1)[-1])
    except ValueError:
        return None
    return session.scalar(select(Rollout.id).where(Rollout.id == wanted))


def asked(session: Session, judge_id: uuid.UUID, job_id: uuid.UUID) -> Try[Judge]:
    """A try of a judge on one rollout."""
    return get_try(session, ASK_JOB, get_judge(session, judge_id), job_id)
