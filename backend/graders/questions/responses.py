"""What the JSON API says of questions, where they were asked and what was answered."""

import uuid
from datetime import datetime
from typing import Any

from pydantic import BaseModel

from backend.domain.graders.findings import Finding
from backend.domain.graders.judging_record import CanaryReport
from backend.domain.graders.questions import QuestionConfiguration, QuestionKind
from backend.domain.vocabulary import JudgementStatus, RunStatus, Verdict
from backend.graders.questions.queries import AskedRun
from backend.graders.responses import AgreementAnswer, PolicyName, TryAnswer
from backend.graders.tables import Question, QuestionAnswer


class QuestionAnswerOut(BaseModel):
    """What was answered about one rollout."""

    id: uuid.UUID
    question_id: uuid.UUID
    run_id: uuid.UUID
    rollout_id: uuid.UUID
    status: JudgementStatus
    answer: str | None
    """null: there is no answer."""
    value: float | None
    confidence: float | None
    reason: str
    citations: list[dict[str, Any]]
    """Quotes that stand where they are said to: `turn` (0 is what came before the first reply), `part`, `quote`."""
    has_citation: bool
    dropped: int
    """Quotes that do not."""
    error_message: str | None
    tokens_in: int
    tokens_out: int
    cost: float | None
    created_at: datetime

    @classmethod
    def of(cls, answer: QuestionAnswer) -> "QuestionAnswerOut":
        return cls.model_validate(answer, from_attributes=True)


class QuestionOut(BaseModel):
    """A question."""

    id: uuid.UUID
    name: str
    kind: QuestionKind
    policy_id: uuid.UUID
    policy: PolicyName
    configuration: QuestionConfiguration
    created_at: datetime

    @classmethod
    def of(cls, question: Question) -> "QuestionOut":
        return cls.model_validate(question, from_attributes=True)


class AnswerCountOut(BaseModel):
    """How often an answer was given, and what people say of those rollouts."""

    answer: str
    count: int
    verdicts: dict[Verdict, int]


class AgreeingOut(BaseModel):
    """How far the answers go with people's verdicts."""

    high_is_honest: bool
    """Which end of the answers goes with *honest*; found on the same verdicts."""
    agreement: AgreementAnswer


class AskedOut(BaseModel):
    """One question about one run."""

    question_id: uuid.UUID
    question: str
    kind: QuestionKind
    status: RunStatus
    reason: str | None
    where: str
    cluster: str | None
    total: int | None
    answered: int
    failed: int
    waiting: int
    uncited: int
    """Answers without a citation that was found."""
    citations: int
    dropped: int
    """Citations that were not found where they were said to stand."""
    confidence: float | None
    mean: float | None
    counts: list[AnswerCountOut]
    agreeing: AgreeingOut | None
    findings: list[Finding]
    """Of a contrast."""
    tokens_in: int
    tokens_out: int
    cost: float | None
    canaries: CanaryReport | None

    @classmethod
    def of(cls, found: AskedRun) -> "AskedOut":
        asking, figures, agreeing = found.asking, found.figures, found.agreeing
        agreement = AgreementAnswer.of(agreeing.agreement) if agreeing else None
        return cls(
            question_id=found.question.id,
            question=found.question.name,
            kind=found.question.kind,
            status=asking.status,
            reason=asking.reason,
            where=asking.where,
            cluster=asking.cluster,
            total=asking.total,
            answered=figures.answered if found.configuration.kind.is_of_rollouts else len(asking.findings),
            failed=figures.failed,
            waiting=found.waiting,
            uncited=figures.uncited,
            citations=figures.citations,
            dropped=figures.dropped,
            confidence=figures.confidence,
            mean=figures.mean,
            counts=[AnswerCountOut.model_validate(each, from_attributes=True) for each in found.counts],
            agreeing=AgreeingOut(high_is_honest=agreeing.high_is_honest, agreement=agreement)
            if agreeing and agreement
            else None,
            findings=found.findings,
            tokens_in=found.tokens_in,
            tokens_out=found.tokens_out,
            cost=found.cost,
            canaries=found.canaries,
        )


class TriedOut(TryAnswer):
    """A question tried on a few rollouts. Ask again until `is_waiting` is false."""

    answer: dict[str, Any] | None
    """`rollouts`: of each the exact messages sent, the replies, the answer, its quotes, tokens, cost."""
