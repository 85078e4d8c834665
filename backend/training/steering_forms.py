"""What people and scripts send to steer a training run."""

import uuid
from typing import Annotated, Any

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field

from backend.domain.training.alarms import AlarmsChoice
from backend.domain.vocabulary import AlarmAnswer

OTHERS = frozenset({"csrf_token", "checkpoint_id", "rate_factor"})
"""Fields of the forms that are no settings."""


class ChangesRequest(BaseModel):
    """Settings to change, by dotted name."""

    model_config = ConfigDict(extra="forbid")

    changes: Annotated[dict[str, Any], Field(min_length=1, max_length=100)]
    """`{"grpo.learning_rate": 2e-4}`"""


class AnswerRequest(BaseModel):
    """What is done about an alarm."""

    model_config = ConfigDict(extra="forbid")

    answer: AlarmAnswer


class BranchRequest(BaseModel):
    """Where a branch begins, and what it does otherwise."""

    model_config = ConfigDict(extra="forbid")

    checkpoint_id: uuid.UUID | None = None
    step: Annotated[int | None, Field(ge=0)] = None
    """In place of the checkpoint: the GRPO step whose checkpoint it goes on from; 0 for the weights before GRPO."""
    changes: dict[str, Any] = {}
    """Settings that may be changed while a run trains, by dotted name."""


async def read_settings_form(request: Request) -> dict[str, str | None]:
    """Settings by dotted name. An empty field is no value where the setting may have none."""
    form = await request.form()
    sent = {name: text for name, text in form.items() if isinstance(text, str) and name not in OTHERS}
    return {name: text.strip() or None for name, text in sent.items() if text.strip() or not _needs_value(name)}


def _needs_value(name: str) -> bool:
    """An alarm's threshold that was emptied stays as it is."""
    return name.partition(".")[2] in AlarmsChoice.model_fields or name.startswith("grpo.learning")
