"""What members, scripts and agents do with regrading and replays."""

import uuid

from sqlalchemy.orm import Session

from backend.domain.rollouts.regrading import RegradingPlan
from backend.domain.vocabulary import Role, RunStatus
from backend.environments.queries import get_environment, get_version
from backend.operations.declaration import operation
from backend.rollouts.regrading import queries, service
from backend.rollouts.regrading.history import describe_history
from backend.rollouts.regrading.history import regrade_history as regrade_parts
from backend.rollouts.regrading.schemas import (
    BeforeAfter,
    DraftScoreResponse,
    HistoryResponse,
    OverrideRegrading,
    PreviewRegrading,
    RegradingBatch,
    RegradingPreview,
    RewardTermResponse,
    RolloutBeforeAfter,
    StartRegrading,
    StartReplay,
)
from backend.rollouts.regrading.weights import apply_weights, list_reward_terms, preview_weights
from backend.rollouts.tables import Rollout
from backend.runs.queries import get_run
from backend.runs.schemas import RunDetailResponse, RunResponse
from backend.runs.tables import Run
from backend.web.identity import Actor

_BATCH = "/rescores/{batch}"


@operation(
    "POST /rescores",
    role=Role.AUTHOR,
    in_project=True,
    noun="regrading",
    status=201,
    tool=True,
    poll=_BATCH,
    audited=False,
)
def start_regrading(session: Session, actor: Actor, request: StartRegrading) -> RegradingBatch:
    """Regrade stored rollouts by other weights or by another version's rewards: one new run for each source run."""
    return get_batch(session, actor, service.start_regrading(session, actor, request).batch)


@operation("POST /rescores/preview", role=Role.AUTHOR, in_project=True, noun="regrading", tool=True, audited=False)
def preview_regrading(session: Session, actor: Actor, request: PreviewRegrading) -> RegradingPreview:
    """Preview the effect of other weights on a run. Stores nothing."""
    run = get_run(session, request.run_id)
    offered = list_reward_terms(session, run)
    weighted = apply_weights(offered, request.weights)
    plan = RegradingPlan(where=request.where.strip(), phase=request.phase)
    preview = preview_weights(session, run, weighted, service.conditions_of(session, run, plan))
    columns, all_terms = ([RewardTermResponse.of(term) for term in terms] for terms in (weighted, offered))
    return RegradingPreview(columns=columns, offered=all_terms, preview=preview)


@operation(
    "POST /replays",
    role=Role.AUTHOR,
    in_project=True,
    noun="regrading",
    status=201,
    tool=True,
    poll=_BATCH,
    audited=False,
)
def start_replay(session: Session, actor: Actor, request: StartReplay) -> RegradingBatch:
    """Play stored replies on a version: one new run for each source run."""
    return get_batch(session, actor, service.start_regrading(session, actor, request).batch)


@operation("GET /rescores/{batch}", role=Role.VIEWER, noun="regrading", tool=True)
def get_batch(session: Session, actor: Actor, batch: uuid.UUID) -> RegradingBatch:
    """Show runs that were started together, with their progress."""
    runs = queries.runs_of_batch(session, batch)
    finished = [run for run in runs if run.status.is_over]
    return RegradingBatch(
        is_finished=len(finished) == len(runs),
        is_successful=all(run.status is RunStatus.COMPLETED for run in runs),
        done=len(finished),
        total=len(runs),
        message=f"{len(finished)} of {len(runs)} runs are finished",
        batch=batch,
        runs=[RunResponse.of(run) for run in runs],
    )


@operation(
    "POST /runs/{run}/override",
    role=Role.AUTHOR,
    noun="regrading",
    audited=False,
    page="/runs/{run}/before-after",
    notice="Queued again. Your reason is kept on the run.",
)
def override_refusal(session: Session, actor: Actor, run: Run, request: OverrideRegrading) -> RunResponse:
    """Continue a regrading that was refused as not faithful. The reason stays on the run."""
    service.override_refusal(session, actor, run, request.reason)
    return RunResponse.of(run)


@operation("GET /runs/{run}/before-after", role=Role.VIEWER, noun="regrading", tool=True)
def get_before_after(session: Session, actor: Actor, run: Run) -> BeforeAfter:
    """Compare a regraded or replayed run with its source: counts, reward columns and diverging steps."""
    source = queries.source_of(session, run)
    return BeforeAfter(
        **dict(queries.count_outcomes(session, run.id)),
        run=RunDetailResponse.of(run),
        source_run_id=run.source_run_id,
        grounds=run.summary.get("rescoring", {}).get("grounds", ""),
        columns=queries.column_changes(session, run, source) if source else [],
        diverging_steps=queries.diverging_steps(session, run.id),
    )


@operation("GET /rollouts/{rollout}/before-after", role=Role.VIEWER, noun="regrading", tool=True)
def get_rollout_before_after(session: Session, actor: Actor, rollout: Rollout) -> RolloutBeforeAfter:
    """Compare a rollout with its source: reward columns, and every step that differs."""
    before = queries.original_of(session, rollout)
    found = queries.step_differences(before, rollout).values() if before and rollout.steps else ()
    return RolloutBeforeAfter(
        rollout_id=rollout.id,
        source_id=rollout.source_id,
        columns=queries.column_pairs(before, rollout) if before else [],
        differences=list(found),
    )


@operation("GET /environments/{name}/versions/{number}/history", role=Role.VIEWER, noun="regrading", tool=True)
def get_history(session: Session, actor: Actor, name: str, number: int) -> HistoryResponse:
    """Show how far other versions' runs are regraded by this version, and which conclusions change."""
    return describe_history(session, name, get_version(session, get_environment(session, name), number))


@operation(
    "POST /environments/{name}/versions/{number}/history",
    role=Role.AUTHOR,
    noun="regrading",
    status=201,
    tool=True,
    audited=False,
    page="/environments/{name}/versions/{number}/history",
    notice="Regrading runs in the background.",
)
def regrade_history(session: Session, actor: Actor, name: str, number: int) -> HistoryResponse:
    """Queue a regrading of every evaluation and training run of other versions that this version has not regraded."""
    regrade_parts(session, actor, get_version(session, get_environment(session, name), number))
    return get_history(session, actor, name, number)


@operation(
    "POST /rollouts/{rollout_id}/draft-score",
    role=Role.AUTHOR,
    noun="regrading",
    status=202,
    tool=True,
    audited=False,
    page="/draft-scores/{id}",
)
def score_by_draft(session: Session, actor: Actor, rollout_id: uuid.UUID) -> DraftScoreResponse:
    """Score a rollout, its cluster and the history by the draft of its environment, before it is published."""
    return get_draft_score(session, actor, service.score_by_draft(session, rollout_id).id)


@operation("GET /draft-scores/{job}", role=Role.AUTHOR, noun="regrading", tool=True)
def get_draft_score(session: Session, actor: Actor, job: uuid.UUID) -> DraftScoreResponse:
    """Show the result of a draft score."""
    score = service.get_draft_score(session, job)
    return DraftScoreResponse.from_row(score, id=score.job.id, environment=score.environment.name)
