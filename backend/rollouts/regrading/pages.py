"""Pages: /runs/{id}/rescore (other weights, another version), /runs/{id}/before-after, /rollouts/{id}/before-after."""

import uuid
from collections.abc import AsyncIterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from sqlalchemy.orm import Session

from backend.core.events import run_topic
from backend.domain.environments.manifest import Manifest
from backend.domain.rollouts.regrading import RescorePlan
from backend.domain.vocabulary import CheckStatus, RunKind, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.rollouts.queries import get_rollout
from backend.rollouts.regrading import queries, service
from backend.rollouts.regrading.certified import check_statuses
from backend.rollouts.regrading.columns import Candidate, candidates, weighed
from backend.rollouts.regrading.pairs import Again, ColumnPair, StepPair, again, column_pairs, original_of, step_pairs
from backend.rollouts.regrading.preview import Preview, preview
from backend.rollouts.regrading.schemas import OverrideForm, ReplayRequest, RescoreRequest, VersionForm, WeightsForm
from backend.rollouts.regrading.selection import conditions_of
from backend.rollouts.tables import Rollout
from backend.runs import queries as run_queries
from backend.runs.tables import Run
from backend.web.dependencies import Author, SessionDep, Viewer
from backend.web.form_data import read_form
from backend.web.page import page, see_other
from backend.web.streams import live_blocks

router = APIRouter()
RESULT = "rollouts/regrading/before_after.html"


@dataclass(frozen=True, slots=True)
class VersionChoice:
    """A version of the environment, and what its newest certificate says of scoring stored episodes again."""

    version: EnvironmentVersion
    check: CheckStatus | None


@dataclass(frozen=True, slots=True)
class RescorePage:
    """What may be done with a run's stored rollouts."""

    run: Run
    offered: Sequence[Candidate]
    weights: dict[str, float]
    """As they stand in the form, by name."""
    wanted: WeightsForm
    found: Preview
    versions: Sequence[VersionChoice]
    own: VersionChoice
    evaluations: int
    """Completed ones of the run's version."""


@dataclass(frozen=True, slots=True)
class BeforeAfterPage:
    """A re-scored or replayed run beside the run that its rollouts come from."""

    run: Run
    source: Run | None
    plan: RescorePlan
    tally: queries.Tally
    columns: Sequence[queries.ColumnChange]
    steps: Sequence[queries.Step]
    changed: Sequence[queries.Changed]
    together: int
    """Runs that were asked for at once."""

    is_refused: bool
    """It would not be faithful, and nobody has said why to do it all the same."""

    @property
    def is_over(self) -> bool:
        return self.run.status.is_over


@dataclass(frozen=True, slots=True)
class RolloutPairPage:
    """One rollout beside what it was, or beside what it became elsewhere."""

    rollout: Rollout
    run: Run
    before: Rollout | None = None
    columns: Sequence[ColumnPair] = ()
    steps: Sequence[StepPair] = ()
    again: Sequence[Again] = ()
    names: Sequence[str] = field(default=())
    """Columns that one of them has."""


@dataclass(frozen=True, slots=True)
class BatchPage:
    """Runs that were asked for together."""

    runs: Sequence[Run]
    batch: uuid.UUID


@router.get("/runs/{run_id}/rescore", response_class=HTMLResponse)
def show_choices(
    request: Request, run_id: uuid.UUID, session: SessionDep, _: Author, wanted: Annotated[WeightsForm, Query()]
) -> HTMLResponse:
    context = _choices(session, run_queries.get_run(session, run_id), wanted)
    return page(request, "rollouts/regrading/choose.html", context, block="rescore_preview")


def _choices(session: Session, run: Run, wanted: WeightsForm) -> RescorePage:
    offered = candidates(session, run)
    weights = {each.name: 0.0 if each.saw_reasoning else each.weight for each in offered} | wanted.weights()
    plan = RescorePlan(where=wanted.where.strip(), phase=wanted.phase)
    versions = queries.versions_of(session, run.version.environment_id)
    checks = check_statuses(session, [version.id for version in versions])
    return RescorePage(
        run=run,
        offered=offered,
        weights=weights,
        wanted=wanted,
        found=preview(session, run, weighed(offered, weights), conditions_of(session, run, plan)),
        versions=[VersionChoice(version, checks[version.id]) for version in versions],
        own=VersionChoice(run.version, checks.get(run.version_id)),
        evaluations=len(service.evaluations_of(session, run.version_id)),
    )


@router.post("/runs/{run_id}/rescore", response_class=HTMLResponse)
def weigh_anew(
    run_id: uuid.UUID, session: SessionDep, actor: Author, form: Annotated[WeightsForm, Depends(read_form(WeightsForm))]
) -> Response:
    request = RescoreRequest(run_ids=[run_id], weights=form.weights(), where=form.where, phase=form.phase)
    started = service.start_rescore(session, actor, request)
    return see_other(_result(started.runs[0].id), "Queued: the stored columns are weighed anew.")


@router.post("/runs/{run_id}/rescore/version", response_class=HTMLResponse)
def score_by_version(
    run_id: uuid.UUID, session: SessionDep, actor: Author, form: Annotated[VersionForm, Depends(read_form(VersionForm))]
) -> Response:
    request = RescoreRequest(**_taken(session, run_id, form), override=form.override)
    return _started(service.start_rescore(session, actor, request), "scored again")


@router.post("/runs/{run_id}/replay", response_class=HTMLResponse)
def replay(
    run_id: uuid.UUID, session: SessionDep, actor: Author, form: Annotated[VersionForm, Depends(read_form(VersionForm))]
) -> Response:
    request = ReplayRequest(**_taken(session, run_id, form))
    return _started(service.start_replay(session, actor, request), "played again")


def _taken(session: Session, run_id: uuid.UUID, form: VersionForm) -> dict[str, object]:
    run = run_queries.get_run(session, run_id)
    whose = {"evaluations_of": run.version_id} if form.all_evaluations else {"run_ids": [run.id]}
    return {**whose, "version_id": form.version_id, "where": form.where, "phase": form.phase}


def _started(started: service.Started, done: str) -> Response:
    if len(started.runs) == 1:
        return see_other(_result(started.runs[0].id), f"Queued: the stored rollouts are {done}.")
    return see_other(f"/rescores/{started.batch}", f"Queued: {len(started.runs)} runs are {done}.")


def _result(run_id: uuid.UUID) -> str:
    return f"/runs/{run_id}/before-after"


@router.post("/runs/{run_id}/override", response_class=HTMLResponse)
def override(
    run_id: uuid.UUID,
    session: SessionDep,
    actor: Author,
    form: Annotated[OverrideForm, Depends(read_form(OverrideForm))],
) -> Response:
    service.override(session, actor, run_queries.get_run(session, run_id), form.reason)
    return see_other(_result(run_id), "Queued again; your reason stands on the run.")


@router.get("/runs/{run_id}/before-after", response_class=HTMLResponse)
def show_result(request: Request, run_id: uuid.UUID, session: SessionDep, _: Viewer) -> HTMLResponse:
    return page(request, RESULT, _before_after(session, run_id), block="before_after")


@router.get("/runs/{run_id}/before-after/events", response_class=EventSourceResponse)
async def follow_result(request: Request, run_id: uuid.UUID, _: Viewer) -> AsyncIterable[ServerSentEvent]:
    def read(session: Session) -> BeforeAfterPage:
        return _before_after(session, run_id)

    async for event in live_blocks(request, (run_topic(run_id),), RESULT, ("pair_head", "before_after"), read):
        yield event


def _before_after(session: Session, run_id: uuid.UUID) -> BeforeAfterPage:
    run = run_queries.get_run(session, run_id)
    source = queries.source_of(session, run)
    plan = RescorePlan.model_validate(run.configuration)
    return BeforeAfterPage(
        run=run,
        source=source,
        plan=plan,
        tally=queries.tally(session, run.id),
        columns=queries.column_changes(session, run, source) if source else (),
        steps=queries.diverging_steps(session, run.id),
        changed=queries.most_changed(session, run.id),
        together=len(queries.runs_of_batch(session, plan.batch)) if plan.batch else 1,
        is_refused=run.kind is RunKind.RESCORE and run.status is RunStatus.FAILED and not plan.override,
    )


@router.get("/rescores/{batch}", response_class=HTMLResponse)
def show_batch(request: Request, batch: uuid.UUID, session: SessionDep, _: Viewer) -> HTMLResponse:
    return page(request, "rollouts/regrading/batch.html", BatchPage(queries.runs_of_batch(session, batch), batch))


@router.get("/rollouts/{rollout_id}/before-after", response_class=HTMLResponse)
def show_pair(request: Request, rollout_id: uuid.UUID, session: SessionDep, _: Viewer) -> HTMLResponse:
    rollout = get_rollout(session, rollout_id)
    run = rollout.run
    before = original_of(session, rollout)
    copies = again(session, rollout)
    names = dict.fromkeys([*run.columns, *(name for copy in copies for name in copy.columns)])
    noise = Manifest.model_validate(run.version.manifest).proctor.checks.noise
    context = RolloutPairPage(
        rollout=rollout,
        run=run,
        before=before,
        columns=column_pairs(before, rollout, run) if before else (),
        steps=step_pairs(before, rollout, noise) if before and rollout.steps else (),
        again=copies,
        names=list(names),
    )
    return page(request, "rollouts/regrading/rollout.html", context)


@router.post("/rollouts/{rollout_id}/rescore", response_class=HTMLResponse)
def rescore_one(rollout_id: uuid.UUID, session: SessionDep, actor: Author) -> Response:
    """Only this rollout, by the newest version's rewards."""
    rollout = get_rollout(session, rollout_id)
    newest = queries.versions_of(session, rollout.run.version.environment_id)[0]
    request = RescoreRequest(
        run_ids=[rollout.run_id], version_id=newest.id, rollout_ids=[rollout.id], phase=rollout.phase
    )
    return _started(service.start_rescore(session, actor, request), "scored again")
