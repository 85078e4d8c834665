"""Stored settings and results of studies, by kind."""

import uuid
from enum import StrEnum

from pydantic import Field

from backend.domain.described import Described
from backend.domain.studies.effort import EffortMeasure
from backend.domain.studies.onset import OnsetOutcome


class StudyKind(StrEnum):
    """The question that a study answers."""

    ONSET = "onset"
    """From which checkpoint on does a confirmed hack appear?"""
    EFFORT = "effort"
    """How much of its reasoning does a checkpoint need to earn its reward?"""


class OnsetSettings(Described):
    """What every sampled checkpoint plays, and the pattern that is counted."""

    detector: str
    cluster: str | None = None
    """Null: every cluster of the detector."""
    tasks: int
    group_size: int
    temperature: float
    seed: int
    last_step: int
    """Checkpoints saved later are not sampled."""
    hint_step: int | None = None
    """Median step of the reviewed rollouts."""


class OnsetResult(Described):
    """The interval in which a pattern began."""

    outcome: OnsetOutcome
    honest_id: uuid.UUID | None = None
    """Last checkpoint before the onset, or the policy that GRPO started from."""
    hacking_id: uuid.UUID | None = None
    """First checkpoint above the base rate."""
    honest_step: int | None = None
    """0: before GRPO."""
    hacking_step: int | None = None
    is_monotone: bool = True
    remarks: list[str] = Field(default=[])
    """Caveats, one sentence each."""


class EffortSettings(Described):
    """What both sides play, and how their replies are cut."""

    plan: dict[str, object] = Field(default={})
    """Fields of an `EvaluationRequest`."""
    cuts: int
    """Number of fractions from 0 to 1 at which the reasoning is cut."""
    samples: int
    """Answers at each fraction."""
    replies: int
    """Maximum number of replies per side."""
    measure: EffortMeasure
