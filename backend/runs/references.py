"""References to runs in the addresses of operations."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.errors import NotFound
from backend.operations.declaration import reference
from backend.operations.ids import find_by_end, parse_id
from backend.runs.queries import get_run
from backend.runs.tables import Run


@reference(Run, "Id of a run, the last characters of it, or `last` for the newest run.")
def find_run(session: Session, text: str) -> Run:
    newest = select(Run.id).order_by(Run.created_at.desc(), Run.id.desc())
    run_id = session.scalar(newest.limit(1)) if text == "last" else parse_id(text)
    run_id = run_id or find_by_end(session, newest, Run.id, text)
    if run_id is None:
        raise NotFound("There is no such run.")
    return get_run(session, run_id)
