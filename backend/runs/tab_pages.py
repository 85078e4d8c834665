"""The other tabs of a run: groups, flags, configuration, log. Pages of a list are not live."""

import uuid
from collections.abc import AsyncIterable
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.core.events import topic_of
from backend.detectors.scans import PHASES, newest_scan
from backend.detectors.schemas import MAX_ALTERED, MAX_RUNS
from backend.detectors.tables import Flag
from backend.domain.vocabulary import Phase, RunKind, RunStatus
from backend.results import groups as run_groups
from backend.runs import queries
from backend.runs.header import HEAD_BLOCKS, run_header
from backend.runs.overview import configuration_rows
from backend.runs.rerun import drift
from backend.runs.schemas import GroupFilter
from backend.web.dependencies import SessionDep, Viewer
from backend.web.formats import number
from backend.web.page import page
from backend.web.paging import After, Key, slice_of
from backend.web.streams import live_blocks, live_page

router = APIRouter()


@router.get("/runs/{run_id}/groups", response_class=HTMLResponse)
def list_groups(
    request: Request, run_id: uuid.UUID, session: SessionDep, _: Viewer, wanted: Annotated[GroupFilter, Query()]
) -> HTMLResponse:
    run = queries.get_run(session, run_id)
    found = run_groups.groups(session, run, wanted)
    rewards = [reward for item in found.items for reward in item.rewards if reward is not None]
    context = {
        "head": run_header(session, run),
        "run": run,
        "items": found.items,
        "next": found.next,
        "wanted": wanted,
        "low": min(rewards, default=0.0),  # one scale for all strips of the page
        "high": max(rewards, default=1.0),
        "phases": tuple(Phase),
    }
    return page(request, "runs/groups.html", context, block="group_table")


@live_page(
    *(router, "/runs/{run_id}/flags", "runs/flags.html", *HEAD_BLOCKS, "run_flags"),
    topics=["run:{run_id}"],
    swapped="run_flags",
)
def list_flags(session: SessionDep, _: Viewer, run_id: uuid.UUID, after: After = None) -> dict[str, object]:
    run = queries.get_run(session, run_id)
    statement = select(Flag).options(joinedload(Flag.rollout)).where(Flag.run_id == run_id)
    found = slice_of(session, statement, (Key(Flag.created_at), Key(Flag.id)), after=after)
    head = run_header(session, run)
    return {
        "head": head,
        "run": run,
        "flags": found.items,
        "next": found.next,
        "is_newest": after is None,
        "detection": newest_scan(session, run_id),
        "can_detect": run.kind in PHASES,
        "most_altered": MAX_ALTERED,
        "most_runs": MAX_RUNS,
        "is_over": head.is_settled,
    }


@router.get("/runs/{run_id}/configuration", response_class=HTMLResponse)
def show_configuration(request: Request, run_id: uuid.UUID, session: SessionDep, _: Viewer) -> HTMLResponse:
    run = queries.get_run(session, run_id)
    is_training = run.kind is RunKind.TRAINING
    weights = [(name, f"× {number(weight, 2)}") for name, weight in zip(run.columns, run.weights, strict=False)]
    context = {
        "head": run_header(session, run),
        "run": run,
        "rows": configuration_rows(run),
        "columns": weights,
        "drift": drift(run, run.policy),
        "changes": queries.setting_changes(session, run.id)[::-1] if is_training else (),
        "can_change": is_training and run.status is not RunStatus.COMPLETED,  # so that changes can be undone
    }
    return page(request, "runs/configuration.html", context)


@live_page(
    router, "/runs/{run_id}/log", "runs/log.html", *HEAD_BLOCKS, "run_log", topics=["run:{run_id}"], swapped="run_log"
)
def show_log(session: SessionDep, _: Viewer, run_id: uuid.UUID, before: int | None = None) -> dict[str, object]:
    run = queries.get_run(session, run_id)
    lines = queries.log_lines(session, run_id, before=before)
    head = run_header(session, run)
    return {
        "head": head,
        "run": run,
        "lines": lines,
        "earlier": lines[0].id if len(lines) == queries.LOG_LINES else None,
        "is_newest": before is None,
        "is_over": head.is_settled,
    }


def _read_head(session: Session, run_id: uuid.UUID) -> dict[str, object]:
    head = run_header(session, queries.get_run(session, run_id))
    return {"head": head, "is_over": head.is_settled}


@router.get("/runs/{run_id}/groups/events", response_class=EventSourceResponse)
@router.get("/runs/{run_id}/configuration/events", response_class=EventSourceResponse)
async def tab_events(request: Request, run_id: uuid.UUID, _: Viewer) -> AsyncIterable[ServerSentEvent]:
    """The head: these tabs themselves are not live."""
    read = partial(_read_head, run_id=run_id)
    async for event in live_blocks(request, (topic_of("run", run_id),), "", HEAD_BLOCKS, read):
        yield event
