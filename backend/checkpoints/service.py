"""Exporting a checkpoint, uploading an export to the Hugging Face Hub, and planning to prune checkpoints."""

from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.checkpoints.files import NotExported
from backend.checkpoints.hub import message_of, sealed_token
from backend.checkpoints.pruning import PrunePlan, plan_by_id, plan_by_rule
from backend.checkpoints.schemas import ExportChoice, PruneRequest, UploadExport, UploadPlan, UploadTarget
from backend.checkpoints.tables import Checkpoint, Export
from backend.checkpoints.transfers import enqueue_export, plan_transfer, wake_transfer
from backend.core.events import announce, topic_of
from backend.core.queue import enqueue
from backend.domain.checkpoints.exports import ExportOptions, HubUpload, OfferedForm, default_form, offered_forms
from backend.domain.vocabulary import ExportStatus, Queue
from backend.errors import Conflict, InvalidInput
from backend.training.workers import offers
from backend.web.audit import audit
from backend.web.identity import Actor


class NotFromTraining(Conflict):
    """Only a checkpoint of a training run can be exported: the export includes its data and held-out evaluation."""


class ExportInProgress(Conflict):
    """An export in this form is in progress without a transfer report. Wait until it has finished."""


class UploadInProgress(Conflict):
    """This export is already being uploaded. Wait until the upload has finished."""


def start_export(session: Session, actor: Actor, checkpoint: Checkpoint, choice: ExportChoice | None = None) -> Export:
    """Queue the export of a checkpoint. If one in this form is queued or running, return that one."""
    choice = choice or ExportChoice()
    form = choice.form or default_form(checkpoint.adapter)
    if checkpoint.run_id is None:
        raise NotFromTraining
    session.refresh(checkpoint, with_for_update={"of": Checkpoint})
    if checkpoint.unusable:
        raise Conflict(checkpoint.unusable)
    if refusal := next(each.refusal for each in export_forms(session, checkpoint) if each.form is form):
        raise InvalidInput(refusal, {"form": refusal})
    report = plan_transfer(session, checkpoint, choice.transfer) if choice.transfer else None
    is_unfinished = Export.status.in_((ExportStatus.QUEUED, ExportStatus.RUNNING))
    of_form = select(Export).where(Export.checkpoint_id == checkpoint.id, Export.form == form, is_unfinished)
    if known := session.scalar(of_form.limit(1)):
        if report and known.transfer is None:
            raise ExportInProgress
        return known
    export = Export(
        checkpoint_id=checkpoint.id,
        run_id=checkpoint.run_id,
        form=form,
        options=ExportOptions.model_validate(choice.model_dump()).model_dump(mode="json"),
        transfer=report.model_dump(mode="json") if report else None,
        created_by=actor.person_id,
        progress={"phase": "waiting for a worker"},
    )
    session.add(export)
    session.flush()
    if report:
        wake_transfer(session, export.id)  # the export is made when both sides have played
    else:
        enqueue_export(session, export)
    return export


def export_forms(session: Session, checkpoint: Checkpoint) -> list[OfferedForm]:
    """All forms of export, each with the reason if it is not available for this checkpoint."""
    engines = {engine for offer in offers(session) for engine in offer.can.engines}
    return offered_forms(checkpoint.adapter, engines, is_pruned=checkpoint.pruned_at is not None)


def plan_upload(export: Export, target: UploadTarget) -> UploadPlan:
    """Preview an upload without contacting the Hub. Raises NotExported until the export is verified."""
    if export.status is not ExportStatus.COMPLETED:
        raise NotExported
    files = dict(export.passport.get("sizes", {}))
    return UploadPlan(
        repository=target.repository,
        is_private=target.is_private,
        message=message_of(export),
        files=files,
        bytes=sum(files.values()),
    )


def upload_export(session: Session, actor: Actor, export: Export, request: UploadExport) -> UploadPlan:
    """Queue the upload of a verified export, unless it is a dry run."""
    plan = plan_upload(export, request)
    if request.dry_run:
        return plan
    session.refresh(export, with_for_update={"of": Export})
    options = ExportOptions.model_validate(export.options)
    if options.hub is not None and not options.hub.is_over:
        raise UploadInProgress
    upload = HubUpload(repository=request.repository, is_private=request.is_private, asked_at=datetime.now(UTC))
    token = request.token.get_secret_value().strip() if request.token else ""
    secret = sealed_token(token, request.repository) if token else None
    export.options = options.model_copy(update={"hub": upload, "hub_secret": secret}).model_dump(mode="json")
    enqueue(session, "exports.upload", queue=Queue.GPU, arguments={"export_id": str(export.id)})
    audit(session, actor, "export.upload", "export", export.id, repository=request.repository)
    announce(session, topic_of("export", export.id))
    return plan.model_copy(update={"upload": upload})


def plan_pruning(session: Session, request: PruneRequest) -> PrunePlan:
    """Which checkpoints a request would prune."""
    if request.checkpoint_ids:
        return plan_by_id(session, request.checkpoint_ids)
    return plan_by_rule(session, run_id=request.run_id, rule=request.rule)
