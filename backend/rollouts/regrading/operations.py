"""The JSON API of re-scores and replays."""

import uuid
from collections.abc import Sequence

from fastapi import APIRouter
from pydantic import BaseModel
from sqlalchemy.orm import Session

from backend.domain.environments.manifest import Manifest
from backend.domain.rollouts.divergence import Part
from backend.domain.rollouts.regrading import RescorePlan
from backend.domain.statistics import Estimate
from backend.rollouts.queries import get_rollout
from backend.rollouts.regrading import queries, service
from backend.rollouts.regrading.columns import Candidate, Origin, candidates, weighed
from backend.rollouts.regrading.pairs import ColumnPair, column_pairs, original_of, step_pairs
from backend.rollouts.regrading.preview import Preview, preview
from backend.rollouts.regrading.schemas import OverrideForm, PreviewRequest, ReplayRequest, RescoreRequest
from backend.rollouts.regrading.selection import conditions_of
from backend.runs import queries as run_queries
from backend.runs.responses import RunDetailResponse, RunResponse
from backend.runs.tables import Run
from backend.web.dependencies import Author, SessionDep, Viewer

router = APIRouter(prefix="/api/v1", tags=["re-scoring"])


class StartedAnswer(BaseModel):
    """Runs that were asked for together."""

    batch: uuid.UUID
    runs: list[RunResponse]


class CandidateAnswer(BaseModel):
    """A value that may carry a weight."""

    name: str
    origin: Origin
    weight: float
    saw_reasoning: bool
    """A judge that was shown the policy's thoughts: no weight but 0 is taken."""

    @classmethod
    def of(cls, candidate: Candidate) -> "CandidateAnswer":
        return cls.model_validate(candidate, from_attributes=True)


class PreviewAnswer(BaseModel):
    """What weights would make of a run."""

    columns: list[CandidateAnswer]
    """With the new weights."""
    offered: list[CandidateAnswer]
    """All that may carry a weight, with what they carry now."""
    preview: Preview


class ColumnChangeAnswer(BaseModel):
    """A column on both sides, over the rollouts that both completed."""

    name: str
    before: float | None
    after: float | None
    difference: Estimate | None
    """After minus before over tasks, with its 95 % interval."""
    weight_before: float | None
    weight_after: float | None


class BeforeAfterAnswer(BaseModel):
    """A re-scored or replayed run beside the run that its rollouts come from."""

    run: RunDetailResponse
    source_run_id: uuid.UUID | None
    rollouts: int
    completed: int
    failed: int
    changed: int
    """Completed with another reward."""
    diverged: int
    """Went another way at some step."""
    replies_ended: int
    """The stored replies were over before the episode was."""
    replies_left: int
    """The episode was over before the stored replies were."""
    grounds: str
    """Why the result may be trusted."""
    columns: list[ColumnChangeAnswer]
    diverging_steps: dict[int, int]
    """Rollouts by the first step that went another way; 0 is the reset."""


class DifferenceAnswer(BaseModel):
    """One step that went another way."""

    step: int
    parts: list[Part]
    fields: list[str]
    """Fields of the observation and reward columns that differ."""


class RolloutPairAnswer(BaseModel):
    """A rollout beside its original."""

    rollout_id: uuid.UUID
    source_id: uuid.UUID | None
    columns: list[ColumnPair]
    differences: list[DifferenceAnswer]


@router.post("/rescores", status_code=201)
def start_rescore(session: SessionDep, actor: Author, request: RescoreRequest) -> StartedAnswer:
    """Score stored rollouts again, by other weights or by another version's rewards: a run for each run taken."""
    return _started(session, service.start_rescore(session, actor, request))


@router.post("/rescores/preview")
def preview_rescore(session: SessionDep, _: Author, request: PreviewRequest) -> PreviewAnswer:
    """What other weights would make of a run; nothing is stored."""
    run = run_queries.get_run(session, request.run_id)
    offered = candidates(session, run)
    chosen = weighed(offered, request.weights)
    plan = RescorePlan(where=request.where.strip(), phase=request.phase)
    return PreviewAnswer(
        columns=[CandidateAnswer.of(each) for each in chosen],
        offered=[CandidateAnswer.of(each) for each in offered],
        preview=preview(session, run, chosen, conditions_of(session, run, plan)),
    )


@router.post("/replays", status_code=201)
def start_replay(session: SessionDep, actor: Author, request: ReplayRequest) -> StartedAnswer:
    """Play stored replies on a version: a run for each run taken."""
    return _started(session, service.start_replay(session, actor, request))


@router.get("/rescores/{batch}")
def get_batch(batch: uuid.UUID, session: SessionDep, _: Viewer) -> StartedAnswer:
    """The runs that were asked for together."""
    return StartedAnswer(batch=batch, runs=_answers(queries.runs_of_batch(session, batch)))


@router.post("/runs/{run_id}/override")
def override(run_id: uuid.UUID, session: SessionDep, actor: Author, request: OverrideForm) -> RunResponse:
    """Do a re-score that was refused all the same; the reason stands on the run."""
    run = run_queries.get_run(session, run_id)
    service.override(session, actor, run, request.reason)
    return RunResponse.of(run)


@router.get("/runs/{run_id}/before-after")
def get_before_after(run_id: uuid.UUID, session: SessionDep, _: Viewer) -> BeforeAfterAnswer:
    """What a re-score or a replay changed."""
    run = run_queries.get_run(session, run_id)
    source = queries.source_of(session, run)
    found = queries.tally(session, run.id)
    changes = queries.column_changes(session, run, source) if source else []
    return BeforeAfterAnswer(
        run=RunDetailResponse.of(run),
        source_run_id=run.source_run_id,
        rollouts=found.total,
        completed=found.completed,
        failed=found.failed,
        changed=found.changed,
        diverged=found.diverged,
        replies_ended=found.replies_ended,
        replies_left=found.replies_left,
        grounds=run.summary.get("rescoring", {}).get("grounds", ""),
        columns=[ColumnChangeAnswer.model_validate(change, from_attributes=True) for change in changes],
        diverging_steps={each.step: each.count for each in queries.diverging_steps(session, run.id)},
    )


@router.get("/rollouts/{rollout_id}/before-after")
def get_pair(rollout_id: uuid.UUID, session: SessionDep, _: Viewer) -> RolloutPairAnswer:
    """A rollout beside the one that it comes from: columns, and every step that went another way."""
    rollout = get_rollout(session, rollout_id)
    before = original_of(session, rollout)
    noise = Manifest.model_validate(rollout.run.version.manifest).proctor.checks.noise
    pairs = step_pairs(before, rollout, noise) if before and rollout.steps else []
    found = [pair.difference for pair in pairs if pair.difference]
    return RolloutPairAnswer(
        rollout_id=rollout.id,
        source_id=rollout.source_id,
        columns=column_pairs(before, rollout, rollout.run) if before else [],
        differences=[DifferenceAnswer(step=d.step, parts=list(d.parts), fields=list(d.fields)) for d in found],
    )


def _started(session: Session, started: service.Started) -> StartedAnswer:
    runs = [run_queries.get_run(session, run.id) for run in started.runs]
    return StartedAnswer(batch=started.batch, runs=_answers(runs))


def _answers(runs: Sequence[Run]) -> list[RunResponse]:
    return [RunResponse.of(run) for run in runs]
