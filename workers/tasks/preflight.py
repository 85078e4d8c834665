"""The job `training.preflight`: a process of its own looks at a training run that is about to be."""

import uuid
from datetime import UTC, datetime

from sqlalchemy.orm import Session

from backend.core.events import announce, preflight_topic
from backend.core.session import transaction
from backend.domain.text import plain_text
from backend.domain.vocabulary import PreflightStatus
from backend.training.tables import Preflight
from workers.tasks.children import must_run_child
from workers.tasks.registry import JobContext

MODULE = "workers.training.preflight.run"


def run(context: JobContext) -> None:
    """The job's body. A second attempt looks anew."""
    preflight_id = uuid.UUID(context.arguments["preflight_id"])
    with transaction() as session:
        preflight = session.get(Preflight, preflight_id, with_for_update=True)
        if preflight is None or preflight.status.is_over:
            return
        preflight.status = PreflightStatus.RUNNING
        preflight.progress = {"phase": "starting"}
        announce(session, preflight_topic(preflight_id))
    must_run_child(MODULE, [str(preflight_id)], run_id=None)


def give_up(session: Session, context: JobContext, error: str) -> None:
    """The worker failed and will not try again: nobody shall wait for ever."""
    preflight = session.get(Preflight, uuid.UUID(context.arguments["preflight_id"]))
    if preflight is not None and not preflight.status.is_over:
        preflight.status, preflight.reason = PreflightStatus.FAILED, plain_text(error)
        preflight.ended_at = datetime.now(UTC)
        announce(session, preflight_topic(preflight.id))
