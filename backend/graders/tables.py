"""Judges and questions, their judgements and their answers."""

import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import ForeignKey, Index, Integer, String, Text, UniqueConstraint, Uuid, false
from sqlalchemy.dialects.postgresql import DOUBLE_PRECISION, JSONB, REAL
from sqlalchemy.orm import Mapped, declared_attr, mapped_column, relationship

from backend.core.tables import Base, CreatedAt, Id, text_enum
from backend.domain.graders.questions import QuestionKind
from backend.domain.vocabulary import JudgementStatus, RunStatus

if TYPE_CHECKING:
    from backend.policies.tables import Policy
    from backend.runs.tables import Run


class Inquiry(Base):
    """Something that a policy is asked about rollouts: a judge or a question."""

    __abstract__ = True

    noun: ClassVar[str]
    """What people call it."""

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(String(100), unique=True)
    """Names its column of rollouts."""
    policy_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("policies.id", ondelete="RESTRICT"), index=True)
    configuration: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """How it is asked."""
    created_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]
    deleted_at: Mapped[datetime | None]

    @declared_attr
    def policy(cls) -> Mapped["Policy"]:
        return relationship("Policy", lazy="raise")


class Judge(Inquiry):
    """A policy that is asked for a verdict on rollouts, and how it is asked: `domain.judges.JudgeConfiguration`."""

    __tablename__ = "judges"
    noun = "judge"


class Judgement(Base):
    """What one judge says of one rollout."""

    __tablename__ = "judgements"
    __table_args__ = (
        UniqueConstraint("judge_id", "rollout_id"),
        Index("ix_judgements_run_id_judge_id", "run_id", "judge_id", postgresql_include=["rollout_id", "score"]),
    )

    id: Mapped[Id]
    judge_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("judges.id", ondelete="CASCADE"))
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    rollout_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("rollouts.id", ondelete="CASCADE"), index=True)
    status: Mapped[JudgementStatus] = mapped_column(text_enum(JudgementStatus))
    score: Mapped[float | None] = mapped_column(REAL)
    """Mean of the repeats, in [0, 1]."""
    spread: Mapped[float | None] = mapped_column(REAL)
    """Standard deviation of the repeats."""
    verdicts: Mapped[list[dict[str, Any]]] = mapped_column(default=list)
    """Each repeat as the judge gave it; of a step-level judge with scores by step."""
    error_message: Mapped[str | None] = mapped_column(Text)
    tokens_in: Mapped[int] = mapped_column(Integer, default=0)
    tokens_out: Mapped[int] = mapped_column(Integer, default=0)
    cost: Mapped[float | None] = mapped_column(DOUBLE_PRECISION)
    created_at: Mapped[CreatedAt]


class Question(Inquiry):
    """A question, a reasoning monitor or a contrast, and the policy that answers: `domain.questions`."""

    __tablename__ = "questions"
    noun = "question"

    kind: Mapped[QuestionKind] = mapped_column(text_enum(QuestionKind))


class Asking(Base):
    """One question asked about one run: how far it is, how it ended, what it cost beside its answers."""

    __tablename__ = "askings"
    __table_args__ = (UniqueConstraint("question_id", "run_id"),)

    id: Mapped[Id]
    question_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("questions.id", ondelete="CASCADE"))
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    job_id: Mapped[uuid.UUID | None] = mapped_column(Uuid)
    """Of its newest attempt."""
    where: Mapped[str] = mapped_column(Text, default="")
    """Which rollouts, as a filter expression; empty: all that are completed."""
    cluster: Mapped[str | None] = mapped_column(String(300))
    """Of a contrast: the cluster of flags that is shown beside what earned little, `detector: cluster`."""
    status: Mapped[RunStatus] = mapped_column(text_enum(RunStatus), default=RunStatus.QUEUED)
    reason: Mapped[str | None] = mapped_column(Text)
    total: Mapped[int | None]
    """Rollouts, or groups of a contrast; null until a worker has counted."""
    stop_requested: Mapped[bool] = mapped_column(default=False, server_default=false())
    canaries: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    """`domain.judging_record.CanaryReport` as JSON."""
    findings: Mapped[list[dict[str, Any]]] = mapped_column(default=list)
    """Of a contrast: `domain.findings.Finding` for each group that was shown."""
    tokens_in: Mapped[int] = mapped_column(Integer, default=0)
    """Of the canaries and of contrasts; those of answers stand there."""
    tokens_out: Mapped[int] = mapped_column(Integer, default=0)
    cost: Mapped[float | None] = mapped_column(DOUBLE_PRECISION)
    created_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]

    question: Mapped[Question] = relationship(lazy="raise")
    run: Mapped["Run"] = relationship(lazy="raise")


class QuestionAnswer(Base):
    """What was answered about one rollout."""

    __tablename__ = "question_answers"
    __table_args__ = (
        UniqueConstraint("question_id", "rollout_id"),
        Index(
            "ix_question_answers_run_id_question_id",
            "run_id",
            "question_id",
            postgresql_include=["rollout_id", "answer", "value"],
        ),
    )

    id: Mapped[Id]
    question_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("questions.id", ondelete="CASCADE"))
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    rollout_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("rollouts.id", ondelete="CASCADE"), index=True)
    status: Mapped[JudgementStatus] = mapped_column(text_enum(JudgementStatus))
    answer: Mapped[str | None] = mapped_column(String(60))
    """One of the question's choices; null where there is no answer."""
    value: Mapped[float | None] = mapped_column(REAL)
    """To sort by."""
    confidence: Mapped[float | None] = mapped_column(REAL)
    reason: Mapped[str] = mapped_column(Text, default="")
    citations: Mapped[list[dict[str, Any]]] = mapped_column(default=list)
    """Those that were found where they are said to stand: `turn` from 1 on, `part`, `start`, `end`, `quote`."""
    dropped: Mapped[int] = mapped_column(Integer, default=0)
    """Citations that do not stand where they are said to."""
    error_message: Mapped[str | None] = mapped_column(Text)
    raw: Mapped[str | None] = mapped_column(Text)
    """What was said instead of an answer."""
    tokens_in: Mapped[int] = mapped_column(Integer, default=0)
    tokens_out: Mapped[int] = mapped_column(Integer, default=0)
    cost: Mapped[float | None] = mapped_column(DOUBLE_PRECISION)
    created_at: Mapped[CreatedAt]

    question: Mapped[Question] = relationship(lazy="raise")

    @property
    def has_citation(self) -> bool:
        return bool(self.citations)
