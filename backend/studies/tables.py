"""Studies of a training run over its checkpoints: searches for an onset, effort scores, and what they sampled."""

import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import BigInteger, ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.dialects.postgresql import ARRAY, DOUBLE_PRECISION
from sqlalchemy.orm import Mapped, declared_attr, mapped_column, relationship

from backend.core.tables import Base, CreatedAt, Id, text_enum
from backend.domain.studies.effort import EffortMeasure, EffortOutcome
from backend.domain.studies.onset import Outcome
from backend.domain.vocabulary import RunStatus

if TYPE_CHECKING:
    from backend.runs.tables import Run


class Study(Base):
    """Something that is asked of stored checkpoints. What they played says how far it is, and answers it."""

    __abstract__ = True

    noun: ClassVar[str]
    """What people call it."""

    id: Mapped[Id]
    run_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("runs.id", ondelete="CASCADE"))
    """The run at which it was asked for."""
    version_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("environment_versions.id", ondelete="RESTRICT"))
    """Whose tasks are played, and which grades."""
    status: Mapped[RunStatus] = mapped_column(text_enum(RunStatus), default=RunStatus.QUEUED)
    reason: Mapped[str | None] = mapped_column(Text)
    """Why it could not go on, or what it waits for."""
    asked_by: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("people.id", ondelete="SET NULL"))
    created_at: Mapped[CreatedAt]
    ended_at: Mapped[datetime | None]


class StudiedCheckpoint(Base):
    """A checkpoint of a study, and the evaluation that plays it."""

    __abstract__ = True

    id: Mapped[Id]
    checkpoint_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("checkpoints.id", ondelete="SET NULL"))
    run_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("runs.id", ondelete="SET NULL"), index=True)
    """The evaluation; studies of one run share them."""
    is_base: Mapped[bool] = mapped_column(default=False)
    """The policy that reinforcement began with."""
    step: Mapped[int]
    created_at: Mapped[CreatedAt]

    @declared_attr
    def run(cls) -> Mapped["Run | None"]:
        return relationship("Run", lazy="raise")


class OnsetSearch(Study):
    """A bisection over the checkpoints of a training run."""

    __tablename__ = "onset_searches"
    __table_args__ = (Index("ix_onset_searches_run_id_id", "run_id", "id"),)
    noun = "search for an onset"

    detector: Mapped[str] = mapped_column(String(60))
    cluster: Mapped[str | None] = mapped_column(String(200))
    """Null: whatever the detector flags."""
    tasks: Mapped[int]
    group_size: Mapped[int]
    temperature: Mapped[float] = mapped_column(DOUBLE_PRECISION)
    seed: Mapped[int] = mapped_column(BigInteger)
    last_step: Mapped[int]
    """Checkpoints that a running training saves later are left out."""
    hint_step: Mapped[int | None]
    """In the middle of the rollouts that people judged."""
    outcome: Mapped[Outcome | None] = mapped_column(text_enum(Outcome))
    honest_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("checkpoints.id", ondelete="SET NULL"))
    """The last checkpoint before the onset; the policy that reinforcement began with, where there is no other."""
    hacking_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("checkpoints.id", ondelete="SET NULL"))
    """The first one that exceeds the base rate."""
    honest_step: Mapped[int | None]
    """0: before reinforcement."""
    hacking_step: Mapped[int | None]
    is_monotone: Mapped[bool | None]
    remarks: Mapped[list[str]] = mapped_column(ARRAY(Text), default=list)
    """What has to be known beside the interval, in sentences."""


class OnsetSample(StudiedCheckpoint):
    """What the detector found in what a checkpoint played; the base's share is the base rate."""

    __tablename__ = "onset_samples"
    __table_args__ = (UniqueConstraint("search_id", "checkpoint_id"),)

    search_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("onset_searches.id", ondelete="CASCADE"))
    rollouts: Mapped[int | None]
    """Completed ones; null while they are played."""
    flagged: Mapped[int | None]
    chance: Mapped[float | None] = mapped_column(DOUBLE_PRECISION)
    """p of Fisher's exact test against the base rate."""
    is_above: Mapped[bool | None]


class EffortScore(Study):
    """A checkpoint of a training run, or the one that played an evaluation, against the policy that its reinforcement
    began with."""

    __tablename__ = "effort_scores"
    __table_args__ = (Index("ix_effort_scores_run_id_id", "run_id", "id"),)
    noun = "effort score"

    plan: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """What both sides play: fields of an `EvaluationRequest`."""
    cuts: Mapped[int]
    """Fractions from 0 to 1 at which the reasoning ends."""
    samples: Mapped[int]
    """Answers at each of them."""
    replies: Mapped[int]
    """Of each side, at most."""
    measure: Mapped[EffortMeasure] = mapped_column(text_enum(EffortMeasure))
    outcome: Mapped[EffortOutcome | None] = mapped_column(text_enum(EffortOutcome))
    sentence: Mapped[str] = mapped_column(Text, default="")
    """What it found."""
    difference: Mapped[float | None] = mapped_column(DOUBLE_PRECISION)
    """Of the areas, checkpoint less base, over the tasks that both solved."""
    low: Mapped[float | None] = mapped_column(DOUBLE_PRECISION)
    high: Mapped[float | None] = mapped_column(DOUBLE_PRECISION)
    tasks: Mapped[int | None]
    """That both solved."""
    base_limit: Mapped[float | None] = mapped_column(DOUBLE_PRECISION)
    """The base's 95th percentile."""


class EffortSide(StudiedCheckpoint):
    """The checkpoint or its base, and how many of its replies can be cut."""

    __tablename__ = "effort_sides"
    __table_args__ = (UniqueConstraint("score_id", "is_base"),)

    score_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("effort_scores.id", ondelete="CASCADE"))
    stage: Mapped[str] = mapped_column(String(16))
    played: Mapped[int | None]
    """Completed rollouts; null before they are looked at."""
    succeeded: Mapped[int | None]
    reasoned: Mapped[int | None]
    """Of those that succeeded: the last reply reasons before it answers."""
    chosen: Mapped[int | None]
    """Of these, how many are cut."""
    is_done: Mapped[bool] = mapped_column(default=False)


class EffortReply(Base):
    """One reply whose reasoning was cut, with what the forced answers earned."""

    __tablename__ = "effort_replies"
    __table_args__ = (UniqueConstraint("side_id", "rollout_id"),)

    id: Mapped[Id]
    side_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("effort_sides.id", ondelete="CASCADE"))
    rollout_id: Mapped[uuid.UUID]
    """No foreign key: rollouts leave with their run."""
    task: Mapped[str] = mapped_column(String(80))
    """`split/index`."""
    characters: Mapped[int]
    """Of its reasoning."""
    values: Mapped[list[float]] = mapped_column(ARRAY(DOUBLE_PRECISION))
    """One a fraction, each in [0, 1]; an answer that could not be graded is left out of its mean."""
    score: Mapped[float] = mapped_column(DOUBLE_PRECISION)
    """Area under them."""
