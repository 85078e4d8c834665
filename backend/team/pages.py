"""Pages of the team: sign-in, one-time links, your account, members, audit log."""

import uuid
from datetime import timedelta
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from sqlalchemy import select

from backend.domain.vocabulary import Role
from backend.team import auth, queries, service
from backend.team.schemas import CreateToken, InviteMember, PasswordChange, SignIn, UpdateMember, Welcome
from backend.team.tables import AuditEvent, Person
from backend.web.dependencies import Admin, SessionDep, Viewer
from backend.web.form_data import read_form
from backend.web.identity import SESSION_COOKIE, SESSION_LIFETIME, client_of
from backend.web.page import page, see_other
from backend.web.paging import LIMIT, After

router = APIRouter()

DEVICE_COOKIE = "proctor_device"


def safe_next(url: str) -> str:
    """Return the address if it is a page of this installation, else the overview."""
    return url if url.startswith("/") and not url.startswith(("//", "/\\")) and "\n" not in url else "/"


@router.get("/sign-in")
def show_sign_in(request: Request, next: str = "/") -> Response:
    return page(request, "team/sign_in.html", {"email": "", "next": safe_next(next), "error": ""})


@router.post("/sign-in")
def sign_in(request: Request, form: Annotated[SignIn, Depends(read_form(SignIn))]) -> Response:
    """Sign in. Takes no session: the attempt is committed first, and no transaction is open while hashing."""
    cookies = request.cookies
    secrets = auth.sign_in(
        request.app.state.transaction,
        form.email,
        form.password,
        client_of(request),
        device=cookies.get(DEVICE_COOKIE, ""),
        previous=cookies.get(SESSION_COOKIE, ""),
    )
    if secrets is None:
        error = "Address or password is wrong."
        context = {"email": form.email, "next": safe_next(form.next), "error": error}
        return page(request, "team/sign_in.html", context, status=422)
    return _signed_in(secrets, safe_next(form.next))


@router.post("/sign-out")
def sign_out(session: SessionDep, actor: Viewer) -> Response:
    service.refuse_token_actor(actor)
    auth.sign_out(session, actor)
    response = see_other("/sign-in")
    response.delete_cookie(SESSION_COOKIE, path="/")
    return response


@router.get("/links/{secret}")
def show_link(request: Request, session: SessionDep, secret: str) -> Response:
    context = {"person": queries.get_usable_link(session, secret).person, "secret": secret}
    return page(request, "team/link.html", context)


@router.post("/links/{secret}")
def use_link(
    request: Request, session: SessionDep, secret: str, form: Annotated[Welcome, Depends(read_form(Welcome))]
) -> Response:
    previous = request.cookies.get(SESSION_COOKIE, "")
    return _signed_in(auth.use_link(session, secret, form, client_of(request), previous=previous), "/")


def _signed_in(secrets: auth.BrowserSecrets, url: str) -> Response:
    response = see_other(secrets.home if url == "/" else url)
    for name, secret, lifetime, path in (
        (SESSION_COOKIE, secrets.session, SESSION_LIFETIME, "/"),
        (DEVICE_COOKIE, secrets.device, timedelta(days=365), "/sign-in"),
    ):
        seconds = int(lifetime.total_seconds())
        response.set_cookie(name, secret, max_age=seconds, httponly=True, samesite="lax", path=path)
    return response


@router.get("/me")
def show_account(request: Request, session: SessionDep, actor: Viewer) -> Response:
    return _account_page(request, session, actor)


def _account_page(request: Request, session: SessionDep, actor: Viewer, new_token: str = "") -> Response:
    person, tokens = queries.get_person(session, actor.person_id), queries.tokens_of(session, actor.person_id)
    context = {
        "person": person,
        "sessions": queries.sessions_of(session, person.id),
        "current": actor.session_id,
        "tokens": tokens,
        "names": {token.id: token.name for token in tokens},
        "roles": [role for role in Role if actor.role.includes(role)],
        "new_token": new_token,
    }
    return page(request, "team/account.html", context, block="api_tokens" if new_token else None)


@router.post("/me/password")
def change_password(
    session: SessionDep, actor: Viewer, form: Annotated[PasswordChange, Depends(read_form(PasswordChange))]
) -> Response:
    service.refuse_token_actor(actor)
    revoked = service.change_password(session, actor, form)
    ended = f"Other sessions ended: {revoked.sessions}. API tokens revoked: {revoked.tokens}."
    return see_other("/me", notice=f"Your password was changed. {ended}")


@router.post("/me/tokens")
def create_token(
    request: Request, session: SessionDep, actor: Viewer, form: Annotated[CreateToken, Depends(read_form(CreateToken))]
) -> Response:
    _, secret = service.create_token(session, actor, form)
    return _account_page(request, session, actor, secret)


@router.get("/team")
def show_team(request: Request, session: SessionDep, _: Viewer) -> Response:
    return _members_page(request, session)


@router.post("/team")
def invite(
    request: Request, session: SessionDep, actor: Admin, form: Annotated[InviteMember, Depends(read_form(InviteMember))]
) -> Response:
    return _members_page(request, session, *service.invite(session, actor, form))


@router.post("/team/{person_id}/link")
def renew_link(request: Request, session: SessionDep, actor: Admin, person_id: uuid.UUID) -> Response:
    return _members_page(request, session, *service.renew_link(session, actor, person_id))


def _members_page(request: Request, session: SessionDep, invited: Person | None = None, link: str = "") -> Response:
    context = {"people": queries.people(session), "roles": list(Role), "invited": invited, "link": link}
    return page(request, "team/members.html", context, block="members" if invited else None)


@router.post("/team/{person_id}/{change}")
def change_member(
    session: SessionDep,
    actor: Admin,
    person_id: uuid.UUID,
    change: Literal["role", "disable", "enable"],
    form: Annotated[UpdateMember, Depends(read_form(UpdateMember))],
) -> Response:
    if change != "role":
        form = UpdateMember(disabled=change == "disable")
    person = service.update_member(session, actor, person_id, form)
    done = {
        "role": f"is now {person.role}.",
        "disable": "can no longer sign in. All sessions and API tokens ended.",
        "enable": "may sign in again.",
    }
    return see_other("/team", notice=f"{person.name} {done[change]}")


@router.get("/audit")
def show_audit(request: Request, session: SessionDep, actor: Admin, after: After = None, subject: str = "") -> Response:
    found = queries.audit_events(session, after=after, limit=LIMIT, subject=subject)
    next_url = f"/audit?subject={subject}&after={found.next}" if found.next else ""
    subjects = session.scalars(select(AuditEvent.subject_kind).distinct().order_by(AuditEvent.subject_kind)).all()
    context = {"events": found.items, "subjects": subjects, "subject": subject, "next_url": next_url}
    return page(request, "team/audit.html", context)
