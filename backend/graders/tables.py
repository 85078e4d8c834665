"""Graders, their work on runs, the grades that they give to rollouts, and budgets with which they run automatically."""

import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, String, Text, UniqueConstraint, Uuid, false, func, text
from sqlalchemy.dialects.postgresql import DOUBLE_PRECISION, JSONB, REAL
from sqlalchemy.orm import Mapped, mapped_column, relationship

from backend.core.tables import Base, CreatedAt, Id, text_enum
from backend.domain.graders.settings import GraderKind
from backend.domain.vocabulary import GradeStatus, RunStatus

if TYPE_CHECKING:
    from backend.environments.tables import Environment
    from backend.policies.tables import Policy
    from backend.runs.tables import Run


class Grader(Base):
    """A policy that grades rollouts, with its settings: `domain.graders.settings`."""

    __tablename__ = "graders"

    id: Mapped[Id]
    name: Mapped[str] = mapped_column(String(100), unique=True)
    kind: Mapped[GraderKind] = mapped_column(text_enum(GraderKind))
    policy_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("policies.id", ondelete="RESTRICT"), index=True)
    settings: Mapped[dict[str, Any]] = mapped_column(default=dict)
    created_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]
    deleted_at: Mapped[datetime | None]

    policy: Mapped["Policy"] = relationship(lazy="raise")


class GraderRun(Base):
    """One grader's work on one run: progress, outcome, and its cost in addition to that of its grades."""

    __tablename__ = "grader_runs"
    __table_args__ = (UniqueConstraint("grader_id", "run_id"),)

    id: Mapped[Id]
    grader_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("graders.id", ondelete="CASCADE"))
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    job_id: Mapped[uuid.UUID | None] = mapped_column(Uuid)
    """Of its latest attempt."""
    where: Mapped[str] = mapped_column(Text, default="")
    """Filter on the completed rollouts; empty: all of them."""
    cluster: Mapped[str | None] = mapped_column(String(300))
    """Contrasts only: the cluster of flags to compare with low-reward rollouts, `detector: cluster`."""
    is_sampled: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Only the rollouts that a budget chose: `GraderSample`."""
    drawn_seq: Mapped[int] = mapped_column(BigInteger, default=0, server_default=text("0"))
    """Budgets: the sample was drawn from rollouts up to this number."""
    status: Mapped[RunStatus] = mapped_column(text_enum(RunStatus), default=RunStatus.QUEUED)
    reason: Mapped[str | None] = mapped_column(Text)
    total: Mapped[int | None]
    """Rollouts, or groups of a contrast; null until a worker has counted them."""
    stop_requested: Mapped[bool] = mapped_column(default=False, server_default=false())
    canaries: Mapped[dict[str, Any] | None] = mapped_column(JSONB)
    """A `domain.graders.canaries.CanaryReport`."""
    findings: Mapped[list[dict[str, Any]]] = mapped_column(default=list)
    """Contrasts only: a `domain.graders.evidence.GroupFinding` for each group."""
    tokens_in: Mapped[int] = mapped_column(Integer, default=0)
    """Of canaries and contrasts. Grades have their own."""
    tokens_out: Mapped[int] = mapped_column(Integer, default=0)
    cost: Mapped[float | None] = mapped_column(DOUBLE_PRECISION)
    created_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]

    grader: Mapped[Grader] = relationship(lazy="raise")
    run: Mapped["Run"] = relationship(lazy="raise")


class Grade(Base):
    """The result of one grader on one rollout."""

    __tablename__ = "grades"
    __table_args__ = (
        UniqueConstraint("grader_id", "rollout_id"),
        Index(
            "ix_grades_run_id_grader_id", "run_id", "grader_id", postgresql_include=["rollout_id", "score", "answer"]
        ),
    )

    id: Mapped[Id]
    grader_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("graders.id", ondelete="CASCADE"))
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    rollout_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("rollouts.id", ondelete="CASCADE"), index=True)
    status: Mapped[GradeStatus] = mapped_column(text_enum(GradeStatus))
    score: Mapped[float | None] = mapped_column(REAL)
    """Judges: mean of the repeats in [0, 1]. Other kinds: the answer as a number to sort by. Null without a grade."""
    spread: Mapped[float | None] = mapped_column(REAL)
    """Judges: standard deviation of the repeats."""
    verdicts: Mapped[list[dict[str, Any]]] = mapped_column(default=list)
    """Judges: each repeat with its reason, and its scores by criterion or step."""
    answer: Mapped[str | None] = mapped_column(String(60))
    """Questions and monitors: one of the question's choices."""
    confidence: Mapped[float | None] = mapped_column(REAL)
    reason: Mapped[str] = mapped_column(Text, default="")
    citations: Mapped[list[dict[str, Any]]] = mapped_column(default=list)
    """Quotes that were found in the rollout: `turn` (from 1), `part`, `start`, `end`, `quote`."""
    dropped: Mapped[int] = mapped_column(Integer, default=0)
    """Quotes that were not found."""
    error_message: Mapped[str | None] = mapped_column(Text)
    raw: Mapped[str | None] = mapped_column(Text)
    """The reply that could not be read."""
    tokens_in: Mapped[int] = mapped_column(Integer, default=0)
    tokens_out: Mapped[int] = mapped_column(Integer, default=0)
    cost: Mapped[float | None] = mapped_column(DOUBLE_PRECISION)
    created_at: Mapped[CreatedAt]

    grader: Mapped[Grader] = relationship(lazy="raise")


class GraderBudget(Base):
    """How much a grader may spend automatically on the runs of an environment. Without a row: nothing."""

    __tablename__ = "grader_budgets"
    __table_args__ = (UniqueConstraint("grader_id", "environment_id"),)

    id: Mapped[Id]
    grader_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("graders.id", ondelete="CASCADE"))
    environment_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("environments.id", ondelete="CASCADE"), index=True)
    rollouts_per_run: Mapped[int]
    rollouts_per_day: Mapped[int]
    """Limit over all runs of the environment. Days are UTC."""
    cost_per_run: Mapped[float | None] = mapped_column(DOUBLE_PRECISION)
    """US dollars, as `cost_per_day`; null: no limit."""
    cost_per_day: Mapped[float | None] = mapped_column(DOUBLE_PRECISION)
    changed_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]
    changed_at: Mapped[datetime] = mapped_column(server_default=func.now(), onupdate=func.now())

    grader: Mapped[Grader] = relationship(lazy="raise")
    environment: Mapped["Environment"] = relationship(lazy="raise")


class GraderSample(Base):
    """A rollout that a budget chose, with its known chance; see `domain.graders.sampling`."""

    __tablename__ = "grader_samples"
    __table_args__ = (UniqueConstraint("grader_run_id", "rollout_id"),)

    id: Mapped[Id]
    grader_run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("grader_runs.id", ondelete="CASCADE"))
    rollout_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("rollouts.id", ondelete="CASCADE"), index=True)
    batch: Mapped[int] = mapped_column(BigInteger)
    """`GraderRun.drawn_seq` of its drawing. Each has its own threshold."""
    size: Mapped[float] = mapped_column(DOUBLE_PRECISION)
    priority: Mapped[float] = mapped_column(DOUBLE_PRECISION)
    """The smallest are graded first."""
    chance: Mapped[float] = mapped_column(DOUBLE_PRECISION)
    created_at: Mapped[CreatedAt]
