"""An unforeseen error: nothing half-written, a page with a number, the traceback in the log."""

import logging
import re

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.app import create_app
from backend.domain.vocabulary import Role
from backend.team.tables import Person
from backend.web.dependencies import SessionDep, Viewer
from tests.web_fixtures import make_person, requests_in, sign_in


@pytest.fixture
def app(session: Session) -> FastAPI:
    """A separate app, because these tests add routes."""
    return create_app(requests_in(session))


@pytest.fixture
def viewer(app: FastAPI, session: Session) -> TestClient:
    return sign_in(app, session, make_person(session, Role.VIEWER))


def test_it_is_rolled_back_and_named_in_page_and_log(
    app: FastAPI, viewer: TestClient, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    @app.get("/explode")
    def explode(session: SessionDep, actor: Viewer) -> None:
        session.add(Person(email="half@example.org", name="Half", role=Role.VIEWER))
        session.flush()
        raise ZeroDivisionError("the secret detail")

    with caplog.at_level(logging.ERROR):
        answer = viewer.get("/explode")
    assert answer.status_code == 500
    assert "the secret detail" not in answer.text
    found = re.search(r"Incident <code>(\w+)</code>", answer.text)
    assert found
    assert found[1] in caplog.text
    assert "the secret detail" in caplog.text
    assert answer.headers["content-security-policy"]
    assert session.scalar(select(Person).where(Person.email == "half@example.org")) is None


@pytest.mark.slow
def test_the_api_gets_it_as_json(app: FastAPI, viewer: TestClient) -> None:
    @app.get("/api/v1/explode")
    def explode(actor: Viewer) -> None:
        raise ZeroDivisionError

    answer = viewer.get("/api/v1/explode")
    assert answer.status_code == 500
    assert set(answer.json()) == {"error", "detail", "fields", "incident"}
