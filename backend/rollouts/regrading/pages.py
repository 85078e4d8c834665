"""Pages of regrading: choices for a run, before and after of runs and rollouts, histories, draft scores."""

import time
import uuid
from collections.abc import AsyncIterable
from itertools import zip_longest
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.events import RUNS, Hub
from backend.domain.rollouts.regrading import RegradingPlan
from backend.domain.vocabulary import RunKind, RunStatus
from backend.environments.queries import get_environment, get_version
from backend.environments.tables import EnvironmentVersion
from backend.rollouts.queries import get_rollout
from backend.rollouts.regrading import queries, service
from backend.rollouts.regrading.history import describe_history
from backend.rollouts.regrading.schemas import StartRegrading, StartReplay, VersionForm, WeightsForm
from backend.rollouts.regrading.weights import apply_weights, list_reward_terms, preview_weights
from backend.runs.queries import get_run
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.form_data import read_form
from backend.web.page import page, render_block, see_other
from backend.web.shared import Shared
from backend.web.streams import AGAIN, END, live, live_page

router = APIRouter()
HISTORY = "rollouts/regrading/history.html"
VersionFormDep = Annotated[VersionForm, Depends(read_form(VersionForm))]
_histories: Shared[dict[str, Any]] = Shared()
"""Histories of the versions that someone watches, because the conclusions of a long history take a while."""


@router.get("/runs/{run_id}/rescore", response_class=HTMLResponse)
def show_choices(
    request: Request, run_id: uuid.UUID, session: SessionDep, _: Author, form: Annotated[WeightsForm, Query()]
) -> HTMLResponse:
    run = get_run(session, run_id)
    terms = list_reward_terms(session, run)
    weights = {term.name: 0.0 if term.saw_reasoning else term.weight for term in terms} | form.weights()
    plan = RegradingPlan(where=form.where.strip(), phase=form.phase)
    published = select(EnvironmentVersion).where(EnvironmentVersion.environment_id == run.version.environment_id)
    versions = session.scalars(published.order_by(EnvironmentVersion.number.desc())).all()
    checks = service.check_statuses(session, [version.id for version in versions])
    conditions = service.conditions_of(session, run, plan)
    context = {
        "run": run,
        "terms": terms,
        "weights": weights,  # as in the form, by name
        "form": form,
        "preview": preview_weights(session, run, apply_weights(terms, weights), conditions),
        "versions": versions,
        "checks": checks,
        "evaluations": len(service.evaluations_of(session, run.version_id)),
    }
    return page(request, "rollouts/regrading/choose.html", context, block="rescore_preview")


@router.post("/runs/{run_id}/rescore", response_class=HTMLResponse)
def regrade_by_weights(
    run_id: uuid.UUID, session: SessionDep, actor: Author, form: Annotated[WeightsForm, Depends(read_form(WeightsForm))]
) -> Response:
    request = StartRegrading(run_ids=[run_id], weights=form.weights(), where=form.where, phase=form.phase)
    return _show_started(service.start_regrading(session, actor, request))


@router.post("/runs/{run_id}/rescore/version", response_class=HTMLResponse)
@router.post("/runs/{run_id}/replay", response_class=HTMLResponse)
def play_on_version(
    request: Request, run_id: uuid.UUID, session: SessionDep, actor: Author, form: VersionFormDep
) -> Response:
    run = get_run(session, run_id)
    runs = {"evaluations_of": run.version_id} if form.all_evaluations else {"run_ids": [run.id]}
    source = {**runs, "version_id": form.version_id, "where": form.where, "phase": form.phase}
    is_replay = request.url.path.endswith("/replay")
    start = StartReplay(**source) if is_replay else StartRegrading(**source, override=form.override)
    return _show_started(service.start_regrading(session, actor, start))


@router.post("/rollouts/{rollout_id}/rescore", response_class=HTMLResponse)
def regrade_rollout(rollout_id: uuid.UUID, session: SessionDep, actor: Author) -> Response:
    """Regrade this rollout alone, by the newest version's rewards."""
    rollout = get_rollout(session, rollout_id)
    newest = get_version(session, rollout.run.version.environment)
    request = StartRegrading(
        run_ids=[rollout.run_id], version_id=newest.id, rollout_ids=[rollout.id], phase=rollout.phase
    )
    return _show_started(service.start_regrading(session, actor, request))


def _show_started(started: service.StartedRegrading) -> Response:
    if len(started.runs) == 1:
        return see_other(f"/runs/{started.runs[0].id}/before-after", "The run is queued.")
    return see_other(f"/rescores/{started.batch}", f"{len(started.runs)} runs are queued.")


@live_page(
    *(router, "/runs/{run_id}/before-after", "rollouts/regrading/before_after.html", "pair_head", "before_after"),
    topics=["run:{run_id}"],
    swapped="before_after",
)
def show_before_after(session: SessionDep, _: Viewer, run_id: uuid.UUID) -> dict[str, object]:
    run = get_run(session, run_id)
    source = queries.source_of(session, run)
    plan = RegradingPlan.model_validate(run.configuration)
    return {
        "run": run,
        "source": source,
        "plan": plan,
        "counts": queries.count_outcomes(session, run.id),
        "columns": queries.column_changes(session, run, source) if source else (),
        "steps": queries.diverging_steps(session, run.id),
        "changed": queries.most_changed(session, run.id),
        "together": len(queries.runs_of_batch(session, plan.batch)) if plan.batch else 1,
        # it would not be faithful, and no reason to continue was given
        "is_refused": run.kind is RunKind.RESCORE and run.status is RunStatus.FAILED and not plan.override,
        "is_over": run.status.is_over,
    }


@router.get("/rescores/{batch}", response_class=HTMLResponse)
def show_batch(request: Request, batch: uuid.UUID, session: SessionDep, _: Viewer) -> HTMLResponse:
    return page(request, "rollouts/regrading/batch.html", {"runs": queries.runs_of_batch(session, batch)})


@router.get("/rollouts/{rollout_id}/before-after", response_class=HTMLResponse)
def show_rollout_before_after(request: Request, rollout_id: uuid.UUID, session: SessionDep, _: Viewer) -> HTMLResponse:
    rollout = get_rollout(session, rollout_id)
    before = queries.original_of(session, rollout)
    copies = queries.copies_of(session, rollout)
    context: dict[str, object] = {
        "rollout": rollout,
        "run": rollout.run,
        "before": before,
        "columns": queries.column_pairs(before, rollout) if before else (),
        "steps": [],  # the reset, then every step of either side
        "differences": {},
        "copies": copies,
        "names": list(dict.fromkeys([*rollout.run.columns, *(name for run, _ in copies for name in run.columns)])),
    }
    if before and rollout.steps:
        openings = ({"observation": each.opening} for each in (before, rollout))
        context["steps"] = [tuple(openings), *zip_longest(before.steps, rollout.steps)]
        context["differences"] = queries.step_differences(before, rollout)
    return page(request, "rollouts/regrading/rollout.html", context)


@router.get("/environments/{name}/versions/{number}/history", response_class=HTMLResponse)
def show_history(request: Request, session: SessionDep, _: Viewer, name: str, number: int) -> HTMLResponse:
    return page(request, HISTORY, _history(session, name, number), block="graded_history")


@router.get("/environments/{name}/versions/{number}/history/events", response_class=EventSourceResponse)
async def stream_history(request: Request, _: Viewer, name: str, number: int) -> AsyncIterable[ServerSentEvent]:
    hub: Hub = request.app.state.hub
    opened_at = time.monotonic()

    def render(session: Session) -> dict[str, str]:
        since = max(opened_at, hub.heard_at(RUNS))
        context, again = _histories.read((name, number), since, lambda: _history(session, name, number))
        blocks = {"graded_history": render_block(request, HISTORY, "graded_history", context)}
        if not context["history"].open:
            blocks[END] = ""
        elif again:
            blocks[AGAIN] = str(again)
        return blocks

    async for event in live(request, (RUNS,), render):
        yield event


def _history(session: Session, name: str, number: int) -> dict[str, Any]:
    environment = get_environment(session, name)
    version = get_version(session, environment, number)
    history = describe_history(session, name, version)
    return {"environment": environment, "version": version, "history": history}


@live_page(router, "/draft-scores/{job_id}", "rollouts/regrading/draft.html", "draft_scores", topics=["job:{job_id}"])
def show_draft_score(session: SessionDep, _: Author, job_id: uuid.UUID) -> object:
    return service.get_draft_score(session, job_id)
