"""The bell of an open page updates its unread count automatically."""

from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from tests.notifications.sending import tell


def test_it_answers_only_where_something_changed(viewer: TestClient, session: Session) -> None:
    assert "/notices/bell?shown=0" in viewer.get("/settings").text
    assert viewer.get("/notices/bell?shown=0").status_code == 204
    tell(session)
    rung = viewer.get("/notices/bell?shown=0").text
    assert 'title="1 unread"' in rung
    assert "/notices/bell?shown=1" in rung
    assert viewer.get("/notices/bell?shown=1").status_code == 204


def test_it_takes_no_notice_from_the_page_that_is_to_show_it(viewer: TestClient, session: Session) -> None:
    tell(session)
    assert viewer.post("/notices/read").status_code == 303
    assert "set-cookie" not in viewer.get("/notices/bell?shown=1").headers
    assert viewer.get("/notices/bell?shown=-1").status_code == 422


def test_who_is_signed_out_gets_one_that_asks_no_more(app: FastAPI, session: Session) -> None:
    tell(session)
    gone = TestClient(app).get("/notices/bell?shown=1")
    assert gone.status_code == 200
    assert "hidden" in gone.text
    assert "hx-get" not in gone.text
    assert "unread" not in gone.text
