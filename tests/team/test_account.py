"""One's own password and API tokens."""

from datetime import UTC, datetime, timedelta

from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.domain.vocabulary import Role
from backend.team.passwords import hash_password, is_right
from backend.team.tables import ApiToken, Person
from tests.web_fixtures import sign_in

OLD, NEW = "the old sentence here", "the new sentence here"


def test_a_new_password_signs_out_other_browsers_but_not_this_one(viewer: TestClient, session: Session) -> None:
    person = session.scalars(select(Person)).one()
    person.password_hash = hash_password(OLD)
    other = sign_in(viewer.app, session, person)  # type: ignore[arg-type]
    assert viewer.post("/me/password", data={"current": OLD, "password": NEW}).status_code == 303
    assert is_right(NEW, person.password_hash)
    assert viewer.get("/api/v1/me").status_code == 200
    assert other.get("/api/v1/me").status_code == 401


def test_the_present_password_is_asked(viewer: TestClient, session: Session) -> None:
    session.scalars(select(Person)).one().password_hash = hash_password(OLD)
    headers = {"HX-Request": "true", "HX-Request-Type": "partial"}
    answer = viewer.post("/me/password", data={"current": "wrong", "password": NEW}, headers=headers)
    assert answer.status_code == 422
    assert answer.headers["hx-reswap"] == "none"
    assert "data-error-for='current'" in answer.text


def test_a_token_is_shown_once_and_stored_as_a_hash(author: TestClient, session: Session) -> None:
    page = author.post("/me/tokens", data={"name": "nightly", "role": "viewer", "days": "7"})
    secret = page.text.split('data-copy="')[1].split('"')[0]
    stored = session.scalars(select(ApiToken)).one()
    assert secret.startswith(stored.prefix)
    assert secret.encode() not in stored.token_hash
    assert secret not in author.get("/me").text


def test_a_token_cannot_do_more_than_its_person(viewer: TestClient) -> None:
    answer = viewer.post("/api/v1/tokens", json={"name": "sneaky", "role": "admin"})
    assert answer.status_code == 422
    assert "role" in answer.json()["fields"]


def test_a_token_shrinks_with_its_person(trainer: TestClient, stranger: TestClient, session: Session) -> None:
    secret = trainer.post("/api/v1/tokens", json={"name": "t", "role": "trainer"}).json()["secret"]
    session.scalars(select(Person)).one().role = Role.REVIEWER
    session.flush()
    answer = stranger.get("/api/v1/me", headers={"Authorization": f"Bearer {secret}"})
    assert answer.json()["role"] == "reviewer"


def test_revoked_and_outdated_tokens_are_refused(viewer: TestClient, stranger: TestClient, session: Session) -> None:
    made = [viewer.post("/api/v1/tokens", json={"name": name}).json() for name in ("a", "b")]
    assert viewer.delete(f"/api/v1/tokens/{made[0]['id']}").status_code == 204
    session.scalars(select(ApiToken).where(ApiToken.name == "b")).one().expires_at = datetime.now(UTC) - timedelta(1)
    session.flush()
    for token in made:
        answer = stranger.get("/api/v1/me", headers={"Authorization": f"Bearer {token['secret']}"})
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"


def test_another_persons_token_is_not_there(viewer: TestClient, author: TestClient, admin: TestClient) -> None:
    token = author.post("/api/v1/tokens", json={"name": "mine", "role": "author"}).json()
    assert viewer.delete(f"/api/v1/tokens/{token['id']}").status_code == 404
    assert admin.delete(f"/api/v1/tokens/{token['id']}").status_code == 204
