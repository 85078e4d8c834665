"""Operations on checkpoints and exports."""

import uuid

from fastapi import APIRouter
from fastapi.responses import StreamingResponse
from sqlalchemy.orm import Session

from backend.checkpoints import files, pruning, queries, service
from backend.checkpoints.pruning import CheckpointRetention
from backend.checkpoints.schemas import (
    CheckpointResponse,
    CheckpointTree,
    CheckpointTreeRequest,
    DiskUsage,
    DiskUsageRequest,
    ExportFormResponse,
    ExportResponse,
    KeepCheckpoint,
    ListCheckpoints,
    ListExports,
    PruneRequest,
    PruneResult,
    RunOrigin,
    StartExport,
    TreeCheckpoint,
    TreeRun,
    UploadExport,
    UploadPlan,
)
from backend.checkpoints.tables import Checkpoint, Export
from backend.checkpoints.tree import CheckpointNode, RunNode, TreeFilter, checkpoint_tree, heldout_interval
from backend.domain.checkpoints.exports import ExportOptions
from backend.domain.vocabulary import ExportStatus, Role
from backend.errors import NotFound
from backend.operations.declaration import operation, reference
from backend.operations.ids import parse_id
from backend.runs.references import find_run
from backend.web.dependencies import SessionDep, Trainer, Viewer
from backend.web.identity import Actor
from backend.web.paging import Page

router = APIRouter(prefix="/api/v1", tags=["checkpoints"])
"""Downloads."""


@reference(Checkpoint, "Id of a checkpoint, the last characters of it, or a policy's name for its best checkpoint.")
def find_checkpoint(session: Session, text: str) -> Checkpoint:
    return queries.find_checkpoint(session, text)


@reference(Export, "Id of an export.")
def find_export(session: Session, text: str) -> Export:
    export_id = parse_id(text)
    if export_id is None:
        raise NotFound("There is no such export.")
    return queries.get_export(session, export_id)


@operation("GET /checkpoints", role=Role.VIEWER, tool=True)
def list_checkpoints(session: Session, actor: Actor, request: ListCheckpoints) -> Page[CheckpointResponse]:
    """List checkpoints, newest first."""
    found = queries.checkpoints(
        session,
        run_id=_run_id(session, request.run_id),
        policy_id=queries.find_policy_id(session, request.policy_id),
        environment=request.environment,
        is_best=request.is_best,
        has_weights=request.has_weights,
        after=request.after,
        limit=request.limit,
    )
    retention = pruning.retention_of(session, queries.with_siblings(session, found.items))
    return Page(items=[CheckpointResponse(**_fields(retention[each.id])) for each in found.items], next=found.next)


@operation("GET /checkpoints/tree", role=Role.VIEWER, command="checkpoints list")
def get_checkpoint_tree(session: Session, actor: Actor, request: CheckpointTreeRequest) -> CheckpointTree:
    """Show checkpoints as a tree over runs, with the disk space that they use.

    A run is listed below the checkpoint that it starts from. The newest run comes first.
    """
    run_id = _run_id(session, request.run_id)
    chosen = TreeFilter(request.environment, queries.find_policy_id(session, request.policy_id), run_id)
    trees, after = checkpoint_tree(session, chosen, after=request.after, limit=request.limit)
    disk = queries.disk_usage(session, run_id)
    return CheckpointTree(trees=[_run_node(each) for each in trees], disk=disk, next=after)


@operation("GET /checkpoints/disk", role=Role.VIEWER)
def get_disk_usage(session: Session, actor: Actor, request: DiskUsageRequest) -> DiskUsage:
    """Show how much disk space weights use, in total or for one run, and how much is left."""
    return queries.disk_usage(session, _run_id(session, request.run_id))


@operation("POST /checkpoints/prune", role=Role.TRAINER, page="{home}", notice="{summary}", audited=False)
def prune_checkpoints(session: Session, actor: Actor, request: PruneRequest) -> PruneResult:
    """Delete weights. Rows, results and rollouts stay. Weights that are in use are never deleted."""
    plan = service.plan_pruning(session, request)
    if not request.dry_run:
        plan = pruning.prune(session, actor, plan)
    return PruneResult(
        dry_run=request.dry_run,
        freed_bytes=plan.freed_bytes,
        pruned=[CheckpointResponse(**_fields(each)) for each in plan.to_delete],
        refused=[CheckpointResponse(**_fields(each)) for each in plan.refused],
        run_id=request.run_id,
    )


@operation("GET /checkpoints/{checkpoint}", role=Role.VIEWER, command="checkpoints show", tool=True)
def get_checkpoint(session: Session, actor: Actor, checkpoint: Checkpoint) -> CheckpointResponse:
    """Show a checkpoint: its held-out reward, its size and why its weights are kept."""
    return _response(session, checkpoint)


@operation(
    "POST /checkpoints/{checkpoint}/keep",
    role=Role.TRAINER,
    command="checkpoints keep",
    page="{home}",
    notice="The checkpoint is kept until you release it.",
)
def keep_checkpoint(
    session: Session, actor: Actor, checkpoint: Checkpoint, request: KeepCheckpoint
) -> CheckpointResponse:
    """Mark a checkpoint to be kept. No retention rule and no team member can prune it."""
    pruning.mark_kept(session, checkpoint, is_kept=not request.release)
    return _response(session, checkpoint)


@operation(
    "POST /checkpoints/{checkpoint}/release",
    role=Role.TRAINER,
    page="{home}",
    notice="The mark is removed. The retention rule of the run decides again.",
)
def release_checkpoint(session: Session, actor: Actor, checkpoint: Checkpoint) -> CheckpointResponse:
    """Remove the mark that keeps a checkpoint. The retention rule of its run decides again."""
    pruning.mark_kept(session, checkpoint, is_kept=False)
    return _response(session, checkpoint)


@operation("GET /checkpoints/{checkpoint}/exports/forms", role=Role.VIEWER, noun="exports")
def list_export_forms(session: Session, actor: Actor, checkpoint: Checkpoint) -> Page[ExportFormResponse]:
    """List all forms of export, each with the reason if it is not available for this checkpoint."""
    return Page(items=[ExportFormResponse.of(each) for each in service.export_forms(session, checkpoint)])


@operation("POST /exports", role=Role.TRAINER, noun="exports", status=201, poll="/exports/{id}", tool=True)
def start_export(session: Session, actor: Actor, request: StartExport) -> ExportResponse:
    """Export a checkpoint. The files are reloaded and evaluated again before the export counts as complete."""
    checkpoint = queries.get_checkpoint(session, request.checkpoint_id)
    return _export_response(service.start_export(session, actor, checkpoint, request))


@operation("GET /exports", role=Role.VIEWER, noun="exports")
def list_exports(session: Session, actor: Actor, request: ListExports) -> Page[ExportResponse]:
    """List exports, newest first."""
    run_id = _run_id(session, request.run_id)
    found = queries.exports(
        session, run_id=run_id, checkpoint_id=request.checkpoint_id, after=request.after, limit=request.limit
    )
    return Page(items=[_export_response(each) for each in found.items], next=found.next)


@operation("GET /exports/{export}", role=Role.VIEWER, noun="exports", poll="/exports/{id}", tool=True)
def get_export(session: Session, actor: Actor, export: Export) -> ExportResponse:
    """Show an export: its progress, then its passport and model card."""
    return _export_response(export)


@operation(
    "POST /exports/{export}/hub",
    role=Role.TRAINER,
    noun="exports",
    page="/exports/{export}",
    notice="The upload is queued.",
    audited=False,
)
def upload_export(session: Session, actor: Actor, export: Export, request: UploadExport) -> UploadPlan:
    """Upload a verified export to the Hugging Face Hub. With `dry_run`, only show what would be uploaded."""
    return service.upload_export(session, actor, export, request)


@router.get("/exports/{export_id}/download", response_class=StreamingResponse)
def download_export(export_id: uuid.UUID, session: SessionDep, _: Viewer) -> StreamingResponse:
    """Download the zip of an export: weights, tokenizer, model card, manifest, passport and inference.py."""
    return files.export_zip(queries.get_export(session, export_id))


@router.get("/checkpoints/{checkpoint_id}/weights", response_class=StreamingResponse)
def download_weights(checkpoint_id: uuid.UUID, session: SessionDep, _: Trainer) -> StreamingResponse:
    """Download the weights of a checkpoint as a zip, for `proctor serve`. Unlike an export, they are not verified."""
    return files.weights_zip(session, checkpoint_id)


def _run_id(session: Session, text: str | None) -> uuid.UUID | None:
    return find_run(session, text).id if text else None


def _response(session: Session, checkpoint: Checkpoint) -> CheckpointResponse:
    retention = pruning.retention_of(session, queries.with_siblings(session, [checkpoint]))
    return CheckpointResponse(**_fields(retention[checkpoint.id]))


def _fields(retention: CheckpointRetention) -> dict[str, object]:
    checkpoint = retention.checkpoint
    computed: dict[str, object] = {
        "policy": checkpoint.policy.name,
        "kept_by": list(retention.reasons),
        "heldout_interval": heldout_interval(checkpoint),
    }
    stored = {name: getattr(checkpoint, name) for name in CheckpointResponse.model_fields if name not in computed}
    return stored | computed


def _run_node(node: RunNode) -> TreeRun:
    run = node.run
    return TreeRun(
        run_id=run.id,
        name=run.name,
        status=run.status,
        environment=run.version.environment.name,
        version=run.version.number,
        policy=run.policy.name if run.policy else "",
        origin=RunOrigin.of(node.origin) if node.origin else None,
        stored_bytes=node.stored_bytes,
        prunable_bytes=node.prunable_bytes,
        rule=node.rule.words,
        checkpoints=[_checkpoint_node(each) for each in node.checkpoints],
    )


def _checkpoint_node(node: CheckpointNode) -> TreeCheckpoint:
    branches = [_run_node(each) for each in node.branches]
    return TreeCheckpoint(**_fields(node.retention), why_best=node.why_best, branches=branches)


def _export_response(export: Export) -> ExportResponse:
    options = ExportOptions.model_validate(export.options)
    stored = {name: getattr(export, name) for name in ExportResponse.model_fields if hasattr(export, name)}
    state = export.progress
    return ExportResponse(
        **stored,
        licence=options.licence,
        stored=options.stored,
        upload=options.hub,
        is_finished=export.status not in {ExportStatus.QUEUED, ExportStatus.RUNNING},
        is_successful=export.status is ExportStatus.COMPLETED,
        done=state.get("done") or 0,
        total=state.get("total") or None,
        message=export.reason or str(state.get("message") or state.get("phase") or export.status),
    )
