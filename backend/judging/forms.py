"""What the review takes in."""

import uuid
from enum import StrEnum
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, StringConstraints

from backend.domain.vocabulary import Verdict


class Shown(StrEnum):
    """Which flags a list shows."""

    UNREVIEWED = "unreviewed"
    REVIEWED = "reviewed"
    ALL = "all"


class Order(StrEnum):
    NEWEST = "newest"
    WORST = "worst"
    """Alerts before warnings before notes, the newest first within each."""


class VerdictForm(BaseModel):
    verdict: Verdict
    comment: Annotated[str, StringConstraints(strip_whitespace=True, max_length=4000)] = ""


class FlagFilter(BaseModel):
    """What a list of flags is narrowed to; every field is optional."""

    shown: Shown = Shown.UNREVIEWED
    detector: str = ""
    environment: str = ""
    run: uuid.UUID | None = None
    order: Order = Order.NEWEST

    def query(self) -> dict[str, str]:
        """As URL parameters, without what is the default."""
        values = self.model_dump(mode="json", exclude_defaults=True)
        return {name: str(value) for name, value in values.items() if value}


def read_flag_filter(
    shown: Shown = Shown.UNREVIEWED,
    detector: Annotated[str, Query(max_length=60)] = "",
    environment: Annotated[str, Query(max_length=40)] = "",
    run: str = "",
    order: Order = Order.NEWEST,
) -> FlagFilter:
    """From the address; an empty or damaged run id narrows nothing."""
    try:
        run_id = uuid.UUID(run) if run else None
    except ValueError:
        run_id = None
    return FlagFilter(shown=shown, detector=detector, environment=environment, run=run_id, order=order)
