"""The job `studies.run`: advance a study until it waits for an evaluation or has finished.

An onset study bisects checkpoints: each plays the same tasks, and a detector counts the pattern. An effort study lets
both sides play, cuts and grades their replies in a process with their weights, and compares the two. No worker waits
for an evaluation: its end wakes the study again, which continues from its rows.
"""

import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TypeVar

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.checkpoints.tables import Checkpoint
from backend.core.events import announce, topic_of
from backend.core.session import transaction
from backend.domain.detectors.registry import ROLLOUT_DETECTORS
from backend.domain.detectors.run_view import Batch
from backend.domain.notifications.notices import NoticeKind
from backend.domain.statistics import Proportion, wilson
from backend.domain.studies import onset
from backend.domain.studies.effort import ReplyCurve, conclude_effort
from backend.domain.studies.study import OnsetResult, StudyKind
from backend.domain.vocabulary import RunStatus
from backend.errors import AppError
from backend.notifications import outbox
from backend.runs.evaluations import start_evaluation
from backend.runs.schemas import EvaluationRequest
from backend.runs.service import request_stop, resume_run
from backend.runs.tables import Run
from backend.studies.patterns import describe_onset, pattern_name
from backend.studies.queries import checkpoints_of_studies, checkpoints_until, replies_of, start_of
from backend.studies.tables import Study, StudyCheckpoint, checkpoint_name
from backend.web.audit import Requester
from workers.storage.detectors import load_detector_input, stored_steps
from workers.tasks.children import ChildFailed, must_run_child
from workers.tasks.registry import JobContext

EFFORT_MODULE = "workers.models.effort"
"""Cuts the replies of one side, in a process that loads its weights."""

DETECTORS = {each.id: each for each in ROLLOUT_DETECTORS}

T = TypeVar("T")

logger = structlog.get_logger(__name__)


class StudyFailed(Exception):
    """The study ends without a result; the message is the reason."""


def run(context: JobContext) -> None:
    study_id = uuid.UUID(context.arguments["study_id"])
    with transaction() as session:
        study = session.get(Study, study_id)
    if study is None:
        return
    if study.kind is StudyKind.ONSET:
        settings = study.onset_settings
        while played := advance(study_id, advance_onset):
            sample_id, evaluation_id = played
            # the pattern's detector, with the training run's thresholds
            thresholds = load_detector_input(study.run_id).settings[settings.detector].thresholds
            evaluation = load_detector_input(evaluation_id)
            count = 0
            flagged: set[uuid.UUID | None] = set()
            for _, rows in stored_steps(evaluation):
                count += len(rows)
                flags = DETECTORS[settings.detector].detect(Batch(rows, evaluation.context), thresholds)
                flagged |= {flag.rollout_id for flag in flags if settings.cluster in (None, flag.cluster)}
            with transaction() as session:
                sample = session.get_one(StudyCheckpoint, sample_id)
                sample.rollouts, sample.flagged = count, len(flagged)
        return
    while side_id := advance(study_id, advance_effort):
        try:
            must_run_child(EFFORT_MODULE, [str(side_id)], run_id=None)
        except ChildFailed as error:
            with transaction() as session:
                give_up(session, context, str(error))


def give_up(session: Session, context: JobContext, error: str) -> None:
    """Record that the worker failed and will not retry."""
    study = session.get(Study, uuid.UUID(context.arguments["study_id"]), with_for_update=True)
    if study is not None and not study.status.is_over:
        end(session, study, RunStatus.FAILED, error)


def advance_onset(session: Session, study: Study, is_resumed: bool) -> tuple[uuid.UUID, uuid.UUID] | None:
    """Start the next evaluation, or return the ids of a checkpoint and of its evaluation, which has to be scanned."""
    settings = study.onset_settings
    training = session.get_one(Run, study.run_id)
    samples = checkpoints_of_studies(session, [study.id])[study.id]
    sample = next((each for each in samples if each.rollouts is None), None)
    if sample is None:
        base = next((each for each in samples if each.is_base), None)
        sampled = {each.checkpoint_id: each for each in samples if each.checkpoint_id and not each.is_base}
        checkpoints = checkpoints_until(session, training.id, settings.last_step, sampled=sampled.keys())
        counts: dict[int, tuple[Proportion, bool]] = {}
        index = onset.BASE
        if base is not None:
            base_count = wilson(base.flagged or 0, base.rollouts or 0)
            for place, each in enumerate(checkpoints):
                if tested := sampled.get(each.id):
                    count = wilson(tested.flagged or 0, tested.rollouts or 0)
                    tested.chance = onset.p_value(base_count, count)
                    tested.is_above = onset.exceeds_base_rate(base_count, count)
                    counts[place] = count, tested.is_above
            hint = onset.nearest([each.step for each in checkpoints], settings.hint_step or 0)
            above = {place: is_above for place, (_, is_above) in counts.items()}
            if (following := onset.next_checkpoint(len(checkpoints), above, hint)) is None:
                _finish_onset(session, study, training, base_count, checkpoints, counts)
                return None
            index = following
        checkpoint = start_of(session, training) if index == onset.BASE else checkpoints[index]
        if checkpoint is None:
            raise StudyFailed("The weights that GRPO started from were deleted, so there is no base rate.")
        plan = settings.model_dump(include={"tasks", "group_size", "temperature", "seed"})
        sample = StudyCheckpoint(
            study_id=study.id,
            checkpoint_id=checkpoint.id,
            run=play(session, study, checkpoint, plan),
            is_base=index == onset.BASE,
            stage=checkpoint.stage,
            step=checkpoint.step,
        )
        session.add(sample)
        session.flush()
        announce(session, topic_of("run", training.id))
        is_resumed = True
    name = "the starting policy" if sample.is_base else sample.name
    if not has_played(session, study, sample, name, is_resumed=is_resumed) or sample.run_id is None:
        return None
    if settings.detector not in DETECTORS:
        raise StudyFailed(f"The detector {settings.detector!r} cannot scan sampled rollouts.")
    return sample.id, sample.run_id


def _finish_onset(
    session: Session,
    study: Study,
    training: Run,
    base: Proportion,
    checkpoints: list[Checkpoint],
    counts: dict[int, tuple[Proportion, bool]],
) -> None:
    """Store the interval and notify."""
    settings = study.onset_settings
    conclusion = onset.conclude_onset({index: is_above for index, (_, is_above) in counts.items()})
    result = OnsetResult(
        outcome=conclusion.outcome,
        is_monotone=conclusion.is_monotone,
        remarks=onset.caveats(base, [each.step for each in checkpoints], counts),
    )
    if conclusion.hacking is not None:
        hacking = checkpoints[conclusion.hacking]
        honest = start_of(session, training) if conclusion.honest == onset.BASE else checkpoints[conclusion.honest]
        result.hacking_id, result.hacking_step = hacking.id, hacking.step
        result.honest_id = honest.id if honest else None
        result.honest_step = honest.step if honest and conclusion.honest != onset.BASE else 0
    study.result = result.model_dump(mode="json")
    end(session, study, RunStatus.COMPLETED)
    title, sentence = pattern_name(settings.detector, settings.cluster), describe_onset(result)
    outbox.announce(
        session,
        kind=NoticeKind.ONSET,
        title=f"Onset of {title}",
        text=" ".join([f"{sentence.capitalize()}.", *result.remarks]),
        path=f"/runs/{study.run_id}/studies",
        run_id=study.run_id,
        evidence={"study": str(study.id), "detector": settings.detector, "cluster": settings.cluster},
    )
    logger.info("onset study completed", pattern=title, onset=sentence)


def advance_effort(session: Session, study: Study, is_resumed: bool) -> uuid.UUID | None:
    """Start the evaluations of both sides, or return the side whose replies have to be cut."""
    sides = checkpoints_of_studies(session, [study.id])[study.id]
    for side in sides:
        if side.run is None:
            checkpoint = session.get(Checkpoint, side.checkpoint_id) if side.checkpoint_id else None
            if checkpoint is None:
                raise StudyFailed(f"The checkpoint {side.name} was deleted.")
            side.run = play(session, study, checkpoint, study.effort_settings.plan)
            side.run_id = side.run.id
            session.flush()
            announce(session, topic_of("run", study.run_id))
    played = [has_played(session, study, side, side.name, is_resumed=is_resumed) for side in sides]
    if not all(played):
        return None
    for side in sides:
        if not side.is_done:
            return side.id
    curves: dict[bool, list[ReplyCurve]] = {True: [], False: []}
    replies = replies_of(session, [side.id for side in sides])
    for side in sides:
        curves[side.is_base] += [ReplyCurve(each.task, tuple(each.values), each.score) for each in replies[side.id]]
    result = conclude_effort(own=curves[False], base=curves[True])
    study.result = result.model_dump(mode="json")
    end(session, study, RunStatus.COMPLETED)
    logger.info("effort study completed", outcome=str(result.outcome), conclusion=result.sentence)
    return None


def advance(study_id: uuid.UUID, step: Callable[[Session, Study, bool], T | None]) -> T | None:
    """Run `step` on a locked study. It starts evaluations, or returns the work to do next; None if the study waits.

    The last argument of `step` is true if the study was just started or resumed, so that evaluations that were stopped
    are resumed too.
    """
    with transaction() as session:
        study = session.get(Study, study_id, with_for_update=True)
        if study is None:
            return None
        if study.status.is_over:
            # Stop the study's evaluations that no other running study of its kind waits for.
            own = select(StudyCheckpoint).options(joinedload(StudyCheckpoint.run))
            for played in session.scalars(own.where(StudyCheckpoint.study_id == study.id)).all():
                if played.run is None or played.run.status.is_over or played.run.stop_requested_at is not None:
                    continue
                others = select(Study.id).join(StudyCheckpoint, StudyCheckpoint.study_id == Study.id)
                others = others.where(StudyCheckpoint.run_id == played.run_id, Study.kind == study.kind)
                if session.scalar(others.where(Study.status == RunStatus.RUNNING).limit(1)) is None:
                    request_stop(session, _requester(study), played.run)
            return None
        is_resumed, study.status, study.reason = study.status is RunStatus.QUEUED, RunStatus.RUNNING, None
        try:
            return step(session, study, is_resumed)
        except (StudyFailed, AppError) as error:
            end(session, study, RunStatus.FAILED, str(error))
        return None


def end(session: Session, study: Study, status: RunStatus, reason: str | None = None) -> None:
    study.status, study.reason, study.ended_at = status, reason, datetime.now(UTC)
    session.flush()
    announce(session, topic_of("run", study.run_id))


def play(session: Session, study: Study, checkpoint: Checkpoint, plan: Mapping[str, object]) -> Run:
    """Start the evaluation of a checkpoint. Studies of the same kind with the same plan share it."""
    if study.kind is StudyKind.ONSET:
        settings = study.onset_settings
        amount = f"{settings.tasks}x{settings.group_size} at {settings.temperature} seed {settings.seed}"
    else:
        amount = " ".join(f"{name}={plan[name]}" for name in sorted(plan))
    request = EvaluationRequest.model_validate(
        {
            **plan,
            "version_id": study.version_id,
            "policy_id": checkpoint.policy_id,
            "checkpoint_id": checkpoint.id,
            "name": f"{study.kind.capitalize()}: {checkpoint_name(checkpoint.stage, checkpoint.step)} for "
            f"{session.get_one(Run, study.run_id).name}"[:200],
            "key": str(uuid.uuid5(study.version_id, f"{study.kind} {checkpoint.id} {amount}")),
        }
    )
    return start_evaluation(session, _requester(study), request)


def has_played(session: Session, study: Study, played: StudyCheckpoint, name: str, *, is_resumed: bool) -> bool:
    """Whether the evaluation is completed. One that was stopped is resumed with the study; otherwise it ends it."""
    evaluation = played.run
    if evaluation is None:
        raise StudyFailed(f"The evaluation of {name} was deleted. Start a new study.")
    if evaluation.status is RunStatus.COMPLETED:
        return True
    if evaluation.status.is_over and is_resumed:
        resume_run(session, _requester(study), evaluation)
    elif evaluation.status.is_over:
        reason = evaluation.reason or f"It is {evaluation.status}."
        end(session, study, RunStatus.STOPPED, f"The evaluation of {name} did not complete: {reason}")
    return False


def _requester(study: Study) -> Requester:
    if study.created_by is None:
        raise StudyFailed("The person who started this study was removed. Start a new study.")
    return Requester(study.created_by)
