"""Find things by their name or id: the page, the palette's part of it, and the operation."""

import uuid

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.overview.finder import ACTIONS
from backend.projects.tables import Project
from backend.web.formats import short
from tests import factories
from tests.web.test_pages import PARTIAL


def names(client: TestClient, text: str) -> list[str]:
    answer = client.get("/api/v1/find", params={"text": text})
    assert answer.status_code == 200, answer.text
    return [f"{each['kind']} {each['name']}" for each in answer.json()]


def test_the_closest_name_comes_first(viewer: TestClient, session: Session) -> None:
    for name in ("a better maze", "maze", "maze again", "amazement"):
        factories.make_run(session, name=name)
    assert names(viewer, "maze") == ["run maze", "run maze again", "run a better maze", "run amazement"]
    assert names(viewer, "  MAZE   again ") == ["run maze again"]
    assert names(viewer, "100%_") == []


def test_every_kind_is_found_by_its_name_and_by_its_id(viewer: TestClient, session: Session) -> None:
    checkpoint = factories.make_checkpoint(session, factories.make_policy(session, name="maker"))
    run = factories.make_run(session, name="zebra run")
    rollout = factories.make_rollout(session, run, factories.make_group(session, run), None)
    person = factories.make_person(session, name="Zebra Jones")
    environment = factories.make_environment(session, name="zebra-crossing")
    session.flush()
    assert set(names(viewer, "zebra")) == {"run zebra run", "member Zebra Jones", "environment zebra-crossing"}
    for row, kind in ((checkpoint, "checkpoint"), (run, "run"), (rollout, "rollout"), (person, "member")):
        assert [name.split()[0] for name in names(viewer, str(row.id))] == [kind]
    assert names(viewer, short(run.id)) == ["run zebra run"]
    assert names(viewer, str(environment.id).upper()) == ["environment zebra-crossing"]
    assert names(viewer, str(uuid.uuid4())) == []


def test_what_is_gone_is_not_found(viewer: TestClient, session: Session) -> None:
    policy = factories.make_policy(session, name="old policy")
    policy.deleted_at = policy.created_at
    environment = factories.make_environment(session, name="old-environment")
    environment.archived_at = environment.created_at
    session.flush()
    assert names(viewer, "old") == []
    assert names(viewer, str(policy.id)) == []


def test_a_hidden_project_is_not_found(viewer: TestClient, admin: TestClient, session: Session) -> None:
    project = Project(name="Secret", is_restricted=True)
    session.add(project)
    session.flush()
    policy = factories.make_policy(session, name="secret policy")
    run = factories.make_run(session, policy=policy, name="secret run")
    rollout = factories.make_rollout(session, run, factories.make_group(session, run), None)
    checkpoint = factories.make_checkpoint(session, policy, run)
    run.project_id = policy.project_id = project.id
    session.flush()
    assert names(admin, "secret") == ["run secret run", "policy secret policy"]
    for text in ("secret", *(str(row.id) for row in (run, policy, rollout, checkpoint))):
        assert names(viewer, text) == []
        assert names(admin, text)


def test_whoever_may_not_begin_something_is_not_led_there(viewer: TestClient, trainer: TestClient) -> None:
    for name, url, _ in ACTIONS:
        assert f"action {name}" not in names(viewer, name)
        assert viewer.get(url).status_code == 403
        assert f"action {name}" in names(trainer, name)
        assert trainer.get(url).status_code == 200


@pytest.mark.parametrize(("headers", "is_whole"), [({}, True), (PARTIAL, False)])
def test_the_palette_gets_the_list_alone(viewer: TestClient, headers: dict[str, str], is_whole: bool) -> None:
    text = viewer.get("/find", params={"text": "<b>runs"}, headers=headers).text
    assert ("<!doctype html>" in text) is is_whole
    assert "/docs/search.html?q=%3Cb%3Eruns" in text
    assert "Nothing here has this name or id." in text
    assert "<b>runs" not in text


def test_a_text_without_bounds_is_refused(viewer: TestClient) -> None:
    assert viewer.get("/find", params={"text": "x" * 201}).status_code == 422
    assert viewer.get("/api/v1/find", params={"text": "x" * 10_000}).status_code == 422
