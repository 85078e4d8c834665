"""The workers, for scripts."""

import uuid
from datetime import datetime

from fastapi import APIRouter
from pydantic import BaseModel

from backend.domain.runs.capabilities import Capabilities
from backend.overview.workers import WorkerView, abilities, worker_views
from backend.web.dependencies import SessionDep, Viewer

router = APIRouter(prefix="/api/v1", tags=["workers"])


class WorkOut(BaseModel):
    """A job under way."""

    job: str
    run_id: uuid.UUID | None
    run: str | None


class WorkerOut(BaseModel):
    """A worker as it reported last."""

    name: str
    queues: list[str]
    capabilities: Capabilities
    is_silent: bool
    seen_at: datetime
    work: list[WorkOut]


class AbilityOut(BaseModel):
    """Something that not every installation can do."""

    name: str
    by: list[str]
    refusal: str
    """What is missing; empty: nothing."""


class WorkersOut(BaseModel):
    workers: list[WorkerOut]
    abilities: list[AbilityOut]


@router.get("/workers")
def list_workers(session: SessionDep, _: Viewer) -> WorkersOut:
    """Each worker with its queues, machine and engines, what it works on; and what can be done here at all."""
    views = worker_views(session)
    return WorkersOut(
        workers=[_out(view) for view in views],
        abilities=[AbilityOut(name=each.name, by=list(each.by), refusal=each.refusal) for each in abilities(views)],
    )


def _out(view: WorkerView) -> WorkerOut:
    worker = view.worker
    return WorkerOut(
        name=worker.name,
        queues=list(worker.queues),
        capabilities=view.can,
        is_silent=view.is_silent,
        seen_at=worker.seen_at,
        work=[WorkOut(job=work.job, run_id=work.run_id, run=work.run) for work in view.work],
    )
