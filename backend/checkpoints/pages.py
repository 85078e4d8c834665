"""Pages of checkpoints: the tree over runs, what they take, marking and pruning."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, Response
from pydantic import BaseModel
from sqlalchemy.orm import Session

from backend.checkpoints import queries
from backend.checkpoints.disk import DiskUse, disk_use
from backend.checkpoints.pruning import PrunePlan, mark_kept, prune
from backend.checkpoints.pruning_schemas import PruneRequest
from backend.checkpoints.tree import Branch, TreeFilter, forest
from backend.domain.checkpoints.retention import KeepRule
from backend.runs.header import RunHeader, run_header
from backend.runs.queries import get_run
from backend.runs.tables import Run
from backend.web.dependencies import SessionDep, Trainer, Viewer
from backend.web.form_data import read_form
from backend.web.formats import size
from backend.web.identity import Actor
from backend.web.page import page, see_other

router = APIRouter()


class TreeQuery(BaseModel):
    """What the page's filters say."""

    environment: str = ""
    policy: str = ""
    """Its id."""
    show: str = ""
    """`best`: only the best of each run; `stored`: only those with weights."""
    after: str | None = None


@dataclass(frozen=True, slots=True)
class CheckpointsPage:
    """Trees of checkpoints, the newest run's first."""

    trees: Sequence[Branch]
    next: str
    """Address of the next page; empty on the last."""
    disk: DiskUse
    wanted: TreeQuery
    environments: Sequence[tuple[str, str]]
    policies: Sequence[tuple[str, str]]
    prunable_bytes: int
    """What the rules of the runs on this page would free."""


@dataclass(frozen=True, slots=True)
class RunCheckpointsPage:
    """A run's checkpoints in the tree of the runs that it is related to."""

    head: RunHeader
    run: Run
    trees: Sequence[Branch]
    disk: DiskUse
    """Of this run."""
    show: str = ""


@dataclass(frozen=True, slots=True)
class PrunePage:
    """What a pruning would delete, and the question whether to do it."""

    asked: PruneRequest
    plan: PrunePlan
    run: Run | None
    rule: KeepRule | None
    """None: each run's own."""


@router.get("/checkpoints", response_class=HTMLResponse)
def list_checkpoints(
    request: Request, session: SessionDep, _: Viewer, wanted: Annotated[TreeQuery, Query()]
) -> HTMLResponse:
    chosen = TreeFilter(wanted.environment or None, _as_id(wanted.policy))
    trees, after = forest(session, chosen, after=wanted.after)
    family = [branch for tree in trees for branch in tree.family()]
    context = CheckpointsPage(
        trees=trees,
        next=f"/checkpoints?{_next(wanted, after)}" if after else "",
        disk=disk_use(session),
        wanted=wanted,
        environments=[("", "any"), *((name, name) for name in queries.trained_environments(session))],
        policies=queries.trained_policies(session),
        prunable_bytes=sum(branch.prunable_bytes for branch in family),
    )
    return page(request, "checkpoints/tree.html", context, block="checkpoint_tree")


def _next(wanted: TreeQuery, after: str) -> str:
    return urlencode({name: value for name, value in (*wanted.model_dump().items(), ("after", after)) if value})


def _as_id(text: str) -> uuid.UUID | None:
    try:
        return uuid.UUID(text)
    except ValueError:
        return None


@router.get("/runs/{run_id}/checkpoints", response_class=HTMLResponse)
def run_checkpoints(request: Request, run_id: uuid.UUID, session: SessionDep, _: Viewer) -> HTMLResponse:
    run = get_run(session, run_id)
    trees, _after = forest(session, TreeFilter(run_id=run_id))
    context = RunCheckpointsPage(run_header(session, run), run, trees, disk_use(session, [run_id]))
    return page(request, "runs/checkpoints.html", context)


@router.get("/checkpoints/prune", response_class=HTMLResponse)
def preview_pruning(
    request: Request, session: SessionDep, _: Trainer, asked: Annotated[PruneRequest, Query()]
) -> HTMLResponse:
    run = get_run(session, asked.run_id) if asked.run_id else None
    context = PrunePage(asked, asked.plan(session), run, asked.rule)
    return page(request, "checkpoints/prune.html", context)


@router.post("/checkpoints/prune", response_class=HTMLResponse)
def prune_checkpoints(
    session: SessionDep, actor: Trainer, asked: Annotated[PruneRequest, Depends(read_form(PruneRequest))]
) -> Response:
    done = prune(session, actor, asked.plan(session))
    held = f" {len(done.refused):,} stayed, because something uses them." if done.refused else ""
    words = f"{len(done.going):,} pruned, {size(done.freed_bytes)} freed.{held}"
    return see_other(f"/runs/{asked.run_id}/checkpoints" if asked.run_id else "/checkpoints", words)


@router.post("/checkpoints/{checkpoint_id}/keep", response_class=HTMLResponse)
def keep_checkpoint(checkpoint_id: uuid.UUID, session: SessionDep, actor: Trainer) -> Response:
    return _mark(session, actor, checkpoint_id, is_kept=True)


@router.post("/checkpoints/{checkpoint_id}/release", response_class=HTMLResponse)
def release_checkpoint(checkpoint_id: uuid.UUID, session: SessionDep, actor: Trainer) -> Response:
    return _mark(session, actor, checkpoint_id, is_kept=False)


def _mark(session: Session, actor: Actor, checkpoint_id: uuid.UUID, *, is_kept: bool) -> Response:
    checkpoint = queries.get_checkpoint(session, checkpoint_id)
    mark_kept(session, actor, checkpoint, is_kept=is_kept)
    words = "It is kept, whatever the rule says." if is_kept else "Its run's rule decides about it again."
    back = f"/runs/{checkpoint.run_id}/checkpoints" if checkpoint.run_id else "/checkpoints"
    return see_other(back, words)
