"""Pages of checkpoints and exports."""

import uuid
from collections.abc import Sequence
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, Response, StreamingResponse
from pydantic import Field
from sqlalchemy import select
from starlette.datastructures import FormData

from backend.checkpoints import files, queries, service, transfers
from backend.checkpoints.fields import CHECKPOINT_TABLE
from backend.checkpoints.schemas import PruneRequest, StartExport, TransferRequest, TreeRun, UploadTarget
from backend.checkpoints.tables import Checkpoint, Export
from backend.checkpoints.tree import checkpoint_tree
from backend.core.events import topic_of
from backend.domain.checkpoints.exports import TITLES, ExportOptions
from backend.domain.tags import MAX_TAG
from backend.domain.vocabulary import ExportForm, ExportStatus, RunKind
from backend.environments.tables import Environment, EnvironmentVersion
from backend.errors import InvalidInput
from backend.operations.ids import parse_id
from backend.operations.routes import stream_download
from backend.operations.schemas import ItemListQuery
from backend.policies.tables import Policy
from backend.rollouts.item_list import item_list
from backend.rollouts.tables import Listing
from backend.runs.header import run_header
from backend.runs.queries import get_run
from backend.runs.tables import Run
from backend.web.dependencies import ElsewhereTrainer, SessionDep, Trainer, Viewer
from backend.web.field_messages import validate
from backend.web.form_data import parse_form, read_form
from backend.web.page import page, see_other
from backend.web.streams import live_page

router = APIRouter()


@router.get("/checkpoints", response_class=HTMLResponse)
def show_checkpoint_tree(
    request: Request,
    session: SessionDep,
    actor: Viewer,
    environment: str = "",
    policy: str = "",
    show: str = "",
    tag: Annotated[str, Query(max_length=MAX_TAG)] = "",
    after: str | None = None,
) -> HTMLResponse:
    """`policy`: id. `show`: `best`, only the best of each run, or `stored`, only those with weights."""
    trees, after = checkpoint_tree(
        session, environment=environment, policy_id=parse_id(policy), project_id=actor.project_id, tag=tag, after=after
    )
    trained = (
        select(Environment.name)
        .join(EnvironmentVersion, EnvironmentVersion.environment_id == Environment.id)
        .join(Run, Run.version_id == EnvironmentVersion.id)
        .where(Run.kind == RunKind.TRAINING)
    )
    has_checkpoints = select(Checkpoint.id).where(Checkpoint.policy_id == Policy.id).exists()
    policies = select(Policy).where(Policy.deleted_at.is_(None), has_checkpoints).order_by(Policy.id.desc())
    names = session.scalars(trained.distinct().order_by(Environment.name))
    chosen = {"environment": environment, "policy": policy, "show": show, "tag": tag}
    values = {**chosen, "after": after}
    context = {
        "trees": trees,
        "next": f"/checkpoints?{urlencode({name: value for name, value in values.items() if value})}" if after else "",
        "disk": queries.disk_usage(session),
        "filter": chosen,
        "environments": [("", "Any"), *((name, name) for name in names)],
        "policies": [("", "Any"), *((str(each.id), each.name) for each in session.scalars(policies))],
        "exports": queries.finished_exports(session, _listed_ids(trees)),
        "prunable_bytes": sum(run.prunable_bytes for tree in trees for run in tree.family()),
    }
    return page(request, "checkpoints/tree.html", context, block="checkpoint_tree")


@router.get("/checkpoints/list", response_class=HTMLResponse)
def list_checkpoints(
    request: Request,
    session: SessionDep,
    actor: Viewer,
    wanted: Annotated[ItemListQuery, Query()],
    show: Annotated[list[str], Query(max_length=100)] = [],  # noqa: B006
    deleted_view: uuid.UUID | None = None,
) -> HTMLResponse:
    """All checkpoints as a table, in any order."""
    listed = item_list(
        session,
        actor,
        CHECKPOINT_TABLE,
        Listing.CHECKPOINTS,
        wanted,
        show,
        lambda query, columns: queries.list_checkpoints(session, query, columns, actor.project_id),
    )
    return page(request, "checkpoints/list.html", {**listed, "deleted_view": deleted_view})


@router.get("/runs/{run_id}/checkpoints", response_class=HTMLResponse)
def run_checkpoints(request: Request, run_id: uuid.UUID, session: SessionDep, _: Viewer) -> HTMLResponse:
    run = get_run(session, run_id)
    trees, _after = checkpoint_tree(session, run_id=run_id)
    disk = queries.disk_usage(session, run_id)
    context = {"head": run_header(session, run), "run": run, "trees": trees, "disk": disk, "show": ""}
    context["exports"] = queries.finished_exports(session, _listed_ids(trees))
    return page(request, "runs/checkpoints.html", context)


def _listed_ids(trees: Sequence[TreeRun]) -> list[uuid.UUID]:
    return [checkpoint.id for tree in trees for run in tree.family() for checkpoint in run.checkpoints]


@router.get("/checkpoints/prune", response_class=HTMLResponse)
def preview_pruning(request: Request, session: SessionDep, _: Trainer) -> HTMLResponse:
    prune = parse_form(PruneRequest, FormData([*request.query_params.multi_items()]))
    run = get_run(session, prune.run_id) if prune.run_id else None
    context = {"prune": prune, "plan": service.plan_pruning(session, prune), "run": run, "rule": prune.rule}
    return page(request, "checkpoints/prune.html", context)


def export_topics(session: SessionDep, _: Viewer) -> tuple[str, ...]:
    """Those of the unfinished exports."""
    unfinished = Export.status.in_([ExportStatus.QUEUED, ExportStatus.RUNNING])
    return tuple(topic_of("export", each) for each in session.scalars(select(Export.id).where(unfinished)))


@live_page(router, "/exports", "checkpoints/exports.html", "export_list", topics=export_topics)
def list_exports(session: SessionDep, _: Viewer, after: str | None = None) -> dict[str, object]:
    found = queries.exports(session, after=after)
    next_url = f"/exports?{urlencode({'after': found.next})}" if found.next else ""
    return {"exports": found.items, "next": next_url, "titles": TITLES, "after": after}


@router.get("/exports/new", response_class=HTMLResponse)
def new_export(request: Request, checkpoint_id: uuid.UUID, session: SessionDep, _: ElsewhereTrainer) -> HTMLResponse:
    checkpoint = queries.get_checkpoint(session, checkpoint_id)
    forms = service.export_forms(session, checkpoint)
    earlier = queries.exports(session, checkpoint_id=checkpoint_id, limit=20).items
    context = {
        "checkpoint": checkpoint,
        "forms": forms,
        "earlier": earlier,
        "titles": TITLES,
        "environments": transfers.offered_environments(session, checkpoint),
        "limits": TransferRequest(),
    }
    return page(request, "checkpoints/new_export.html", context)


class NewExportForm(StartExport):
    """The page's form. An input named `form` would hide the property of that name, which htmx reads."""

    form: ExportForm | None = Field(default=None, alias="export_form")


class NewTransferForm(TransferRequest):
    """The part of the form about the transfer report."""

    has_transfer: bool = False


@router.post("/exports", response_class=HTMLResponse)
def start_export(
    session: SessionDep,
    actor: ElsewhereTrainer,
    form: Annotated[NewExportForm, Depends(read_form(NewExportForm))],
    transfer: Annotated[NewTransferForm, Depends(read_form(NewTransferForm))],
) -> Response:
    if transfer.has_transfer:
        form.transfer = transfer
    export = service.start_export(session, actor, queries.get_checkpoint(session, form.checkpoint_id), form)
    return see_other(f"/exports/{export.id}")


@live_page(router, "/exports/{export_id}", "checkpoints/export.html", "export_state", topics=["export:{export_id}"])
def show_export(
    session: SessionDep, _: Viewer, export_id: uuid.UUID, repository: str = "", is_private: bool = False
) -> dict[str, object]:
    """One export: its progress, then its passport, files and model card. With a repository, preview an upload to it."""
    export = queries.get_export(session, export_id)
    plan, problem = None, ""
    if repository:
        try:
            target = validate(UploadTarget, {"repository": repository, "is_private": is_private})
            plan = service.plan_upload(export, target)
        except InvalidInput:
            problem = f"{repository} is not a repository name. Enter owner/name."
    options = ExportOptions.model_validate(export.options)
    is_made = export.status not in {ExportStatus.QUEUED, ExportStatus.RUNNING}
    return {
        "export": export,
        "options": options,
        "title": TITLES[export.form],
        "report": export.transfer_report,
        # neither the export nor an upload of it is in progress
        "is_over": is_made and (options.hub is None or options.hub.is_over),
        "plan": plan,
        "problem": problem,
    }


@router.get("/exports/{export_id}/download", response_class=StreamingResponse)
def download_export(request: Request, export_id: uuid.UUID, session: SessionDep, _: Viewer) -> StreamingResponse:
    return stream_download(request, files.export_zip(queries.get_export(session, export_id)))
