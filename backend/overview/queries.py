"""Read the overview and the settings: counts, unfinished runs, waiting jobs, workers and their abilities."""

import uuid
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session, joinedload

from backend.core.tables import Job, Worker
from backend.domain.runs.capabilities import Capabilities, OnlineWorker, not_offered
from backend.domain.vocabulary import UNDER_WAY, JobStatus, Queue, RunKind, RunStatus
from backend.environments.tables import Environment, EnvironmentVersion
from backend.policies.tables import Policy
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


@dataclass(frozen=True, slots=True)
class Inventory:
    """Counts that decide what a newcomer is advised to do next."""

    environments: int
    policies: int
    evaluations: int
    trainings: int

    @property
    def is_fresh(self) -> bool:
        return self.evaluations == 0 and self.trainings == 0


@dataclass(frozen=True, slots=True)
class CurrentWork:
    """A job that a worker is running."""

    job: str
    run_id: uuid.UUID | None
    run: str | None
    """Name of the run."""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker as it last reported."""

    worker: Worker
    capabilities: Capabilities
    is_silent: bool
    work: Sequence[CurrentWork]


@dataclass(frozen=True, slots=True)
class Ability:
    """Something that not every installation can do."""

    name: str
    by: Sequence[str]
    """Names of the workers that can."""
    refusal: str
    """Missing requirement. Empty: none."""


def inventory(session: Session) -> Inventory:
    environments = select(func.count()).select_from(Environment).where(Environment.archived_at.is_(None))
    policies = select(func.count()).select_from(Policy).where(Policy.deleted_at.is_(None))
    runs = select(func.count()).select_from(Run)
    counted = (
        environments,
        policies,
        runs.where(Run.kind == RunKind.EVALUATION),
        runs.where(Run.kind == RunKind.TRAINING),
    )
    return Inventory(*(session.scalar(statement) or 0 for statement in counted))


def unfinished_runs(session: Session, limit: int = 20) -> Sequence[Run]:
    """List running, then queued runs, newest first."""
    statement = select(Run).where(Run.status.in_(UNDER_WAY), Run.kind != RunKind.PLAY)
    order = (Run.status == RunStatus.QUEUED, Run.created_at.desc())
    return session.scalars(statement.options(*_WITH_NAMES).order_by(*order).limit(limit)).all()


def finished_runs(session: Session, kind: RunKind, limit: int = 6) -> Sequence[Run]:
    statement = select(Run).where(Run.kind == kind, Run.status.not_in(UNDER_WAY)).options(*_WITH_NAMES)
    return session.scalars(statement.order_by(Run.created_at.desc()).limit(limit)).all()


def waiting_jobs(session: Session) -> dict[Queue, int]:
    """Count the queued jobs by queue."""
    statement = select(Job.queue, func.count().label("waiting")).where(Job.status == JobStatus.QUEUED)
    return {row.queue: row.waiting for row in session.execute(statement.group_by(Job.queue))}


def worker_views(session: Session) -> list[WorkerView]:
    """List workers with their current jobs. A job's lease names its owner, starting with the worker's name."""
    statement = (
        select(Job.lease_owner, Job.name, Job.run_id, Run.name)
        .outerjoin(Run, Run.id == Job.run_id)
        .where(Job.status == JobStatus.LEASED)
        .order_by(Job.id)
    )
    work: dict[str, list[CurrentWork]] = defaultdict(list)
    for owner, job, run_id, run in session.execute(statement):
        work[(owner or "").partition("/")[0]].append(CurrentWork(job, run_id, run))
    return [
        WorkerView(worker, Capabilities.of(worker.capabilities), is_silent(worker), work.get(worker.name, ()))
        for worker in workers(session)
    ]


def abilities(views: Sequence[WorkerView]) -> list[Ability]:
    """Return each ability with the online workers that have it."""
    offers = [
        OnlineWorker(view.worker.name, tuple(view.worker.queues), view.capabilities)
        for view in views
        if not view.is_silent
    ]
    found = []
    for name, setting in ABILITIES.items():
        if setting is None:
            able = [offer.name for offer in offers if offer.trains]
            missing = "needs a worker with TRL on the queue gpu; none is online"
        else:
            able = [offer.name for offer in offers if setting not in not_offered([offer])]
            missing = not_offered([]).get(setting, f"needs {setting[1]}; no worker has it")
        found.append(Ability(name, able, "" if able else missing))
    return found
