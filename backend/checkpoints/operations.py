"""Operations on checkpoints and exports."""

from sqlalchemy.orm import Session

from backend.checkpoints import files, pruning, queries, schemas, service, transfers
from backend.checkpoints.schemas import CheckpointResponse, CheckpointTree, DiskUsage, ExportResponse
from backend.checkpoints.tables import Checkpoint, Export
from backend.checkpoints.tree import checkpoint_response, checkpoint_tree
from backend.core.events import announce, topic_of
from backend.domain.checkpoints.exports import ExportOptions
from backend.domain.vocabulary import ExportStatus, Role
from backend.operations.declaration import operation, reference
from backend.operations.schemas import Download, UpdateLabels
from backend.projects.queries import project_id_of
from backend.runs.references import find_run
from backend.web.identity import Actor
from backend.web.paging import Page

reference(Checkpoint, "Id of a checkpoint, the last characters of it, or a policy's name for its best checkpoint.")(
    queries.find_checkpoint
)


reference(Export, "Id of an export.")(queries.get_export)


@operation("GET /checkpoints", role=Role.VIEWER, tool=True)
def list_checkpoints(session: Session, actor: Actor, request: schemas.ListCheckpoints) -> Page[CheckpointResponse]:
    """List checkpoints, newest first."""
    found = queries.checkpoints(
        session,
        run_id=find_run(session, request.run_id).id if request.run_id else None,
        policy_id=queries.find_policy_id(session, request.policy_id),
        project_id=project_id_of(session, request.project),
        **request.model_dump(include={"environment", "is_best", "has_weights", "tag", "after", "limit"}),
    )
    retention = pruning.retention_with_siblings(session, found.items)
    return Page(items=[checkpoint_response(retention[each.id]) for each in found.items], next=found.next)


@operation("GET /checkpoints/tree", role=Role.VIEWER, command="checkpoints list")
def get_checkpoint_tree(session: Session, actor: Actor, request: schemas.CheckpointTreeRequest) -> CheckpointTree:
    """Show checkpoints as a tree over runs, with the disk space that they use.

    A run is listed below the checkpoint that it starts from. The newest run comes first.
    """
    run_id = find_run(session, request.run_id).id if request.run_id else None
    trees, after = checkpoint_tree(
        session,
        environment=request.environment,
        policy_id=queries.find_policy_id(session, request.policy_id),
        run_id=run_id,
        project_id=None if run_id else project_id_of(session, request.project),
        after=request.after,
        limit=request.limit,
    )
    return CheckpointTree(trees=trees, disk=queries.disk_usage(session, run_id), next=after)


@operation("GET /checkpoints/disk", role=Role.VIEWER)
def get_disk_usage(session: Session, actor: Actor, request: schemas.DiskUsageRequest) -> DiskUsage:
    """Show how much disk space weights use, in total or for one run, and how much is left."""
    return queries.disk_usage(session, find_run(session, request.run_id).id if request.run_id else None)


@operation("POST /checkpoints/prune", role=Role.TRAINER, page="{home}", notice="{summary}", audited=False)
def prune_checkpoints(session: Session, actor: Actor, request: schemas.PruneRequest) -> schemas.PruneResult:
    """Delete weights. Rows, results and rollouts stay. Weights that are in use are never deleted."""
    plan = service.plan_pruning(session, request)
    if not request.dry_run:
        plan = pruning.prune(session, actor, plan)
    return schemas.PruneResult(
        dry_run=request.dry_run,
        freed_bytes=plan.freed_bytes,
        pruned=[checkpoint_response(each) for each in plan.to_delete],
        refused=[checkpoint_response(each) for each in plan.refused],
        run_id=request.run_id,
    )


@operation("GET /checkpoints/{checkpoint}", role=Role.VIEWER, command="checkpoints show", tool=True)
def get_checkpoint(session: Session, actor: Actor, checkpoint: Checkpoint) -> CheckpointResponse:
    """Show a checkpoint: its held-out reward, its size and why its weights are kept."""
    return checkpoint_response(pruning.retention_with_siblings(session, [checkpoint])[checkpoint.id])


@operation(
    "PATCH /checkpoints/{checkpoint}",
    role=Role.TRAINER,
    command="checkpoints update",
    page="{home}",
    notice="The checkpoint was changed.",
)
def update_checkpoint(
    session: Session, actor: Actor, checkpoint: Checkpoint, request: UpdateLabels
) -> CheckpointResponse:
    """Tag a checkpoint, pin it to the top of its list or write a note about it."""
    request.apply_to(checkpoint)
    session.flush()
    return get_checkpoint(session, actor, checkpoint)


@operation(
    "POST /checkpoints/{checkpoint}/keep",
    role=Role.TRAINER,
    command="checkpoints keep",
    page="{home}",
    notice="The checkpoint is kept until you release it.",
)
def keep_checkpoint(
    session: Session, actor: Actor, checkpoint: Checkpoint, request: schemas.KeepCheckpoint
) -> CheckpointResponse:
    """Mark a checkpoint to be kept. No retention rule and no team member can prune it."""
    checkpoint.is_kept = not request.release
    if checkpoint.run_id:
        announce(session, topic_of("run", checkpoint.run_id))
    session.flush()
    return get_checkpoint(session, actor, checkpoint)


@operation(
    "POST /checkpoints/{checkpoint}/release",
    role=Role.TRAINER,
    page="{home}",
    notice="The mark is removed. The retention rule of the run decides again.",
)
def release_checkpoint(session: Session, actor: Actor, checkpoint: Checkpoint) -> CheckpointResponse:
    """Remove the mark that keeps a checkpoint. The retention rule of its run decides again."""
    return keep_checkpoint(session, actor, checkpoint, schemas.KeepCheckpoint(release=True))


@operation("GET /checkpoints/{checkpoint}/exports/forms", role=Role.VIEWER, noun="exports")
def list_export_forms(session: Session, actor: Actor, checkpoint: Checkpoint) -> Page[schemas.ExportFormResponse]:
    """List all forms of export, each with the reason if it is not available for this checkpoint."""
    return Page(items=[schemas.ExportFormResponse.of(each) for each in service.export_forms(session, checkpoint)])


@operation(
    "POST /exports", role=Role.TRAINER, in_project=True, noun="exports", status=201, poll="/exports/{id}", tool=True
)
def start_export(session: Session, actor: Actor, request: schemas.StartExport) -> ExportResponse:
    """Export a checkpoint. The files are reloaded and evaluated again before the export counts as complete."""
    checkpoint = queries.get_checkpoint(session, request.checkpoint_id)
    return get_export(session, actor, service.start_export(session, actor, checkpoint, request))


@operation("GET /exports", role=Role.VIEWER, noun="exports")
def list_exports(session: Session, actor: Actor, request: schemas.ListExports) -> Page[ExportResponse]:
    """List exports, newest first."""
    run_id = find_run(session, request.run_id).id if request.run_id else None
    found = queries.exports(
        session,
        run_id=run_id,
        checkpoint_id=request.checkpoint_id,
        project_id=project_id_of(session, request.project),
        after=request.after,
        limit=request.limit,
    )
    return Page(items=[get_export(session, actor, each) for each in found.items], next=found.next)


@operation("GET /exports/{export}", role=Role.VIEWER, noun="exports", poll="/exports/{id}", tool=True)
def get_export(session: Session, actor: Actor, export: Export) -> ExportResponse:
    """Show an export: its progress, then its passport and model card."""
    options = ExportOptions.model_validate(export.options)
    state = export.progress
    return ExportResponse.from_row(
        export,
        licence=options.licence,
        transfer=export.transfer_report,
        stored=options.stored,
        upload=options.hub,
        is_finished=export.status not in {ExportStatus.QUEUED, ExportStatus.RUNNING},
        is_successful=export.status is ExportStatus.COMPLETED,
        done=state.get("done") or 0,
        total=state.get("total") or None,
        message=export.reason or str(state.get("message") or state.get("phase") or export.status),
    )


@operation(
    "POST /exports/{export}/transfer/stop",
    role=Role.TRAINER,
    noun="exports",
    command="checkpoints stop-transfer",
    page="/exports/{export}",
    notice="The transfer report ends with the results so far.",
)
def stop_transfer_report(session: Session, actor: Actor, export: Export) -> ExportResponse:
    """Stop the evaluations of a transfer report. The export is then made with the results so far."""
    transfers.stop_transfer(session, export)
    return get_export(session, actor, export)


@operation(
    "POST /exports/{export}/hub",
    role=Role.TRAINER,
    noun="exports",
    page="/exports/{export}",
    notice="The upload is queued.",
    audited=False,
)
def upload_export(session: Session, actor: Actor, export: Export, request: schemas.UploadExport) -> schemas.UploadPlan:
    """Upload a verified export to the Hugging Face Hub. With `dry_run`, only show what would be uploaded."""
    return service.upload_export(session, actor, export, request)


@operation("GET /exports/{export}/download", role=Role.VIEWER, noun="exports")
def download_export(session: Session, actor: Actor, export: Export) -> Download:
    """Download the zip of an export: weights, tokenizer, model card, manifest, passport and inference.py."""
    return files.export_zip(export)


@operation("GET /checkpoints/{checkpoint}/weights", role=Role.TRAINER)
def download_weights(session: Session, actor: Actor, checkpoint: Checkpoint) -> Download:
    """Download the weights of a checkpoint as a zip, for `proctor serve`. Unlike an export, they are not verified."""
    return files.weights_zip(checkpoint)
