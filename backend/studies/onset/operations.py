"""JSON of searches for an onset."""

import uuid

from fastapi import APIRouter
from sqlalchemy.orm import Session

from backend.runs.tables import Run
from backend.studies.onset import queries, service
from backend.studies.onset.schemas import OnsetRequest
from backend.studies.onset.view import OnsetAnswer, SearchAnswer, onset_of, told
from backend.studies.tables import OnsetSearch
from backend.web.dependencies import Author, SessionDep, Viewer

router = APIRouter(prefix="/api/v1/runs/{run_id}/onset", tags=["judging"])


@router.get("")
def onset(run_id: uuid.UUID, session: SessionDep, _: Viewer) -> OnsetAnswer:
    """Confirmed patterns of a training run, the searches for their onset, and the last honest checkpoint."""
    return onset_of(session, queries.get_training(session, run_id))


@router.post("", status_code=201)
def start_search(run_id: uuid.UUID, request: OnsetRequest, session: SessionDep, actor: Author) -> SearchAnswer:
    """Search for the first checkpoint that shows a confirmed pattern more often than the starting policy."""
    run = queries.get_training(session, run_id)
    return _answer(session, run, service.start_search(session, actor, run, request))


@router.get("/{search_id}")
def get_search(run_id: uuid.UUID, search_id: uuid.UUID, session: SessionDep, _: Viewer) -> SearchAnswer:
    """How far it is, or what it found."""
    run = queries.get_training(session, run_id)
    return _answer(session, run, queries.get_search(session, run_id, search_id))


@router.post("/{search_id}/stop")
def stop_search(run_id: uuid.UUID, search_id: uuid.UUID, session: SessionDep, actor: Author) -> SearchAnswer:
    """What was sampled is kept."""
    run = queries.get_training(session, run_id)
    search = queries.get_search(session, run_id, search_id)
    service.SEARCHES.stop(session, actor, search)
    return _answer(session, run, search)


@router.post("/{search_id}/resume")
def resume_search(run_id: uuid.UUID, search_id: uuid.UUID, session: SessionDep, actor: Author) -> SearchAnswer:
    """Go on where it stopped."""
    run = queries.get_training(session, run_id)
    search = queries.get_search(session, run_id, search_id)
    service.SEARCHES.resume(session, actor, search)
    return _answer(session, run, search)


def _answer(session: Session, run: Run, search: OnsetSearch) -> SearchAnswer:
    return told(session, run, search, queries.samples_of(session, [search.id]).get(search.id, ()))
