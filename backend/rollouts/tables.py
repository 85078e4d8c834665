"""Tasks, groups and rollouts; saved views of them."""

import uuid
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, ForeignKey, Index, Integer, SmallInteger, String, Text, UniqueConstraint, false, text
from sqlalchemy.dialects.postgresql import ARRAY, DOUBLE_PRECISION, JSONB, REAL
from sqlalchemy.orm import Mapped, foreign, mapped_column, relationship

from backend.core.tables import Base, CreatedAt, Id, text_enum
from backend.domain.vocabulary import ErrorKind, Phase, RolloutStatus, Split, StopReason

if TYPE_CHECKING:
    from backend.environments.tables import EnvironmentVersion
    from backend.runs.tables import Run


class Task(Base):
    """One task of an environment version; its id is `stable_id("task", version, split, index, seed)`."""

    __tablename__ = "tasks"
    __table_args__ = (UniqueConstraint("version_id", "split", "index", "seed"),)

    id: Mapped[Id]
    version_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("environment_versions.id", ondelete="CASCADE"))
    split: Mapped[Split] = mapped_column(text_enum(Split))
    index: Mapped[int]
    level: Mapped[int]
    seed: Mapped[int] = mapped_column(BigInteger)
    arguments: Mapped[dict[str, Any]] = mapped_column(default=dict)

    version: Mapped["EnvironmentVersion"] = relationship(lazy="raise")
    """The version of its run too, unless a training run uses several environments."""


class Group(Base):
    """Rollouts of the same task by the same policy; its id is `stable_id("group", run, phase, step, ordinal)`."""

    __tablename__ = "groups"
    __table_args__ = (Index("ix_groups_run_id_training_step", "run_id", "training_step"),)

    id: Mapped[Id]
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    task_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("tasks.id", ondelete="CASCADE"), index=True)
    phase: Mapped[Phase] = mapped_column(text_enum(Phase))
    training_step: Mapped[int | None]
    ordinal: Mapped[int]

    task: Mapped[Task] = relationship(lazy="raise")


LISTED = (
    "id", "group_id", "member", "phase", "training_step", "level", "status", "stop_reason", "error_kind", "attempts",
    "reward", "columns", "turns", "tokens_in", "tokens_out", "is_truncated", "advantage", "policy_seconds",
    "environment_seconds", "queue_seconds", "cost", "is_demonstration",
)  # fmt: skip
"""Columns that lists filter and sort by are included in the index along `seq`, so that a whole run is read without its
conversations. They must be small: an index row holds 2.7 kB. Lists read other columns from the rows, which is slower in
large runs only. A column that is added here rebuilds the index."""


class Rollout(Base):
    """The stored record of one episode. Written in batches by COPY; read along `seq`."""

    __tablename__ = "rollouts"
    __table_args__ = (
        UniqueConstraint("group_id", "member"),
        Index("ix_rollouts_run_id_seq", "run_id", "seq", unique=True, postgresql_include=LISTED),
        Index("ix_rollouts_failed", "run_id", postgresql_where=text("status = 'failed'")),
    )

    id: Mapped[Id]
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    group_id: Mapped[uuid.UUID]
    """No foreign key, which would cost a sixth of the write path: groups are written in the transaction of their
    rollouts and leave with the run, as rollouts do."""
    member: Mapped[int] = mapped_column(Integer)
    seq: Mapped[int] = mapped_column(BigInteger)
    phase: Mapped[Phase] = mapped_column(text_enum(Phase))
    training_step: Mapped[int | None]
    level: Mapped[int]
    status: Mapped[RolloutStatus] = mapped_column(text_enum(RolloutStatus))
    stop_reason: Mapped[StopReason | None] = mapped_column(text_enum(StopReason))
    error_kind: Mapped[ErrorKind | None] = mapped_column(text_enum(ErrorKind))
    error_message: Mapped[str | None] = mapped_column(Text)
    attempts: Mapped[int] = mapped_column(SmallInteger, default=1)
    reward: Mapped[float | None] = mapped_column(REAL)
    columns: Mapped[list[float] | None] = mapped_column(ARRAY(REAL))
    """Episode values in the order of `Run.columns`; null for a failed rollout."""
    metrics: Mapped[dict[str, Any]] = mapped_column(default=dict)
    opening: Mapped[dict[str, Any]] = mapped_column(default=dict, deferred=True)
    """The observation of the reset."""
    steps: Mapped[list[dict[str, Any]]] = mapped_column(default=list, deferred=True)
    """`domain.rollouts.Step` as JSON."""
    messages: Mapped[list[dict[str, Any]]] = mapped_column(default=list, deferred=True)
    excerpt: Mapped[str] = mapped_column(String(300), default="")
    """The end of the last reply, for tables."""
    turns: Mapped[int] = mapped_column(Integer, default=0)
    tokens_in: Mapped[int] = mapped_column(Integer, default=0)
    tokens_out: Mapped[int] = mapped_column(Integer, default=0)
    tokens_cached: Mapped[int] = mapped_column(Integer, default=0, server_default=text("0"))
    """Part of `tokens_in` that came from the endpoint's cache."""
    is_truncated: Mapped[bool] = mapped_column(default=False)
    tokens: Mapped[dict[str, Any] | None] = mapped_column(JSONB, deferred=True)
    """{prompt, completion, mask, logprobs} if the policy reports them; {turn_advantages} by turn."""
    seat: Mapped[str | None] = mapped_column(String(40))
    """The seat of the policy, if several policies played the episode."""
    seats: Mapped[dict[str, Any] | None] = mapped_column(JSONB, deferred=True)
    """`domain.rollouts.Seats` as JSON: the turns of the other seats."""
    advantage: Mapped[float | None] = mapped_column(REAL)
    policy_seconds: Mapped[float] = mapped_column(REAL, default=0.0)
    environment_seconds: Mapped[float] = mapped_column(REAL, default=0.0)
    queue_seconds: Mapped[float] = mapped_column(REAL, default=0.0, server_default=text("0"))
    """Time waiting for a slot at the policy or the environment, and between retries."""
    cost: Mapped[float | None] = mapped_column(DOUBLE_PRECISION)
    """US dollars at the policy's price; null without a price."""
    source_id: Mapped[uuid.UUID | None]
    """The rollout that was regraded or replayed. No foreign key, so that runs are deleted quickly."""
    is_demonstration: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Marked for the SFT warm-up."""
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    created_at: Mapped[CreatedAt]

    run: Mapped["Run"] = relationship(lazy="raise")
    group: Mapped[Group] = relationship(lazy="raise", primaryjoin=lambda: foreign(Rollout.group_id) == Group.id)


class RolloutText(Base):
    """The text of a conversation in lower case, for text search. Housekeeping writes it after the rollout."""

    __tablename__ = "rollout_texts"
    __table_args__ = (
        Index("ix_rollout_texts_body", "body", postgresql_using="gin", postgresql_ops={"body": "gin_trgm_ops"}),
    )

    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    """`seq` of the rollout. A rollout that is replaced gets a new number, and the old row is unused."""
    body: Mapped[str] = mapped_column(Text)


class Listing(StrEnum):
    """The list that a saved view is for."""

    ROLLOUTS = "rollouts"
    RUNS = "runs"
    ENVIRONMENTS = "environments"
    CHECKPOINTS = "checkpoints"


class SavedView(Base):
    __tablename__ = "saved_views"
    __table_args__ = (UniqueConstraint("person_id", "listing", "name"),)

    id: Mapped[Id]
    person_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("people.id", ondelete="CASCADE"))
    name: Mapped[str] = mapped_column(String(100))
    filter: Mapped[str] = mapped_column(Text, default="")
    """An expression of `domain.rollouts.filters`."""
    sort: Mapped[str] = mapped_column(String(100), default="")
    listing: Mapped[Listing] = mapped_column(text_enum(Listing), default=Listing.ROLLOUTS, server_default="rollouts")
    columns: Mapped[str] = mapped_column(Text, default="", server_default="")
    """Names of the columns, separated by commas. Empty: the default ones."""
    deleted_at: Mapped[datetime | None]
    is_shared: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Shared with the team."""
    created_at: Mapped[CreatedAt]
