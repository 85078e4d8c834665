"""What a person or a script asks for: the same models read HTML forms and JSON bodies."""

import uuid
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from backend.domain.rollouts.regrading import Weight
from backend.domain.vocabulary import Phase

MAX_RUNS = 200
Reason = Annotated[str, Field(min_length=10, max_length=2000)]


class Part(BaseModel):
    """Which of a run's rollouts."""

    model_config = ConfigDict(extra="ignore")

    where: str = Field(default="", max_length=2000)
    """Only those that an expression fits, e.g. `win = 0 and tokens > 200`."""
    phase: Phase | None = None
    """Of a training run; left out: its held-out examinations."""


class WeightsForm(Part):
    """Names and weights in the same order, as a form sends them."""

    name: list[str] = []
    weight: list[Weight] = []

    @model_validator(mode="after")
    def _paired(self) -> Self:
        if len(self.name) != len(self.weight):
            raise ValueError("give every column a weight; 0 leaves it out")
        return self

    def weights(self) -> dict[str, float]:
        return dict(zip(self.name, self.weight, strict=True))


class VersionForm(Part):
    """Another version to score or to play on."""

    version_id: uuid.UUID
    override: Annotated[str, Field(max_length=2000)] = ""
    """Why to go on where re-scoring is not faithful."""
    all_evaluations: bool = False
    """Every completed evaluation of this run's version, one run each."""


class OverrideForm(BaseModel):
    """Why to re-score all the same."""

    model_config = ConfigDict(extra="ignore")

    reason: Reason


class _Runs(Part):
    """Runs whose stored rollouts are taken."""

    run_ids: list[uuid.UUID] = Field(default=[], max_length=MAX_RUNS)
    evaluations_of: uuid.UUID | None = None
    """Instead of `run_ids`: every completed evaluation of this environment version."""
    rollout_ids: list[uuid.UUID] = Field(default=[], max_length=1000)
    """Only these rollouts."""
    name: Annotated[str | None, Field(max_length=200)] = None
    key: Annotated[str | None, Field(max_length=100)] = None
    """Any text of the sender's; the same key again gives the runs that it started first."""


class RescoreRequest(_Runs):
    """Other weights, or another version's rewards, over stored rollouts."""

    weights: dict[str, Weight] | None = Field(default=None, max_length=200)
    """Weight by column; a reward column that is not named keeps its weight."""
    version_id: uuid.UUID | None = None
    """Whose rewards."""
    override: Annotated[str, Field(max_length=2000)] = ""
    """Why to go on where re-scoring is not faithful; kept on the run."""

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.weights is None) == (self.version_id is None):
            raise ValueError("give either weights or a version")
        return self


class ReplayRequest(_Runs):
    """Stored replies on a version."""

    version_id: uuid.UUID


class PreviewRequest(Part):
    """What weights would make of a run."""

    run_id: uuid.UUID
    weights: dict[str, Weight] = Field(max_length=200)
