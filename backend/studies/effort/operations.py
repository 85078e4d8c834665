"""JSON of effort scores."""

import uuid

from fastapi import APIRouter
from sqlalchemy.orm import Session

from backend.studies.effort import queries, service
from backend.studies.effort.schemas import EffortRequest
from backend.studies.effort.view import EffortAnswer, ScoreAnswer, effort_of, told
from backend.studies.tables import EffortScore
from backend.web.dependencies import Author, SessionDep, Viewer

router = APIRouter(prefix="/api/v1/runs/{run_id}/effort", tags=["judging"])


@router.get("")
def effort(run_id: uuid.UUID, session: SessionDep, _: Viewer) -> EffortAnswer:
    """The effort scores of a training run or an evaluation, and what of it can be scored."""
    return effort_of(session, queries.get_run(session, run_id))


@router.post("", status_code=201)
def start_score(run_id: uuid.UUID, request: EffortRequest, session: SessionDep, actor: Author) -> ScoreAnswer:
    """Cut the reasoning of replies that succeeded, force the answer, grade it, and compare with the base."""
    return _answer(session, service.start_score(session, actor, queries.get_run(session, run_id), request))


@router.get("/{score_id}")
def get_score(run_id: uuid.UUID, score_id: uuid.UUID, session: SessionDep, _: Viewer) -> ScoreAnswer:
    """How far it is, or what it found."""
    return _answer(session, queries.get_score(session, run_id, score_id))


@router.post("/{score_id}/stop")
def stop_score(run_id: uuid.UUID, score_id: uuid.UUID, session: SessionDep, actor: Author) -> ScoreAnswer:
    """What was cut is kept."""
    score = queries.get_score(session, run_id, score_id)
    service.SCORES.stop(session, actor, score)
    return _answer(session, score)


@router.post("/{score_id}/resume")
def resume_score(run_id: uuid.UUID, score_id: uuid.UUID, session: SessionDep, actor: Author) -> ScoreAnswer:
    """Go on where it stopped."""
    score = queries.get_score(session, run_id, score_id)
    service.SCORES.resume(session, actor, score)
    return _answer(session, score)


def _answer(session: Session, score: EffortScore) -> ScoreAnswer:
    (answer,) = told(session, [score])
    return answer
