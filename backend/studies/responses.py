"""Build the responses of studies from their rows."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.checkpoints.tables import Checkpoint
from backend.domain.statistics import estimate_mean, wilson
from backend.domain.studies.effort import EffortOutcome, ReplyCurve, cut_points, mean_curve
from backend.domain.studies.onset import max_checkpoints
from backend.domain.studies.study import StudyKind
from backend.domain.vocabulary import CheckStatus, RunKind, RunStatus
from backend.environments.tables import EnvironmentVersion
from backend.runs.tables import Run
from backend.studies import queries
from backend.studies.patterns import describe_onset, last_honest_checkpoint, pattern_name, patterns_of
from backend.studies.schemas import (
    CutReply,
    RollBack,
    RunStudies,
    StudiableCheckpoint,
    StudiedCheckpointResponse,
    StudyResponse,
    TaskAreas,
)
from backend.studies.tables import EffortReply, Study, StudyCheckpoint, checkpoint_name


def run_studies(session: Session, run: Run, kind: StudyKind | None = None) -> RunStudies:
    studies = queries.list_studies(session, run.id, kind)
    is_training = run.kind is RunKind.TRAINING
    checkpoints = queries.checkpoints_until(session, run.id) if is_training else []
    patterns = patterns_of(session, run) if is_training and kind is not StudyKind.EFFORT else []
    has_onset = any(study.result and study.result.get("hacking_step") is not None for study in studies)
    honest = last_honest_checkpoint(session, run) if patterns or has_onset else None
    return RunStudies(
        run_id=run.id,
        patterns=[*patterns],
        checkpoints=[
            StudiableCheckpoint(id=each.id, name=checkpoint_name(each.stage, each.step))
            for each in reversed(checkpoints)
        ],
        last_honest=_roll_back(session, run, honest),
        effort_obstacle=queries.why_no_effort_study(session, run),
        studies=study_responses(session, run, studies),
    )


def study_responses(session: Session, run: Run, studies: Sequence[Study]) -> list[StudyResponse]:
    """Of studies of one run, whose version and environment are loaded."""
    checkpoints = queries.checkpoints_of_studies(session, [study.id for study in studies])
    efforts = [study.id for study in studies if study.kind is StudyKind.EFFORT]
    replies = queries.replies_of(session, [each.id for study_id in efforts for each in checkpoints[study_id]])
    responses = []
    for study in studies:
        if study.kind is StudyKind.ONSET:
            fields = _onset_fields(session, run, study, checkpoints[study.id])
        else:
            fields = _effort_fields(study, [(each, replies[each.id]) for each in checkpoints[study.id]])
        responses.append(StudyResponse.from_row(study, is_finished=study.status.is_over, **fields))
    return responses


def _onset_fields(session: Session, run: Run, study: Study, checkpoints: Sequence[StudyCheckpoint]) -> dict[str, Any]:
    settings, result = study.onset_settings, study.onset_result
    responses = []
    for each in checkpoints:
        response = StudiedCheckpointResponse.of(each)
        if each.rollouts:
            share = wilson(each.flagged or 0, each.rollouts)
            response.value, response.low, response.high = share.value, share.low, share.high
        responses.append(response)
    total = len(checkpoints)
    if not study.status.is_over:
        sampled = {each.checkpoint_id for each in checkpoints if each.checkpoint_id}
        places = queries.checkpoints_until(session, study.run_id, settings.last_step, sampled=sampled)
        total = max(1 + max_checkpoints(len(places)), total)
    honest = session.get(Checkpoint, result.honest_id) if result and result.honest_id else None
    title = message = pattern_name(settings.detector, settings.cluster)
    waiting = next((each.run for each in checkpoints if each.rollouts is None), None)
    if waiting and waiting.progress.get("total"):
        message = f"{title}: {int(waiting.progress.get('done') or 0):,} of {int(waiting.progress['total']):,} rollouts"
    return {
        "title": title,
        "message": message,
        "settings": settings,
        "result": result,
        "conclusion": describe_onset(result),
        "checkpoints": responses,
        "evaluation_id": waiting.id if waiting and not study.status.is_over else None,
        "is_successful": study.status is RunStatus.COMPLETED,
        "done": sum(each.rollouts is not None for each in checkpoints),
        "total": total,
        "roll_back": _roll_back(session, run, honest),
    }


def _effort_fields(study: Study, sides: Sequence[tuple[StudyCheckpoint, list[EffortReply]]]) -> dict[str, Any]:
    settings, result = study.effort_settings, study.effort_result
    responses = []
    scores: dict[str, dict[bool, list[float]]] = {}
    for side, replies in sides:
        response = StudiedCheckpointResponse.of(side)
        response.replies = [CutReply.of(each) for each in replies]
        response.curve = mean_curve([ReplyCurve(each.task, tuple(each.values), each.score) for each in replies])
        if estimate := estimate_mean([each.score for each in replies]):
            response.value, response.low, response.high = estimate.mean, max(0.0, estimate.low), min(1.0, estimate.high)
        if side.rollouts == 0:
            response.note = "None of its rollouts was completed."
        elif side.rollouts and not side.succeeded:
            response.note = f"None of its {side.rollouts:,} rollouts succeeded."
        elif side.rollouts and not side.reasoned:
            response.note = (
                f"None of the {side.succeeded:,} successful rollouts reasons before its last answer: the reply is"
                " only the answer."
            )
        responses.append(response)
        for reply in replies:
            scores.setdefault(reply.task, {}).setdefault(side.is_base, []).append(reply.score)
    by_task = []
    for task, by_side in scores.items():
        means = {is_base: fmean(areas) for is_base, areas in by_side.items()}
        by_task.append(TaskAreas(task=task, own=means.get(False), base=means.get(True)))
    by_task.sort(key=lambda row: (row.own is None or row.base is None, (row.base or 0) - (row.own or 0)))
    evaluation, done, total = None, 0, None
    message = "comparing both sides"
    if playing := next((side for side, _ in sides if not side.run or side.run.status is not RunStatus.COMPLETED), None):
        evaluation = playing.run
        message = f"{playing.name} {'plays its tasks' if evaluation else 'waits to play its tasks'}"
        if evaluation:
            done, total = int(evaluation.progress.get("done") or 0), int(evaluation.progress.get("total") or 0) or None
    elif cutting := next(((side, replies) for side, replies in sides if not side.is_done), None):
        message = f"replies of {cutting[0].name} are cut"
        done, total = len(cutting[1]), cutting[0].chosen or None
    is_suspicious = result is not None and result.outcome is EffortOutcome.SUSPICIOUS
    return {
        "title": next((side.name for side, _ in sides if not side.is_base), "checkpoint"),
        "message": message,
        "settings": settings,
        "result": result,
        "conclusion": result.sentence if result else "",
        "checkpoints": responses,
        "evaluation_id": evaluation.id if evaluation and not study.status.is_over else None,
        "is_successful": study.status is RunStatus.COMPLETED and not is_suspicious,
        "done": done,
        "total": total,
        "fractions": list(cut_points(settings.cuts)),
        "by_task": by_task,
    }


def _roll_back(session: Session, run: Run, checkpoint: Checkpoint | None) -> RollBack | None:
    if checkpoint is None or checkpoint.run_id is None:
        return None
    of_environment = EnvironmentVersion.environment_id == run.version.environment_id
    versions = select(EnvironmentVersion).options(joinedload(EnvironmentVersion.environment)).where(of_environment)
    newest = session.scalars(versions.order_by(EnvironmentVersion.number.desc()).limit(1)).one()
    is_own = newest.id == run.version_id
    return RollBack.from_row(
        checkpoint,
        checkpoint_id=checkpoint.id,
        is_pruned=checkpoint.pruned_at is not None,
        newest_version=newest.number,
        is_own_version=is_own,
        is_certified=is_own or newest.certificate in {CheckStatus.PASSED, CheckStatus.WARNED},
    )
