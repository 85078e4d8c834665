"""Start regrading and replay runs, and score stored rollouts by a draft. Each source run gets one new run."""

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.metadata import version as package_version

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session, joinedload

from backend.core.events import RUNS, announce
from backend.core.queue import answer_of, enqueue
from backend.core.tables import Job
from backend.domain.environments.manifest import Manifest
from backend.domain.ids import new_id, stable_id
from backend.domain.rollouts.regrading import RegradingPlan
from backend.domain.vocabulary import CheckStatus, Phase, Queue, RolloutStatus, RunKind, RunStatus
from backend.environments.queries import get_draft
from backend.environments.tables import Certificate, Environment, EnvironmentVersion
from backend.environments.validation import validate_package
from backend.errors import Conflict, InvalidInput, NotFound
from backend.rollouts.queries import matching
from backend.rollouts.regrading.schemas import MAX_RUNS, StartRegrading, StartReplay
from backend.rollouts.regrading.weights import apply_weights, list_reward_terms
from backend.rollouts.tables import Group, Rollout, Task
from backend.runs.service import resume_run
from backend.runs.tables import Run
from backend.web.audit import Requester, audit

REGRADING_JOB = "rescoring.run"
DRAFT_JOB = "rescoring.draft"
CHECK = "rescore_equal"
"""Check of the certificate: stored episodes earn the same rewards again."""
SOURCE_KINDS = (RunKind.EVALUATION, RunKind.TRAINING, RunKind.CHECK, RunKind.RESCORE, RunKind.REPLAY)
"""Kinds of runs that rollouts can be taken from."""


class StillPlaying(Conflict):
    """This run is not finished. Wait for it, or stop it first."""


class NotRefused(Conflict):
    """Only a refused regrading can be overridden."""


class DraftHasProblems(Conflict):
    """The draft has problems. Fix them first, then score stored rollouts by it."""


class NothingToScore(Conflict):
    """Only a completed rollout can be scored again."""


@dataclass(frozen=True, slots=True)
class StartedRegrading:
    batch: uuid.UUID
    runs: list[Run]


@dataclass(frozen=True, slots=True)
class DraftScore:
    job: Job
    environment: Environment
    rollout_id: uuid.UUID
    answer: dict[str, object] | None
    """None while the draft is being played."""
    is_stale: bool
    """The draft was saved since."""
    is_over: bool


def start_regrading(session: Session, actor: Requester, request: StartRegrading | StartReplay) -> StartedRegrading:
    """Regrade stored rollouts by other weights or another version's rewards, or replay their replies on a version."""
    weights, override = None, ""
    if isinstance(request, StartRegrading):
        weights, override = request.weights, request.override.strip()
    ids = evaluations_of(session, request.evaluations_of) if request.evaluations_of else request.run_ids
    if not ids:
        raise InvalidInput(fields={"run_ids": "Name at least one run with stored rollouts."})
    if len(ids) > MAX_RUNS:
        raise InvalidInput(fields={"run_ids": f"At most {MAX_RUNS} runs at once."})
    plan = RegradingPlan(
        weights=weights,
        phase=request.phase,
        where=request.where.strip(),
        rollout_ids=request.rollout_ids,
        override=override,
        batch=stable_id("rescoring", actor.person_id, request.key) if request.key else new_id(),
    )
    with_environment = joinedload(EnvironmentVersion.environment)
    sources = select(Run).options(joinedload(Run.version).options(with_environment)).where(Run.id.in_(ids))
    found = session.scalars(sources.order_by(Run.created_at, Run.id)).all()
    if len(found) < len(set(ids)):
        raise NotFound("There is no such run.")
    for source in found:
        if source.kind not in SOURCE_KINDS:
            raise InvalidInput(fields={"run_ids": f"{source.name} is hand play, which cannot be regraded."})
        if source.configuration.get("mix"):
            message = f"{source.name} used several environments, each with its own rewards."
            raise InvalidInput(fields={"run_ids": f"{message} Evaluate one of its checkpoints and regrade that."})
        if not source.status.is_over:
            raise StillPlaying(f"{source.name} is {source.status}. Wait for it, or stop it first.")

    assert plan.batch is not None
    return StartedRegrading(plan.batch, [_start_one(session, actor, request, source, plan) for source in found])


def _start_one(
    session: Session, actor: Requester, request: StartRegrading | StartReplay, source: Run, plan: RegradingPlan
) -> Run:
    """Queue the run; the same key from the same person returns the run that it started first."""
    kind = RunKind.RESCORE if isinstance(request, StartRegrading) else RunKind.REPLAY
    version, suffix = source.version, "reweighted"
    if plan.weights is not None:
        terms = apply_weights(list_reward_terms(session, source), plan.weights)
        columns = {term.name: term.weight for term in terms}
        plan = plan.model_copy(update={"weights": columns})
    else:
        with_environment = joinedload(EnvironmentVersion.environment)
        chosen = session.get(EnvironmentVersion, request.version_id, options=[with_environment])
        if chosen is None:
            raise InvalidInput(fields={"version_id": "There is no such environment version."})
        if chosen.environment_id != version.environment_id:
            message = f"{source.name} was played on {version.environment.name}. Choose a version of that environment."
            raise InvalidInput(fields={"version_id": message})
        columns = {column.name: column.weight for column in Manifest.model_validate(chosen.manifest).columns}
        version, suffix = chosen, f"{'regraded by' if kind is RunKind.RESCORE else 'replayed on'} v{chosen.number}"
    run_id = stable_id("rescored run", plan.batch, source.id)
    if known := session.get(Run, run_id):
        return known
    total = session.scalar(select(func.count()).select_from(Rollout).where(*conditions_of(session, source, plan)))
    if not total:
        raise InvalidInput(fields={"where": f"No stored rollout of {source.name} matches."})
    run = Run(
        id=run_id,
        kind=kind,
        status=RunStatus.QUEUED,
        name=(request.name or f"{source.name}, {suffix}").strip()[:200],
        version_id=version.id,
        policy_id=source.policy_id,
        checkpoint_id=source.checkpoint_id,
        configuration={
            **plan.model_dump(mode="json"),
            "content_hash": version.content_hash,
            "source": {"run": str(source.id), "name": source.name, "version": source.version.number},
            "proctor": package_version("proctor"),
        },
        columns=list(columns),
        weights=list(columns.values()),
        seed=source.seed,
        progress={"phase": "waiting for a worker", "done": 0, "total": total},
        source_run_id=source.id,
        created_by=actor.person_id,
    )
    session.add(run)
    session.flush()
    enqueue(session, REGRADING_JOB, queue=Queue.CPU, run_id=run.id)
    detail = plan.model_dump(mode="json", exclude={"rollout_ids"}, exclude_defaults=True)
    audit(session, actor, f"{kind}.start", "run", run.id, name=run.name, source=str(source.id), **detail)
    announce(session, RUNS)
    return run


def override_refusal(session: Session, actor: Requester, run: Run, reason: str) -> None:
    """Continue a refused regrading. The reason stays on the run."""
    plan = RegradingPlan.model_validate(run.configuration)
    if run.kind is not RunKind.RESCORE or not plan.plays or run.status is not RunStatus.FAILED or plan.override:
        raise NotRefused
    run.configuration = {**run.configuration, "override": reason.strip()}
    audit(session, actor, "rescore.override", "run", run.id, name=run.name, reason=reason.strip())
    session.flush()
    resume_run(session, actor, run)


def evaluations_of(session: Session, version_id: uuid.UUID) -> Sequence[uuid.UUID]:
    """Completed evaluations of a version, oldest first."""
    own = (Run.version_id == version_id, Run.kind == RunKind.EVALUATION, Run.status == RunStatus.COMPLETED)
    return session.scalars(select(Run.id).where(*own).order_by(Run.created_at, Run.id).limit(MAX_RUNS + 1)).all()


def conditions_of(session: Session, run: Run, plan: RegradingPlan) -> list[ColumnElement[bool]]:
    """Conditions on `Rollout` for the stored rollouts of a run that the plan takes.

    Of a training run it is one phase, because the copies of two would collide.
    """
    conditions: list[ColumnElement[bool]] = [
        Rollout.run_id == run.id,
        Rollout.status.in_([RolloutStatus.COMPLETED, RolloutStatus.FAILED]),
    ]
    if phase := plan.phase or (Phase.HELDOUT if run.kind is RunKind.TRAINING else None):
        conditions.append(Rollout.phase == phase)
    elif not plan.rollout_ids:
        conditions.append(Rollout.phase != Phase.CANARY)  # its copy would count as an evaluation
    if plan.rollout_ids:
        conditions.append(Rollout.id.in_(plan.rollout_ids))
    if plan.where:
        conditions.append(Rollout.id.in_(matching(session, run, plan.where)))
    return conditions


def check_statuses(session: Session, version_ids: Collection[uuid.UUID]) -> dict[uuid.UUID, CheckStatus | None]:
    """Result of the regrading check in each version's latest certificate; None without one."""
    statement = select(Certificate.version_id, Certificate.results).where(Certificate.version_id.in_(version_ids))
    statuses: dict[uuid.UUID, CheckStatus | None] = dict.fromkeys(version_ids)
    for version_id, results in session.execute(statement.order_by(Certificate.created_at, Certificate.id)):
        statuses[version_id] = next((CheckStatus(each["status"]) for each in results if each["check"] == CHECK), None)
    return statuses


def score_by_draft(session: Session, rollout_id: uuid.UUID) -> Job:
    """Score a rollout, its cluster and the history by its environment's draft. No rollout is stored."""
    statement = (
        select(Environment, Rollout.status)
        .join(EnvironmentVersion, EnvironmentVersion.environment_id == Environment.id)
        .join(Task, Task.version_id == EnvironmentVersion.id)
        .join(Group, Group.task_id == Task.id)
        .join(Rollout, Rollout.group_id == Group.id)
        .where(Rollout.id == rollout_id)
    )
    found = session.execute(statement).one_or_none()
    if found is None:
        raise NotFound("There is no such rollout.")
    environment, status = found
    if status is not RolloutStatus.COMPLETED:
        raise NothingToScore
    if validate_package(get_draft(session, environment).files, environment.name).problems:
        raise DraftHasProblems
    arguments = {"rollout_id": str(rollout_id), "environment_id": str(environment.id)}
    return enqueue(session, DRAFT_JOB, queue=Queue.CPU, arguments=arguments)


def get_draft_score(session: Session, job_id: uuid.UUID) -> DraftScore:
    job = session.get(Job, job_id)
    if job is None or job.name != DRAFT_JOB:
        raise NotFound("There is no such draft score.")
    environment = session.get_one(Environment, uuid.UUID(job.arguments["environment_id"]))
    answer = answer_of(job)
    revision = (answer or {}).get("draft_revision")
    is_stale = revision is not None and revision != get_draft(session, environment).revision
    rollout_id = uuid.UUID(job.arguments["rollout_id"])
    return DraftScore(job, environment, rollout_id, answer, is_stale, is_over=answer is not None)
