"""The web application: middleware, pages and operations of every slice. Refuses to start with an unguarded route."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from sqlalchemy import event, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp

from backend.checkpoints import operations as checkpoints_operations
from backend.checkpoints import pages as checkpoints_pages
from backend.core.events import Hub
from backend.core.session import WEB_STATEMENT_TIMEOUT_MS, get_engine, transaction
from backend.deletions import operations as deletions_operations
from backend.deletions import pages as deletions_pages
from backend.detectors import operations as detectors_operations
from backend.detectors import pages as detectors_pages
from backend.environments import (
    attack_operations,
    attack_pages,
    editor_pages,
    import_operations,
    import_pages,
    play_operations,
    play_pages,
    trial_pages,
)
from backend.environments import operations as environments_operations
from backend.environments import pages as environments_pages
from backend.graders import operations as graders_operations
from backend.graders import pages as graders_pages
from backend.notifications import operations as notifications_operations
from backend.notifications import pages as notifications_pages
from backend.operations.declaration import operations_of
from backend.operations.mcp_route import add_mcp
from backend.operations.routes import add_form_routes, add_json_routes
from backend.overview import operations as overview_operations
from backend.overview import pages as overview_pages
from backend.policies import operations as policies_operations
from backend.policies import pages as policies_pages
from backend.projects import operations as projects_operations
from backend.projects import pages as projects_pages
from backend.results import operations as results_operations
from backend.results import pages as results_pages
from backend.review import operations as review_operations
from backend.review import pages as review_pages
from backend.rollouts import exchange_pages, table_pages, view_pages
from backend.rollouts import operations as rollouts_operations
from backend.rollouts import pages as rollouts_pages
from backend.rollouts.regrading import operations as regrading_operations
from backend.rollouts.regrading import pages as regrading_pages
from backend.runs import chart_pages, evaluation_pages, tab_pages
from backend.runs import operations as runs_operations
from backend.runs import pages as runs_pages
from backend.shares import operations as shares_operations
from backend.shares import pages as shares_pages
from backend.studies import operations as studies_operations
from backend.studies import pages as studies_pages
from backend.sweeps import operations as sweeps_operations
from backend.sweeps import pages as sweeps_pages
from backend.team import operations as team_operations
from backend.team import pages as team_pages
from backend.training import example_operations, example_pages, steering_pages
from backend.training import operations as training_operations
from backend.training import pages as training_pages
from backend.web import docs_site, error_pages, routing
from backend.web.api_description import describe
from backend.web.dependencies import Viewer
from backend.web.middleware import Guard, Revocation
from backend.web.templating import STATIC_FOLDER, Static, product_version

MAX_BODY_BYTES = 8 * 1024 * 1024
"""Routes that accept packages or files declare their own limit. JSON is parsed before the sign-in is checked."""
THREADS_STUCK_SECONDS = 60.0
"""Six times the limit of a page's statements: threads that take turns are merely busy."""
IMPORT_AFTER_SECONDS = 5.0
"""Time after the start when libraries are imported that take longer to import than the web takes to start."""
PAGES = (
    *(shares_pages, sweeps_pages),
    *(exchange_pages, overview_pages, review_pages, graders_pages, detectors_pages, studies_pages, notifications_pages),
    *(
        team_pages,
        deletions_pages,
        projects_pages,
        environments_pages,
        editor_pages,
        trial_pages,
        play_pages,
        import_pages,
    ),
    *(
        policies_pages,
        evaluation_pages,
        chart_pages,
        runs_pages,
        tab_pages,
        table_pages,
        view_pages,
        rollouts_pages,
        results_pages,
    ),
    *(steering_pages, attack_pages, example_pages, training_pages, checkpoints_pages, regrading_pages, docs_site),
)
"""Modules with pages. Those of imports and exports come before `/runs/{run_id}`."""
OPERATIONS = (
    *(notifications_operations, overview_operations, checkpoints_operations, detectors_operations, review_operations),
    *(example_operations, policies_operations, rollouts_operations, regrading_operations, runs_operations),
    *(team_operations, graders_operations, studies_operations, results_operations, environments_operations),
    *(
        deletions_operations,
        projects_operations,
        attack_operations,
        play_operations,
        import_operations,
        training_operations,
    ),
    *(sweeps_operations, shares_operations),
)
"""Modules that declare operations."""
Transaction = Callable[[], AbstractContextManager[Session]]


class Application(FastAPI):
    """FastAPI with our refusal of too large bodies."""

    def build_middleware_stack(self) -> ASGIApp:
        return error_pages.OwnTooLarge(super().build_middleware_stack())


def create_app(transaction: Transaction = transaction) -> FastAPI:
    """Build the app. `transaction` opens one request's transaction; tests pass their own."""
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
    app.mount("/static", Static(directory=STATIC_FOLDER), name="static")
    for route in [route for module in PAGES for route in module.router.routes]:
        route.include_in_schema = False
        app.router.routes.append(route)  # FastAPI builds an included router's routes twice, and finds them slowly
    declared = [operation for module in OPERATIONS for operation in operations_of(module)]
    add_json_routes(app.router, declared)
    add_form_routes(app.router, declared)

    @app.get("/api/v1/openapi.json", include_in_schema=False)
    def openapi(actor: Viewer) -> dict[str, Any]:
        """Return the description of the JSON API."""
        return describe(app)

    @app.get("/healthz", include_in_schema=False)
    def healthz() -> dict[str, str]:
        """Check that the web is up and reaches the database."""
        with app.state.transaction() as session:
            session.execute(text("SELECT 1"))
        return {"status": "ok"}

    app.state.tools = add_mcp(app)
    liveness = Liveness()

    @app.get("/livez", include_in_schema=False)
    async def livez() -> JSONResponse:
        """Check that the process responds. The supervisor restarts one that does not; 503 if its threads are stuck."""
        if await liveness.is_alive():
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": "stuck"}, status_code=503)

    routing.refuse_unguarded(app)
    return app


@dataclass
class Liveness:
    """Whether the event loop responds and worker threads are free.

    Needs no database, so that an unreachable database does not look like a web process that hangs.
    """

    _probe: asyncio.Task[None] | None = None
    _waiting_since: float = 0.0

    async def is_alive(self) -> bool:
        """Return at once. False if a no-op has waited too long for a thread; no answer at all means a stuck loop."""
        now = time.monotonic()
        if self._probe is None or self._probe.done():
            self._probe, self._waiting_since = asyncio.create_task(run_in_threadpool(lambda: None)), now
        return now - self._waiting_since < THREADS_STUCK_SECONDS


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    @event.listens_for(get_engine(), "connect")
    def limit_statements(connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        """Limit statements of pages. Jobs have no such limit and run in other processes."""
        connection.cursor().execute(f"SET statement_timeout = {WEB_STATEMENT_TIMEOUT_MS}")
        connection.commit()

    async def import_statistics() -> None:
        """Import what the first comparison would wait for, shortly after the start."""
        await asyncio.sleep(IMPORT_AFTER_SECONDS)
        await run_in_threadpool(import_module, "scipy.stats")

    tasks = [asyncio.create_task(work) for work in (app.state.hub.listen(), import_statistics())]
    yield
    await app.state.tools.stop()
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
