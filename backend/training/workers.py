"""Online workers, and their capabilities for training runs."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.tables import Worker
from backend.domain.runs.capabilities import Capabilities, OnlineWorker

SILENT_AFTER = timedelta(seconds=45)
"""A worker reports every 10 s; after this long it is shown as silent."""


def workers(session: Session) -> Sequence[Worker]:
    return session.scalars(select(Worker).order_by(Worker.name)).all()


def is_silent(worker: Worker) -> bool:
    return datetime.now(UTC) - worker.seen_at > SILENT_AFTER


def offers(session: Session) -> list[OnlineWorker]:
    """The capabilities of online workers."""
    return [
        OnlineWorker(worker.name, tuple(worker.queues), Capabilities.of(worker.capabilities))
        for worker in workers(session)
        if not is_silent(worker)
    ]
