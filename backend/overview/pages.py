"""`/`, `/find`, `/settings` and `/settings/workers`."""

import platform
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from sqlalchemy import exists, func, select, text

from backend.core.events import REVIEW, RUNS, topic_of
from backend.domain.addresses import read_allowed_hosts
from backend.domain.vocabulary import RunKind
from backend.environments.certificates import public_key
from backend.environments.tables import Environment
from backend.overview import queries
from backend.overview.finder import MAX_TEXT, FindRequest, find
from backend.overview.week import week_of
from backend.review.queries import count_waiting
from backend.review.queries import queue as review_queue
from backend.review.schemas import ReviewFilter
from backend.review.screens import rows_of
from backend.runs.tables import Run
from backend.settings import get_settings
from backend.training.workers import offers, workers
from backend.web.dependencies import SessionDep, Viewer
from backend.web.page import page
from backend.web.streams import live_page
from backend.web.templating import product_version

router = APIRouter()
REVIEW_ROWS = 5


def overview_topics(session: SessionDep, _: Viewer) -> tuple[str, ...]:
    """Also follow the progress of the runs that are unfinished now. A new run reconnects the page anyway."""
    return RUNS, REVIEW, *(topic_of("run", run.id) for run in queries.unfinished_runs(session))


@live_page(router, "/", "overview/overview.html", "happening", "to_review", "newest", topics=overview_topics)
def show_overview(session: SessionDep, actor: Viewer) -> dict[str, object]:
    items, _ = review_queue(session, ReviewFilter(), actor.person_id, limit=REVIEW_ROWS)
    served = {name for offer in offers(session) for name in offer.queues}
    evaluated_or_trained = exists().where(Run.kind.in_([RunKind.EVALUATION, RunKind.TRAINING]))
    unfinished = queries.unfinished_runs(session)
    environments = select(func.count(Environment.id)).where(Environment.archived_at.is_(None))
    if actor.project_id:
        environments = environments.where(Environment.project_id == actor.project_id)
    return {
        "environments": session.scalar(environments),
        "is_new": not session.scalar(select(evaluated_or_trained)),
        "unfinished": unfinished,
        "rewards": queries.reward_curves(session, unfinished),
        "to_judge": rows_of(session, actor, ReviewFilter(), items),
        "waiting": count_waiting(session),
        "evaluations": queries.finished_runs(session, RunKind.EVALUATION),
        "trainings": queries.finished_runs(session, RunKind.TRAINING),
        "read_week": partial(week_of, session, actor.project_id),  # only for the page, not for its stream
        # queues with waiting jobs that no online worker serves
        "silent": [str(queue) for queue in queries.waiting_jobs(session) if str(queue) not in served],
    }


@router.get("/find")
def show_found(
    request: Request, session: SessionDep, actor: Viewer, text: Annotated[str, Query(max_length=MAX_TEXT)] = ""
) -> Response:
    """Show what has this name or id. The palette of every page swaps in the block."""
    found = find(session, actor, FindRequest(text=text))
    return page(request, "overview/find.html", {"text": text, "found": found}, block="found_list")


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


@live_page(router, "/settings/workers", "overview/workers.html", "worker_list", topics=[RUNS])
def show_workers(session: SessionDep, _: Viewer) -> dict[str, object]:
    states = queries.list_worker_states(session)
    return {"workers": states, "abilities": queries.abilities(states), "waiting": queries.waiting_jobs(session)}
