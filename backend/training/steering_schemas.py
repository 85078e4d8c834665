"""What people and scripts send to steer a training run."""

import uuid
from typing import Annotated, Any

from fastapi import Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from backend.domain.training.alarms import AlarmsChoice
from backend.domain.training.steering import LEARNING_RATE, PARTS, WARM_UP_RATE
from backend.domain.vocabulary import AlarmAnswer

OTHERS = frozenset({"csrf_token", "checkpoint_id", "rate_factor"})
"""Fields of the forms that are no settings."""

_Number = Annotated[int | None, Field(ge=1)]
VersionNumber = Annotated[_Number, BeforeValidator(lambda value: None if value == "" else value)]
"""A form sends what was left empty as an empty text."""
Reason = Annotated[str | None, Field(max_length=2000)]


class ChangesRequest(BaseModel):
    """Settings to change, by dotted name."""

    model_config = ConfigDict(extra="forbid")

    changes: Annotated[dict[str, Any], Field(min_length=1, max_length=100)]
    """`{"grpo.learning_rate": 2e-4}`"""


class AnswerRequest(BaseModel):
    """What is done about an alarm."""

    model_config = ConfigDict(extra="forbid")

    answer: AlarmAnswer
    version: VersionNumber = None
    """Only of a roll back: the version of the environment that the branch goes on with, such as a repaired one."""
    without_certificate: Reason = None
    """Why it is trained on although its checks did not pass."""

    @model_validator(mode="after")
    def _of_a_branch(self) -> "AnswerRequest":
        if self.version is not None and self.answer is not AlarmAnswer.ROLL_BACK:
            raise ValueError("another version goes with roll_back alone")
        return self


class BranchRequest(BaseModel):
    """Where a branch begins, and what it does otherwise."""

    model_config = ConfigDict(extra="forbid")

    checkpoint_id: uuid.UUID | None = None
    step: Annotated[int | None, Field(ge=0)] = None
    """In place of the checkpoint: the GRPO step whose checkpoint it goes on from; 0 for the weights before GRPO."""
    changes: dict[str, Any] = {}
    """Settings that may be changed while a run trains, by dotted name."""
    version: VersionNumber = None
    """Another version of the run's environment to go on with, such as a repaired one; left out: the run's own."""
    without_certificate: Reason = None
    """Why it is trained on although its checks did not pass."""


async def read_settings_form(request: Request) -> dict[str, str | None]:
    """Settings by dotted name. An empty field is no value where the setting may have none."""
    form = await request.form()
    sent = {name: text for name, text in form.items() if isinstance(text, str) and name not in OTHERS}
    return {name: text.strip() or None for name, text in sent.items() if text.strip() or not _needs_value(name)}


async def read_budget_form(request: Request) -> dict[str, str | None]:
    """Of a branch: its own limits. One that was not sent stays as the source's is."""
    return {name: text for name, text in (await read_settings_form(request)).items() if name.startswith("budget.")}


def _needs_value(name: str) -> bool:
    """An alarm's threshold or a rate that was emptied stays as it is."""
    return name.partition(".")[2] in AlarmsChoice.model_fields or name in (LEARNING_RATE, WARM_UP_RATE, PARTS)
