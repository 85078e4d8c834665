"""What a re-score or a replay was asked to do: `Run.configuration` of such a run is one of these as JSON."""

import uuid
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from backend.domain.ids import stable_id
from backend.domain.vocabulary import Phase

DIVERGED_AT = "diverged_at"
"""Metric of a replayed rollout: the first step that went differently, 0 for the reset."""
REPLIES_ENDED = "replies_ended"
"""Metric, 1 where the stored replies were over before the episode was."""
REPLIES_LEFT = "replies_left"
"""Metric: stored replies that were not used, because the episode was over earlier."""
PROBED = 48
"""Rollouts that are replayed on their own version first."""

Weight = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False)]


class RescorePlan(BaseModel):
    """Which stored rollouts, and by what they are scored again. The target version is the run's own."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    weights: dict[str, Weight] | None = None
    """Weight by column, in order: no episode is played. None: the target version's rewards."""
    phase: Phase | None = None
    """Of a training run, which of its rollouts."""
    where: str = ""
    """Only these, by an expression of `domain.filters`."""
    rollout_ids: list[uuid.UUID] = []
    """Only these."""
    override: str = ""
    """Why to go on where re-scoring is not faithful: a person's words."""
    batch: uuid.UUID | None = None
    """Runs that were asked for together share it."""
    concurrency: int = Field(default=64, ge=1, le=1024)

    @property
    def plays(self) -> bool:
        return self.weights is None


def copy_group_id(run_id: uuid.UUID, training_step: int | None, ordinal: int) -> uuid.UUID:
    """The group that a stored group, by its place, becomes in a run that takes it over."""
    return stable_id("group", run_id, Phase.EVALUATION, training_step, ordinal)


def copy_id(run_id: uuid.UUID, training_step: int | None, ordinal: int, member: int) -> uuid.UUID:
    """Likewise the rollout."""
    return stable_id("rollout", copy_group_id(run_id, training_step, ordinal), member)
