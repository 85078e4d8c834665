"""Advance a study by one step: start evaluations, wait for them, record how the study ended.

No worker waits for an evaluation. Its end wakes the study again, which continues from its rows.
"""

import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.checkpoints.tables import Checkpoint
from backend.core.events import announce, run_topic
from backend.core.session import transaction
from backend.domain.studies.study import StudyKind
from backend.domain.vocabulary import RunStatus
from backend.errors import AppError
from backend.runs.evaluations import start_evaluation
from backend.runs.schemas import EvaluationRequest
from backend.runs.service import request_stop, resume_run
from backend.runs.tables import Run
from backend.studies.tables import Study, StudyCheckpoint, checkpoint_name
from backend.web.audit import Requester

T = TypeVar("T")


class StudyFailed(Exception):
    """The study ends without a result; the message is the reason."""


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
    announce(session, run_topic(study.run_id))


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
