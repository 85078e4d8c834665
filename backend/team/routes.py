"""Pages of the team: sign-in, one-time links, one's own account, members, audit."""

import uuid
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from backend.db.models import ApiToken, AuditEvent, Person
from backend.domain.vocabulary import Role
from backend.settings import get_settings
from backend.team import entrance, queries, service
from backend.team.forms import Invitation, PasswordChange, RoleChange, SignIn, TokenRequest, Welcome
from backend.web.dependencies import Admin, SessionDep, Viewer
from backend.web.forms import read_form
from backend.web.identity import SESSION_COOKIE
from backend.web.pages import page, see_other
from backend.web.paging import LIMIT, After

router = APIRouter()


@dataclass(frozen=True, slots=True)
class SignInPage:
    email: str
    next: str
    error: str


@dataclass(frozen=True, slots=True)
class LinkPage:
    person: Person
    secret: str


@dataclass(frozen=True, slots=True)
class TeamPage:
    people: list[Person]
    roles: list[Role]
    invited: Person | None = None
    link: str = ""


@dataclass(frozen=True, slots=True)
class AccountPage:
    person: Person
    tokens: list[ApiToken]
    roles: list[Role]
    new_token: str = ""


@dataclass(frozen=True, slots=True)
class AuditPage:
    events: list[AuditEvent]
    subjects: list[str]
    subject: str
    next_url: str


def safe_next(url: str) -> str:
    """Only ever back to a page of this installation."""
    return url if url.startswith("/") and not url.startswith(("//", "/\\")) and "\n" not in url else "/"


@router.get("/sign-in")
def show_sign_in(request: Request, next: str = "/") -> Response:
    return page(request, "team/sign_in.html", SignInPage("", safe_next(next), ""))


@router.post("/sign-in")
def sign_in(request: Request, session: SessionDep, form: Annotated[SignIn, Depends(read_form(SignIn))]) -> Response:
    address = request.client.host if request.client else "unknown"
    secret = entrance.sign_in(session, form.email, form.password, address)
    if secret is None:
        # not raised: the failed attempt must be committed
        context = SignInPage(form.email, safe_next(form.next), "Address or password is wrong.")
        return page(request, "team/sign_in.html", context, status=422)
    return _signed_in(request, secret, safe_next(form.next))


@router.post("/sign-out")
def sign_out(request: Request, session: SessionDep, actor: Viewer) -> Response:
    entrance.sign_out(session, actor, request.cookies.get(SESSION_COOKIE, ""))
    response = see_other("/sign-in")
    response.delete_cookie(SESSION_COOKIE, path="/")
    return response


@router.get("/links/{secret}")
def show_link(request: Request, session: SessionDep, secret: str) -> Response:
    return page(request, "team/link.html", LinkPage(entrance.person_of_link(session, secret), secret))


@router.post("/links/{secret}")
def use_link(
    request: Request, session: SessionDep, secret: str, form: Annotated[Welcome, Depends(read_form(Welcome))]
) -> Response:
    return _signed_in(request, entrance.use_link(session, secret, form), "/")


def _signed_in(request: Request, secret: str, url: str) -> Response:
    response = see_other(url)
    is_secure = get_settings().secure_cookies or request.url.scheme == "https"
    response.set_cookie(
        SESSION_COOKIE,
        secret,
        max_age=entrance.SESSION_DAYS * 86400,
        httponly=True,
        samesite="lax",
        secure=is_secure,
        path="/",
    )
    return response


@router.get("/me")
def show_account(request: Request, session: SessionDep, actor: Viewer) -> Response:
    return page(request, "team/account.html", _account(session, actor))


def _account(session: SessionDep, actor: Viewer, new_token: str = "") -> AccountPage:
    person = queries.get_person(session, actor.person_id)
    roles = [role for role in Role if actor.role.includes(role)]
    return AccountPage(person, list(queries.tokens_of(session, person.id)), roles, new_token)


@router.post("/me/password")
def change_password(
    request: Request,
    session: SessionDep,
    actor: Viewer,
    form: Annotated[PasswordChange, Depends(read_form(PasswordChange))],
) -> Response:
    service.refuse_token_actor(actor)
    service.change_password(session, actor, form, cookie=request.cookies.get(SESSION_COOKIE, ""))
    return see_other("/me", notice="Your password is changed; other browsers are signed out.")


@router.post("/me/tokens")
def create_token(
    request: Request,
    session: SessionDep,
    actor: Viewer,
    form: Annotated[TokenRequest, Depends(read_form(TokenRequest))],
) -> Response:
    _, secret = service.create_token(session, actor, form)
    return page(request, "team/account.html", _account(session, actor, secret), block="api_tokens")


@router.post("/tokens/{token_id}/revoke")
def revoke_token(session: SessionDep, actor: Viewer, token_id: uuid.UUID) -> Response:
    token = service.revoke_token(session, actor, token_id)
    return see_other("/me", notice=f"The token “{token.name}” is revoked.")


@router.get("/team")
def show_team(request: Request, session: SessionDep, actor: Viewer) -> Response:
    return page(request, "team/members.html", TeamPage(list(queries.people(session)), list(Role)))


@router.post("/team")
def invite(
    request: Request, session: SessionDep, actor: Admin, form: Annotated[Invitation, Depends(read_form(Invitation))]
) -> Response:
    person, link = service.invite(session, actor, form)
    return _with_link(request, session, person, link)


@router.post("/team/{person_id}/link")
def renew_link(request: Request, session: SessionDep, actor: Admin, person_id: uuid.UUID) -> Response:
    person, link = service.renew_link(session, actor, person_id)
    return _with_link(request, session, person, link)


def _with_link(request: Request, session: SessionDep, person: Person, link: str) -> Response:
    context = TeamPage(list(queries.people(session)), list(Role), person, link)
    return page(request, "team/members.html", context, block="members")


@router.post("/team/{person_id}/role")
def change_role(
    session: SessionDep,
    actor: Admin,
    person_id: uuid.UUID,
    form: Annotated[RoleChange, Depends(read_form(RoleChange))],
) -> Response:
    person = service.change_role(session, actor, person_id, form.role)
    return see_other("/team", notice=f"{person.name} is now {person.role}.")


@router.post("/team/{person_id}/disable")
def disable(session: SessionDep, actor: Admin, person_id: uuid.UUID) -> Response:
    person = service.disable(session, actor, person_id)
    return see_other("/team", notice=f"{person.name} can no longer sign in.")


@router.post("/team/{person_id}/enable")
def enable(session: SessionDep, actor: Admin, person_id: uuid.UUID) -> Response:
    person = service.enable(session, actor, person_id)
    return see_other("/team", notice=f"{person.name} may sign in again.")


@router.get("/audit")
def show_audit(request: Request, session: SessionDep, actor: Admin, after: After = None, subject: str = "") -> Response:
    found = queries.audit_events(session, after=after, limit=LIMIT, subject=subject)
    next_url = f"/audit?subject={subject}&after={found.next}" if found.next else ""
    subjects = list(queries.audit_subjects(session))
    return page(request, "team/audit.html", AuditPage(found.items, subjects, subject, next_url))
