"""The web application: plumbing, then every feature's pages and JSON. Refuses to start with an unguarded route."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from sqlalchemy import event, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry
from starlette.types import ASGIApp

from backend.db.session import WEB_STATEMENT_TIMEOUT_MS, get_engine, transaction
from backend.environments import api as environments_api
from backend.environments import routes as environments_routes
from backend.evaluations import routes as evaluations_routes
from backend.evaluations.api import detection as detection_api
from backend.evaluations.api import judges as judge_api
from backend.evaluations.api import policies as policy_api
from backend.evaluations.api import questions as asking_api
from backend.evaluations.api import results as results_api
from backend.evaluations.api import rollouts as rollout_api
from backend.evaluations.api import runs as evaluations_api
from backend.events import Hub
from backend.exchange import api as exchange_api
from backend.exchange import routes as exchange_routes
from backend.judging import api as judging_api
from backend.judging.consequences import api as consequences_api
from backend.judging.consequences import routes as consequences_routes
from backend.judging.detectors import api as detectors_api
from backend.judging.detectors import routes as detectors_routes
from backend.judging.effort import api as effort_api
from backend.judging.effort import routes as effort_routes
from backend.judging.judges import api as judges_api
from backend.judging.judges import routes as judges_routes
from backend.judging.onset import api as onset_api
from backend.judging.onset import routes as onset_routes
from backend.judging.questions import api as questions_api
from backend.judging.questions import routes as questions_routes
from backend.judging.reports import api as reports_api
from backend.judging.reports import routes as reports_routes
from backend.judging.review import api as review_api
from backend.judging.review import routes as review_routes
from backend.notifications import api as notifications_api
from backend.notifications import routes as notifications_routes
from backend.overview import api as overview_api
from backend.overview import routes as overview_routes
from backend.overview import worker_routes
from backend.rescoring import api as rescoring_api
from backend.rescoring import draft_api as draft_score_api
from backend.rescoring import draft_routes as draft_score_routes
from backend.rescoring import history_api, history_routes
from backend.rescoring import routes as rescoring_routes
from backend.team import api as team_api
from backend.team import routes as team_routes
from backend.training import api as training_api
from backend.training import (
    checkpoint_api,
    checkpoint_routes,
    launch_api,
    launch_routes,
    preflight_routes,
    steering_api,
    steering_routes,
)
from backend.training import routes as training_routes
from backend.training.lessons import api as lessons_api
from backend.training.lessons import routes as lessons_routes
from backend.web import docs_site, error_pages, routing
from backend.web.api_description import describe
from backend.web.dependencies import Viewer
from backend.web.headers import Guard
from backend.web.liveness import Liveness
from backend.web.revocation import Revocation
from backend.web.static import STATIC_FOLDER, Static
from backend.web.templating import product_version

MAX_BODY_BYTES = 8 * 1024 * 1024
"""Routes that take packages or files say their own limit. JSON is parsed before anybody is known to be signed in."""
PAGES = (
    exchange_routes,
    overview_routes,
    worker_routes,
    review_routes,
    judges_routes,
    questions_routes,
    consequences_routes,
    detectors_routes,
    reports_routes,
    onset_routes,
    effort_routes,
    notifications_routes,
    team_routes,
    environments_routes,
    evaluations_routes,
    training_routes,
    steering_routes,
    lessons_routes,
    launch_routes,
    preflight_routes,
    checkpoint_routes,
    rescoring_routes,
    draft_score_routes,
    history_routes,
    docs_site,
)
"""Modules with the pages of a feature; those of exchange come before `/runs/{run_id}`."""
JSON = (
    judging_api,
    review_api,
    judges_api,
    questions_api,
    consequences_api,
    detectors_api,
    reports_api,
    onset_api,
    effort_api,
    notifications_api,
    team_api,
    environments_api,
    evaluations_api,
    policy_api,
    judge_api,
    asking_api,
    detection_api,
    results_api,
    rollout_api,
    training_api,
    steering_api,
    lessons_api,
    launch_api,
    overview_api,
    checkpoint_api,
    exchange_api,
    rescoring_api,
    draft_score_api,
    history_api,
)
"""Modules with its JSON under `/api/v1`."""
Transaction = Callable[[], AbstractContextManager[Session]]


class Application(FastAPI):
    """FastAPI, whose own refusals have the form of ours."""

    def build_middleware_stack(self) -> ASGIApp:
        return error_pages.OneForm(super().build_middleware_stack())


def create_app(transaction: Transaction = transaction) -> FastAPI:
    """`transaction` opens one request's transaction; tests give their own."""
    app = Application(
        title="Proctor",
        version=product_version(),
        lifespan=_lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        max_body_size=MAX_BODY_BYTES,
    )
    app.state.transaction = transaction
    app.state.hub = Hub()
    error_pages.install(app)
    app.add_middleware(Guard)
    app.add_middleware(Revocation)
    _mount(app)
    routing.refuse_unguarded(app)
    return app


def _mount(app: FastAPI) -> None:
    app.mount("/static", Static(directory=STATIC_FOLDER), name="static")

    for module in PAGES:
        app.include_router(module.router, include_in_schema=False)
    for module in JSON:
        app.include_router(module.router)

    @app.get("/api/v1/openapi.json", include_in_schema=False)
    def openapi(actor: Viewer) -> dict[str, Any]:
        """The description of the JSON API."""
        return describe(app)

    @app.get("/healthz", include_in_schema=False)
    def healthz() -> dict[str, str]:
        """Is the web up and does it reach the database?"""
        with app.state.transaction() as session:
            session.execute(text("SELECT 1"))
        return {"status": "ok"}

    liveness = Liveness()

    @app.get("/livez", include_in_schema=False)
    async def livez() -> JSONResponse:
        """Does the process still work? The supervisor restarts one that does not; 503 when its threads are stuck."""
        if await liveness.is_alive():
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "stuck"}, status_code=503)


def _limit_statements(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
    """No page may keep the database busy for long; jobs, which have no such limit, use engines of their own."""
    connection.cursor().execute(f"SET statement_timeout = {WEB_STATEMENT_TIMEOUT_MS}")
    connection.commit()


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    event.listen(get_engine(), "connect", _limit_statements)
    listening = asyncio.create_task(app.state.hub.listen())
    yield
    listening.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await listening
