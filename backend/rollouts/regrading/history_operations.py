"""JSON of an environment's history by one version's rewards."""

from fastapi import APIRouter

from backend.environments.queries import get_environment, get_version
from backend.rollouts.regrading.history import grade_again, history_of
from backend.rollouts.regrading.history_view import HistoryAnswer, told
from backend.web.dependencies import Author, SessionDep, Viewer

router = APIRouter(prefix="/api/v1/environments/{name}/versions/{number}/history", tags=["re-scoring"])


@router.get("")
def history(name: str, number: int, session: SessionDep, _: Viewer) -> HistoryAnswer:
    """How far it is graded again, and how conclusions change: rankings, best checkpoints, means that moved."""
    return told(session, name, history_of(session, get_version(session, get_environment(session, name), number)))


@router.post("", status_code=201)
def regrade(name: str, number: int, session: SessionDep, actor: Author) -> HistoryAnswer:
    """Queue a re-score of every evaluation and training run of other versions that has none by this one yet."""
    version = get_version(session, get_environment(session, name), number)
    grade_again(session, actor, version)
    return told(session, name, history_of(session, version))
