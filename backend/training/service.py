"""What a trainer does: start a training run, export a checkpoint. Stopping and resuming is in `evaluations.service`."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.checkpoints.export_schemas import ExportChoice
from backend.checkpoints.tables import Checkpoint, Export
from backend.core.queue import enqueue
from backend.domain.checkpoints.exports import ExportOptions, OfferedForm, default_form, offered_forms
from backend.domain.vocabulary import ExportStatus, Queue
from backend.errors import Conflict, InvalidInput
from backend.training.starting import start_training
from backend.training.workers import offers
from backend.web.audit import audit
from backend.web.identity import Actor

__all__ = ["forms_of", "start_export", "start_training"]

EXPORT_JOB = "exports.run"


class NotFromTraining(Conflict):
    """Only a checkpoint of a training run can be exported: its data and its examination are part of the export."""


def start_export(session: Session, actor: Actor, checkpoint: Checkpoint, choice: ExportChoice | None = None) -> Export:
    """Queue the export of a checkpoint. One in this form that is under way is given back instead of a second."""
    choice = choice or ExportChoice()
    form = choice.form or default_form(checkpoint.adapter)
    if checkpoint.run_id is None:
        raise NotFromTraining
    session.refresh(checkpoint, with_for_update={"of": Checkpoint})
    if checkpoint.unusable:
        raise Conflict(checkpoint.unusable)
    if refusal := next(each.refusal for each in forms_of(session, checkpoint) if each.form is form):
        raise InvalidInput(refusal, {"form": refusal})
    unfinished = {ExportStatus.QUEUED, ExportStatus.RUNNING}
    of_form = Export.checkpoint_id == checkpoint.id, Export.form == form
    statement = select(Export).where(*of_form, Export.status.in_(unfinished))
    if known := session.scalars(statement.limit(1)).first():
        return known
    export = Export(
        checkpoint_id=checkpoint.id,
        run_id=checkpoint.run_id,
        form=form,
        options=ExportOptions.model_validate(choice.model_dump()).model_dump(mode="json"),
        created_by=actor.person_id,
        progress={"phase": "waiting for a worker"},
    )
    session.add(export)
    session.flush()
    enqueue(session, EXPORT_JOB, queue=Queue.GPU, arguments={"export_id": str(export.id)})
    audit(session, actor, "export.start", "export", export.id, checkpoint=str(checkpoint.id), form=form)
    return export


def forms_of(session: Session, checkpoint: Checkpoint) -> list[OfferedForm]:
    """Every form, each with why it is not offered for this checkpoint."""
    engines = {engine for offer in offers(session) for engine in offer.can.engines}
    return offered_forms(checkpoint.adapter, engines, is_pruned=checkpoint.pruned_at is not None)
