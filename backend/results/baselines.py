"""Baselines next to a comparison: the rewards of random legal and constant actions on the same tasks."""

import uuid
from collections.abc import Sequence

from pydantic import Field
from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.domain.runs.plans import EvaluationPlan
from backend.domain.statistics import Estimate, estimate_mean
from backend.domain.vocabulary import PolicyKind, RunKind, RunStatus
from backend.errors import InvalidInput, NotFound
from backend.operations.schemas import Response
from backend.policies.tables import Policy
from backend.results.scores import TaskKeys, TaskScores, scores, side_of
from backend.runs.evaluations import start_evaluation
from backend.runs.schemas import EvaluationRequest
from backend.runs.service import resume_run
from backend.runs.tables import Run
from backend.web.audit import Requester

BASELINES = ("random", "constant")
MAX_EVALUATIONS = 5
"""Latest evaluations of a baseline that are considered."""


class BaselineResponse(Response):
    """A baseline on the same tasks."""

    script: str
    run_id: uuid.UUID | None
    """Null if no evaluation covers these tasks."""
    reward: Estimate | None
    columns: dict[str, Estimate | None] = Field(default={}, exclude=True)


def baselines(session: Session, run: Run, tasks: TaskKeys, known: Sequence[TaskScores] = ()) -> list[BaselineResponse]:
    """The latest completed evaluation of each baseline that covers all these tasks. `known`: scores already read."""
    by_run = {each.side.run.id: each for each in known}
    found = []
    for script in BASELINES:
        baseline = BaselineResponse(script=script, run_id=None, reward=None)
        statement = (
            select(Run)
            .join(Run.policy)
            .options(joinedload(Run.policy), joinedload(Run.checkpoint))
            .where(
                Run.kind == RunKind.EVALUATION,
                Run.status == RunStatus.COMPLETED,
                Run.version_id == run.version_id,
                Policy.kind == PolicyKind.SCRIPTED,
                Policy.configuration["script"].astext == script,
            )
            .order_by(Run.created_at.desc(), Run.id.desc())
            .limit(MAX_EVALUATIONS)
        )
        for candidate in session.scalars(statement):
            plan = EvaluationPlan.model_validate(candidate.configuration)
            is_planned = tasks.are_planned(plan)
            if plan.tasks < len(tasks) or not is_planned:
                continue  # without reading its rollouts
            played = by_run.get(candidate.id) or scores(session, side_of(session, candidate))
            if len(tasks) and played.keys.has(tasks):
                *columns, reward = (estimate_mean(column) for column in played.rows(tasks).T)
                by_name = dict(zip(candidate.columns, columns, strict=True))
                baseline = BaselineResponse(script=script, run_id=candidate.id, reward=reward, columns=by_name)
                break
        found.append(baseline)
    return found


def start_baseline(session: Session, actor: Requester, run: Run, script: str) -> Run:
    """Evaluate a baseline on the tasks of an evaluation, or on a training run's held-out tasks."""
    if script not in BASELINES:
        raise InvalidInput(fields={"script": f"Choose one of the baselines {', '.join(BASELINES)}."})
    policy = session.scalars(
        select(Policy).where(
            Policy.kind == PolicyKind.SCRIPTED,
            Policy.deleted_at.is_(None),
            Policy.configuration["script"].astext == script,
        )
    ).first()
    if policy is None:
        raise NotFound(f"There is no policy that plays the script `{script}`.")
    held_out = run.configuration.get("heldout")
    if isinstance(held_out, dict):
        plan = EvaluationPlan(tasks=held_out.get("tasks", 100), first_task=held_out.get("first_task", 0))
    else:
        plan = EvaluationPlan.model_validate(run.configuration)
    request = EvaluationRequest(
        version_id=run.version_id,
        policy_id=policy.id,
        task_indexes=list(plan.task_indexes_given),
        key=f"baseline-{script}-{run.id}",
        **plan.model_dump(include={"split", "tasks", "first_task", "group_size"}),
    )
    evaluation = start_evaluation(session, actor, request)
    if evaluation.status in {RunStatus.STOPPED, RunStatus.PAUSED, RunStatus.FAILED}:
        resume_run(session, actor, evaluation)
    return evaluation
