"""Each worker with what it can do and what it works on; and what this installation can do altogether."""

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.tables import Job, Worker
from backend.domain.runs.capabilities import Capabilities, Offer, not_offered
from backend.domain.vocabulary import JobStatus
from backend.runs.tables import Run
from backend.training.workers import is_silent, workers


@dataclass(frozen=True, slots=True)
class Work:
    """A job under way."""

    job: str
    run_id: uuid.UUID | None
    run: str | None
    """The run's name."""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker as it reported last."""

    worker: Worker
    can: Capabilities
    is_silent: bool
    work: Sequence[Work]

    @property
    def offer(self) -> Offer:
        return Offer(self.worker.name, tuple(self.worker.queues), self.can)


@dataclass(frozen=True, slots=True)
class Ability:
    """Something that not every installation can do."""

    name: str
    by: Sequence[str]
    """Workers that can."""
    refusal: str
    """What is missing; empty: nothing."""


ABILITIES: Mapping[str, tuple[str, str] | None] = {
    "Train and evaluate local models": None,
    "Train LoRA adapters": ("adapter.kind", "lora"),
    "Train QLoRA adapters beside a 4-bit base": ("adapter.kind", "qlora"),
    "Train and sample on a GPU": ("hardware.device", "cuda"),
    "Train on vLLM workers": ("engine", "vllm"),
    "Train on Unsloth workers": ("engine", "unsloth"),
}


def worker_views(session: Session) -> list[WorkerView]:
    work = _work(session)
    return [
        WorkerView(worker, Capabilities.of(worker.capabilities), is_silent(worker), work.get(worker.name, ()))
        for worker in workers(session)
    ]


def _work(session: Session) -> dict[str, list[Work]]:
    """Leased jobs by the worker's name, which a lease's owner begins with."""
    statement = (
        select(Job.lease_owner, Job.name, Job.run_id, Run.name)
        .outerjoin(Run, Run.id == Job.run_id)
        .where(Job.status == JobStatus.LEASED)
        .order_by(Job.id)
    )
    found: dict[str, list[Work]] = defaultdict(list)
    for owner, job, run_id, run in session.execute(statement):
        found[(owner or "").partition("/")[0]].append(Work(job, run_id, run))
    return found


def abilities(views: Iterable[WorkerView]) -> list[Ability]:
    answering = [view.offer for view in views if not view.is_silent]
    return [_ability(name, choice, answering) for name, choice in ABILITIES.items()]


def _ability(name: str, choice: tuple[str, str] | None, offers: Sequence[Offer]) -> Ability:
    if choice is None:
        able = [offer.name for offer in offers if offer.trains]
        return Ability(name, able, "" if able else "needs a worker with TRL on the queue gpu; none answers")
    able = [offer.name for offer in offers if choice not in not_offered([offer])]
    return Ability(name, able, "" if able else not_offered([]).get(choice, f"needs {choice[1]}; no worker has it"))
