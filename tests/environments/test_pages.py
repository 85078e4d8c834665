"""Every page of environments, as each role and in each state that it has."""

from dataclasses import asdict
from datetime import UTC, datetime

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from backend.domain.environments.certificate import CheckResult
from backend.domain.environments.packages import unpack
from backend.domain.vocabulary import CheckStatus, Role, RunStatus
from backend.environments.drafts import save_draft
from backend.environments.service import publish_version, start_check
from backend.environments.tables import Certificate, Environment, EnvironmentVersion
from tests.environments.packages import make_files
from tests.web_fixtures import ClientFor

PAGES = ["", "/versions/1", "/diff", "/diff?from=1&to=draft"]


def test_an_empty_list_shows_the_next_step(author: TestClient):
    answer = author.get("/environments")
    assert answer.status_code == 200
    assert "No environment yet" in answer.text
    assert "/environments/new" in answer.text


def test_the_list_shows_version_certificate_and_columns(viewer: TestClient, version: EnvironmentVersion):
    text = viewer.get("/environments").text
    assert "/environments/guess" in text
    assert "v1</a>" in text
    assert version.content_hash[:8] in text
    assert "not checked" in text
    assert "win × 1.00" in text
    assert "/environments/new" not in text


def test_an_archived_environment_leaves_the_list(session: Session, viewer: TestClient, version: EnvironmentVersion):
    session.get_one(Environment, version.environment_id).archived_at = datetime.now(UTC)
    assert "/environments/guess" not in viewer.get("/environments").text
    assert "/environments/guess" in viewer.get("/environments?archived=true").text


@pytest.mark.parametrize("page", PAGES)
def test_a_viewer_sees_it(viewer: TestClient, version: EnvironmentVersion, page: str):
    answer = viewer.get(f"/environments/guess{page}")
    assert answer.status_code == 200, answer.text
    assert "guess" in answer.text


@pytest.mark.parametrize("page", ["/edit", "/play", "/edit?file=models.py"])
def test_an_author_edits_and_plays_and_a_viewer_does_not(client_for: ClientFor, version: EnvironmentVersion, page: str):
    assert client_for(Role.AUTHOR).get(f"/environments/guess{page}").status_code == 200
    assert client_for(Role.VIEWER).get(f"/environments/guess{page}").status_code == 403


@pytest.mark.parametrize(
    "page",
    [
        "/environments/nothing",
        "/environments/guess/versions/9",
        "/environments/guess/versions/x",
        "/environments/guess/versions/99999999999999999999",
        "/environments/guess/diff?from=9",
        "/environments/guess/diff?from=-1",
        "/environments/guess/diff?to=٣",
        "/environments/guess/play?version=7",
        "/environments/guess/play/00000000-0000-0000-0000-000000000000",
    ],
)
def test_what_is_not_there_is_404(author: TestClient, version: EnvironmentVersion, page: str):
    assert author.get(page).status_code == 404


def test_no_one_sees_anything_without_signing_in(stranger: TestClient, version: EnvironmentVersion):
    assert stranger.get("/environments/guess").status_code == 303
    assert stranger.get("/api/v1/environments/guess").status_code == 401


def test_an_environment_without_a_version_sends_the_author_to_its_draft(author: TestClient, guess: Environment):
    text = author.get("/environments/guess").text
    assert "Nothing is published yet" in text
    assert "/environments/guess/edit" in text
    assert author.get("/environments/guess/play").status_code == 404


def test_what_authors_wrote_is_escaped(session: Session, viewer: TestClient, guess: Environment):
    files = make_files() | {"README.md": "<script>alert(1)</script>"}
    files["openenv.yaml"] = files["openenv.yaml"].replace("Guess a cell.", "<b>bold</b>")
    save_draft(session, None, guess, files, 1)
    publish_version(session, None, guess, revision=2)
    for page in ["", "/versions/1", "/diff?from=draft&to=1"]:
        text = viewer.get(f"/environments/guess{page}").text
        assert "<script>alert" not in text
        assert "<b>bold</b>" not in text


def test_the_certificate_shows_every_check_with_its_evidence(
    session: Session, viewer: TestClient, version: EnvironmentVersion
):
    run = start_check(session, None, version, "guess")
    result = CheckResult(
        "gold", "The gold policy reaches the top.", CheckStatus.FAILED, "Mean <0.4> of 1.", {"n": 8}, 1.5
    )
    run.status = RunStatus.COMPLETED
    session.add(Certificate(version_id=version.id, run_id=run.id, status=CheckStatus.FAILED, results=[asdict(result)]))
    session.flush()
    text = viewer.get("/environments/guess/versions/1").text
    assert "The gold policy reaches the top." in text
    assert "Mean &lt;0.4&gt; of 1." in text
    assert "1.5 s" in text
    assert 'data-state="failed"' in viewer.get("/environments").text


def test_a_running_check_is_shown_live(session: Session, author: TestClient, version: EnvironmentVersion):
    start_check(session, None, version, "guess")
    text = author.get("/environments/guess/versions/1").text
    assert "/environments/guess/versions/1/events" in text
    assert "Run the checks" not in text


def test_checks_that_broke_off_say_why(session: Session, author: TestClient, version: EnvironmentVersion):
    run = start_check(session, None, version, "guess")
    run.status, run.reason = RunStatus.FAILED, "The package does not import."
    session.flush()
    text = author.get("/environments/guess/versions/1").text
    assert "The package does not import." in text
    assert "Run the checks" in text


def test_the_difference_shows_line_numbers(session: Session, viewer: TestClient, version: EnvironmentVersion):
    environment = session.get_one(Environment, version.environment_id)
    save_draft(session, None, environment, make_files() | {"README.md": "# Better\n"}, 1)
    text = viewer.get("/environments/guess/diff").text
    assert 'data-change="remove"><td class="line">1</td>' in text
    assert "# Better" in text


def test_the_zip_holds_the_version(viewer: TestClient, version: EnvironmentVersion):
    answer = viewer.get("/api/v1/environments/guess/versions/1/files")
    assert unpack(answer.content) == make_files()
    assert answer.headers["content-disposition"] == 'attachment; filename="guess-v1.zip"'
