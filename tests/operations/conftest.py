"""An app with the operations of `labels` in addition to its own, in this process and served."""

from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from sqlalchemy.orm import Session

from backend.app import create_app
from backend.domain.vocabulary import PolicyKind, Role
from backend.operations.declaration import operations_of
from backend.operations.routes import add_form_routes, add_json_routes
from backend.policies.tables import Policy
from tests.operations import labels
from tests.web_fixtures import *  # noqa: F403
from tests.web_fixtures import make_person, sign_in
from tests.web_server import web_served


@pytest.fixture(scope="session")
def whole_app() -> FastAPI:
    """Built once."""
    app = create_app()
    declared = operations_of(labels)
    add_json_routes(app.router, declared)
    add_form_routes(app.router, declared)
    return app


@pytest.fixture
def policy(session: Session) -> Policy:
    policy = Policy(name="tidy", kind=PolicyKind.SCRIPTED, configuration={"script": "random"})
    session.add(policy)
    session.flush()
    return policy


@pytest.fixture
def token(app: FastAPI, session: Session) -> str:
    """A trainer's API token."""
    return make_token(app, session, Role.TRAINER)


def make_token(app: FastAPI, session: Session, role: Role, *, is_read_only: bool = False) -> str:
    owner = sign_in(app, session, make_person(session, role, f"{role}-token@example.org"))
    made = owner.post("/api/v1/tokens", json={"name": "test", "role": role, "is_read_only": is_read_only})
    secret: str = made.json()["secret"]
    return secret


@pytest.fixture
def served(app: FastAPI) -> Iterator[str]:
    with web_served(app) as url:
        yield url
