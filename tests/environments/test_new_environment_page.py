"""Creating an environment by the form and by JSON."""

from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.environments.library import TEMPLATES
from backend.environments.queries import get_draft, get_environment
from backend.environments.tables import Environment, EnvironmentVersion
from backend.environments.validation import validate_package
from tests.environments.packages import make_files

FORM = {"name": "mine", "template": TEMPLATES[0].name}


def test_every_template_begins_without_problems(session: Session, author: TestClient):
    for number, template in enumerate(TEMPLATES):
        answer = author.post("/environments", data={"name": f"mine_{number}", "template": template.name})
        assert (answer.status_code, answer.headers["location"]) == (303, f"/environments/mine_{number}/edit")
        draft = get_draft(session, get_environment(session, f"mine_{number}"))
        assert validate_package(draft.files, f"mine_{number}").is_publishable


def test_it_begins_as_a_copy(session: Session, author: TestClient, version: EnvironmentVersion):
    assert "Copy of guess" in author.get("/environments/new").text
    assert author.post("/environments", data={"name": "other", "template": "copy:guess"}).status_code == 303
    files = get_draft(session, get_environment(session, "other")).files
    assert validate_package(files, "other").is_publishable
    assert files["models.py"] == make_files()["models.py"]


def test_a_form_sent_again_states_that_the_name_is_taken(session: Session, author: TestClient):
    assert author.post("/environments", data=FORM).status_code == 303
    answer = author.post("/environments", data=FORM)
    assert answer.status_code == 409
    assert "mine already" in answer.text
    assert len(session.scalars(select(Environment)).all()) == 1


def test_a_viewer_may_not(viewer: TestClient):
    assert viewer.get("/environments/new").status_code == 403
    assert viewer.post("/environments", data=FORM).status_code == 403
    assert viewer.post("/api/v1/environments", json=FORM).status_code == 403


def test_it_names_what_is_wrong_with_the_name(author: TestClient):
    for name in ("", "Upper", "9lives", "a-b", "../x", "x" * 41, "new"):
        answer = author.post("/environments", data={**FORM, "name": name})
        assert answer.status_code == 422, name
        assert "name" in answer.text


def test_it_names_a_template_that_is_not_there(author: TestClient):
    for template in ("nothing", "copy:nothing", "../etc"):
        assert author.post("/environments", data={**FORM, "template": template}).status_code == 422


def test_a_script_brings_its_own_files(session: Session, author: TestClient):
    answer = author.post("/api/v1/environments", json={"name": "guess", "files": make_files()})
    assert answer.status_code == 201
    assert (answer.json()["draft_revision"], answer.json()["latest"]) == (1, None)
    both = {"name": "x", "template": FORM["template"], "files": make_files("x")}
    assert author.post("/api/v1/environments", json=both).status_code == 422
    assert author.post("/api/v1/environments", json={"name": "x", "files": {"../x": ""}}).status_code == 422
