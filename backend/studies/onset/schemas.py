"""What is asked of a search for an onset: the same models read HTML forms and JSON bodies."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MOST_ROLLOUTS = 4096
"""That each checkpoint plays."""


class OnsetRequest(BaseModel):
    """The pattern to look for, and on how much."""

    model_config = ConfigDict(extra="ignore")

    detector: Annotated[str, Field(min_length=1, max_length=60)]
    cluster: Annotated[str | None, Field(max_length=200)] = None
    """Left out: whatever the detector flags."""
    tasks: Annotated[int | None, Field(ge=8, le=2000)] = None
    """Held-out tasks from the first on that every sampled checkpoint plays; left out: 128, or all there are."""
    group_size: Annotated[int | None, Field(ge=1, le=64)] = None
    """Rollouts a task; left out: as many as make 128."""
    temperature: Annotated[float | None, Field(gt=0, le=5, allow_inf_nan=False)] = None
    """Left out: the one that the run begins with."""
