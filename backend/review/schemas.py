"""What the review takes in."""

import uuid
from enum import StrEnum
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, Field

from backend.domain.vocabulary import Verdict


class Part(StrEnum):
    """Which part of the review's list is shown."""

    UNREVIEWED = "unreviewed"
    SECOND = "second"
    """Judged by one other person: a second verdict tells how far people agree."""
    REVIEWED = "reviewed"
    ALL = "all"


class Order(StrEnum):
    SUSPICION = "suspicion"
    """Suspicion times reward, one example of each cluster before its repeats."""
    NEWEST = "newest"


class ReviewFilter(BaseModel):
    """What the queue is narrowed to; every field is optional."""

    shown: Part = Part.UNREVIEWED
    mine: bool = False
    """Assigned to whoever asks, and not judged by them."""
    detector: str = ""
    environment: str = ""
    run: uuid.UUID | None = None
    order: Order = Order.SUSPICION

    def query(self) -> dict[str, str]:
        """As URL parameters, without what is the default."""
        values = self.model_dump(mode="json", exclude_defaults=True)
        return {name: str(value).lower() if value is True else str(value) for name, value in values.items() if value}


def read_review_filter(
    shown: Part = Part.UNREVIEWED,
    mine: bool = False,
    detector: Annotated[str, Query(max_length=60)] = "",
    environment: Annotated[str, Query(max_length=40)] = "",
    run: str = "",
    order: Order = Order.SUSPICION,
) -> ReviewFilter:
    """From the address; an empty or damaged run id narrows nothing."""
    try:
        run_id = uuid.UUID(run) if run else None
    except ValueError:
        run_id = None
    return ReviewFilter(shown=shown, mine=mine, detector=detector, environment=environment, run=run_id, order=order)


class UndoForm(BaseModel):
    """Which of one's own verdicts is taken back."""

    verdict: uuid.UUID | None = None
    """Left out: the last one that stands."""


class ClusterForm(BaseModel):
    """A verdict on all of a cluster that nobody judged by itself."""

    verdict: Verdict


class AssignForm(BaseModel):
    person: uuid.UUID
    count: int = Field(default=1, ge=1, le=500)
    """So many of the first that wait and are nobody's."""


class ItemAssignForm(BaseModel):
    person: uuid.UUID


class TargetForm(BaseModel):
    per_day: int = Field(ge=1, le=1000)
