"""What the review takes in and returns about flags and verdicts."""

import uuid
from datetime import datetime
from enum import StrEnum
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, ConfigDict, StringConstraints

from backend.domain.vocabulary import Verdict


class Shown(StrEnum):
    """Which flags a list shows."""

    UNREVIEWED = "unreviewed"
    REVIEWED = "reviewed"
    ALL = "all"


class VerdictForm(BaseModel):
    verdict: Verdict
    comment: Annotated[str, StringConstraints(strip_whitespace=True, max_length=4000)] = ""


class FlagFilter(BaseModel):
    """What a list of flags is narrowed to; every field is optional."""

    shown: Shown = Shown.UNREVIEWED
    detector: str = ""
    environment: str = ""
    run: uuid.UUID | None = None


def read_flag_filter(
    shown: Shown = Shown.UNREVIEWED,
    detector: Annotated[str, Query(max_length=60)] = "",
    environment: Annotated[str, Query(max_length=40)] = "",
    run: str = "",
) -> FlagFilter:
    """From the address; an empty or damaged run id narrows nothing."""
    try:
        run_id = uuid.UUID(run) if run else None
    except ValueError:
        run_id = None
    return FlagFilter(shown=shown, detector=detector, environment=environment, run=run_id)


class VerdictOut(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    id: uuid.UUID
    run_id: uuid.UUID
    rollout_id: uuid.UUID | None
    flag_id: uuid.UUID | None
    verdict: Verdict
    comment: str
    person_id: uuid.UUID | None
    created_at: datetime
    taken_back_at: datetime | None
    """Its giver undid it: it causes nothing."""
