"""`/` and `/settings`."""

import platform
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy import text
from sqlalchemy.orm import Session

from backend.core.events import REVIEW, RUNS, run_topic
from backend.domain.addresses import read_allowed_hosts
from backend.domain.vocabulary import Queue, RunKind
from backend.overview import queries
from backend.overview.queries import Stock
from backend.review.queries import count_waiting
from backend.review.queries import queue as review_queue
from backend.review.schemas import ReviewFilter
from backend.review.screens import QueueRow, rows_of
from backend.runs.tables import Run
from backend.settings import Settings, get_settings
from backend.training.workers import offers, workers
from backend.web.dependencies import SessionDep, Viewer
from backend.web.identity import Actor
from backend.web.page import page, render_block
from backend.web.streams import live
from backend.web.templating import product_version

router = APIRouter()
SUSPECTS = 5


@dataclass(frozen=True, slots=True)
class OverviewPage:
    stock: Stock
    unfinished: Sequence[Run]
    to_judge: list[QueueRow]
    waiting: int
    evaluations: Sequence[Run]
    trainings: Sequence[Run]
    silent: list[str]
    """Queues with waiting work and no worker that answers."""


@dataclass(frozen=True, slots=True)
class SettingsPage:
    workers: int
    """How many answer."""
    silent: int
    launchers: list[str]
    launcher_warnings: list[str]
    allow_unsandboxed: bool
    waiting: dict[Queue, int]
    facts: list[tuple[str, Any]]


@router.get("/")
def show_overview(request: Request, session: SessionDep, actor: Viewer) -> Response:
    return page(request, "overview/overview.html", _overview(session, actor))


def _overview(session: Session, actor: Actor) -> OverviewPage:
    items, _ = review_queue(session, ReviewFilter(), actor.person_id, limit=SUSPECTS)
    return OverviewPage(
        stock=queries.stock(session),
        unfinished=queries.unfinished_runs(session),
        to_judge=rows_of(session, actor, ReviewFilter(), items),
        waiting=count_waiting(session),
        evaluations=queries.newest_over(session, RunKind.EVALUATION),
        trainings=queries.newest_over(session, RunKind.TRAINING),
        silent=_silent_queues(session),
    )


def _silent_queues(session: Session) -> list[str]:
    served = {name for offer in offers(session) for name in offer.queues}
    return [str(queue) for queue in queries.waiting_jobs(session) if str(queue) not in served]


_LIVE = ("happening", "to_review", "newest")


@router.get("/events", response_class=EventSourceResponse)
async def follow_overview(request: Request, session: SessionDep, actor: Viewer) -> AsyncIterable[ServerSentEvent]:
    """Also hears the progress of the runs that are unfinished now; a new one reconnects the page anyway."""
    topics = (RUNS, REVIEW, *(run_topic(run.id) for run in queries.unfinished_runs(session)))

    def draw(session: Session) -> dict[str, str]:
        context = _overview(session, actor)
        return {name: render_block(request, "overview/overview.html", name, context) for name in _LIVE}

    async for event in live(request, topics, draw):
        yield event


@router.get("/settings")
def show_settings(request: Request, session: SessionDep, _: Viewer) -> Response:
    answering = offers(session)
    context = SettingsPage(
        workers=len(answering),
        silent=len(workers(session)) - len(answering),
        launchers=sorted({offer.can.launcher for offer in answering if offer.can.launcher}),
        launcher_warnings=sorted({offer.can.launcher_warning for offer in answering if offer.can.launcher_warning}),
        allow_unsandboxed=get_settings().allow_unsandboxed,
        waiting=queries.waiting_jobs(session),
        facts=_facts(session),
    )
    return page(request, "overview/settings.html", context)


def _facts(session: Session) -> list[tuple[str, Any]]:
    """Nothing here is secret: every viewer reads it."""
    settings = get_settings()
    server = session.scalar(text("SHOW server_version"))
    return [
        ("Proctor", product_version()),
        ("Stage", settings.stage),
        ("Address", settings.public_url),
        ("Python", platform.python_version()),
        ("Postgres", server),
        (
            "Artifacts",
            "in the data folder" if not settings.artifacts_url else settings.artifacts_url.partition("://")[0],
        ),
        ("Addresses in private networks", _private_networks(settings)),
    ]


def _private_networks(settings: Settings) -> str:
    if settings.private_endpoints_allowed:
        return "allowed"
    entries = len(read_allowed_hosts(settings.allowed_private_hosts))
    return f"refused, except {entries} on the allow list" if entries else "refused"
