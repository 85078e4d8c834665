"""Requests and responses of operations on sweeps."""

import uuid
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field, JsonValue

from backend.domain.sweeps.space import MAX_PARAMETERS, Parameter
from backend.domain.sweeps.sweep import MAX_PARALLEL, MAX_TRIALS, STARTUP_TRIALS, SweepPruner, SweepSampler, TrialState
from backend.domain.vocabulary import RunStatus
from backend.operations.schemas import ListRequest, Progress, ProjectText, Request, Response

MAX_NAME = 60


class StartSweep(Request):
    """A search over training settings: which settings, how to search, and when to stop."""

    version_id: uuid.UUID = Field(description="Environment version to train on.")
    parameters: dict[Annotated[str, Field(max_length=120)], Parameter] = Field(
        min_length=1,
        max_length=MAX_PARAMETERS,
        description="Values to try, by the dotted name of a training setting: "
        '`{"grpo.learning_rate": {"low": 1e-5, "high": 1e-3, "log": true}, "grpo.group_size": [4, 8, 16]}`.',
    )
    preset: str | None = Field(None, max_length=60, description="Name of a preset. `configuration` overrides it.")
    configuration: dict[str, Any] = Field({}, description="Settings of all runs as nested JSON; may be partial.")
    name: str | None = Field(
        None,
        max_length=MAX_NAME,
        pattern=r"^[^\x00-\x1f]+$",
        description="Name of the sweep; its runs add their number. Default: made from the name of the environment.",
    )
    sampler: SweepSampler = Field(SweepSampler.TPE, description="How to choose the values of the next run.")
    pruner: SweepPruner = Field(SweepPruner.MEDIAN, description="Which runs to stop early, by their held-out rewards.")
    trials: int | None = Field(
        None, ge=1, le=MAX_TRIALS, description="Number of runs. Default: 20, or all points of the grid."
    )
    parallel: int = Field(1, ge=1, le=MAX_PARALLEL, description="Maximum number of runs at the same time.")
    startup_trials: int = Field(
        STARTUP_TRIALS,
        ge=1,
        le=100,
        description="Runs that are drawn at random and must finish before results guide the search or stop a run.",
    )
    max_steps: int | None = Field(
        None, ge=1, le=10**9, description="Training steps of all runs together. Default: no limit."
    )
    max_hours: float | None = Field(
        None,
        gt=0,
        le=10_000,
        allow_inf_nan=False,
        description="Hours of training of all runs together. When they are used up, no further run starts. Default: no "
        "limit.",
    )
    seed: int = Field(0, ge=0, lt=2**31, description="Seed of the search. The seed of training is the setting `seed`.")
    without_certificate: str | None = Field(
        None, max_length=2000, description="Why to train on a version that has not passed its checks."
    )
    key: str | None = Field(
        None, max_length=100, description="Any text. A repeated request with the same key returns the sweep it started."
    )


class ListSweeps(ListRequest):
    project: ProjectText = None


class SweepTrialResponse(Response):
    """One run of a sweep."""

    number: int
    values: dict[str, JsonValue]
    """By the dotted name of the setting."""
    state: TrialState
    run_id: uuid.UUID | None
    """Null: the run could not be started, or was deleted."""
    reward: float | None
    """Held-out reward of the best checkpoint that the run trained."""
    low: float | None
    high: float | None
    """95% interval of the reward."""
    step: int | None
    """Step of that checkpoint."""
    last_step: int | None
    """Step of the latest held-out evaluation."""
    reason: str | None
    """Why it was pruned, stopped or failed."""


class SweepResponse(Progress):
    """A sweep. `done` counts runs that have ended, `total` those to start."""

    table_columns = ("name", "environment", "status", "sampler", "done", "total", "best_reward", "id")
    table_empty = "No sweeps yet. `proctor sweep start FILE` starts one."

    id: uuid.UUID
    name: str
    environment: str
    """`tictactoe@3`"""
    version_id: uuid.UUID
    status: RunStatus
    reason: str | None
    """Why it stopped or failed, or which limit ended it."""
    sampler: SweepSampler
    pruner: SweepPruner
    best_reward: float | None
    """Highest held-out reward of a completed run."""
    created_at: datetime
    ended_at: datetime | None


class SweepDetail(SweepResponse):
    """A sweep with its runs."""

    parameters: dict[str, Parameter]
    parallel: int
    max_steps: int | None
    max_hours: float | None
    best: SweepTrialResponse | None
    """The completed run with the highest held-out reward."""
    trials: Annotated[list[SweepTrialResponse], Field(description="In the order of their start.")]
    importance: dict[str, float] | None
    """Share of each setting in reaching the best rewards, largest first. Null until 8 runs are completed."""
    configuration: dict[str, object]
    """Settings of all runs; swept ones have their first value."""
