"""Read the overview and the settings: counts, unfinished runs, waiting jobs, workers and their abilities."""

import uuid
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, func, select, text
from sqlalchemy.orm import Session, joinedload

from backend.core.row_access import current_project
from backend.core.tables import Job
from backend.domain.runs.capabilities import Capabilities, OnlineWorker, not_offered
from backend.domain.vocabulary import UNDER_WAY, JobStatus, Queue, RunKind, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.operations.schemas import Response
from backend.runs.tables import Run
from backend.training.workers import is_silent, workers

_WITH_NAMES = (joinedload(Run.version).joinedload(EnvironmentVersion.environment), joinedload(Run.policy))
ABILITIES: dict[str, tuple[str, str] | None] = {
    "Train and evaluate local models": None,
    "Train LoRA adapters": ("adapter.kind", "lora"),
    "Train QLoRA adapters on a 4-bit base model": ("adapter.kind", "qlora"),
    "Train and sample on a GPU": ("hardware.device", "cuda"),
    "Train on vLLM workers": ("engine", "vllm"),
    "Train on Unsloth workers": ("engine", "unsloth"),
}
"""Abilities that depend on the workers, and the training setting that needs each."""

_REWARDS = text("""
SELECT r AS run_id, array_agg(value ORDER BY step) AS points
FROM unnest(CAST(:runs AS uuid[])) r CROSS JOIN LATERAL (
    SELECT DISTINCT ON (step) step, value FROM metric_points m WHERE m.run_id = r AND m.name = 'reward'
    ORDER BY step DESC, attempt DESC LIMIT 120
) p
WHERE value IS NOT NULL GROUP BY r
""")


class CurrentWorkResponse(Response):
    """A job that a worker is running."""

    job: str
    run_id: uuid.UUID | None
    run: str | None
    """Name of the run."""


class WorkerResponse(Response):
    """A worker as it last reported."""

    name: str
    queues: list[str]
    capabilities: Capabilities
    is_silent: bool
    seen_at: datetime
    work: list[CurrentWorkResponse]


class AbilityResponse(Response):
    """Something that not every installation can do."""

    name: str
    by: list[str]
    """Names of the workers that can."""
    refusal: str
    """Missing requirement. Empty: none."""


def unfinished_runs(session: Session, limit: int = 20) -> Sequence[Run]:
    """List running, then queued runs, newest first."""
    statement = select(Run).where(
        Run.status.in_(UNDER_WAY), Run.kind != RunKind.PLAY, *in_project(current_project(session))
    )
    order = (Run.status == RunStatus.QUEUED, Run.created_at.desc())
    return session.scalars(statement.options(*_WITH_NAMES).order_by(*order).limit(limit)).all()


def finished_runs(session: Session, kind: RunKind, limit: int = 6) -> Sequence[Run]:
    statement = select(Run).where(Run.kind == kind, Run.status.not_in(UNDER_WAY), *in_project(current_project(session)))
    statement = statement.options(*_WITH_NAMES)
    return session.scalars(statement.order_by(Run.created_at.desc()).limit(limit)).all()


def reward_curves(session: Session, runs: Sequence[Run]) -> dict[uuid.UUID, list[float]]:
    """Return the rewards of the last 120 steps of training runs."""
    ids = [run.id for run in runs if run.kind is RunKind.TRAINING]
    return {row.run_id: row.points for row in session.execute(_REWARDS, {"runs": ids})} if ids else {}


def in_project(project_id: uuid.UUID | None) -> list[ColumnElement[bool]]:
    """The condition for runs of a project. None: of all projects."""
    return [] if project_id is None else [Run.project_id == project_id]


def waiting_jobs(session: Session) -> dict[Queue, int]:
    """Count the queued jobs by queue."""
    statement = select(Job.queue, func.count().label("waiting")).where(Job.status == JobStatus.QUEUED)
    return {row.queue: row.waiting for row in session.execute(statement.group_by(Job.queue))}


def list_worker_states(session: Session) -> list[WorkerResponse]:
    """List workers with their current jobs. A job's lease names its owner, starting with the worker's name."""
    statement = (
        select(Job.lease_owner, Job.name, Job.run_id, Run.name)
        .outerjoin(Run, Run.id == Job.run_id)
        .where(Job.status == JobStatus.LEASED)
        .order_by(Job.id)
    )
    work: dict[str, list[CurrentWorkResponse]] = defaultdict(list)
    for owner, job, run_id, run in session.execute(statement):
        work[(owner or "").partition("/")[0]].append(CurrentWorkResponse(job=job, run_id=run_id, run=run))
    return [
        WorkerResponse.from_row(
            worker,
            capabilities=Capabilities.of(worker.capabilities),
            is_silent=is_silent(worker),
            work=work[worker.name],
        )
        for worker in workers(session)
    ]


def abilities(states: Sequence[WorkerResponse]) -> list[AbilityResponse]:
    """Return each ability with the online workers that have it."""
    offers = [
        OnlineWorker(state.name, tuple(state.queues), state.capabilities) for state in states if not state.is_silent
    ]
    responses = []
    for name, setting in ABILITIES.items():
        if setting is None:
            able = [offer.name for offer in offers if offer.trains]
            missing = "needs a worker with TRL on the queue gpu; none is online"
        else:
            able = [offer.name for offer in offers if setting not in not_offered([offer])]
            missing = not_offered([]).get(setting, f"needs {setting[1]}; no worker has it")
        responses.append(AbilityResponse(name=name, by=able, refusal="" if able else missing))
    return responses
