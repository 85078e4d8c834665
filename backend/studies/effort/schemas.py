"""What is asked of an effort score: the same models read HTML forms and JSON bodies."""

import uuid
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from backend.domain.studies.effort import EffortMeasure

MOST_ROLLOUTS = 2048
"""That each side plays."""


class EffortRequest(BaseModel):
    """Which checkpoint is scored, and on how much."""

    model_config = ConfigDict(extra="ignore")

    checkpoint_id: uuid.UUID | None = None
    """Of a training run; left out: its newest one of reinforcement. An evaluation's own is taken."""
    tasks: Annotated[int | None, Field(ge=1, le=2000)] = None
    """Of a training run: held-out tasks from the first on; left out: 64, or all there are. An evaluation's own are
    taken."""
    group_size: Annotated[int | None, Field(ge=1, le=64)] = None
    """Of a training run: rollouts a task; left out: one."""
    cuts: Annotated[int, Field(ge=2, le=11)] = 11
    """Fractions from 0 to 1 at which the reasoning ends: 11 are 0, 0.1 … 1; 5 are 0, 0.25 … 1."""
    samples: Annotated[int, Field(ge=1, le=32)] = 4
    """Answers at each fraction."""
    replies: Annotated[int, Field(ge=1, le=512)] = 32
    """Of each side that are cut, at most."""
    temperature: Annotated[float | None, Field(gt=0, le=5, allow_inf_nan=False)] = None
    """Of a training run; left out: the one that it begins with."""
    measure: EffortMeasure = EffortMeasure.SUCCESS
