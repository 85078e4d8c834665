"""Baselines beside a comparison: what random-legal and constant actions reach on the same tasks."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.domain.runs.plans import EvaluationPlan
from backend.domain.statistics import Estimate, estimate_mean
from backend.domain.vocabulary import PolicyKind, RunKind, RunStatus
from backend.errors import InvalidInput, NotFound
from backend.policies.tables import Policy
from backend.results.scores import Scores, TaskKey, scores, side_of
from backend.runs.evaluations import start_evaluation
from backend.runs.notes import Asker
from backend.runs.schemas import EvaluationRequest
from backend.runs.service import resume_run
from backend.runs.tables import Run

BASELINES = ("random", "constant")
LOOKED_AT = 5
"""Evaluations of one baseline, the newest first."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """One baseline on the tasks of a comparison."""

    script: str
    run_id: uuid.UUID | None = None
    """None: nobody evaluated it on these tasks yet."""
    estimates: tuple[Estimate, ...] = ()
    """In the order of its run's columns, the reward last."""
    columns: tuple[str, ...] = ()

    @property
    def reward(self) -> Estimate | None:
        return self.estimates[-1] if self.estimates else None

    def column(self, name: str) -> Estimate | None:
        return self.estimates[self.columns.index(name)] if name in self.columns else None


def baselines(session: Session, run: Run, tasks: Sequence[TaskKey], known: Sequence[Scores] = ()) -> list[Baseline]:
    """The newest completed evaluation of each baseline that covers all these tasks; without a run where none does.

    `known` are scores that were read already.
    """
    by_run = {each.side.run.id: each for each in known}
    return [_newest(session, run, script, tasks, by_run) for script in BASELINES]


def _newest(
    session: Session, run: Run, script: str, tasks: Sequence[TaskKey], known: Mapping[uuid.UUID, Scores]
) -> Baseline:
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
        .limit(LOOKED_AT)
    )
    for candidate in session.scalars(statement):
        if not _may_cover(candidate, tasks):
            continue
        found = known.get(candidate.id) or scores(session, side_of(session, candidate))
        if tasks and all(key in found.tasks for key in tasks):
            estimates = [estimate_mean(column) for column in found.rows(tasks).T]
            names = (*candidate.columns, "reward")
            return Baseline(script, candidate.id, tuple(each for each in estimates if each), names)
    return Baseline(script)


def _may_cover(run: Run, tasks: Sequence[TaskKey]) -> bool:
    """Do all these tasks stand in the run's plan? Its rollouts are read only then."""
    plan = EvaluationPlan.model_validate(run.configuration)
    if plan.tasks < len(tasks):
        return False
    planned = frozenset(plan.task_indexes)
    return all(key.split == plan.split and key.number in planned for key in tasks)


def start_baseline(session: Session, actor: Asker, run: Run, script: str) -> Run:
    """Evaluate a baseline on the tasks that a run played."""
    if script not in BASELINES:
        raise InvalidInput(fields={"script": f"A baseline is one of {', '.join(BASELINES)}."})
    policy = session.scalars(
        select(Policy).where(
            Policy.kind == PolicyKind.SCRIPTED,
            Policy.deleted_at.is_(None),
            Policy.configuration["script"].astext == script,
        )
    ).first()
    if policy is None:
        raise NotFound(f"There is no policy that plays the script `{script}`.")
    plan = tasks_of(run)
    request = EvaluationRequest(
        version_id=run.version_id,
        policy_id=policy.id,
        split=plan.split,
        tasks=plan.tasks,
        first_task=plan.first_task,
        task_indexes=list(plan.task_indexes_given),
        group_size=plan.group_size,
        key=f"baseline-{script}-{run.id}",
    )
    started = start_evaluation(session, actor, request)
    if started.status in {RunStatus.STOPPED, RunStatus.PAUSED, RunStatus.FAILED}:
        resume_run(session, actor, started)
    return started


def tasks_of(run: Run) -> EvaluationPlan:
    """Which tasks a run's evaluation plays; of a training run its held-out tasks."""
    held_out = run.configuration.get("heldout")
    if isinstance(held_out, dict):
        return EvaluationPlan(tasks=held_out.get("tasks", 100), first_task=held_out.get("first_task", 0))
    return EvaluationPlan.model_validate(run.configuration)
