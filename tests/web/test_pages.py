"""A page whole or in part, and where a change leads."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from tests import factories
from tests.graders.asked import make_question

PARTIAL = {"HX-Request": "true", "HX-Request-Type": "partial"}


@pytest.mark.parametrize(
    ("headers", "is_whole"),
    [
        ({}, True),
        (PARTIAL, False),
        ({"HX-Request": "true", "HX-Request-Type": "full"}, True),
        (PARTIAL | {"HX-Boosted": "true"}, True),
        (PARTIAL | {"HX-History-Restore-Request": "true"}, True),
    ],
)
def test_a_block_is_sent_only_where_htmx_swaps_a_part(
    viewer: TestClient, headers: dict[str, str], is_whole: bool
) -> None:
    answer = viewer.get("/review", headers=headers)
    assert answer.text.lstrip().startswith("<!doctype html>") is is_whole
    assert "HX-Request" in answer.headers["vary"]
    assert 'id="suspects"' in answer.text


def test_a_change_by_htmx_is_led_on_by_a_header(admin: TestClient, session: Session) -> None:
    person = factories.make_person(session)
    answer = admin.post(f"/team/{person.id}/disable", headers=PARTIAL)
    assert answer.status_code == 200
    assert answer.headers["hx-redirect"] == "/team"
    assert "location" not in answer.headers


@pytest.mark.parametrize(
    ("shown", "header"),
    [
        ("http://testserver/graders/{id}", "hx-refresh"),
        ("http://testserver/graders/{id}#budgets", "hx-refresh"),
        ("http://testserver/graders", "hx-redirect"),
        ("http://[::1", "hx-redirect"),
    ],
)
def test_a_change_that_leads_to_another_place_of_the_shown_page_reloads_it(
    author: TestClient, session: Session, shown: str, header: str
) -> None:
    grader, environment = make_question(session), factories.make_environment(session)
    headers = {"HX-Request": "true", "HX-Current-URL": shown.format(id=grader.id)}
    answer = author.post(f"/graders/{grader.id}/budgets", data={"environment": environment.name}, headers=headers)
    assert (answer.status_code, header in answer.headers) == (200, True)


def test_the_notice_of_a_change_is_shown_once(admin: TestClient, session: Session) -> None:
    person = factories.make_person(session, name="Łukasz <b>")
    admin.post(f"/team/{person.id}/disable")
    assert "Łukasz &lt;b&gt; can no longer sign in." in admin.get("/team").text
    assert "can no longer sign in" not in admin.get("/team").text


def test_an_error_for_htmx_is_a_notice_that_swaps_nothing_else(admin: TestClient) -> None:
    answer = admin.post("/team", data={"name": "", "email": "nonsense"}, headers=PARTIAL)
    assert answer.status_code == 422
    assert answer.headers["hx-reswap"] == "none"
    assert "<hx-partial hx-target=\"[data-error-for='email']\"" in answer.text
    assert "not an email address" in answer.text


def test_no_page_writes_styles_or_scripts_into_itself(admin: TestClient, session: Session) -> None:
    run = factories.make_run(session)
    rollout = factories.make_rollouts(session, run, factories.random_rows(2))[0]
    flag = factories.make_flag(session, run, rollout)
    for path in ("/", "/review", f"/review/{flag.id}", "/team", "/me", "/audit", "/settings", "/sign-in"):
        text = admin.get(path).text
        assert " style=" not in text, path
        assert "<script>" not in text, path
        assert " onclick=" not in text, path
