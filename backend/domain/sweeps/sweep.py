"""The settings of a sweep, and the states of its trials."""

from enum import StrEnum
from typing import Self

from pydantic import ConfigDict, Field, model_validator

from backend.domain.described import Described
from backend.domain.sweeps.space import Axis
from backend.domain.vocabulary import RunStatus

MAX_TRIALS = 500
MAX_PARALLEL = 64
STARTUP_TRIALS = 5
REDUCTION = 3
"""Successive halving: one of this many runs continues after each rung."""
FIRST_FAILURES = 3
"""A sweep whose first trials all fail, this many of them, ends: its settings do not work at all."""
FEWEST_FOR_IMPORTANCE = 8
"""Completed trials without which the importance of settings would be noise."""


class SweepSampler(StrEnum):
    """How a sweep chooses the next values."""

    TPE = "tpe"
    """Near the values that have worked best (tree-structured Parzen estimator)."""
    RANDOM = "random"
    GRID = "grid"
    """Every combination of the listed values."""


class SweepPruner(StrEnum):
    """Which runs a sweep stops early, by their held-out rewards so far."""

    MEDIAN = "median"
    """Those whose best reward is below the median of the finished runs at the same step."""
    HALVING = "halving"
    """All but the best third at each of some steps (asynchronous successive halving)."""
    NONE = "none"


class TrialState(StrEnum):
    """The state of a trial, which follows from its run."""

    RUNNING = "running"
    """Queued or in training."""
    COMPLETED = "completed"
    PRUNED = "pruned"
    STOPPED = "stopped"
    """A person, an alarm or the end of the sweep stopped its run."""
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        return self is not TrialState.RUNNING


def state_of(status: RunStatus, *, is_pruned: bool) -> TrialState:
    match status:
        case RunStatus.QUEUED | RunStatus.RUNNING:
            return TrialState.RUNNING
        case RunStatus.COMPLETED:
            return TrialState.COMPLETED
        case RunStatus.FAILED:
            return TrialState.FAILED
        case RunStatus.STOPPED | RunStatus.PAUSED:
            return TrialState.PRUNED if is_pruned else TrialState.STOPPED


class SweepSettings(Described):
    """How a sweep searches. Stored as JSON; the fixed training settings are a separate column."""

    model_config = ConfigDict(extra="ignore")

    space: dict[str, Axis]
    """By the dotted name of their setting."""
    order: list[str] = Field(default=[])
    """The settings as a person listed them. JSON in Postgres keeps no order."""
    sampler: SweepSampler = SweepSampler.TPE
    pruner: SweepPruner = SweepPruner.MEDIAN
    trials: int = Field(ge=1, le=MAX_TRIALS)
    parallel: int = Field(default=1, ge=1, le=MAX_PARALLEL)
    startup_trials: int = STARTUP_TRIALS
    max_steps: int | None = None
    """Training steps of all runs together."""
    max_hours: float | None = None
    """Hours of training of all runs together."""
    seed: int = 0

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        self.order = self.order or list(self.space)
        self.space = {name: self.space[name] for name in self.order if name in self.space}
        return self
