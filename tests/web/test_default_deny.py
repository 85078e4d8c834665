"""Every route names the role it needs; lower roles are refused."""

import re
import uuid

import pytest
from fastapi import APIRouter, FastAPI
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.team.tables import ApiToken
from backend.web.identity import hash_secret
from backend.web.routing import PUBLIC, UnguardedRoute, guarded_routes, refuse_unguarded
from tests.web_fixtures import ClientFor, browser, make_person

REFUSED = {401, 403, 303}
"""Refused: unauthenticated, not allowed, or redirected to the sign-in page."""


def _requests(app: FastAPI) -> list[tuple[str, str, Role | None]]:
    """(method, path with made-up ids, role) of every route."""
    return [
        (method, re.sub(r"\{[^}]+\}", str(uuid.uuid4()), path), role)
        for path, methods, role in guarded_routes(app)
        for method in sorted(methods - {"HEAD"})
        if path not in PUBLIC
    ]


def _is_refused(status: int, location: str | None) -> bool:
    return status in REFUSED and (status != 303 or (location or "").startswith("/sign-in"))


def test_every_route_declares_a_role_or_is_public(app: FastAPI) -> None:
    undeclared = [path for path, _, role in guarded_routes(app) if role is None and path not in PUBLIC]
    assert undeclared == []
    assert len(_requests(app)) > 20


def test_the_public_list_holds_only_routes_that_exist(app: FastAPI) -> None:
    assert {path for path, _, _ in guarded_routes(app)} >= PUBLIC


def test_the_app_refuses_to_start_with_an_unguarded_route() -> None:
    app = FastAPI()
    router = APIRouter()
    router.add_api_route("/open-door", lambda: "come in")
    app.include_router(router)
    with pytest.raises(UnguardedRoute, match="/open-door"):
        refuse_unguarded(app)


def test_a_stranger_passes_nowhere(app: FastAPI, stranger: TestClient) -> None:
    for method, path, _ in _requests(app):
        answer = stranger.request(method, path)
        assert _is_refused(answer.status_code, answer.headers.get("location")), f"{method} {path}"


@pytest.mark.parametrize("role", list(Role))
def test_a_member_passes_only_where_the_role_suffices(app: FastAPI, client_for: ClientFor, role: Role) -> None:
    client = client_for(role)
    closed = [(method, path) for method, path, needed in _requests(app) if needed and not role.includes(needed)]
    assert bool(closed) is (role is not Role.ADMIN)
    for method, path in closed:
        assert client.request(method, path).status_code == 403, f"{method} {path}"


def test_a_token_does_no_more_than_its_own_role(app: FastAPI, session: Session) -> None:
    person = make_person(session, Role.ADMIN)
    session.add(ApiToken(person_id=person.id, name="t", prefix="pt_", token_hash=hash_secret("pt_x"), role=Role.VIEWER))
    session.flush()
    client = browser(app, Authorization="Bearer pt_x")
    assert client.get("/api/v1/me").json()["role"] == "viewer"
    closed = [(method, path) for method, path, needed in _requests(app) if needed and needed is not Role.VIEWER]
    assert len(closed) > 100
    for method, path in closed:
        assert client.request(method, path).status_code == 403, f"{method} {path}"


def test_a_wrong_token_is_refused_even_with_a_good_cookie(viewer: TestClient) -> None:
    assert viewer.get("/api/v1/me").status_code == 200
    assert viewer.get("/api/v1/me", headers={"Authorization": "Bearer pt_wrong"}).status_code == 401
