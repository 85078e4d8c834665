"""What the JSON API says of judges and their work."""

import uuid
from datetime import datetime
from typing import Any

from pydantic import BaseModel

from backend.domain.graders.judges import JudgeConfiguration
from backend.domain.graders.judging_record import CanaryReport
from backend.domain.vocabulary import JudgementStatus, RunStatus
from backend.graders.judges.queries import JudgedRun
from backend.graders.responses import AgreementAnswer, PolicyName, TryAnswer
from backend.graders.tables import Judge, Judgement


class JudgeAnswer(BaseModel):
    """A judge."""

    id: uuid.UUID
    name: str
    policy_id: uuid.UUID
    policy: PolicyName
    configuration: JudgeConfiguration
    created_at: datetime

    @classmethod
    def of(cls, judge: Judge) -> "JudgeAnswer":
        return cls.model_validate(judge, from_attributes=True)


class AskedAnswer(TryAnswer):
    """A try of a judge on one rollout. Ask again until `is_waiting` is false."""

    answer: dict[str, Any] | None
    """`score`, `spread`, `error`, tokens, `cost`, and `repeats`: the exact messages sent, the replies, the verdict."""


class JudgementAnswer(BaseModel):
    """What one judge said of one rollout."""

    id: uuid.UUID
    judge_id: uuid.UUID
    run_id: uuid.UUID
    rollout_id: uuid.UUID
    status: JudgementStatus
    score: float | None
    """null: it gave no verdict."""
    spread: float | None
    verdicts: list[dict[str, Any]]
    error_message: str | None
    tokens_in: int
    tokens_out: int
    cost: float | None
    created_at: datetime

    @classmethod
    def of(cls, judgement: Judgement) -> "JudgementAnswer":
        return cls.model_validate(judgement, from_attributes=True)


class EstimateAnswer(BaseModel):
    mean: float
    low: float
    high: float
    count: int


class JudgedRunAnswer(BaseModel):
    """One judge's work on one run."""

    judge_id: uuid.UUID
    judge: str
    status: RunStatus
    reason: str | None
    where: str
    total: int
    judged: int
    failed: int
    """Without a verdict: no score, and in no average."""
    waiting: int
    score: EstimateAnswer | None
    spread: float | None
    tokens_in: int
    tokens_out: int
    cost: float | None
    agreement: AgreementAnswer | None
    canaries: CanaryReport | None

    @classmethod
    def of(cls, found: JudgedRun) -> "JudgedRunAnswer":
        figures, record = found.figures, found.record
        return cls(
            judge_id=found.judge.id,
            judge=found.judge.name,
            status=record.status,
            reason=record.reason,
            where=record.where,
            total=found.total,
            judged=figures.judged,
            failed=figures.failed,
            waiting=found.waiting,
            score=EstimateAnswer.model_validate(figures.mean, from_attributes=True) if figures.mean else None,
            spread=figures.spread,
            tokens_in=figures.tokens_in + record.tokens_in,
            tokens_out=figures.tokens_out + record.tokens_out,
            cost=found.cost,
            agreement=AgreementAnswer.of(found.agreement),
            canaries=record.canaries,
        )
