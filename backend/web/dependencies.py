"""Dependencies of routes: the session, the actor with the required role, and protection from forged requests."""

import hmac
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

from fastapi import Depends, Request
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.errors import AppError, NotAllowed, NotSignedIn
from backend.web.identity import Actor, find_actor

T = TypeVar("T")
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
CSRF_FIELD = "csrf_token"
CSRF_HEADER = "x-csrf-token"
FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data")


class ForgedRequest(NotAllowed):
    """This form is too old or did not come from a page of Proctor. Reload the page and send it again."""


def get_session(request: Request) -> Iterator[Session]:
    """One request is one transaction: committed before the response is sent, rolled back if the route raises."""
    refusal: AppError | None = None
    with request.app.state.transaction() as session:
        try:
            yield session
        except AppError as error:
            if not error.keeps_changes:
                raise
            refusal = error
    if refusal is not None:
        raise refusal


def in_transaction(request: Request, call: Callable[[Session], T]) -> T:
    """Call a function in a separate transaction. Streams do this in a thread."""
    with request.app.state.transaction() as session:
        return call(session)


SessionDep = Annotated[Session, Depends(get_session, scope="function")]


def get_actor(request: Request, session: SessionDep) -> Actor:
    actor = find_actor(session, request)
    if actor is None:
        raise NotSignedIn
    request.state.actor = actor
    return actor


@dataclass(frozen=True)
class RequireRole:
    """Requires a role. The app refuses to start with a route that requires none and is not public."""

    role: Role

    async def __call__(self, request: Request, actor: Annotated[Actor, Depends(get_actor)]) -> Actor:
        if not actor.role.includes(self.role):
            raise NotAllowed(f"This needs the role {self.role}; yours is {actor.role}.")
        if actor.is_read_only and request.method not in SAFE_METHODS:
            raise NotAllowed("This API token is read-only. Use a token that may change things.")
        needed: Role = getattr(request.state, "needed_role", self.role)
        request.state.needed_role = max(needed, self.role, key=list(Role).index)
        if request.method not in SAFE_METHODS and not actor.is_token:  # browsers never send API tokens on their own
            sent = request.headers.get(CSRF_HEADER, "")
            if not sent and request.headers.get("content-type", "").startswith(FORM_TYPES):
                field = (await request.form()).get(CSRF_FIELD)
                sent = field if isinstance(field, str) else ""
            if not hmac.compare_digest(sent.encode(), actor.csrf_token.encode()):
                raise ForgedRequest
        return actor


Viewer = Annotated[Actor, Depends(RequireRole(Role.VIEWER))]
Reviewer = Annotated[Actor, Depends(RequireRole(Role.REVIEWER))]
Author = Annotated[Actor, Depends(RequireRole(Role.AUTHOR))]
Trainer = Annotated[Actor, Depends(RequireRole(Role.TRAINER))]
Admin = Annotated[Actor, Depends(RequireRole(Role.ADMIN))]


def is_cross_site(request: Request) -> bool:
    """Whether a page of another site sent this change. Also covers sign-in, where there is no session yet."""
    if request.method in SAFE_METHODS:
        return False
    if request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        return True
    if (origin := request.headers.get("origin")) is None:
        return False
    try:
        return urlsplit(origin).netloc != request.headers.get("host")
    except ValueError:  # an unclosed bracket
        return True
