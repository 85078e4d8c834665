"""What routes ask for: a session, and an actor with the role that the route needs."""

from collections.abc import Iterator
from typing import Annotated

from fastapi import Depends, Request
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.errors import AppError, NotAllowed, NotSignedIn
from backend.web.csrf import SAFE_METHODS, check_csrf
from backend.web.identity import Actor, find_actor


def get_session(request: Request) -> Iterator[Session]:
    """One request, one transaction: committed before the answer leaves, rolled back when the route raises."""
    refused: AppError | None = None
    with request.app.state.transaction() as session:
        try:
            yield session
        except AppError as error:
            if not error.keeps_changes:
                raise
            refused = error
    if refused is not None:
        raise refused


SessionDep = Annotated[Session, Depends(get_session, scope="function")]


def get_actor(request: Request, session: SessionDep) -> Actor:
    actor = find_actor(session, request)
    if actor is None:
        raise NotSignedIn
    request.state.actor = actor
    return actor


class RequireRole:
    """The role that a route needs. The app refuses to start with a route that declares none and is not public."""

    def __init__(self, role: Role) -> None:
        self.role = role

    async def __call__(self, request: Request, actor: Annotated[Actor, Depends(get_actor)]) -> Actor:
        if not actor.role.includes(self.role):
            raise NotAllowed(f"This needs the role {self.role}; yours is {actor.role}.")
        if actor.is_read_only and request.method not in SAFE_METHODS:
            raise NotAllowed("This API token is read-only. Use a token that may change things.")
        needed: Role = getattr(request.state, "needed_role", self.role)
        request.state.needed_role = max(needed, self.role, key=lambda role: role.rank)
        await check_csrf(request, actor)
        return actor


Viewer = Annotated[Actor, Depends(RequireRole(Role.VIEWER))]
Reviewer = Annotated[Actor, Depends(RequireRole(Role.REVIEWER))]
Author = Annotated[Actor, Depends(RequireRole(Role.AUTHOR))]
Trainer = Annotated[Actor, Depends(RequireRole(Role.TRAINER))]
Admin = Annotated[Actor, Depends(RequireRole(Role.ADMIN))]
