"""The first start's link, invitations and forgotten passwords."""

from datetime import UTC, datetime, timedelta

from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.team.auth import first_admin_link
from backend.team.passwords import SHORTEST
from backend.team.service import issue_local_token
from backend.team.tables import Person, SignInLink
from backend.web.identity import SESSION_COOKIE
from tests.web_fixtures import make_person

GOOD = "correct horse battery"


def _path(link: str) -> str:
    return "/links/" + link.rsplit("/", 1)[1]


def test_a_fresh_installation_gives_a_link_to_its_first_administrator(session: Session, stranger: TestClient) -> None:
    link = first_admin_link(session)
    assert link
    page = stranger.get(_path(link)).text
    assert "admin@localhost" in page
    assert f'minlength="{SHORTEST}"' in page
    answer = stranger.post(_path(link), data={"name": "Ada", "password": GOOD})
    assert answer.status_code == 303
    assert SESSION_COOKIE in answer.cookies
    person = session.scalars(select(Person)).one()
    assert (person.name, person.role) == ("Ada", Role.ADMIN)
    assert first_admin_link(session) is None


def test_asking_again_before_it_is_used_gives_a_new_link_and_ends_the_old(
    session: Session, stranger: TestClient
) -> None:
    first, second = first_admin_link(session), first_admin_link(session)
    assert first
    assert second
    assert stranger.get(_path(first)).status_code == 404
    assert stranger.get(_path(second)).status_code == 200
    assert len(session.scalars(select(Person)).all()) == 1


def test_a_link_works_once(session: Session, stranger: TestClient) -> None:
    link = first_admin_link(session)
    assert link
    stranger.post(_path(link), data={"name": "Ada", "password": GOOD})
    assert stranger.post(_path(link), data={"name": "Eve", "password": GOOD}).status_code == 404


def test_a_link_that_ran_out_is_refused(session: Session, stranger: TestClient) -> None:
    link = first_admin_link(session)
    assert link
    session.scalars(select(SignInLink)).one().expires_at = datetime.now(UTC) - timedelta(seconds=1)
    session.flush()
    assert stranger.get(_path(link)).status_code == 404


def test_a_short_password_is_named_and_the_link_stays_usable(session: Session, stranger: TestClient) -> None:
    link = first_admin_link(session)
    assert link
    answer = stranger.post(_path(link), data={"name": "Ada", "password": "short"})
    assert answer.status_code == 422
    assert "At least 12 characters" in answer.text
    assert stranger.post(_path(link), data={"name": "Ada", "password": GOOD}).status_code == 303


def test_an_invitation_gives_a_link_that_signs_the_new_member_in(admin: TestClient, stranger: TestClient) -> None:
    form = {"name": "Rae", "email": "Rae@Example.org", "role": "reviewer"}
    invited = admin.post("/api/v1/members", json=form).json()
    assert invited["member"]["email"] == "rae@example.org"
    stranger.post(_path(invited["link"]), data={"name": "Rae", "password": GOOD})
    assert stranger.get("/api/v1/me").json()["role"] == "reviewer"


def test_the_same_address_is_invited_once(admin: TestClient) -> None:
    form = {"name": "Rae", "email": "rae@example.org"}
    admin.post("/api/v1/members", json=form)
    answer = admin.post("/api/v1/members", json=form)
    assert answer.status_code == 422
    assert "email" in answer.json()["fields"]


def test_a_new_link_for_a_forgotten_password_ends_older_sessions(
    admin: TestClient, viewer: TestClient, stranger: TestClient, session: Session
) -> None:
    person_id = viewer.get("/api/v1/me").json()["person_id"]
    page = admin.post(f"/team/{person_id}/link")
    link = page.text.split('data-copy="')[1].split('"')[0]
    stranger.post(_path(link), data={"name": "Vi", "password": GOOD})
    assert viewer.get("/api/v1/me").status_code == 401


def test_the_local_token_is_an_administrators_and_replaces_the_one_before(
    session: Session, stranger: TestClient
) -> None:
    make_person(session, Role.ADMIN)
    first, second = issue_local_token(session), issue_local_token(session)
    assert stranger.get("/api/v1/me", headers={"Authorization": f"Bearer {first}"}).status_code == 401
    answer = stranger.get("/api/v1/me", headers={"Authorization": f"Bearer {second}"})
    assert answer.json()["role"] == "admin"
