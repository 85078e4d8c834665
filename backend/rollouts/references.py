"""How operations name a rollout in their address."""

from sqlalchemy.orm import Session

from backend.errors import NotFound
from backend.operations.declaration import reference
from backend.operations.ids import parse_id
from backend.rollouts.queries import get_rollout
from backend.rollouts.tables import Rollout


@reference(Rollout, "Id of a rollout.")
def find_rollout(session: Session, text: str) -> Rollout:
    rollout_id = parse_id(text)
    if rollout_id is None:
        raise NotFound("There is no such rollout.")
    return get_rollout(session, rollout_id)
