"""Addresses of 0.1 redirect to their successors, with method, body and query."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from tests.factories import make_run
from tests.graders.conftest import make_judge

PAGES = {
    "/judges": "/graders?kind=judge",
    "/questions": "/graders?kind=question",
    "/judges/7": "/graders/7",
    "/questions/7/tried/1": "/graders/7/tries/1",
    "/questions/new?kind=monitor": "/graders/new?kind=monitor",
    "/runs/7/judges": "/runs/7/graders",
    "/runs/7/questions": "/runs/7/graders",
    "/training/lessons": "/training/examples",
    "/environments/maze/versions/2/package.zip": "/api/v1/environments/maze/versions/2/files",
    "/training/lessons/preview?source=script": "/training/examples/preview?source=script",
}
API = {
    ("GET", "/judges"): "/graders?kind=judge",
    ("GET", "/questions?limit=5"): "/graders?kind=question&limit=5",
    ("PUT", "/questions/7"): "/graders/7",
    ("POST", "/judges/7/ask"): "/graders/7/tries",
    ("GET", "/judges/7/asked/9"): "/graders/7/tries/9",
    ("GET", "/runs/7/questions"): "/runs/7/graders",
    ("GET", "/runs/7/questions/9/answers?after=3"): "/graders/9/runs/7/grades?after=3",
    ("GET", "/runs/7/judges/9/judgements"): "/graders/9/runs/7/grades",
    ("GET", "/runs/7/questions/9/outlook"): "/graders/9/runs/7/estimate",
    ("POST", "/runs/7/questions/9/flags"): "/graders/9/runs/7/flags",
    ("POST", "/runs/7/judges/9/stop"): "/graders/9/runs/7/stop",
    ("GET", "/runs/7/effort"): "/runs/7/studies",
    ("POST", "/runs/7/onset"): "/runs/7/studies/onset",
    ("GET", "/runs/7/effort/9"): "/studies/9",
    ("POST", "/runs/7/onset/9/resume"): "/studies/9/resume",
    ("GET", "/rollouts/7/judgements"): "/rollouts/7/grades",
    ("POST", "/training/lessons/7/restore"): "/training/examples/7/restore",
}


@pytest.mark.parametrize(("old", "new"), PAGES.items())
def test_an_old_page_redirects(viewer: TestClient, old: str, new: str) -> None:
    answer = viewer.get(old)
    assert (answer.status_code, answer.headers["location"]) == (308, new)


@pytest.mark.parametrize(("request_line", "new"), API.items(), ids=str)
def test_an_old_api_address_redirects(viewer: TestClient, request_line: tuple[str, str], new: str) -> None:
    method, old = request_line
    answer = viewer.request(method, f"/api/v1{old}")
    assert (answer.status_code, answer.headers["location"]) == (308, f"/api/v1{new}")


def test_a_redirected_request_keeps_its_body(session: Session, trainer: TestClient) -> None:
    judge, run = make_judge(session), make_run(session)
    refused = trainer.post(f"/api/v1/judges/{judge.id}/ask", json={"prompt": "2 + 2?"}, follow_redirects=True)
    assert [each.status_code for each in refused.history] == [308]
    assert (refused.status_code, set(refused.json()["fields"])) == (422, {"prompt"})
    listed = trainer.get(f"/api/v1/runs/{run.id}/judges", follow_redirects=True)
    assert listed.json()["items"] == []


def test_an_unknown_address_is_still_not_found(viewer: TestClient) -> None:
    assert viewer.get("/api/v1/judge").status_code == 404
    assert viewer.get("/elsewhere/judges").status_code == 404
