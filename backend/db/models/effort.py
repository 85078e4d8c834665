"""Effort scores: whose replies were cut short, what each earned, and what the comparison with the base says."""

import uuid
from typing import Any

from sqlalchemy import ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.dialects.postgresql import ARRAY, DOUBLE_PRECISION
from sqlalchemy.orm import Mapped, mapped_column

from backend.db.models.base import Base, Id, text_enum
from backend.db.models.studies import StudiedCheckpoint, Study
from backend.domain.effort import EffortMeasure, EffortOutcome


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
