"""What is asked of judges and questions alike, by the form and by JSON."""

import uuid
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from backend.domain.graders.judges import JudgeConfiguration, Slug

_DEFAULTS = JudgeConfiguration()


class InquiryRequest(BaseModel):
    """A judge or a question to add, or what one shall be from now on."""

    model_config = ConfigDict(extra="ignore")

    name: Slug
    """Small letters, digits and _; names its column of rollouts."""
    policy_id: uuid.UUID
    """Who is asked."""
    shows_reasoning: bool = False
    temperature: float = Field(default=_DEFAULTS.temperature, ge=0, le=2, allow_inf_nan=False)
    max_tokens: int = Field(default=_DEFAULTS.max_tokens, ge=16, le=32_768)
    concurrency: int = Field(default=_DEFAULTS.concurrency, ge=1, le=256)


class WorkRequest(BaseModel):
    """Ask about a run's rollouts."""

    model_config = ConfigDict(extra="ignore")

    where: Annotated[str, StringConstraints(strip_whitespace=True, max_length=1000)] = ""
    """Which of the completed rollouts, as a filter expression; empty: all."""
