"""The other tabs of a run: groups, flags, configuration, log. Pages of a list are not live."""

import uuid
from collections.abc import AsyncIterable, Callable, Mapping
from operator import itemgetter
from typing import Annotated, Any

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
from backend.runs.header import head_blocks, run_header
from backend.runs.rerun import drift
from backend.runs.schemas import GroupFilter
from backend.web.dependencies import SessionDep, Viewer
from backend.web.formats import number
from backend.web.page import page, render_block
from backend.web.paging import After, Key, slice_of
from backend.web.streams import END, live

router = APIRouter()
FLAGS = "runs/flags.html"
LOG = "runs/log.html"


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


@router.get("/runs/{run_id}/flags", response_class=HTMLResponse)
def list_flags(
    request: Request, run_id: uuid.UUID, session: SessionDep, _: Viewer, after: After = None
) -> HTMLResponse:
    return page(request, FLAGS, _flags(session, run_id, after), block="run_flags")


@router.get("/runs/{run_id}/configuration", response_class=HTMLResponse)
def show_configuration(request: Request, run_id: uuid.UUID, session: SessionDep, _: Viewer) -> HTMLResponse:
    run = queries.get_run(session, run_id)
    is_training = run.kind is RunKind.TRAINING
    weights = [(name, f"× {number(weight, 2)}") for name, weight in zip(run.columns, run.weights, strict=False)]
    context = {
        "head": run_header(session, run),
        "run": run,
        "rows": sorted(_flat(run.configuration), key=itemgetter(0)),
        "columns": weights,
        "drift": drift(run, run.policy),
        "changes": queries.setting_changes(session, run.id)[::-1] if is_training else (),
        "can_change": is_training and run.status is not RunStatus.COMPLETED,  # so that changes can be undone
    }
    return page(request, "runs/configuration.html", context)


@router.get("/runs/{run_id}/log", response_class=HTMLResponse)
def show_log(
    request: Request, run_id: uuid.UUID, session: SessionDep, _: Viewer, before: int | None = None
) -> HTMLResponse:
    return page(request, LOG, _log(session, run_id, before), block="run_log")


def _flags(session: Session, run_id: uuid.UUID, after: str | None = None) -> dict[str, Any]:
    run = queries.get_run(session, run_id)
    statement = select(Flag).options(joinedload(Flag.rollout)).where(Flag.run_id == run_id)
    found = slice_of(session, statement, (Key(Flag.created_at), Key(Flag.id)), after=after)
    return {
        "head": run_header(session, run),
        "run": run,
        "flags": found.items,
        "next": found.next,
        "is_newest": after is None,
        "detection": newest_scan(session, run_id),
        "can_detect": run.kind in PHASES,
        "most_altered": MAX_ALTERED,
        "most_runs": MAX_RUNS,
    }


def _log(session: Session, run_id: uuid.UUID, before: int | None = None) -> dict[str, Any]:
    run = queries.get_run(session, run_id)
    lines = queries.log_lines(session, run_id, before=before)
    earlier = lines[0].id if len(lines) == queries.LOG_LINES else None
    context = {"head": run_header(session, run), "run": run, "lines": lines, "earlier": earlier}
    return context | {"is_newest": before is None}


_LIVE: dict[str, tuple[str, str, Callable[[Session, uuid.UUID], dict[str, Any]]]] = {
    "flags": (FLAGS, "run_flags", _flags),
    "log": (LOG, "run_log", _log),
}
"""Template, block and context of the tabs whose own part is live."""


@router.get("/runs/{run_id}/flags/events", response_class=EventSourceResponse)
@router.get("/runs/{run_id}/log/events", response_class=EventSourceResponse)
@router.get("/runs/{run_id}/groups/events", response_class=EventSourceResponse)
@router.get("/runs/{run_id}/configuration/events", response_class=EventSourceResponse)
async def tab_events(request: Request, run_id: uuid.UUID, _: Viewer) -> AsyncIterable[ServerSentEvent]:
    """The head, and the tab's own part if it is live."""
    tab = request.url.path.split("/")[-2]

    def render(session: Session) -> dict[str, str]:
        blocks: dict[str, str] = {}
        if tab in _LIVE:
            template, block, read = _LIVE[tab]
            context = read(session, run_id)
            head, blocks[block] = context["head"], render_block(request, template, block, context)
        else:
            head = run_header(session, queries.get_run(session, run_id))
        return head_blocks(request, head) | blocks | ({END: ""} if head.is_settled else {})

    async for event in live(request, (topic_of("run", run_id),), render):
        yield event


def _flat(values: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = []
    for name, value in values.items():
        if isinstance(value, dict) and value:
            rows += _flat(value, f"{prefix}{name}.")
        else:
            rows.append((f"{prefix}{name}", value))
    return rows
