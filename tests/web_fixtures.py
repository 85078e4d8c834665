"""Browsers and scripts for tests: `client_for(role)` is signed in as a member with that role.

Every request runs in the test's own session, so that the test sees its rows and all is rolled back.
An area that needs these says `from tests.web_fixtures import *` in its conftest.py.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from argon2 import PasswordHasher
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.app import Transaction, create_app
from backend.core.events import Hub
from backend.domain.vocabulary import Role
from backend.team import passwords
from backend.team.tables import Person, WebSession
from backend.web.identity import SESSION_COOKIE, hash_secret, new_secret

ClientFor = Callable[[Role], TestClient]

passwords.hasher = PasswordHasher(time_cost=1, memory_cost=64, parallelism=1)  # a thousandth of the work


@pytest.fixture(scope="session")
def whole_app() -> FastAPI:
    """The same in all folders, each of which has this fixture for itself."""
    return _built_once()


@cache
def _built_once() -> FastAPI:
    """It takes half a second."""
    return create_app()


@pytest.fixture(scope="session")
def portal() -> Iterator[BlockingPortal]:
    """One event loop for all requests; a client without one starts a thread and a loop for each of them."""
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture
def app(whole_app: FastAPI, session: Session, portal: BlockingPortal) -> FastAPI:
    """The whole application on the test's session."""
    whole_app.state.portal = portal
    whole_app.state.transaction = requests_in(session)
    whole_app.state.hub = Hub()
    return whole_app


def requests_in(session: Session) -> Transaction:
    """Each request is a savepoint of the test's transaction; one that fails rolls back to where it began.

    They wait for each other: a stream may begin to draw while the savepoint that read the sign-in is being released.
    """
    only_one = threading.Lock()

    @contextmanager
    def transaction() -> Iterator[Session]:
        assert only_one.acquire(timeout=20), "a transaction was begun inside of another"
        try:
            with session.begin_nested():
                yield session
                session.flush()
            session.info.pop("after_commit", None)
        finally:
            session.info.pop("row_access", None)
            only_one.release()

    return transaction


@pytest.fixture
def stranger(app: FastAPI) -> TestClient:
    """A signed-out browser."""
    return browser(app)


def browser(app: FastAPI, **headers: str) -> TestClient:
    """It sends these headers and follows no redirect."""
    client = TestClient(app, follow_redirects=False, headers=headers)
    client.portal = getattr(app.state, "portal", None)
    return client


@pytest.fixture
def client_for(app: FastAPI, session: Session) -> ClientFor:
    """`client_for(Role.AUTHOR)`: a browser whose every form carries the session's CSRF token."""
    made: dict[Role, TestClient] = {}

    def client(role: Role) -> TestClient:
        if role not in made:
            made[role] = sign_in(app, session, make_person(session, role))
        return made[role]

    return client


def make_person(session: Session, role: Role, email: str = "", *, name: str = "") -> Person:
    person = Person(email=email or f"{role}@example.org", name=name or f"{role}".title(), role=role)
    session.add(person)
    session.flush()
    return person


def sign_in(app: FastAPI, session: Session, person: Person) -> TestClient:
    """A new browser with a session cookie of this person, sending the CSRF header like htmx does."""
    secret = new_secret()
    web_session = WebSession(
        person_id=person.id,
        token_hash=hash_secret(secret),
        csrf_token=new_secret(),
        expires_at=datetime.now(UTC) + timedelta(days=1),
    )
    session.add(web_session)
    session.flush()
    client = browser(app, **{"X-CSRF-Token": web_session.csrf_token})
    client.cookies.set(SESSION_COOKIE, secret)
    return client


@pytest.fixture
def viewer(client_for: ClientFor) -> TestClient:
    return client_for(Role.VIEWER)


@pytest.fixture
def reviewer(client_for: ClientFor) -> TestClient:
    return client_for(Role.REVIEWER)


@pytest.fixture
def author(client_for: ClientFor) -> TestClient:
    return client_for(Role.AUTHOR)


@pytest.fixture
def trainer(client_for: ClientFor) -> TestClient:
    return client_for(Role.TRAINER)


@pytest.fixture
def admin(client_for: ClientFor) -> TestClient:
    return client_for(Role.ADMIN)
