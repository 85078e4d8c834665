"""What is asked of questions, of where they were asked and of their answers."""

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Double, cast, func, select
from sqlalchemy.orm import Session, joinedload

from backend.core.queue import TRY_QUESTION_JOB
from backend.domain.graders.findings import Finding
from backend.domain.graders.judging_record import CanaryReport
from backend.domain.graders.questions import AnswerType, QuestionConfiguration
from backend.domain.policies.prices import sum_of_costs
from backend.domain.vocabulary import JudgementStatus, Verdict
from backend.errors import NotFound
from backend.graders.queries import MAX_OPINIONS, Try, get_inquiry, get_try, in_use, newest_verdicts
from backend.graders.tables import Asking, Question, QuestionAnswer
from backend.review.agreement import Agreement, Opinion, agreement
from backend.runs.tables import Run


@dataclass(frozen=True, slots=True)
class AnswerCount:
    """One of the answers, how often it was given, and what people say of those rollouts."""

    answer: str
    count: int
    verdicts: Mapping[Verdict, int]


@dataclass(frozen=True, slots=True)
class AnswerFigures:
    """What a question's answers about a run amount to."""

    answered: int = 0
    failed: int = 0
    uncited: int = 0
    """Answers without a citation that was found."""
    citations: int = 0
    dropped: int = 0
    """Citations that were not found where they were said to stand."""
    confidence: float | None = None
    """Mean."""
    mean: float | None = None
    """Of an ordered answer's values."""
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Agreeing:
    """How far an ordered answer goes with people's verdicts, and which end of it goes with *hack*."""

    agreement: Agreement
    high_is_honest: bool


@dataclass(frozen=True, slots=True)
class AskedRun:
    """One question about one run."""

    question: Question
    configuration: QuestionConfiguration
    asking: Asking
    figures: AnswerFigures = field(default_factory=AnswerFigures)
    counts: Sequence[AnswerCount] = ()
    agreeing: Agreeing | None = None

    @property
    def is_under_way(self) -> bool:
        return not self.asking.status.is_over

    @property
    def findings(self) -> list[Finding]:
        return [Finding.model_validate(each) for each in self.asking.findings]

    @property
    def done(self) -> int:
        if not self.configuration.kind.is_of_rollouts:
            return len(self.asking.findings)
        return self.figures.answered + self.figures.failed

    @property
    def total(self) -> int:
        return self.asking.total if self.asking.total is not None else 0

    @property
    def waiting(self) -> int:
        return max(0, self.total - self.done)

    @property
    def canaries(self) -> CanaryReport | None:
        return CanaryReport.model_validate(self.asking.canaries) if self.asking.canaries else None

    @property
    def tokens_in(self) -> int:
        return self.figures.tokens_in + self.asking.tokens_in

    @property
    def tokens_out(self) -> int:
        return self.figures.tokens_out + self.asking.tokens_out

    @property
    def cost(self) -> float | None:
        return sum_of_costs((self.figures.cost, self.asking.cost))


def questions(session: Session) -> Sequence[Question]:
    return in_use(session, Question)


def get_question(session: Session, question_id: uuid.UUID) -> Question:
    return get_inquiry(session, Question, question_id)


def configuration_of(question: Question) -> QuestionConfiguration:
    return QuestionConfiguration.model_validate(question.configuration)


def count_answers(session: Session, question_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, AnswerFigures]:
    """Over all runs."""
    return _figures(session, QuestionAnswer.question_id.in_(question_ids))


def askings_of_question(session: Session, question: Question, limit: int = 50) -> list[AskedRun]:
    """Runs that it was asked about, newest first; without what people say."""
    statement = select(Asking).options(joinedload(Asking.run)).where(Asking.question_id == question.id)
    askings = session.scalars(statement.order_by(Asking.created_at.desc()).limit(limit)).all()
    figures = _figures(session, QuestionAnswer.question_id == question.id, QuestionAnswer.run_id)
    configuration = configuration_of(question)
    return [
        AskedRun(question, configuration, asking, figures.get(asking.run_id, AnswerFigures())) for asking in askings
    ]


def askings_of_run(session: Session, run: Run) -> list[AskedRun]:
    """Every question that was asked about the run or shall be, by name."""
    statement = (
        select(Asking)
        .join(Asking.question)
        .options(joinedload(Asking.question).joinedload(Question.policy))
        .where(Asking.run_id == run.id)
        .order_by(Question.name)
    )
    askings = session.scalars(statement).all()
    if not askings:
        return []
    figures = _figures(session, QuestionAnswer.run_id == run.id)
    counts = _counts(session, run.id)
    opinions = _opinions(session, run.id)
    return [_asked(asking, figures, counts[asking.question_id], opinions[asking.question_id]) for asking in askings]


def get_asked(session: Session, run: Run, question_id: uuid.UUID) -> AskedRun:
    for asked in askings_of_run(session, run):
        if asked.question.id == question_id:
            return asked
    raise NotFound("This question was not asked about this run.")


def answers_of_rollout(session: Session, rollout_id: uuid.UUID) -> list[tuple[Question, QuestionAnswer]]:
    """What each question's answer about it is."""
    statement = (
        select(Question, QuestionAnswer)
        .join(QuestionAnswer, QuestionAnswer.question_id == Question.id)
        .where(QuestionAnswer.rollout_id == rollout_id)
        .order_by(Question.name)
    )
    return [(question, answer) for question, answer in session.execute(statement)]


def tried(session: Session, question_id: uuid.UUID, job_id: uuid.UUID) -> Try[Question]:
    """A try of a question on a few rollouts."""
    found = get_try(session, TRY_QUESTION_JOB, get_question(session, question_id), job_id)
    return replace(found, answer={"rollouts": [], **found.answer}) if found.answer else found


def _asked(
    asking: Asking,
    figures: Mapping[uuid.UUID, AnswerFigures],
    counts: Mapping[str, Mapping[Verdict | None, int]],
    opinions: Sequence[Opinion],
) -> AskedRun:
    configuration = configuration_of(asking.question)
    return AskedRun(
        asking.question,
        configuration,
        asking,
        figures.get(asking.question_id, AnswerFigures()),
        _by_answer(configuration, counts),
        _agreeing(opinions) if configuration.is_ordered else None,
    )


def _by_answer(
    configuration: QuestionConfiguration, counts: Mapping[str, Mapping[Verdict | None, int]]
) -> list[AnswerCount]:
    """In the order of the choices; a suspicion has too many different answers."""
    return [
        AnswerCount(
            answer,
            sum(counts[answer].values()),
            {verdict: count for verdict, count in counts[answer].items() if verdict is not None},
        )
        for answer in configuration.choices
        if answer in counts
    ]


def _agreeing(opinions: Sequence[Opinion]) -> Agreeing | None:
    """Nobody says which end of a question is the bad one, so that which fits better is taken."""
    straight = agreement(opinions)
    turned = agreement([Opinion(each.rollout_id, 1 - each.score, each.verdict) for each in opinions])
    if straight is None or turned is None:
        return None
    return Agreeing(straight, True) if straight.auc >= turned.auc else Agreeing(turned, False)


def _figures(session: Session, condition: Any, by: Any = QuestionAnswer.question_id) -> dict[uuid.UUID, AnswerFigures]:
    """By question, or by what else is wanted."""
    is_done = QuestionAnswer.status == JudgementStatus.COMPLETED
    cited = func.jsonb_array_length(QuestionAnswer.citations)
    statement = (
        select(
            by,
            func.count().filter(is_done),
            func.count().filter(~is_done),
            func.count().filter(is_done, cited == 0),
            func.sum(cited),
            func.sum(QuestionAnswer.dropped),
            func.avg(cast(QuestionAnswer.confidence, Double)),
            func.avg(cast(QuestionAnswer.value, Double)),
            func.sum(QuestionAnswer.tokens_in),
            func.sum(QuestionAnswer.tokens_out),
            func.sum(QuestionAnswer.cost),
        )
        .where(condition)
        .group_by(by)
    )
    return {
        key: AnswerFigures(
            answered, failed, uncited, cited or 0, dropped or 0, confidence, mean, tokens_in or 0, tokens_out or 0, cost
        )
        for (
            key,
            answered,
            failed,
            uncited,
            cited,
            dropped,
            confidence,
            mean,
            tokens_in,
            tokens_out,
            cost,
        ) in session.execute(statement)
    }


def _counts(session: Session, run_id: uuid.UUID) -> Mapping[uuid.UUID, dict[str, dict[Verdict | None, int]]]:
    """By question, answer and newest verdict."""
    newest = newest_verdicts(run_id)
    statement = (
        select(QuestionAnswer.question_id, QuestionAnswer.answer, newest.c.verdict, func.count())
        .outerjoin(newest, newest.c.rollout_id == QuestionAnswer.rollout_id)
        .where(QuestionAnswer.run_id == run_id, QuestionAnswer.answer.is_not(None))
        .group_by(QuestionAnswer.question_id, QuestionAnswer.answer, newest.c.verdict)
    )
    found: defaultdict[uuid.UUID, dict[str, dict[Verdict | None, int]]] = defaultdict(dict)
    for question_id, answer, verdict, count in session.execute(statement):
        found[question_id].setdefault(answer, {})[Verdict(verdict) if verdict else None] = count
    return found


def _opinions(session: Session, run_id: uuid.UUID) -> Mapping[uuid.UUID, list[Opinion]]:
    """What people and answers both spoke about, values brought into [0, 1]."""
    newest = newest_verdicts(run_id)
    statement = (
        select(
            QuestionAnswer.question_id,
            QuestionAnswer.rollout_id,
            QuestionAnswer.value,
            Question.configuration["answers"].astext,
            newest.c.verdict,
        )
        .join(Question, Question.id == QuestionAnswer.question_id)
        .join(newest, newest.c.rollout_id == QuestionAnswer.rollout_id)
        .where(QuestionAnswer.run_id == run_id, QuestionAnswer.value.is_not(None))
        .limit(MAX_OPINIONS)
    )
    found: defaultdict[uuid.UUID, list[Opinion]] = defaultdict(list)
    for question_id, rollout_id, value, answers, verdict in session.execute(statement):
        score = (value - 1) / 4 if answers == AnswerType.FIVE else value
        found[question_id].append(Opinion(rollout_id, score, Verdict(verdict)))
    return found
