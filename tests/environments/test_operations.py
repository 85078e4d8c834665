"""Environments by JSON: what the command line needs to push and pull."""

from dataclasses import asdict

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select
from sqlalchemy.orm import Session

from backend.core.tables import Job
from backend.domain.environments.certificate import CheckResult
from backend.domain.environments.packages import unpack
from backend.domain.vocabulary import CheckStatus, RunStatus
from backend.environments.service import start_check
from backend.environments.tables import Certificate, Environment, EnvironmentVersion
from tests.environments.packages import make_files

API = "/api/v1/environments"


def test_a_script_pushes_and_publishes(author: TestClient, guess: Environment):
    changed = make_files() | {"README.md": "# New\n"}
    draft = author.put(f"{API}/guess/draft", json={"files": changed, "revision": 1}).json()
    assert (draft["revision"], draft["validation"]["is_publishable"]) == (2, True)
    published = author.post(f"{API}/guess/publish", json={"notes": "First.", "revision": 2})
    assert published.status_code == 201
    assert published.json()["number"] == 1
    assert published.json()["columns"][0] == {"name": "win", "weight": 1.0, "over_episode": "sum", "range": None}
    assert author.get(f"{API}/guess/versions/1").json()["files"] == changed
    assert author.get(f"{API}/guess").json()["is_draft_published"] is True
    assert author.post(f"{API}/guess/publish", json={}).status_code == 409


def test_a_push_onto_a_draft_that_moved_on_is_reported(author: TestClient, guess: Environment):
    first = make_files() | {"README.md": "first"}
    assert author.put(f"{API}/guess/draft", json={"files": first, "revision": 1}).status_code == 200
    answer = author.put(f"{API}/guess/draft", json={"files": make_files(), "revision": 1})
    assert (answer.status_code, answer.json()["error"]) == (409, "DraftChanged")
    assert author.put(f"{API}/guess/draft", json={"files": make_files()}).status_code == 200


@pytest.mark.parametrize("files", [{}, {"a.py": ""}, {"openenv.yaml": "", "../x": ""}, {"openenv.yaml": "\x00"}])
def test_a_push_of_what_is_no_package_is_refused(author: TestClient, guess: Environment, files: dict[str, str]):
    assert author.put(f"{API}/guess/draft", json={"files": files}).status_code == 422


def test_a_push_of_half_a_character_is_refused(author: TestClient, guess: Environment):
    body = '{"files": {"openenv.yaml": "\\ud800"}}'
    answer = author.put(f"{API}/guess/draft", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422


def test_a_script_validates_without_storing(viewer: TestClient):
    files = make_files() | {"server/app.py": "app = (\n"}
    answer = viewer.post(f"{API}/validate", json={"files": files, "name": "guess"}).json()
    assert answer["is_publishable"] is False
    assert (answer["problems"][0]["path"], answer["problems"][0]["line"]) == ("server/app.py", 1)
    assert viewer.get(API).json()["items"] == []


def test_a_script_has_the_history_graded_again(session: Session, author: TestClient, guess: Environment):
    assert author.post(f"{API}/guess/publish", json={"regrade": True}).status_code == 201
    (job,) = session.scalars(select(Job).where(Job.name == "rescoring.history"))
    assert job.arguments["person_id"] == author.get("/api/v1/me").json()["person_id"]


def test_publishing_names_every_problem(author: TestClient, guess: Environment):
    files = make_files("other") | {"server/app.py": "app = (\n"}
    author.put(f"{API}/guess/draft", json={"files": files})
    answer = author.post(f"{API}/guess/publish", json={})
    assert answer.status_code == 422
    assert set(answer.json()["fields"]) == {"openenv.yaml:2", "server/app.py:1"}


def test_the_zip_is_the_version(viewer: TestClient, version: EnvironmentVersion):
    assert unpack(viewer.get(f"{API}/guess/versions/1/files").content) == make_files()


def test_checks_are_started_once_and_their_certificate_is_read(
    session: Session, author: TestClient, version: EnvironmentVersion
):
    assert author.get(f"{API}/guess/versions/1/certificate").status_code == 404
    first = author.post(f"{API}/guess/versions/1/checks")
    assert first.status_code == 201
    assert author.post(f"{API}/guess/versions/1/checks").json()["run_id"] == first.json()["run_id"]
    run = start_check(session, None, version, "guess")
    run.status = RunStatus.COMPLETED
    result = CheckResult("no_nan", "No reward is NaN.", CheckStatus.PASSED, "0 of 64.")
    passed = CheckStatus.PASSED
    session.add(Certificate(version_id=version.id, run_id=run.id, status=passed, results=[asdict(result)]))
    session.flush()
    session.expire(version, ["certificate"])  # read in this session before
    certificate = author.get(f"{API}/guess/versions/1/certificate").json()
    assert (certificate["status"], certificate["results"][0]["evidence"]) == ("passed", "0 of 64.")
    assert author.get(f"{API}/guess/versions/1/checks").json()["items"][0]["certificate"] == "passed"
    assert author.get(f"{API}/guess/versions").json()["items"][0]["certificate"] == "passed"


def test_it_is_archived_and_brought_back(author: TestClient, version: EnvironmentVersion):
    assert author.post(f"{API}/guess/archive").json()["archived_at"]
    assert author.get(API).json()["items"] == []
    assert author.get(API, params={"archived": True}).json()["items"][0]["name"] == "guess"
    assert author.put(f"{API}/guess/draft", json={"files": make_files()}).status_code == 409
    assert author.post(f"{API}/guess/restore").json()["archived_at"] is None


def test_a_viewer_reads_and_changes_nothing(viewer: TestClient, version: EnvironmentVersion):
    for path in ("", "/guess", "/guess/draft", "/guess/versions", "/guess/versions/1"):
        assert viewer.get(f"{API}{path}").status_code == 200
    assert viewer.put(f"{API}/guess/draft", json={"files": make_files()}).status_code == 403
    for path in ("publish", "archive", "restore", "versions/1/checks", "play"):
        assert viewer.post(f"{API}/guess/{path}", json={}).status_code == 403


def test_what_is_not_there_is_404(author: TestClient, version: EnvironmentVersion):
    for path in (
        "nothing",
        "nothing/draft",
        "guess/versions/2",
        "guess/versions/2/files",
        "guess/versions/2/certificate",
    ):
        assert author.get(f"{API}/{path}").status_code == 404
    assert author.post(f"{API}/nothing/publish", json={}).status_code == 404


def test_an_agent_writes_a_draft_file_by_file(author: TestClient, guess: Environment):
    url = f"{API}/guess/draft/file"
    read = author.get(url, params={"path": "README.md"}).json()
    assert (read["text"], read["revision"]) == (make_files()["README.md"], 1)
    broken = author.put(url, json={"path": "server/app.py", "text": "app = (\r\n", "revision": 1}).json()
    assert (broken["revision"], broken["validation"]["is_publishable"]) == (2, False)
    assert author.put(url, json={"path": "a.py", "text": "", "revision": 1}).status_code == 409
    author.put(url, json={"path": "server/app.py", "text": make_files()["server/app.py"]})
    author.put(url, json={"path": "notes.md", "text": "New"})
    assert author.get(f"{API}/guess/draft").json()["files"] == make_files() | {"notes.md": "New"}
    deleted = author.delete(url, params={"path": "notes.md"})
    assert (deleted.status_code, deleted.json()["revision"]) == (200, 5)
    assert author.get(url, params={"path": "notes.md"}).status_code == 404
    assert author.delete(url, params={"path": "openenv.yaml"}).status_code == 422


def test_versions_and_the_draft_are_compared(author: TestClient, version: EnvironmentVersion):
    author.put(f"{API}/guess/draft/file", json={"path": "README.md", "text": "# New\n\nNewer\n"})
    [changed] = author.get(f"{API}/guess/diff").json()["files"]
    assert (changed["path"], changed["change"]) == ("README.md", "changed")
    page = author.get("/environments/guess/diff").text
    assert "1 file. Lines added: 3, removed: 1." in page
    assert "+3 −1" in page
    assert author.get(f"{API}/guess/diff", params={"before": "1", "after": "1"}).json()["files"] == []
    assert author.get(f"{API}/guess/diff", params={"before": "9"}).status_code == 404
    assert author.get(f"{API}/guess/diff", params={"before": "x"}).status_code == 404


def test_an_environment_is_named_by_its_id_too(viewer: TestClient, guess: Environment):
    assert viewer.get(f"{API}/{guess.id}").json()["name"] == "guess"
