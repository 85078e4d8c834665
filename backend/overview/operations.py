"""Workers, and what this installation can do with them."""

import uuid
from datetime import datetime

from sqlalchemy.orm import Session

from backend.domain.runs.capabilities import Capabilities
from backend.domain.vocabulary import Role
from backend.operations.declaration import operation
from backend.operations.schemas import Response
from backend.overview.queries import abilities, worker_views
from backend.web.identity import Actor


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


class WorkersResponse(Response):
    workers: list[WorkerResponse]
    abilities: list[AbilityResponse]


@operation("GET /workers", role=Role.VIEWER, noun="workers", command="workers")
def list_workers(session: Session, actor: Actor) -> WorkersResponse:
    """List workers with their queues, hardware, engines and current jobs, and what this installation can do."""
    views = worker_views(session)
    workers = [
        WorkerResponse(
            name=view.worker.name,
            queues=view.worker.queues,
            capabilities=view.capabilities,
            is_silent=view.is_silent,
            seen_at=view.worker.seen_at,
            work=[CurrentWorkResponse.of(each) for each in view.work],
        )
        for view in views
    ]
    return WorkersResponse(workers=workers, abilities=[AbilityResponse.of(each) for each in abilities(views)])
