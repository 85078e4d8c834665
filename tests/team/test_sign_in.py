"""Signing in and out."""

from datetime import UTC, datetime, timedelta

import pytest
from argon2 import PasswordHasher
from fastapi.testclient import TestClient
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.team.tables import AttemptLimit, Person, WebSession
from backend.web.identity import SESSION_COOKIE
from tests.web_fixtures import make_person

PASSWORD = "correct horse battery"
HASH = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1).hash(PASSWORD)


@pytest.fixture
def person(session: Session) -> Person:
    person = make_person(session, Role.AUTHOR, "ann@example.org")
    person.password_hash = HASH
    session.flush()
    return person


def _sign_in(client: TestClient, password: str = PASSWORD, **more: str) -> int:
    return client.post("/sign-in", data={"email": " Ann@example.org ", "password": password, **more}).status_code


def test_the_right_password_opens_a_session(stranger: TestClient, person: Person) -> None:
    answer = stranger.post("/sign-in", data={"email": "ann@example.org", "password": PASSWORD, "next": "/team"})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/team"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert stranger.get("/api/v1/me").json()["role"] == "author"


@pytest.mark.parametrize("url", ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:x"])
def test_it_never_leads_to_another_site(stranger: TestClient, person: Person, url: str) -> None:
    answer = stranger.post("/sign-in", data={"email": "ann@example.org", "password": PASSWORD, "next": url})
    assert answer.headers["location"] == "/"


def test_a_wrong_password_and_an_unknown_address_read_the_same(stranger: TestClient, person: Person) -> None:
    wrong = stranger.post("/sign-in", data={"email": "ann@example.org", "password": "x" * 12})
    unknown = stranger.post("/sign-in", data={"email": "bob@example.org", "password": "x" * 12})
    assert (wrong.status_code, unknown.status_code) == (422, 422)
    assert "Address or password is wrong" in wrong.text
    assert wrong.text.replace("ann", "bob") == unknown.text


def test_a_disabled_member_cannot_sign_in(stranger: TestClient, person: Person, session: Session) -> None:
    person.disabled_at = datetime.now(UTC)
    session.flush()
    assert _sign_in(stranger) == 422


def test_after_five_wrong_attempts_even_the_right_password_waits(
    stranger: TestClient, person: Person, session: Session
) -> None:
    for _ in range(5):
        _sign_in(stranger, "wrong password")
    assert _sign_in(stranger) == 429
    session.execute(update(AttemptLimit).values(resets_at=datetime.now(UTC)))
    assert _sign_in(stranger) == 303


def test_sign_out_ends_the_session_on_the_server(viewer: TestClient, session: Session) -> None:
    cookie = viewer.cookies[SESSION_COOKIE]
    assert viewer.post("/sign-out").headers["location"] == "/sign-in"
    assert session.scalars(select(WebSession)).all() == []
    viewer.cookies.set(SESSION_COOKIE, cookie)
    assert viewer.get("/api/v1/me").status_code == 401


def test_a_session_that_ran_out_is_no_session(viewer: TestClient, session: Session) -> None:
    session.scalars(select(WebSession)).one().expires_at = datetime.now(UTC) - timedelta(seconds=1)
    session.flush()
    assert viewer.get("/team").headers["location"] == "/sign-in?next=/team"


def test_htmx_is_led_to_sign_in_and_back_to_the_page_it_was_on(stranger: TestClient) -> None:
    headers = {"HX-Request": "true", "HX-Request-Type": "partial", "HX-Current-URL": "http://testserver/runs?a=1"}
    answer = stranger.get("/team", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["hx-redirect"] == "/sign-in?next=/runs%3Fa%3D1"
