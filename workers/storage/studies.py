"""What the jobs of searches for an onset and of effort scores do alike: one move at a time, and evaluations between.

Nothing waits for an evaluation: its end wakes the study again, and whatever was interrupted goes on where the rows
stand.
"""

import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import select
from sqlalchemy.orm import Session, joinedload

from backend.checkpoints.tables import Checkpoint
from backend.core.events import announce, run_topic
from backend.core.session import transaction
from backend.domain.vocabulary import RunStatus
from backend.errors import AppError
from backend.runs.evaluations import start_evaluation
from backend.runs.schemas import EvaluationRequest
from backend.runs.service import request_stop, resume_run
from backend.runs.tables import Run
from backend.studies.queries import S, checkpoint_name
from backend.studies.service import Studies
from backend.studies.tables import StudiedCheckpoint, Study
from workers.storage.runs import JobRequester
from workers.tasks.registry import JobContext

T = TypeVar("T")


class CannotGoOn(Exception):
    """The study ends without an answer; the message says why."""


def id_of(sort: Studies[S], context: JobContext) -> uuid.UUID:
    return uuid.UUID(context.arguments[sort.of.key])


def move(sort: Studies[S], study_id: uuid.UUID, go_on: Callable[[Session, S, bool], T | None]) -> T | None:
    """`go_on` starts what is to be played next, or says what is to be done. None: the study waits or is over.

    Its last argument: somebody started or resumed it just now, so that an evaluation that was stopped goes on too.
    """
    with transaction() as session:
        study = session.get(sort.rows, study_id, with_for_update=True)
        if study is None:
            return None
        if study.status.is_over:
            _stop_evaluations(session, sort, study)
            return None
        is_taken_up, study.status, study.reason = study.status is RunStatus.QUEUED, RunStatus.RUNNING, None
        try:
            return go_on(session, study, is_taken_up)
        except (CannotGoOn, AppError) as error:
            end(session, study, RunStatus.FAILED, str(error))
        return None


def end(session: Session, study: Study, status: RunStatus, reason: str | None = None) -> None:
    study.status, study.reason, study.ended_at = status, reason, datetime.now(UTC)
    session.flush()
    announce(session, run_topic(study.run_id))


def fail(session: Session, sort: Studies[S], context: JobContext, error: str) -> None:
    """The worker failed and will not try again."""
    study = session.get(sort.rows, id_of(sort, context), with_for_update=True)
    if study is not None and not study.status.is_over:
        end(session, study, RunStatus.FAILED, error)


def play(
    session: Session, study: Study, checkpoint: Checkpoint, plan: Mapping[str, Any], word: str, amount: str
) -> Run:
    """Have a checkpoint play. Studies of the same sort (`word`) and `amount` share what each checkpoint played."""
    asked_at = session.get_one(Run, study.run_id)
    name = checkpoint_name(checkpoint.stage, checkpoint.step)
    request = EvaluationRequest(
        **plan,
        version_id=study.version_id,
        policy_id=checkpoint.policy_id,
        checkpoint_id=checkpoint.id,
        name=f"{word.capitalize()}: {name} for {asked_at.name}"[:200],
        key=str(uuid.uuid5(study.version_id, f"{word} {checkpoint.id} {amount}")),
    )
    return start_evaluation(session, _asker(study), request)


def is_played(session: Session, study: Study, played: StudiedCheckpoint, name: str, *, is_taken_up: bool) -> bool:
    """Did it play all? An evaluation that was stopped goes on where the study was taken up, else ends the study."""
    evaluation = played.run
    if evaluation is None:
        raise CannotGoOn(f"The evaluation of {name} was deleted. Start another {study.noun}.")
    if evaluation.status is RunStatus.COMPLETED:
        return True
    if evaluation.status.is_over and is_taken_up:
        resume_run(session, _asker(study), evaluation)
    elif evaluation.status.is_over:
        told = evaluation.reason or f"It is {evaluation.status}."
        end(session, study, RunStatus.STOPPED, f"The evaluation of {name} did not end: {told}")
    return False


def _stop_evaluations(session: Session, sort: Studies[S], study: S) -> None:
    """What it waits for is played for nobody any more, unless another one of its sort waits."""
    mine = select(sort.checkpoints).options(joinedload(sort.checkpoints.run)).where(sort.of == study.id)
    for played in session.scalars(mine).all():
        if played.run is None or played.run.status.is_over or played.run.stop_requested_at is not None:
            continue
        others = select(sort.checkpoints.id).join(sort.rows, sort.rows.id == sort.of)
        others = others.where(sort.checkpoints.run_id == played.run_id, sort.rows.status == RunStatus.RUNNING)
        if session.scalar(others.limit(1)) is None:
            request_stop(session, _asker(study), played.run)


def _asker(study: Study) -> JobRequester:
    if study.asked_by is None:
        raise CannotGoOn(f"Who asked for it was removed: start another {study.noun}.")
    return JobRequester(study.asked_by)
