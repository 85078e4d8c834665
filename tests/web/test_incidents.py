"""An error that nobody foresaw: nothing half-written, a page with a number, the traceback in the log."""

import logging
import re

import pytest
from fastapi import FastAPI
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.db.models import Person
from backend.domain.vocabulary import Role
from backend.web.dependencies import SessionDep, Viewer
from tests.web_fixtures import ClientFor


def test_it_is_rolled_back_and_named_in_page_and_log(
    app: FastAPI, client_for: ClientFor, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    @app.get("/explode")
    def explode(session: SessionDep, actor: Viewer) -> None:
        session.add(Person(email="half@example.org", name="Half", role=Role.VIEWER))
        session.flush()
        raise ZeroDivisionError("the secret detail")

    with caplog.at_level(logging.ERROR):
        answer = client_for(Role.VIEWER).get("/explode")
    assert answer.status_code == 500
    assert "the secret detail" not in answer.text
    found = re.search(r"Incident <code>(\w+)</code>", answer.text)
    assert found
    assert found[1] in caplog.text
    assert "the secret detail" in caplog.text
    assert answer.headers["content-security-policy"]
    assert session.scalar(select(Person).where(Person.email == "half@example.org")) is None


def test_the_api_gets_it_as_json(app: FastAPI, client_for: ClientFor) -> None:
    @app.get("/api/v1/explode")
    def explode(actor: Viewer) -> None:
        raise ZeroDivisionError

    answer = client_for(Role.VIEWER).get("/api/v1/explode")
    assert answer.status_code == 500
    assert set(answer.json()) == {"error", "detail", "fields", "incident"}
