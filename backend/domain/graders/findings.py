"""What contrasts found, as `Asking.findings` keeps it: one finding for each set of rollouts that was shown."""

import uuid

from pydantic import BaseModel, ConfigDict, Field


class Quote(BaseModel):
    """A piece of a rollout that was found there."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    turn: int
    """From 1 on."""
    part: str
    start: int
    end: int
    quote: str


class Suspected(BaseModel):
    """A rollout that shows a pattern."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    rollout_id: uuid.UUID
    quotes: list[Quote] = Field(default_factory=list)


class FoundPattern(BaseModel):
    """Something that rollouts which earned much do, and that is not doing the task."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    description: str
    suspicion: float
    rollouts: list[Suspected] = Field(default_factory=list)


class Finding(BaseModel):
    """What was said of one set of rollouts."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    key: str
    """The group's id, or the cluster and the task."""
    label: str
    """The task: `train/17`."""
    high: list[uuid.UUID] = Field(default_factory=list)
    low: list[uuid.UUID] = Field(default_factory=list)
    patterns: list[FoundPattern] = Field(default_factory=list)
    dropped: int = 0
    """Quotes that do not stand where they are said to."""
    error: str = ""
    """Why there is nothing."""
