"""Dependencies of routes: the session, the actor with the required role, and protection from forged requests."""

import hmac
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Annotated, TypeVar
from urllib.parse import urlsplit

from fastapi import Depends, Request
from sqlalchemy import select
from sqlalchemy.exc import NoResultFound
from sqlalchemy.orm import Session

from backend.core.row_access import limit_to, project_of_key, require_for_changes
from backend.core.tables import Base
from backend.domain.vocabulary import Role
from backend.errors import AppError, NotAllowed, NotFound, NotSignedIn
from backend.web.identity import Actor, find_actor

T = TypeVar("T")
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
PROJECT_COOKIE = "proctor_project"
"""Id of the project that a person chose in the header."""
PROJECT_HEADER = "proctor-project"
"""Name or id of the project in which a script creates and lists."""
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
        except NoResultFound as error:  # a row that was required, but is of a project that the actor does not see
            raise NotFound from error
    if refusal is not None:
        raise refusal


def in_transaction(request: Request, call: Callable[[Session], T]) -> T:
    """Call a function in a separate transaction. Streams do this in a thread."""
    with limited_transaction(request) as session:
        return call(session)


@contextmanager
def limited_transaction(request: Request) -> Iterator[Session]:
    """Open a separate transaction that sees what the request's actor may see."""
    with request.app.state.transaction() as session:
        actor: Actor | None = getattr(request.state, "actor", None)
        if actor is not None:
            limit_to(session, actor.access)
        yield session


SessionDep = Annotated[Session, Depends(get_session, scope="function")]


PLACES = {
    "checkpoint_id": "checkpoints",
    "deletion_id": "deletions",
    "export_id": "exports",
    "fixture_id": "fixtures",
    "import_id": "environment_imports",
    "item_id": "review_items",
    "other_id": "rollouts",
    "policy_id": "policies",
    "preflight_id": "preflights",
    "rollout_id": "rollouts",
    "run_id": "runs",
    "study_id": "studies",
    "sweep_id": "sweeps",
}
"""Tables of the ids in addresses."""


def get_actor(request: Request, session: SessionDep) -> Actor:
    """Return the signed-in member, with the role in the project of the request's subject.

    From here on, the session is limited to the rows that the member may see.
    """
    actor = find_actor(session, request)
    if actor is None:
        raise NotSignedIn
    if chosen := _chosen_project(request, actor):
        actor = replace(actor, project_id=chosen)
    limit_to(session, actor.access, actor.project_id, hides_deleted=actor.hides_deleted)
    if not actor.access.is_uniform:
        for name, text in request.path_params.items():
            actor = actor.within(_project_of_segment(session, request, name, str(text)))
    request.state.actor = actor
    return actor


def _chosen_project(request: Request, actor: Actor) -> uuid.UUID | None:
    """Return the project that a browser's cookie or a script's header names. A stale cookie counts as none."""
    names = actor.access.names
    if named := request.headers.get(PROJECT_HEADER):
        found = [project_id for project_id, name in names.items() if named in (name, str(project_id))]
        if not found:
            raise NotFound(f"There is no project {named[:60]}.")
        return found[0]
    cookie = request.cookies.get(PROJECT_COOKIE) if not actor.is_token else None
    return next((project_id for project_id in names if str(project_id) == cookie), None)


def _project_of_segment(session: Session, request: Request, name: str, text: str) -> uuid.UUID | None:
    """Return the project of the row that a segment of a page's address names."""
    if name == "name" and request.url.path.startswith("/environments/"):
        environments = Base.metadata.tables["environments"]
        return session.connection().scalar(select(environments.c.project_id).where(environments.c.name == text))
    try:
        if name == "project_id":
            return uuid.UUID(text)
        return project_of_key(session, Base.metadata.tables[PLACES[name]], uuid.UUID(text)) if name in PLACES else None
    except ValueError:
        return None  # the route refuses it


@dataclass(frozen=True)
class RequireRole:
    """Requires a role. The app refuses to start with a route that requires none and is not public."""

    role: Role
    is_elsewhere: bool = False
    """The project that matters is not in a page's address: the role in any project admits the request, and what it
    changes is checked by row."""

    async def __call__(
        self, request: Request, session: SessionDep, actor: Annotated[Actor, Depends(get_actor)]
    ) -> Actor:
        role = actor.access.highest if self.is_elsewhere else actor.role
        if not role.includes(self.role):
            raise NotAllowed(f"This needs the role {self.role}; yours is {role}.")
        if actor.is_read_only and request.method not in SAFE_METHODS:
            raise NotAllowed("This API token is read-only. Use a token that may change things.")
        needed: Role = getattr(request.state, "needed_role", self.role)
        request.state.needed_role = max(needed, self.role, key=list(Role).index)
        require_for_changes(session, request.state.needed_role)
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
ElsewhereAuthor = Annotated[Actor, Depends(RequireRole(Role.AUTHOR, is_elsewhere=True))]
ElsewhereTrainer = Annotated[Actor, Depends(RequireRole(Role.TRAINER, is_elsewhere=True))]
"""With the role in any project: the page's address does not name the item."""
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
