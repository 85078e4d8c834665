"""`/`, `/settings` and `/settings/workers`."""

import platform
from collections.abc import AsyncIterable
from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy import exists, func, select, text
from sqlalchemy.orm import Session

from backend.core.events import REVIEW, RUNS, topic_of
from backend.domain.addresses import read_allowed_hosts
from backend.domain.vocabulary import RunKind
from backend.environments.certificates import public_key
from backend.environments.tables import Environment
from backend.overview import queries
from backend.review.queries import count_waiting
from backend.review.queries import queue as review_queue
from backend.review.schemas import ReviewFilter
from backend.review.screens import rows_of
from backend.runs.tables import Run
from backend.settings import get_settings
from backend.training.workers import offers, workers
from backend.web.dependencies import SessionDep, Viewer
from backend.web.identity import Actor
from backend.web.page import page
from backend.web.streams import live_blocks
from backend.web.templating import product_version

router = APIRouter()
REVIEW_ROWS = 5


@router.get("/")
def show_overview(request: Request, session: SessionDep, actor: Viewer) -> Response:
    return page(request, "overview/overview.html", _overview(session, actor))


def _overview(session: Session, actor: Actor) -> dict[str, object]:
    items, _ = review_queue(session, ReviewFilter(), actor.person_id, limit=REVIEW_ROWS)
    served = {name for offer in offers(session) for name in offer.queues}
    evaluated_or_trained = exists().where(Run.kind.in_([RunKind.EVALUATION, RunKind.TRAINING]))
    return {
        "environments": session.scalar(select(func.count(Environment.id)).where(Environment.archived_at.is_(None))),
        "is_new": not session.scalar(select(evaluated_or_trained)),
        "unfinished": queries.unfinished_runs(session),
        "to_judge": rows_of(session, actor, ReviewFilter(), items),
        "waiting": count_waiting(session),
        "evaluations": queries.finished_runs(session, RunKind.EVALUATION),
        "trainings": queries.finished_runs(session, RunKind.TRAINING),
        # queues with waiting jobs that no online worker serves
        "silent": [str(queue) for queue in queries.waiting_jobs(session) if str(queue) not in served],
    }


@router.get("/events", response_class=EventSourceResponse)
async def follow_overview(request: Request, session: SessionDep, actor: Viewer) -> AsyncIterable[ServerSentEvent]:
    """Also follow the progress of the runs that are unfinished now. A new run reconnects the page anyway."""
    topics = (RUNS, REVIEW, *(topic_of("run", run.id) for run in queries.unfinished_runs(session)))
    blocks = ("happening", "to_review", "newest")
    async for event in live_blocks(request, topics, "overview/overview.html", blocks, partial(_overview, actor=actor)):
        yield event


@router.get("/settings")
def show_settings(request: Request, session: SessionDep, _: Viewer) -> Response:
    """Show the settings that every member may read."""
    online, settings = offers(session), get_settings()
    private_networks = "allowed" if settings.private_endpoints_allowed else "refused"
    if not settings.private_endpoints_allowed and (entries := len(read_allowed_hosts(settings.allowed_private_hosts))):
        private_networks = f"refused, except {entries} on the allow list"
    context = {
        "workers": len(online),
        "silent": len(workers(session)) - len(online),
        "launchers": sorted({offer.can.launcher for offer in online if offer.can.launcher}),
        "launcher_warnings": sorted({offer.can.launcher_warning for offer in online if offer.can.launcher_warning}),
        "allow_unsandboxed": settings.allow_unsandboxed,
        "waiting": queries.waiting_jobs(session),
        "certificate_key": public_key(session),
        "facts": [
            ("Proctor", product_version()),
            ("Stage", settings.stage),
            ("Address", settings.public_url),
            ("Python", platform.python_version()),
            ("Postgres", session.scalar(text("SHOW server_version"))),
            ("Artifacts", settings.artifacts_url.partition("://")[0] or "in the data folder"),
            ("Addresses in private networks", private_networks),
        ],
    }
    return page(request, "overview/settings.html", context)


@router.get("/settings/workers")
def show_workers(request: Request, session: SessionDep, _: Viewer) -> Response:
    return page(request, "overview/workers.html", _workers(session))


def _workers(session: Session) -> dict[str, object]:
    states = queries.list_worker_states(session)
    return {"workers": states, "abilities": queries.abilities(states), "waiting": queries.waiting_jobs(session)}


@router.get("/settings/workers/events", response_class=EventSourceResponse)
async def follow_workers(request: Request, _: Viewer) -> AsyncIterable[ServerSentEvent]:
    async for event in live_blocks(request, (RUNS,), "overview/workers.html", ["worker_list"], _workers):
        yield event
