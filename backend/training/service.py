"""What a trainer does: start a training run, export a checkpoint. Stopping and resuming is in `evaluations.service`."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.db.models import Checkpoint, Export
from backend.domain.vocabulary import ExportStatus, Queue
from backend.errors import Conflict
from backend.queue import enqueue
from backend.training.starting import start_training
from backend.web.audit import audit
from backend.web.identity import Actor

__all__ = ["start_export", "start_training"]

EXPORT_JOB = "exports.run"


class NotFromTraining(Conflict):
    """Only a checkpoint of a training run can be exported: its data and its examination are part of the export."""


def export_topic(export: Export) -> str:
    return f"export:{export.id}"


def start_export(session: Session, actor: Actor, checkpoint: Checkpoint) -> Export:
    """Queue the export of a checkpoint. One that is under way already is given back instead of a second."""
    if checkpoint.run_id is None:
        raise NotFromTraining
    session.refresh(checkpoint, with_for_update={"of": Checkpoint})
    if checkpoint.unusable:
        raise Conflict(checkpoint.unusable)
    unfinished = {ExportStatus.QUEUED, ExportStatus.RUNNING}
    statement = select(Export).where(Export.checkpoint_id == checkpoint.id, Export.status.in_(unfinished))
    if known := session.scalars(statement.limit(1)).first():
        return known
    export = Export(
        checkpoint_id=checkpoint.id,
        run_id=checkpoint.run_id,
        created_by=actor.person_id,
        progress={"phase": "waiting for a worker"},
    )
    session.add(export)
    session.flush()
    enqueue(session, EXPORT_JOB, queue=Queue.GPU, arguments={"export_id": str(export.id)})
    audit(session, actor, "export.start", "export", export.id, checkpoint=str(checkpoint.id))
    return export
