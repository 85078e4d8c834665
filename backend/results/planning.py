"""Plan the size of an evaluation: the tasks that detect a difference, given the variance of earlier runs."""

import uuid
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field
from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.domain.results.power import (
    MAX_TASKS,
    POWER,
    DifferenceVariance,
    detectable_difference,
    difference_variance,
    power_of,
    tasks_needed,
)
from backend.domain.vocabulary import RunKind, RunStatus
from backend.errors import InvalidInput
from backend.operations.schemas import Cli, Request, Response
from backend.results.schemas import side_at
from backend.results.scores import TaskScores, scores, side_of
from backend.runs.tables import Run

GROUP_SIZES = (1, 2, 4, 8, 16)
"""Rollouts per task for which a plan lists the number of tasks."""


class PlanSampleSize(Request):
    run: Annotated[str, Cli(argument=True)] = Field(
        max_length=200,
        description="Run whose variance is used. RUN@STEP selects a training run's held-out evaluation.",
    )
    against: str | None = Field(
        None,
        max_length=200,
        description="Second run on the same tasks, for the variance of paired differences. Default: assume that the "
        "tasks of both sides are uncorrelated, which needs more tasks.",
    )
    difference: float = Field(
        0.05, gt=0, le=1e6, description="Difference of the mean reward to detect, in units of the reward."
    )
    power: float = Field(POWER, ge=0.5, le=0.999, description="Probability of detecting it.")
    group_size: int | None = Field(
        None, ge=1, le=256, description="Rollouts per task and side. Default: as in the run."
    )


class SampleOption(Response):
    """A number of rollouts per task with the tasks that it needs."""

    group_size: int
    tasks: int | None
    """Null above ten million."""
    rollouts: int | None
    """Rollouts of each side."""


class SamplePlan(Response):
    """Sizes of a paired comparison that detects a difference in a two-sided test at 5%."""

    difference: float
    power: float
    group_size: int
    tasks: int | None
    """Number of tasks that detects the difference; null above ten million."""
    options: list[SampleOption]
    """The same for other numbers of rollouts per task. Only the chosen one if the runs have one rollout per task."""
    observed_tasks: int
    """Tasks from which the variance was estimated."""
    observed_group_size: float
    """Their mean number of completed rollouts."""
    observed_power: float
    """Probability that as many tasks as observed detect the difference."""
    detectable: float | None
    """Smallest difference that as many tasks as observed detect with the power."""
    variance: DifferenceVariance
    is_paired: bool
    """The variance is that of paired differences of two runs."""


def plan_sample_size(session: Session, request: PlanSampleSize) -> SamplePlan:
    """Raises InvalidInput if the runs have fewer than two tasks in common."""
    references = [request.run, request.against or ""]
    sides = [scores(session, side_at(session, reference)) for reference in references if reference.strip()]
    return plan_for(sides, request)


def plan_for(sides: Sequence[TaskScores], request: PlanSampleSize) -> SamplePlan:
    """The plan by one or two runs that were read already."""
    keys = sides[0].keys.shared_with(side.keys for side in sides[1:])
    spreads = [side.spreads(keys) for side in sides]
    variance = difference_variance(*spreads)
    if variance is None:
        field = "against" if len(sides) > 1 else "run"
        raise InvalidInput(fields={field: "At least two tasks must be completed, by both runs if there are two."})
    observed = float(sum(spread.counts.sum() for spread in spreads)) / (len(keys) * len(spreads))
    group_size = request.group_size or max(1, round(observed))
    options = []
    for size in sorted({*GROUP_SIZES, group_size}) if variance.is_split else [group_size]:
        tasks = tasks_needed(request.difference, variance.of_task(size), request.power)
        options.append(SampleOption(group_size=size, tasks=tasks, rollouts=tasks and tasks * size))
    of_task = variance.of_task(group_size)
    return SamplePlan(
        difference=request.difference,
        power=request.power,
        group_size=group_size,
        tasks=next(option.tasks for option in options if option.group_size == group_size),
        options=options,
        observed_tasks=len(keys),
        observed_group_size=observed,
        observed_power=power_of(len(keys), request.difference, of_task),
        detectable=detectable_difference(len(keys), of_task, request.power),
        variance=variance,
        is_paired=len(sides) > 1,
    )


class DetectableDifference(Response):
    """The smallest difference that an evaluation detects against another one of its kind, and the run it is from."""

    difference: float
    power: float
    run_id: uuid.UUID
    run_name: str


def expected_detectable(
    session: Session, version_id: uuid.UUID, policy_id: uuid.UUID | None, tasks: int, group_size: int
) -> DetectableDifference | None:
    """By the latest evaluation of the version, of the policy if it has one; None without any or under two tasks."""
    if not (2 <= tasks <= MAX_TASKS and group_size):
        return None
    statement = (
        select(Run)
        .options(joinedload(Run.policy), joinedload(Run.checkpoint))
        .where(Run.version_id == version_id, Run.kind == RunKind.EVALUATION, Run.status == RunStatus.COMPLETED)
        .order_by((Run.policy_id == policy_id).desc() if policy_id else Run.id, Run.created_at.desc())
        .limit(1)
    )
    run = session.scalar(statement)
    if run is None:
        return None
    played = scores(session, side_of(session, run))
    variance = difference_variance(played.spreads(played.keys))
    if variance is None or variance.of_task(group_size) <= 0.0:
        return None
    difference = detectable_difference(tasks, variance.of_task(group_size))
    if difference is None:
        return None
    return DetectableDifference(difference=difference, power=POWER, run_id=run.id, run_name=run.name)
