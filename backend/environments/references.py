"""How operations name an environment in their address."""

from sqlalchemy.orm import Session

from backend.environments.queries import get_environment
from backend.environments.tables import Environment
from backend.operations.declaration import reference
from backend.operations.ids import parse_id


@reference(Environment, "Name or id of an environment.")
def environment_named(session: Session, text: str) -> Environment:
    environment_id = parse_id(text)
    by_id = session.get(Environment, environment_id) if environment_id else None
    return by_id or get_environment(session, text)
