"""Pages of checkpoints and exports."""

import uuid
from collections.abc import AsyncIterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, Response, StreamingResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session
from starlette.datastructures import FormData

from backend.checkpoints import files, queries, service
from backend.checkpoints.pruning import PrunePlan
from backend.checkpoints.schemas import DiskUsage, PruneRequest, StartExport, UploadPlan, UploadTarget
from backend.checkpoints.tables import Checkpoint, Export
from backend.checkpoints.tree import RunNode, TreeFilter, checkpoint_tree
from backend.domain.checkpoints.exports import TITLES, ExportOptions, OfferedForm
from backend.domain.checkpoints.retention import KeepRule
from backend.domain.vocabulary import ExportForm, ExportStatus
from backend.errors import InvalidInput
from backend.operations.ids import parse_id
from backend.runs.header import RunHeader, run_header
from backend.runs.queries import get_run
from backend.runs.tables import Run
from backend.web.dependencies import SessionDep, Trainer, Viewer
from backend.web.form_data import parse_form, read_form, validate
from backend.web.page import page, see_other
from backend.web.streams import live_blocks

router = APIRouter()


class TreeQuery(BaseModel):
    """The filters of the page."""

    environment: str = ""
    policy: str = ""
    """Id of a policy."""
    show: str = ""
    """`best`: only the best of each run; `stored`: only those with weights."""
    after: str | None = None


@dataclass(frozen=True, slots=True)
class CheckpointsPage:
    """Trees of checkpoints, newest run first."""

    trees: Sequence[RunNode]
    next: str
    """Address of the next page; empty on the last page."""
    disk: DiskUsage
    filter: TreeQuery
    environments: Sequence[tuple[str, str]]
    policies: Sequence[tuple[str, str]]
    prunable_bytes: int
    """Size of the weights that the retention rules of the listed runs do not keep."""


@router.get("/checkpoints", response_class=HTMLResponse)
def list_checkpoints(
    request: Request, session: SessionDep, _: Viewer, query: Annotated[TreeQuery, Query()]
) -> HTMLResponse:
    chosen = TreeFilter(query.environment or None, parse_id(query.policy))
    trees, after = checkpoint_tree(session, chosen, after=query.after)
    values = {**query.model_dump(), "after": after}
    context = CheckpointsPage(
        trees=trees,
        next=f"/checkpoints?{urlencode({name: value for name, value in values.items() if value})}" if after else "",
        disk=queries.disk_usage(session),
        filter=query,
        environments=[("", "Any"), *((name, name) for name in queries.trained_environments(session))],
        policies=[("", "Any"), *queries.trained_policies(session)],
        prunable_bytes=sum(run.prunable_bytes for tree in trees for run in tree.family()),
    )
    return page(request, "checkpoints/tree.html", context, block="checkpoint_tree")


@dataclass(frozen=True, slots=True)
class RunCheckpointsPage:
    """The checkpoints of a run in the tree of related runs."""

    head: RunHeader
    run: Run
    trees: Sequence[RunNode]
    disk: DiskUsage
    """Of this run."""
    show: str = ""


@router.get("/runs/{run_id}/checkpoints", response_class=HTMLResponse)
def run_checkpoints(request: Request, run_id: uuid.UUID, session: SessionDep, _: Viewer) -> HTMLResponse:
    run = get_run(session, run_id)
    trees, _after = checkpoint_tree(session, TreeFilter(run_id=run_id))
    context = RunCheckpointsPage(run_header(session, run), run, trees, queries.disk_usage(session, run_id))
    return page(request, "runs/checkpoints.html", context)


@dataclass(frozen=True, slots=True)
class PrunePage:
    """Preview of a pruning, before it is confirmed."""

    prune: PruneRequest
    plan: PrunePlan
    run: Run | None
    rule: KeepRule | None
    """None: the rule of each run."""


@router.get("/checkpoints/prune", response_class=HTMLResponse)
def preview_pruning(request: Request, session: SessionDep, _: Trainer) -> HTMLResponse:
    prune = parse_form(PruneRequest, FormData([*request.query_params.multi_items()]))
    run = get_run(session, prune.run_id) if prune.run_id else None
    context = PrunePage(prune, service.plan_pruning(session, prune), run, prune.rule)
    return page(request, "checkpoints/prune.html", context)


@dataclass(frozen=True, slots=True)
class NewExportPage:
    """The forms in which a checkpoint can be exported, and its earlier exports."""

    checkpoint: Checkpoint
    forms: Sequence[OfferedForm]
    earlier: Sequence[Export]
    titles: Mapping[ExportForm, str]


@router.get("/exports/new", response_class=HTMLResponse)
def new_export(request: Request, checkpoint_id: uuid.UUID, session: SessionDep, _: Trainer) -> HTMLResponse:
    checkpoint = queries.get_checkpoint(session, checkpoint_id)
    earlier = queries.exports(session, checkpoint_id=checkpoint_id, limit=20).items
    context = NewExportPage(checkpoint, service.export_forms(session, checkpoint), earlier, TITLES)
    return page(request, "checkpoints/new_export.html", context)


class ExportPageForm(StartExport):
    """As the page sends it. An input named `form` would hide the property of that name, which htmx reads."""

    form: ExportForm | None = Field(default=None, alias="export_form")


@router.post("/exports", response_class=HTMLResponse)
def start_export(
    session: SessionDep, actor: Trainer, form: Annotated[ExportPageForm, Depends(read_form(ExportPageForm))]
) -> Response:
    export = service.start_export(session, actor, queries.get_checkpoint(session, form.checkpoint_id), form)
    return see_other(f"/exports/{export.id}")


@dataclass(frozen=True, slots=True)
class ExportPage:
    """One export: its progress, then its passport, files and model card."""

    export: Export
    options: ExportOptions
    title: str
    plan: UploadPlan | None = None
    """What an upload to the requested repository would send."""
    problem: str = ""
    """What is wrong with the requested repository."""

    @property
    def is_over(self) -> bool:
        """Neither the export nor an upload of it is in progress."""
        is_made = self.export.status not in {ExportStatus.QUEUED, ExportStatus.RUNNING}
        return is_made and (self.options.hub is None or self.options.hub.is_over)


@router.get("/exports/{export_id}", response_class=HTMLResponse)
def show_export(
    request: Request,
    export_id: uuid.UUID,
    session: SessionDep,
    _: Viewer,
    repository: str = "",
    is_private: bool = False,
) -> HTMLResponse:
    """With a repository, preview an upload to it."""
    export = queries.get_export(session, export_id)
    plan, problem = None, ""
    if repository:
        try:
            target = validate(UploadTarget, {"repository": repository, "is_private": is_private})
            plan = service.plan_upload(export, target)
        except InvalidInput:
            problem = f"{repository} is not a repository name. Enter owner/name."
    return page(request, "checkpoints/export.html", _export_page(export, plan, problem))


def _export_page(export: Export, plan: UploadPlan | None = None, problem: str = "") -> ExportPage:
    return ExportPage(export, ExportOptions.model_validate(export.options), TITLES[export.form], plan, problem)


@router.get("/exports/{export_id}/events", response_class=EventSourceResponse)
async def export_events(request: Request, export_id: uuid.UUID, _: Viewer) -> AsyncIterable[ServerSentEvent]:
    def read(session: Session) -> ExportPage:
        return _export_page(queries.get_export(session, export_id))

    async for event in live_blocks(
        request, (f"export:{export_id}",), "checkpoints/export.html", ["export_state"], read
    ):
        yield event


@router.get("/exports/{export_id}/download", response_class=StreamingResponse)
def download_export(export_id: uuid.UUID, session: SessionDep, _: Viewer) -> StreamingResponse:
    return files.export_zip(queries.get_export(session, export_id))
