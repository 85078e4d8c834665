"""Versions: forks of any of them, and the draft as one of them was."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.environments.queries import get_draft, get_environment
from backend.environments.service import create_environment, publish_version
from backend.environments.tables import Environment, EnvironmentVersion
from backend.settings import get_settings
from tests.environments.packages import make_files

PAGE = "/environments/guess"


def second(session: Session, guess: Environment) -> EnvironmentVersion:
    draft = get_draft(session, guess)
    draft.files = {**draft.files, "README.md": "# Second\n"}
    draft.revision += 1
    session.flush()
    return publish_version(session, None, guess, revision=None, notes="the second")


def test_an_older_version_becomes_the_draft(
    session: Session, author: TestClient, guess: Environment, version: EnvironmentVersion
):
    second(session, guess)
    draft = get_draft(session, guess)
    answer = author.post(f"{PAGE}/draft/version", data={"version": 1, "revision": draft.revision})
    assert answer.status_code == 303
    session.refresh(draft)
    assert draft.files == version.files


def test_a_draft_that_continued_is_not_given_up(
    session: Session, author: TestClient, guess: Environment, version: EnvironmentVersion
):
    second(session, guess)
    answer = author.post(f"{PAGE}/draft/version", data={"version": 1, "revision": 1})
    assert answer.status_code == 409
    assert get_draft(session, guess).files["README.md"] == "# Second\n"


def test_the_editor_shows_versions_with_their_notes(
    session: Session, author: TestClient, guess: Environment, version: EnvironmentVersion
):
    second(session, guess)
    text = author.get(f"{PAGE}/edit").text
    assert "the second" in text
    assert f"{PAGE}/diff?from=1&amp;to=draft" in text


def test_a_fork_of_an_older_version_has_its_files_under_a_new_name(
    session: Session, author: TestClient, guess: Environment, version: EnvironmentVersion
):
    second(session, guess)
    assert "Fork of guess v1" in author.get("/environments/new?template=copy:guess@1").text
    answer = author.post("/environments", data={"name": "guess_again", "template": "copy:guess@1"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/environments/guess_again/edit")
    files = get_draft(session, get_environment(session, "guess_again")).files
    assert files["README.md"] == make_files()["README.md"]
    assert "name: guess_again\n" in files["openenv.yaml"]


def test_a_fork_of_a_version_that_is_not_there_is_refused(author: TestClient, version: EnvironmentVersion):
    for number in ("9", "x", "99999999999999"):
        form = {"name": "guess_again", "template": f"copy:guess@{number}"}
        assert author.post("/environments", data=form).status_code == 422


def test_files_are_in_their_folders(author: TestClient, guess: Environment):
    text = author.get(f"{PAGE}/edit?file=server/app.py").text
    assert '<summary class="mono">server/</summary>' in text
    assert 'title="server/app.py"' in text


def test_a_network_that_is_requested_states_whether_it_is_granted(
    session: Session, viewer: TestClient, author: TestClient, monkeypatch: pytest.MonkeyPatch
):
    files = make_files()
    files["openenv.yaml"] += "  resources: {network: {hosts: [example.org]}}\n"
    environment = create_environment(session, None, "guess", files)
    version = publish_version(session, None, environment, revision=1)
    assert "until an administrator grants access" in viewer.get(f"{PAGE}/versions/1").text
    monkeypatch.setenv("PROCTOR_ALLOW_NETWORK", f"{'0' * 64}, {version.content_hash}")
    get_settings.cache_clear()
    assert "The settings of this machine grant it" in viewer.get(f"{PAGE}/versions/1").text
    monkeypatch.undo()
    get_settings.cache_clear()
